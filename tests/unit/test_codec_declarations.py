"""Which types can be declared, and what to write instead of the others."""

from __future__ import annotations

import base64
import datetime as dt
import enum
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pytest

from horsies_django.core.codec import UnsupportedType, shape_of
from horsies_django.core.results import TaskResult

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Deep(Point):
    z: int = 0


def label(each: Any) -> str:
    return ascii(each)[:60]


def undeclarable(annotation: Any) -> str:
    with pytest.raises(UnsupportedType) as raised:
        shape_of(annotation, "here")
    return str(raised.value)


class Doc(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int


class Customer:
    _meta = _default_manager = None


class Elder:
    def parse_obj(self) -> None: ...


@dataclass
class Holder:
    tags: set[str]


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Secret:
    x: int
    key: InitVar[str]


@dataclass(init=False)
class Handmade:
    x: int

    def __init__(self, text: str) -> None:
        self.x = int(text)


class Blob(enum.Enum):
    A = b"a"


class Twice(enum.Enum):
    A = 1
    B = "1\x00"


class Empty(enum.Enum):
    pass


REFUSED: list[tuple[Any, str]] = [
    (set[str], "here: set[str] has no form in JSON: write list[str] and pass sorted(...)"),
    (frozenset, "here: frozenset has no form in JSON: write list[str] and pass sorted(...)"),
    (bytes, "here: bytes has no form in JSON: write str and pass base64 text"),
    (Doc, "here: Doc is a TypedDict, which is not checked when it is made: write a dataclass"),
    (Pair, "here: Pair is a NamedTuple, a list in JSON: write a dataclass"),
    (Callable[[int], str], "is code, which cannot be sent: write str and pass the name of what to call"),
    (pathlib.Path, "here: Path is a path: write str and pass str(path)"),
    (T, "here: T stands for a type that is not known here: write the type itself"),
    (list[T], "here: T stands for a type that is not known here: write the type itself"),
    (object, "here: object says nothing about the value: write Any for any plain JSON value"),
    (type[int], "here: type[int] is a class, which cannot be sent: write str and pass its name"),
    (tuple, "here: tuple does not say what is in it: write tuple[int, str], or tuple[Any, ...]"),
    (
        dict[int, str],
        "here: dict[int, str] has keys that are not str, as all keys in JSON are: write dict[str, str], or",
    ),
    (Sequence[int], "here: Sequence[int] may be many types: write list[int] and pass list(...)"),
    (Iterable[int], "here: Iterable[int] may be many types: write list[int] and pass list(...)"),
    (Mapping[str, int], "here: Mapping[str, int] may be many types: write dict[str, int]"),
    (Customer, "here: Customer is a model, whose row may change before the task runs: annotate int and send its pk"),
    (list[Customer], "here: Customer is a model"),
    (Elder, "here: Elder is not a model of pydantic 2: use pydantic 2.8 or newer, or write a dataclass"),
    (
        complex,
        "here: complex cannot be encoded as JSON: write a dataclass, or send a key with which the task can find it",
    ),
    (base64, "cannot be encoded as JSON: write a dataclass"),
    (TaskResult[int], "is a result: use it only as the return annotation of a task"),
    (Holder, "here, field 'tags' of Holder: set[str] has no form in JSON: write list[str] and pass sorted(...)"),
    (Box[int], "here: Box[int] is a generic dataclass: write a dataclass whose fields name their types"),
    (Box, "here, field 'item' of Box: T stands for a type that is not known here: write the type itself"),
    (Secret, "here: Secret cannot be built from its fields alone, because of 'key': write a dataclass without InitVar"),
    (
        Handmade,
        "here: Handmade cannot be built from its fields alone, because of 'text', 'x': write a dataclass without",
    ),
    (Blob, "here: a member of Blob: a value is bytes, which JSON cannot hold: use bool, int, float or str"),
    (
        Twice,
        "here: a member of Twice: a value cannot be encoded as JSON (the text has a NUL byte (\\x00), which PostgreSQL",
    ),
    (Empty, "here: Empty has no members: write an Enum with members"),
    (Literal[b"a"], "here: a value is bytes, which JSON cannot hold: use bool, int, float or str"),
    (Literal["red", Color.RED], "has values that are the same in JSON: keep one of them"),
]


@pytest.mark.parametrize(("annotation", "message"), REFUSED, ids=label)
def test_a_type_that_cannot_travel_is_refused_with_what_to_write(annotation: Any, message: str) -> None:
    assert message in undeclarable(annotation)


AMBIGUOUS: list[tuple[Any, str]] = [
    (
        dt.date | str,
        "here: date | str cannot be told apart when read back (both are stored as a string): declare one of them",
    ),
    (uuid.UUID | dt.date, "UUID | date cannot be told apart when read back (both are stored as a string)"),
    (dt.timedelta | int, "timedelta | int cannot be told apart when read back (both are stored as a number)"),
    (Color | str, "Color | str cannot be told apart when read back (both may be the same JSON value)"),
    (Level | int, "Level | int cannot be told apart when read back (both may be the same JSON value)"),
    (Level | float, "Level | float cannot be told apart when read back (both may be the same JSON value)"),
    (
        Color | Literal["red"],
        "Color | Literal['red'] cannot be told apart when read back (both may be the same JSON value)",
    ),
    (Literal["2026-01-02"] | dt.date, "Literal['2026-01-02'] | date cannot be told apart"),
    (Any | dt.date, "Any | date cannot be told apart when read back (both are stored as a string)"),
    (
        list[dt.date] | list[str],
        "list[date] | list[str] cannot be told apart when read back (both are stored as a list)",
    ),
    (
        tuple[int, ...] | list[int],
        "tuple[int, ...] | list[int] cannot be told apart when read back (both are stored as a list)",
    ),
    (
        Point | dict[str, Any],
        "Point | dict[str, Any] cannot be told apart when read back (both are stored as an object)",
    ),
    (
        Point | Deep,
        "Point | Deep cannot be told apart when read back (their fields do not tell them apart: give each a field",
    ),
    (None | int | Color | dict[str, str | dt.date], "str | date cannot be told apart"),
]


@pytest.mark.parametrize(("annotation", "message"), AMBIGUOUS, ids=label)
def test_a_union_that_cannot_be_read_back_is_refused_with_the_reason(annotation: Any, message: str) -> None:
    assert message in undeclarable(annotation)
