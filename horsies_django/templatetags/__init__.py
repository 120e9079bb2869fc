"""Template tags of the admin."""
