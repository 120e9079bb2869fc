"""Ids in addresses and searches."""

from __future__ import annotations

import uuid


def parse_id(term: str) -> uuid.UUID | None:
    """Return the id in a text, or None if it is not an id."""
    try:
        return uuid.UUID(term.strip())
    except ValueError:
        return None
