"""Shared parts of the commands: types of options, the name for the audit, and errors."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import re
import socket
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError

from horsies_django.core.texts import visible

UNIT_LETTERS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


class Terminal(OutputWrapper):
    """A stream that prints no control sequences, whatever a row or a message contains.

    Text that Django passes with a style, such as the results of system checks, is already coloured
    and is printed unchanged.
    """

    def write(  # type: ignore[override]
        self, msg: str = "", style_func: Any = None, ending: str | None = None
    ) -> None:
        text = visible(msg, keep="\n\t") if style_func is None else msg
        super().write(text, style_func, ending)


class Command(BaseCommand):
    """The base of our commands. All their output, including errors, is safe for a terminal."""

    @property
    def stdout(self) -> Any:
        return self._stdout

    @stdout.setter
    def stdout(self, stream: Any) -> None:
        self._stdout = Terminal(stream._out)

    @property
    def stderr(self) -> Any:
        return self._stderr

    @stderr.setter
    def stderr(self, stream: Any) -> None:
        self._stderr = Terminal(stream._out)


def parse_duration(text: str) -> dt.timedelta | None:
    """Return the duration in a text such as "2h" or "1d12h", or None if the text is no duration.

    Raises OverflowError if it is too long.
    """
    if not re.fullmatch(r"(\d+[wdhms])+", text):
        return None
    return dt.timedelta(
        **{UNIT_LETTERS[unit]: int(count) for count, unit in re.findall(r"(\d+)([wdhms])", text)}
    )


def duration_option(text: str) -> dt.timedelta:
    """Parse an option that takes a duration, such as "2h" or a number of seconds."""
    try:
        found = dt.timedelta(seconds=int(text)) if text.isdecimal() else parse_duration(text)
    except OverflowError:
        found = None

    if found is None:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; use 30s, 2h, 7d, 1d12h, or a number of seconds"
        )
    return found


def ago(text: str) -> dt.datetime:
    """Parse an option that takes a time in the past.

    The text is a duration before now, or a datetime with a time zone.
    """
    return read_moment(
        text, -1, "a duration nor a datetime; use 30m, 2h, 7d, or 2030-01-31T18:00+01:00"
    )


def read_moment(text: str, sign: int, wrong: str) -> dt.datetime:
    """Parse a datetime with a time zone, or a duration.

    The duration is multiplied by ``sign`` and added to now.
    """
    try:
        found = parse_duration(text)
        moment = (
            dt.datetime.fromisoformat(text)
            if found is None
            else dt.datetime.now(dt.UTC) + sign * found
        )
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is neither {wrong}") from None

    if moment.utcoffset() is None:
        raise ArgumentTypeError(f"{text!r} has no time zone; add it, as in {text}+00:00")
    return moment


def whole_number_type(least: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def number_type(unit: str, *, or_zero: bool) -> Callable[[str], float]:
    """Return the type of an option that takes a positive number that is not very large.

    With ``or_zero``, the number may also be zero.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0

        if not 0 <= value < 10_000_000 or not (value or or_zero):
            raise ArgumentTypeError(f"{text!r} is not a number of {unit}")
        return value

    return parse


seconds_type = number_type("seconds", or_zero=True)
megabytes_type = number_type("megabytes", or_zero=False)


def port(text: str) -> int:
    """Parse an option that takes a TCP port, where 0 chooses a free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


def read_json_option(option: str, text: str) -> Any:
    """Return the value of an option that takes JSON. Raises ValueError if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} must be JSON: {error}") from error


def actor() -> str:
    """Return the name of the user for the audit.

    In a container, the user may have no login name.
    """
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):
        login = "unknown"
    return f"shell:{login}@{socket.gethostname()}"


def verbs_of(parser: ArgumentParser, *, required: bool) -> Callable[[str, str], ArgumentParser]:
    """Return a function that adds a verb to a command.

    The option ``--json`` may stand before or after the verb.
    """
    parser.add_argument("--json", action="store_true", help="print JSON")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=required)

    def verb(name: str, help_: str) -> ArgumentParser:
        made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
        made.add_argument("--json", action="store_true", default=SUPPRESS, help="print JSON")
        return made

    return verb


def add_reason(parser: ArgumentParser) -> ArgumentParser:
    """Add the option for the reason of a change, and return the parser."""
    parser.add_argument("--reason", metavar="TEXT", help="the reason, recorded in the audit")
    return parser


@contextmanager
def refusing(command: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise CommandError for errors of these kinds, for wrong settings, and for database errors.

    The text for a database error contains advice.
    """
    refused: tuple[type[Exception], ...] = (*kinds, ImproperlyConfigured)
    try:
        yield
    except refused as error:
        raise CommandError(f"{command}: {error}") from error
    except DatabaseError as error:
        advice = "Check that it is running and that 'migrate' has been run"
        raise CommandError(
            f"{command}: the database refused the command: {str(error).strip()}. {advice}"
        ) from error
