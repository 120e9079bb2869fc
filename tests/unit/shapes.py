"""Types that tests of the codec declare, and helpers that send a value through a shape."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import pytest
from hypothesis import strategies as st

from horsies_django.core.codec import CodecError, shape_of

T = TypeVar("T")

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})
Level = enum.IntEnum("Level", {"LOW": 1, "HIGH": 2})


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Deep(Point):
    z: int = 0


@dataclass
class Line:
    sku: str
    price: decimal.Decimal
    at: dt.datetime | None = None


@dataclass(frozen=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    note: Any = None


@dataclass
class Tree:
    value: int | float | None
    children: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


class Span(NamedTuple):
    start: int
    length: dt.timedelta


class Doc(TypedDict):
    a: int
    spans: NotRequired[list[Span]]


@dataclass
class Box(Generic[T]):
    item: T
    others: list[T] = field(default_factory=list)
    next: Box[T] | None = None


class Customer:
    """Looks like a model, as far as the core can see."""

    _meta = objects = None
    pk = 7


def label(each: Any) -> str:
    """Return a short id of a case, the same in all processes."""
    if isinstance(each, set | frozenset):
        return f"{type(each).__name__} of {len(each)}"
    return (
        "a huge int"
        if isinstance(each, int) and abs(each) > 10**100
        else ascii(each).partition(" at 0x")[0][:60]
    )


def wire(annotation: Any, value: Any) -> Any:
    """Return a value after a trip through JSON text."""
    shape = shape_of(annotation, "here")
    return shape.decode(json.loads(json.dumps(shape.encode(value, "x"))), "x")


def error_of(act: Callable[..., Any], *args: Any) -> CodecError:
    """Return the error that a call raises."""
    with pytest.raises(CodecError) as raised:
        act(*args)
    return raised.value


def refusal(annotation: Any, value: Any) -> CodecError:
    """Return the error of a value that cannot be written."""
    return error_of(shape_of(annotation, "here").encode, value, "x")


def unreadable(annotation: Any, stored: Any) -> CodecError:
    """Return the error of JSON data that cannot be read."""
    return error_of(shape_of(annotation, "here").decode, stored, "x")
