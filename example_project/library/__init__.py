"""A small document library: files come in, are read, counted, compared and found again."""
