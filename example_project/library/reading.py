"""From bytes to text, chapters, counts and fingerprints; no database, no Django.

Two texts are near-duplicates when they share most of their *shingles*, the runs of five words at
every position. A text has as many shingles as words, so only a sample is kept: the shingles whose
hash is among the smallest. Equal shingles have equal hashes, so two texts that are alike keep
nearly the same sample, and the common share of the samples estimates the common share of the texts
(a bottom-k sketch, after Broder). A hash is one number: a database can count what two share.
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
    """These bytes are no text that the library can keep; ``position`` is the byte that says so."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Measured:
    """What can be counted in a chapter or in a whole text, and its fingerprints."""

    lines: int
    words: int
    characters: int
    common: list[tuple[str, int]]
    fingerprints: list[int]


def decode(content: bytes) -> str:
    """Return the text of UTF-8 bytes, every character kept. Raises NotText."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        message = f"byte 0x{byte:02x} at position {error.start:,} is not UTF-8 ({error.reason})"
        raise NotText(message, error.start) from error

    # NUL is a character of UTF-8, but PostgreSQL's text cannot hold it.
    if (position := content.find(0)) >= 0:
        raise NotText(f"byte 0x00 at position {position:,} does not belong into a text", position)

    return text


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def chapters(text: str) -> Iterator[str]:
    """Cut a text at ends of lines into chapters of at least CHAPTER_CHARACTERS; the last one may be
    shorter.
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
    """Count and fingerprint a chapter."""
    lowered = chapter.lower()
    words = WORD.findall(lowered)
    common = Counter(LETTERS.findall(lowered)).most_common(COMMON_WORDS_OF_A_CHAPTER)
    return Measured(
        len(chapter.splitlines()), len(words), len(chapter), common, fingerprints(words)
    )


def combine(measured: Iterable[Measured]) -> Measured:
    """Make the counts and fingerprints of a text of those of its chapters; shingles across two
    chapters are left out.
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
    """Return the smallest hashes of the shingles of ``words``; none where there are fewer words
    than a shingle has.
    """
    starts = range(len(words) - SHINGLE_WORDS + 1)
    shingles = {" ".join(words[start : start + SHINGLE_WORDS]) for start in starts}
    return heapq.nsmallest(FINGERPRINTS, map(hash64, shingles))


def hash64(shingle: str) -> int:
    """Return a hash that is the same in every process, in the range of a bigint."""
    return int.from_bytes(
        hashlib.blake2b(shingle.encode(), digest_size=8).digest(), "big", signed=True
    )
