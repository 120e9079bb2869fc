"""A phrase to search for, taken from a text: a few plain words that stand together in one line."""

from __future__ import annotations

import re

PLAIN_WORDS = re.compile(r"(?:^|(?<=\s))[A-Za-z]{3,15}(?: [A-Za-z]{3,15}){4,6}(?=\s|$)", re.MULTILINE)


def first_phrase(text: str) -> str | None:
    """Return the first phrase of a text, or None."""
    found = PLAIN_WORDS.search(text)
    return found.group() if found else None
