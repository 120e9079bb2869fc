"""Shapes: how values of one declared type are encoded as JSON and decoded.

A Shape has two functions, ``dump`` and ``load``, which do not know their position. An error starts
with an empty path, and each container that it passes adds its own step, so that paths cost nothing
without an error.

Arguments and results of tasks are stored as they were written. Values of workflows, signals,
schedules and steps are jsonb, which changes some numbers: -0.0 becomes 0.0, and a float without a
fraction may become an integer literal (1e16, 1e308). So a float is decoded from both; under ``Any``
and ``int | float`` such a value is an int.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

from horsies_django.core.codec.errors import CodecError
from horsies_django.core.codec.jsondata import plain, too_deep


@dataclass(slots=True, eq=False)
class Record:
    """What distinguishes two classes of objects: their field names, the required ones, and fields
    with few values.
    """

    names: frozenset[str]
    required: frozenset[str]
    choices: dict[str, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Shape:
    """One declared type, compiled.

    ``accepts`` checks only the outermost type of a value. ``kinds`` are the types of its JSON after
    ``json.loads``. ``plain``: ``load`` changes nothing. ``values`` are all possible JSON values, if
    there are only a few.
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
        return at(path, self.dump, value)

    def decode(self, stored: Any, path: str) -> Any:
        """Return the value that ``encode`` wrote as ``stored``. Raises CodecError."""
        return at(path, self.load, stored)


def at(path: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Return ``convert(value)``. Raises CodecError with the position ``path``."""
    try:
        return convert(value)
    except CodecError as error:
        error.within(path)
        raise
    except RecursionError:
        raise too_deep().within(path) from None


def passes(convert: Callable[[Any], Any], value: Any) -> bool:
    """Return whether ``convert`` accepts a value."""
    try:
        convert(value)
    except CodecError:
        return False
    return True


ANY = Shape(
    "Any",
    frozenset({NoneType, bool, int, float, str, list, dict}),
    lambda value: value is None or isinstance(value, bool | int | float | str | list | dict),
    plain,
    lambda stored: stored,
    plain=True,
)
