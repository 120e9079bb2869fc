"""Shapes, which encode values of one declared type as JSON and decode them.

A Shape has two functions, ``dump`` and ``load``, which do not get the position of the value. An
error begins with an empty path, and each container through which it is raised adds a step. So paths
take no time if there is no error.

Arguments and results of tasks are stored as they were written. Values of workflows, signals,
schedules and steps are jsonb, which changes some numbers. -0.0 becomes 0.0, and a float without a
fraction, such as 1e16 or 1e308, may become an integer literal. So a float is decoded from both
forms. Under ``Any`` and ``int | float``, such a value becomes an int.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

from horsies_django.core.codec.errors import CodecError
from horsies_django.core.codec.jsondata import plain_json, too_deep


@dataclass(slots=True, eq=False)
class Record:
    """The properties by which two classes of objects in JSON are distinguished.

    ``names`` are the field names, ``required`` those of required fields, and ``choices`` the values
    of fields with few possible values.
    """

    names: frozenset[str]
    required: frozenset[str]
    choices: dict[str, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Shape:
    """The compiled form of one declared type.

    ``accepts`` checks only the outermost type of a value. ``kinds`` are the types of its JSON after
    ``json.loads``. ``plain`` is True if ``load`` returns the JSON data unchanged. ``values`` are
    all possible JSON values if there are only a few, and None otherwise.
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
        """Return ``value`` as plain JSON data. Raises CodecError if it cannot be encoded."""
        return at(path, self.dump, value)

    def decode(self, stored: Any, path: str) -> Any:
        """Return the value of stored JSON data. Raises CodecError if it does not fit the type."""
        return at(path, self.load, stored)


def at(path: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Return ``convert(value)``. Raises CodecError, with the position ``path``, if that fails."""
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
    plain_json,
    lambda stored: stored,
    plain=True,
)
