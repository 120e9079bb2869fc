"""A small document library, in which files are imported, measured, compared and searched."""
