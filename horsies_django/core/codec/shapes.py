"""Shapes: how values of one declared type are encoded as JSON and decoded, and which values JSON cannot contain.

A Shape has two functions, ``dump`` and ``load``, which do not know their position. An error starts with an empty path, and each
container that it passes adds its own step, so that paths cost nothing without an error. Messages contain types and positions but
no values, because they are logged.

Arguments and results of tasks are stored as they were written. Values of workflows, signals, schedules and steps are jsonb, which
changes some numbers: -0.0 becomes 0.0, and a float without a fraction may become an integer literal (1e16, 1e308). So a float
is decoded from both; under ``Any`` and ``int | float`` such a value is an int.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

from horsies_django.core.errors import HorsiesError

MAX_DEPTH = 200  # what was encoded must be decodable even with less stack left
MAX_DIGITS = 4300  # Python refuses to parse longer ints
BIG = 10**MAX_DIGITS
PLAIN_TYPES = "None, bool, int, float, str, list or dict"


class CodecError(HorsiesError):
    """A value cannot be encoded, or stored JSON cannot be decoded.

    ``path`` is its position ("order.lines[3].price"). ``kind`` is "type" if the value does not have the declared type, "value" if
    it does but cannot be encoded.
    """

    def __init__(self, problem: str, kind: str = "type", path: str = "", subject: str = "argument") -> None:
        super().__init__(problem, kind, path, subject)
        self.problem = problem
        self.kind = kind
        self.path = path
        self.subject = subject

    def within(self, step: str) -> CodecError:
        """Prepend ``step`` to the path; return the same error."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.subject} '{self.path}': {self.problem}" if self.path else f"{self.subject}: {self.problem}"


class ModelRefused(CodecError):
    """The value is a model instance. Its row may change before the task runs, so its key must be sent instead."""

    def __str__(self) -> str:
        if self.subject != "argument":
            return f"{self.subject} {self.path and repr(self.path) + ' '}is a model instance ({self.problem}): return its pk"
        return f"argument '{self.path}' is a model instance ({self.problem}): pass {self.path}.pk"


@dataclass(slots=True, eq=False)
class Record:
    """What distinguishes two dataclasses: their field names, the required ones, and fields with few values."""

    names: frozenset[str]
    required: frozenset[str]
    choices: dict[str, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Shape:
    """One declared type, compiled.

    ``accepts`` checks only the outermost type of a value. ``kinds`` are the types of its JSON after ``json.loads``. ``plain``:
    ``load`` changes nothing. ``values`` are all possible JSON values, if there are only a few.
    """

    name: str
    kinds: frozenset[type]
    accepts: Callable[[Any], bool]
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    plain: bool = False
    values: tuple[Any, ...] | None = None
    record: Record | None = None

    def encode(self, value: Any, path: str) -> Any:
        """Return ``value`` as plain JSON data. Raises CodecError."""
        try:
            return self.dump(value)
        except CodecError as error:
            error.within(path)
            raise
        except RecursionError:
            raise too_deep().within(path) from None

    def decode(self, stored: Any, path: str) -> Any:
        """Return the value that ``encode`` wrote as ``stored``. Raises CodecError."""
        try:
            return self.load(stored)
        except CodecError as error:
            error.within(path)
            raise
        except RecursionError:
            raise too_deep().within(path) from None


def misfit(expected: str, value: Any) -> CodecError:
    """Return the error for a value that does not have the declared type."""
    cls = type(value)
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return ModelRefused(cls.__name__)
    got = "None" if value is None else cls.__name__
    if got == "__proxy__":  # the class of Django's lazy texts
        got = "a lazy text, which means another one in each language: give str() of it"
    if got == expected:
        got = f"another class of that name, {cls.__module__}.{cls.__qualname__}"
    return CodecError(f"expected {expected}, got {got}")


def too_deep() -> CodecError:
    """Return the error for a value that is nested too deeply."""
    return CodecError(f"it is nested more than {MAX_DEPTH} levels deep, or contains itself", "value")


def check_text(text: str) -> None:
    """Raise CodecError for a text that PostgreSQL cannot store."""
    if "\x00" in text:
        raise CodecError("the text has a NUL byte (\\x00), which PostgreSQL cannot hold", "value")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CodecError(
                f"the text has a lone surrogate (character {error.start}), so it is not valid Unicode", "value"
            ) from None


def check_int(number: int) -> None:
    """Raise CodecError for an int that is too large to be parsed."""
    if not -BIG < number < BIG:
        raise CodecError(
            f"an int of more than {MAX_DIGITS} digits cannot be encoded as JSON: send it as a str", "value"
        )


def check_float(number: float) -> None:
    """Raise CodecError for a float that JSON cannot represent."""
    if not math.isfinite(number):
        name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        raise CodecError(f"{name} is not valid JSON", "value")


def check_key(key: Any) -> None:
    """Raise CodecError for an invalid key of a JSON object."""
    if not isinstance(key, str):
        raise CodecError(f"a key is of type {type(key).__name__}; the keys of a JSON object are str")
    if "\x00" in key or not key.isascii():
        try:
            check_text(key)
        except CodecError as error:
            raise CodecError(f"a key: {error.problem}", "value") from None


def key_step(place: int) -> str:
    """Return the key at a place of an object, counted from 0, as a step of a path. A key is data, which no message shows."""
    return f"[key {place + 1}]"


def check_plain(value: Any, depth: int = 0) -> Any:
    """Return ``value`` if it is plain JSON data at every level. Raises CodecError."""
    if isinstance(value, str):
        check_text(value)
    elif value is None or isinstance(value, bool):
        pass
    elif isinstance(value, int):
        check_int(value)
    elif isinstance(value, float):
        check_float(value)
    elif isinstance(value, list | dict):
        if depth >= MAX_DEPTH:
            raise too_deep()
        _check_items(value, depth + 1)
    elif isinstance(value, tuple):
        raise CodecError("a tuple would come back as a list: pass a list, or declare tuple[...]")
    else:
        raise misfit(f"plain JSON ({PLAIN_TYPES})", value)
    return value


def _check_items(value: list[Any] | dict[Any, Any], depth: int) -> None:
    if isinstance(value, dict):
        for place, (key, item) in enumerate(value.items()):
            check_key(key)
            try:
                check_plain(item, depth)
            except CodecError as error:
                error.within(key_step(place))
                raise
    else:
        for index, item in enumerate(value):
            try:
                check_plain(item, depth)
            except CodecError as error:
                error.within(f"[{index}]")
                raise


ANY = Shape(
    "Any",
    frozenset({NoneType, bool, int, float, str, list, dict}),
    lambda value: value is None or isinstance(value, bool | int | float | str | list | dict),
    check_plain,
    lambda stored: stored,
    plain=True,
)
