"""Types of command-line options that are numbers, with error messages."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """Parse an option that takes seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10_000_000:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def port(text: str) -> int:
    """Parse an option that takes a TCP port; 0 means any free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


def megabytes(text: str) -> float:
    """Parse an option that takes megabytes."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 10_000_000:
        raise ArgumentTypeError(f"{text!r} is not a number of megabytes")
    return value
