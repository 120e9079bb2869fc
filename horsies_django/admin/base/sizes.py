"""How much of something a page of the admin shows."""

from __future__ import annotations

FEW = 5  # things named in one line
LAST = 20  # of what goes on and on, the newest
MANY = 100  # rows of a table on the page of something else
LONGEST_CELL, LONGEST_NAME = 100, 200  # characters
PATIENCE_MS = 1_000  # longer, and a page is shown without the reasons
