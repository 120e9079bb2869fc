"""What the library's tasks return; values of these types travel as JSON and come back as
themselves.
"""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What sort of text a document is, told by its name."""

    PYTHON = "python"
    LICENSE = "license"
    TEXT = "text"

    @classmethod
    def of(cls, name: str) -> Kind:
        """Tell the kind by the name of a file."""
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
    """A file became a document; it is new unless the library had published the same one before."""

    document_id: int
    path: str
    kind: Kind
    size: int
    digest: str
    is_new: bool


@dataclass(frozen=True)
class Chapter:
    """A part of a document, in characters."""

    document_id: int
    start: int
    length: int


@dataclass(frozen=True)
class Counts:
    """What was counted in a text."""

    lines: int
    words: int
    characters: int


@dataclass(frozen=True)
class Indexed:
    """A document can be searched and compared."""

    document_id: int
    counts: Counts
    common_words: list[tuple[str, int]]
    fingerprints: int
    indexed_at: dt.datetime


@dataclass(frozen=True)
class Verified:
    """The site served a document exactly as it was stored."""

    document_id: int
    url: str
    size: int
    digest: str
    checked_at: dt.datetime
