"""All SQL statements of the project, and the only package that opens cursors."""
