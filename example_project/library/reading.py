"""Functions from bytes to text, chapters, counts and fingerprints, without Django or a database.

Two texts are near-duplicates if they share most of their *shingles*, which are the runs of five
words at every position. A text has about as many shingles as words, so only a sample is kept: the
shingles with the smallest hashes. Equal shingles have equal hashes, so two texts that are alike
keep nearly the same sample. The common share of the samples is an estimate of the common share of
the texts (a bottom-k sketch, after Broder). A hash is one number, so a database can count the
hashes that two samples share.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SHINGLE_WORDS = 5
FINGERPRINTS = 128
COMMON_WORDS = 5
COMMON_WORDS_OF_A_CHAPTER = 100
CHAPTER_CHARACTERS = 20_000
WORD = re.compile(r"\w+")
LETTERS = re.compile(r"[^\W\d_]{4,}")


class NotText(Exception):  # noqa: N818 - says what the bytes are not
    """The bytes are not a text that the library can store.

    ``position`` is that of the first byte that is wrong.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Measured:
    """The counts and the fingerprints of a chapter or of a whole text."""

    lines: int
    words: int
    characters: int
    common: list[tuple[str, int]]
    fingerprints: list[int]


def decode(content: bytes) -> str:
    """Return the text of UTF-8 bytes with all its characters.

    Raises NotText if the bytes are not UTF-8 or contain a NUL byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        message = f"byte 0x{byte:02x} at position {error.start:,} is not UTF-8 ({error.reason})"
        raise NotText(message, error.start) from error

    # NUL is a character of UTF-8, but PostgreSQL's text cannot contain it.
    if (position := content.find(0)) >= 0:
        raise NotText(f"byte 0x00 at position {position:,} does not belong into a text", position)

    return text


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def chapters(text: str) -> Iterator[str]:
    """Yield the chapters of a text, which are cut at ends of lines.

    They have at least CHAPTER_CHARACTERS; only the last one may be shorter.
    """
    chapter: list[str] = []
    size = 0

    for line in text.splitlines(keepends=True):
        chapter.append(line)
        size += len(line)
        if size >= CHAPTER_CHARACTERS:
            yield "".join(chapter)
            chapter = []
            size = 0

    if chapter:
        yield "".join(chapter)


def measure(chapter: str) -> Measured:
    """Return the counts and the fingerprints of a chapter."""
    lowered = chapter.lower()
    words = WORD.findall(lowered)
    common = Counter(LETTERS.findall(lowered)).most_common(COMMON_WORDS_OF_A_CHAPTER)
    return Measured(
        len(chapter.splitlines()), len(words), len(chapter), common, fingerprints(words)
    )


def combine(measured: Iterable[Measured]) -> Measured:
    """Return the counts and the fingerprints of a text, computed from those of its chapters.

    Shingles across two chapters are not included.
    """
    lines = words = characters = 0
    common: Counter[str] = Counter()
    hashes: set[int] = set()

    for chapter in measured:
        lines += chapter.lines
        words += chapter.words
        characters += chapter.characters

        common.update(dict(chapter.common))
        hashes = set(heapq.nsmallest(FINGERPRINTS, hashes | set(chapter.fingerprints)))

    return Measured(lines, words, characters, common.most_common(COMMON_WORDS), sorted(hashes))


def fingerprints(words: list[str]) -> list[int]:
    """Return the smallest hashes of the shingles of ``words``.

    The list is empty if there are fewer words than a shingle has.
    """
    starts = range(len(words) - SHINGLE_WORDS + 1)
    shingles = {" ".join(words[start : start + SHINGLE_WORDS]) for start in starts}
    return heapq.nsmallest(FINGERPRINTS, map(hash64, shingles))


def hash64(shingle: str) -> int:
    """Return a hash that is the same in every process, in the range of a bigint."""
    return int.from_bytes(
        hashlib.blake2b(shingle.encode(), digest_size=8).digest(), "big", signed=True
    )
