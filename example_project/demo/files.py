"""The files of the demo.

They are sources of the running Python, license texts, and some files that are not UTF-8.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path

MOST_FILES = 300
LARGEST_BYTES = 300_000
LICENSES = 60
NOT_UTF8 = 4
PER_REQUEST = 40
# Tests are most of a Python installation, and of little use in a library. The fixtures that are not
# UTF-8 are among them.
LEFT_OUT = {"__pycache__", "idle_test", "site-packages", "dist-packages", "test", "tests"}


@dataclass(frozen=True)
class File:
    """A file to upload: its folder and name in the library, and its bytes."""

    folder: str
    name: str
    content: bytes

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


# "Größe", "naïve" and "résumé" with one byte for each letter, as in files from before UTF-8.
SAMPLE = File(
    "sample",
    "latin-1.txt",
    "Größe, naïve, résumé: a sample that this demo made.\n".encode("latin-1"),
)


def choose(most: int) -> list[File]:
    """Return at most ``most`` files, sorted by folder and name.

    Some are not UTF-8, some are licenses, and the rest are sources.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    odd = list(islice(not_utf8(stdlib), min(NOT_UTF8, max(1, most // 10)))) or [SAMPLE]
    licenses = list(islice(license_texts(stdlib), min(LICENSES, most // 5)))

    rest = most - len(odd) - len(licenses)
    chosen = chain(odd, licenses, islice(sources(stdlib), max(0, rest)))
    return sorted(chosen, key=lambda file: (file.folder, file.name))


def batches(files: list[File]) -> Iterator[list[File]]:
    """Yield the files in the order of the list, in batches.

    A batch has as many files as one request can send to one folder.
    """
    for _, group in groupby(files, key=lambda file: file.folder):
        while batch := list(islice(group, PER_REQUEST)):
            yield batch


def sources(stdlib: Path) -> Iterator[File]:
    """Yield the modules of the standard library.

    Those of its encodings come first, because many of them are nearly the same.
    """
    for path in sorted(
        stdlib.rglob("*.py"), key=lambda path: (path.parent.name != "encodings", path)
    ):
        inside = path.relative_to(stdlib)
        if not LEFT_OUT & set(inside.parts) and (
            file := read(path, f"python/{inside.parent.as_posix()}")
        ):
            yield file


def license_texts(stdlib: Path) -> Iterator[File]:
    """Yield the license of Python and those of the installed packages."""
    if (own := stdlib / "LICENSE.txt").is_file() and (file := read(own, "licenses/python")):
        yield file

    packages = Path(sysconfig.get_path("purelib"))
    for path in sorted(packages.glob("*.dist-info/**/*")):
        if path.is_file() and path.name.upper().startswith(
            ("LICENSE", "LICENCE", "COPYING", "NOTICE")
        ):
            package, *inside = path.parent.relative_to(packages).parts
            folder = [
                package.removesuffix(".dist-info"),
                *(part for part in inside if part != "licenses"),
            ]

            if file := read(path, f"licenses/{'/'.join(folder)}"):
                yield file


def not_utf8(stdlib: Path) -> Iterator[File]:
    """Yield the sources of the standard library that are in older encodings.

    They are among its tests. An installation without the tests may have none.
    """
    for folder in ("encoded_modules", "tokenizedata", "."):
        for path in sorted((stdlib / "test" / folder).glob("*.py")):
            file = read(path, f"python/{path.parent.relative_to(stdlib).as_posix()}")
            if file and not is_utf8(file.content):
                yield file


def is_utf8(content: bytes) -> bool:
    """Return whether the bytes are UTF-8."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read(path: Path, folder: str) -> File | None:
    """Return a file with its bytes, or None if it is too large or cannot be read."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        return File(folder.removesuffix("/."), path.name, path.read_bytes())
    except OSError:
        return None
