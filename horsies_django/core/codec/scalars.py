"""The shapes of single values.

They are the types of JSON, types that are stored as text or numbers, and Enum and Literal, which
are stored as plain values.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import enum
import ipaddress
import math
import pathlib
import uuid
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import BIG, check_float, check_int, check_text
from horsies_django.core.codec.shapes import ANY, Shape

MICROSECOND = dt.timedelta(microseconds=1)


def _dump_none(value: Any) -> None:
    if value is not None:
        raise misfit("None", value)


def _dump_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if -BIG < value < BIG:
            return value
        check_int(value)
    raise misfit("int", value)


def _exactly(cls: type) -> Callable[[Any], Any]:
    """Return a function that returns JSON data of this exact type, and raises CodecError for other.

    The data is not changed.
    """

    def load(stored: Any) -> Any:
        if type(stored) is cls:
            return stored
        raise misfit(cls.__name__, stored)

    return load


def _dump_float(value: Any) -> float:
    if isinstance(value, float):
        check_float(value)
        return value

    if isinstance(value, int) and not isinstance(value, bool):
        try:
            if float(value) == value:
                return float(value)
        except OverflowError:
            pass
        raise CodecError(
            "a float cannot hold this int exactly: declare int, or send a float", "value"
        )

    raise misfit("float", value)


def _load_float(stored: Any) -> float:
    if type(stored) is float or type(stored) is int:
        try:
            number = float(stored)
        except OverflowError:
            number = math.inf

        check_float(number)
        return number

    raise misfit("float", stored)


def _dump_str(value: Any) -> str:
    if isinstance(value, str):
        if "\x00" in value or not value.isascii():
            check_text(value)
        return value
    raise misfit("str", value)


def text_shape(
    cls: type, write: Callable[[Any], str], read: Callable[[str], Any], barred: type | None = None
) -> Shape:
    """Return the shape of a type that is stored as text.

    ``barred`` is a subclass whose values are not accepted, because they have another meaning.
    """
    name = cls.__name__

    def accepts(value: Any) -> bool:
        return isinstance(value, cls) and (barred is None or not isinstance(value, barred))

    def dump(value: Any) -> str:
        if accepts(value):
            return write(value)
        raise misfit(name, value)

    def load(stored: Any) -> Any:
        if type(stored) is not str:
            raise misfit(f"{name} as text", stored)

        try:
            value = read(stored)
            # Some constructors accept other formats too, such as a date for a datetime, or a UUID
            # in braces.
            if write(value) == stored:
                return value
        except (ValueError, ArithmeticError, CodecError):
            pass

        raise CodecError(f"the stored text is not a {name}")

    return Shape(name, frozenset({str}), accepts, dump, load)


def _write_moment(cls: type[dt.datetime] | type[dt.time]) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        if value.tzinfo is not None and value.utcoffset() is None:
            raise CodecError(
                f"its time zone gives this {cls.__name__} no offset from UTC: send a datetime",
                "value",
            )
        return cls.isoformat(value)  # not that of a subclass, which may write another format

    return write


def _write_path(value: Any) -> str:
    check_text(text := str(value))
    return text


def path_shape(cls: type[pathlib.PurePath]) -> Shape:
    return text_shape(cls, _write_path, cls)


def _write_decimal(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise CodecError("a Decimal must be finite to be encoded", "value")
    return decimal.Decimal.__str__(value)


def _dump_duration(value: Any) -> int:
    if isinstance(value, dt.timedelta):
        return value // MICROSECOND
    raise misfit("timedelta", value)


def _load_duration(stored: Any) -> dt.timedelta:
    if type(stored) is int:
        try:
            return dt.timedelta(microseconds=stored)
        except OverflowError:
            raise CodecError(
                "the stored number of microseconds is too large for a timedelta"
            ) from None
    raise misfit("timedelta as microseconds", stored)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_int(value)


NONE = Shape(
    "None", frozenset({NoneType}), lambda value: value is None, _dump_none, _dump_none, plain=True
)
BOOL = Shape(
    "bool",
    frozenset({bool}),
    lambda value: isinstance(value, bool),
    _exactly(bool),
    _exactly(bool),
    plain=True,
)
INT = Shape("int", frozenset({int}), _is_int, _dump_int, _exactly(int), plain=True)
FLOAT = Shape("float", frozenset({float, int}), _is_number, _dump_float, _load_float)
STR = Shape(
    "str",
    frozenset({str}),
    lambda value: isinstance(value, str),
    _dump_str,
    _exactly(str),
    plain=True,
)
DURATION = Shape(
    "timedelta",
    frozenset({int}),
    lambda value: isinstance(value, dt.timedelta),
    _dump_duration,
    _load_duration,
)

SCALAR_SHAPES: dict[Any, Shape] = {
    None: NONE,
    NoneType: NONE,
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    Any: ANY,
    dt.datetime: text_shape(dt.datetime, _write_moment(dt.datetime), dt.datetime.fromisoformat),
    dt.date: text_shape(dt.date, dt.date.isoformat, dt.date.fromisoformat, barred=dt.datetime),
    dt.time: text_shape(dt.time, _write_moment(dt.time), dt.time.fromisoformat),
    dt.timedelta: DURATION,
    uuid.UUID: text_shape(uuid.UUID, uuid.UUID.__str__, uuid.UUID),
    decimal.Decimal: text_shape(decimal.Decimal, _write_decimal, decimal.Decimal),
    bytes: text_shape(bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    ipaddress.IPv4Address: text_shape(
        ipaddress.IPv4Address, str, ipaddress.IPv4Address, barred=ipaddress.IPv4Interface
    ),
    ipaddress.IPv6Address: text_shape(
        ipaddress.IPv6Address, str, ipaddress.IPv6Address, barred=ipaddress.IPv6Interface
    ),
    **{
        cls: text_shape(cls, str, cls)
        for cls in (
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            ipaddress.IPv4Interface,
            ipaddress.IPv6Interface,
        )
    },
}


def enum_shape(cls: type[enum.Enum], write: Callable[[Any], Any]) -> Shape:
    """Return the shape of an Enum.

    ``write`` returns the plain value for the value of a member, or raises an exception.
    """
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
                    # Early releases of Python 3.11 drop unknown bits.
                    if joined.value == stored:
                        return joined

        raise CodecError(
            f"the stored {type(stored).__name__} is not the value of any member of {name}"
        )

    kinds = frozenset(type(stored) for stored in stored_by_member.values())
    if joins or float in kinds:
        kinds |= {int}
    values = None if joins else tuple(stored_by_member.values())
    return Shape(name, kinds, lambda value: isinstance(value, cls), dump, load, values=values)


def literal_shape(options: Sequence[tuple[Any, Any]]) -> Shape:
    """Return the shape of a Literal.

    Each option is a pair of a value and its plain JSON value.
    """
    texts = [str(value) if isinstance(value, enum.Enum) else repr(value) for value, _ in options]
    name = f"Literal[{', '.join(texts)}]"
    value_by_key = {scalar_key(stored): value for value, stored in options}

    def find(value: Any) -> tuple[Any, Any] | None:
        for option in options:
            wanted = option[0]
            alike = isinstance(value, type(wanted)) and isinstance(value, bool) == isinstance(
                wanted, bool
            )
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
