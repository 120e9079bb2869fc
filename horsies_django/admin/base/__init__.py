"""Shared parts of the admin pages: HTML, read-only pages, change forms, and database errors."""
