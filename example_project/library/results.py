"""The types of the results of the library's tasks.

Their values are stored as JSON and decoded as values of the same types.
"""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """The kind of text that a document is, by its name."""

    PYTHON = "python"
    LICENSE = "license"
    TEXT = "text"

    @classmethod
    def of(cls, name: str) -> Kind:
        """Return the kind of a file with this name."""
        lowered = name.lower()
        if lowered.endswith((".py", ".pyi")):
            return cls.PYTHON
        return (
            cls.LICENSE
            if lowered.startswith(("license", "licence", "copying", "notice"))
            else cls.TEXT
        )


@dataclass(frozen=True)
class Imported:
    """A file that became a document; it is new unless the same one was published before."""

    document_id: int
    path: str
    kind: Kind
    size: int
    digest: str
    is_new: bool


@dataclass(frozen=True)
class Chapter:
    """A part of a document; ``start`` and ``length`` are in characters."""

    document_id: int
    start: int
    length: int


@dataclass(frozen=True)
class Counts:
    """The counts of a text."""

    lines: int
    words: int
    characters: int


@dataclass(frozen=True)
class Indexed:
    """A document that can be searched and compared."""

    document_id: int
    counts: Counts
    common_words: list[tuple[str, int]]
    fingerprints: int
    indexed_at: dt.datetime


@dataclass(frozen=True)
class Verified:
    """A document that the site served exactly as it was stored."""

    document_id: int
    url: str
    size: int
    digest: str
    checked_at: dt.datetime
