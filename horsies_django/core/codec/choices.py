"""The shapes of Enum and Literal, which are stored as their plain values."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.shapes import Shape


def enum_shape(cls: type[enum.Enum], write: Callable[[Any], Any]) -> Shape:
    """Return the shape of an Enum. ``write`` returns the plain value of a member, or raises."""
    name = cls.__name__
    stored_by_member = {member: write(member.value) for member in cls}
    member_by_key = {scalar_key(stored): member for member, stored in stored_by_member.items()}
    joins = issubclass(cls, enum.Flag)

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise misfit(name, value)
        return value.value if joins else stored_by_member[value]

    def load(stored: Any) -> Any:
        if type(stored) in (bool, int, float, str) or stored is None:
            member = member_by_key.get(scalar_key(stored))
            if member is not None:
                return member
            if joins and type(stored) is int:
                with contextlib.suppress(ValueError):
                    joined = cls(stored)
                    if joined.value == stored:  # early releases of Python 3.11 drop unknown bits
                        return joined
        raise CodecError(f"the stored {type(stored).__name__} is not the value of any member of {name}")

    kinds = frozenset(type(stored) for stored in stored_by_member.values())
    if joins or float in kinds:
        kinds |= {int}
    values = None if joins else tuple(stored_by_member.values())
    return Shape(name, kinds, lambda value: isinstance(value, cls), dump, load, values=values)


def literal_shape(options: Sequence[tuple[Any, Any]]) -> Shape:
    """Return the shape of a Literal; each option is a value and its plain JSON value."""
    name = f"Literal[{', '.join(str(value) if isinstance(value, enum.Enum) else repr(value) for value, _ in options)}]"
    value_by_key = {scalar_key(stored): value for value, stored in options}

    def find(value: Any) -> tuple[Any, Any] | None:
        for option in options:
            wanted = option[0]
            alike = isinstance(value, type(wanted)) and isinstance(value, bool) == isinstance(wanted, bool)
            if alike and value == wanted:
                return option
        return None

    def dump(value: Any) -> Any:
        if (option := find(value)) is not None:
            return option[1]
        if isinstance(value, bool | int | str):
            raise CodecError(f"expected {name}, got another {type(value).__name__}")
        raise misfit(name, value)

    def load(stored: Any) -> Any:
        if type(stored) in (bool, int, str) or stored is None:
            key = scalar_key(stored)
            if key in value_by_key:
                return value_by_key[key]
        raise CodecError(f"the stored {type(stored).__name__} is none of {name}")

    return Shape(
        name,
        frozenset(type(stored) for _, stored in options),
        lambda value: find(value) is not None,
        dump,
        load,
        plain=not any(isinstance(value, enum.Enum) for value, _ in options),
        values=tuple(stored for _, stored in options),
    )


def scalar_key(stored: Any) -> tuple[bool, Any]:
    """Return a key that is equal for 1 and 1.0, as in jsonb, and different for 1 and True."""
    return isinstance(stored, bool), stored
