"""Every SQL statement of the house, and the only floor that opens cursors."""
