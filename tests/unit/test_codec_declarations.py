"""Which types can be declared, what to write instead of the others, and annotations as texts, which run nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import pathlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import ByteSize, Discriminator, NegativeInt, PositiveInt, SecretStr

from horsies_django.core.codec import UnsupportedType, shape_of
from horsies_django.core.codec.type_texts import Unknown, annotation_of, problem, text_of
from horsies_django.core.results import TaskResult
from tests.unit.shapes import Color, Deep, Point, T, label


def undeclarable(annotation: Any) -> str:
    with pytest.raises(UnsupportedType) as raised:
        shape_of(annotation, "here")
    return str(raised.value)


class Customer:
    _meta = _default_manager = None


class Elder:
    def parse_obj(self) -> None: ...


@dataclass
class Holder:
    tags: bytearray


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
    (bytearray, "here: bytearray may change: write bytes"),
    (Callable[[int], str], "is code, which cannot be sent: write str and pass the name of what to call"),
    (os.PathLike, "here: PathLike is a path: write pathlib.Path"),
    (Set[str], "here: Set[str] may be many types: write set[str]"),
    (SecretStr | str, "SecretStr | str cannot be told apart"),
    (ByteSize, "here: ByteSize is refused by pydantic: only types that are text in its JSON schema can be declared"),
    (Annotated[Any, Discriminator(3)], "here: Any is refused by pydantic: "),
    (T, "here: T stands for a type that is not known here: write the type itself"),
    (object, "here: object says nothing about the value: write Any for any plain JSON value"),
    (type[int], "here: type[int] is a class, which cannot be sent: write str and pass its name"),
    (tuple, "here: tuple does not say what is in it: write tuple[int, str], or tuple[Any, ...]"),
    (dict[int, str], "here: dict[int, str] has keys that are not str, as all keys in JSON are: write dict[str, str]"),
    (Sequence[int], "here: Sequence[int] may be many types: write list[int] and pass list(...)"),
    (Mapping[str, int], "here: Mapping[str, int] may be many types: write dict[str, int]"),
    (Customer, "here: Customer is a model, whose row may change before the task runs: annotate int and send its pk"),
    (Elder, "here: Elder is not a model of pydantic 2: use pydantic 2.8 or newer, or write a dataclass"),
    (complex, "here: complex cannot be encoded as JSON: write a dataclass, or send a key"),
    (TaskResult[int], "is a result: use it only as the return annotation of a task"),
    (Holder, "here, field 'tags' of Holder: bytearray may change: write bytes"),
    (Secret, "here: Secret cannot be built from its fields alone, because of 'key': write a dataclass without InitVar"),
    (Handmade, "here: Handmade cannot be built from its fields alone, because of 'text', 'x': write a dataclass"),
    (Blob, "here: a member of Blob: a value is bytes, which JSON cannot hold: use bool, int, float or str"),
    (Twice, "here: a member of Twice: a value cannot be encoded as JSON (the text has a NUL byte (\\x00), which"),
    (Empty, "here: Empty has no members: write an Enum with members"),
    (Literal["red", Color.RED], "has values that are the same in JSON: keep one of them"),
]


@pytest.mark.parametrize(("annotation", "message"), REFUSED, ids=label)
def test_a_type_that_cannot_travel_is_refused_with_what_to_write(annotation: Any, message: str) -> None:
    assert message in undeclarable(annotation)


STRING, NUMBER = "both are stored as a string", "both are stored as a number"
LIST, OBJECT, VALUE = "both are stored as a list", "both are stored as an object", "both may be the same JSON value"
FIELDS = "their fields do not tell them apart: give each a field"
AMBIGUOUS: list[tuple[Any, str, str]] = [
    (dt.date | str, "date | str", f"{STRING}): declare one of them"),
    (dt.timedelta | int, "timedelta | int", NUMBER),
    (Color | str, "Color | str", VALUE),
    (Color | Literal["red"], "Color | Literal['red']", VALUE),
    (Literal["2026-01-02"] | dt.date, "Literal['2026-01-02'] | date", ""),
    (list[dt.date] | list[str], "list[date] | list[str]", LIST),
    (Point | dict[str, Any], "Point | dict[str, Any]", OBJECT),
    (Point | Deep, "Point | Deep", FIELDS),
    (PositiveInt | NegativeInt, "int | int", NUMBER),
    (pathlib.Path | str, "Path | str", STRING),
    (None | int | Color | dict[str, str | dt.date], "str | date", STRING),
]


@pytest.mark.parametrize(("annotation", "members", "why"), AMBIGUOUS, ids=label)
def test_a_union_that_cannot_be_read_back_is_refused_with_the_reason(annotation: Any, members: str, why: str) -> None:
    assert f"{members} cannot be told apart when read back ({why}" in undeclarable(annotation)


@dataclasses.dataclass
class Payment:
    amount: int


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (dict[str, list[Any]], "dict[str, list[Any]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (set[bytes] | frozenset[int], "set[bytes] | frozenset[int]"),
        (int | None, "int | None"),
        (Optional[str], "str | None"),  # noqa: UP045
        (Literal["a", 3, True], "Literal['a', 3, True]"),
        (dt.datetime, "datetime.datetime"),
        (list[Payment | Color], f"list[{__name__}.Payment | tests.unit.shapes.Color]"),
        (Annotated[int, "pence"], "int"),
    ],
)
def test_what_is_written_is_read_again(annotation: Any, text: str) -> None:
    assert text_of(annotation) == text
    assert text_of(annotation_of(text)) == text


def test_what_has_no_text_is_not_checked() -> None:
    @dataclasses.dataclass
    class Local:
        amount: int

    class Moved:
        pass

    Moved.__module__, Moved.__qualname__ = "datetime", "date"
    for annotation in (Any, Local, list[Local], Moved, "Payment", Literal[Color.RED], Literal["x" * 2_000], 3):
        assert text_of(annotation) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "(", "x", "print('boom')", "__import__('os')", "os.system('true')", "[int for _ in x]", "lambda: 0",
        "nowhere.Payment", "int()", "list[print]", "list[int()]", "(" * 900, "a." * 400 + "b", "sys.modules",
        "list[...][int]", "list[int](3)", "dict[str]", "Literal[print]", "Literal[f'{x}']", "types.SimpleNamespace[int]",
        "int if x else str", "x" * 5_000, "\x00",
    ],
)  # fmt: skip
def test_a_text_from_a_table_runs_nothing_and_an_unknown_one_checks_nothing(text: str) -> None:
    assert problem(text, "3") is None
    if text not in ("dict[str]",):
        with pytest.raises(Unknown):
            annotation_of(text)


def test_a_text_computes_no_attribute_of_a_module_or_a_class() -> None:
    asked = []
    module = types.ModuleType("horsies_lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign, assignment]

    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            asked.append(name)
            return int

    module.Holder = Meta("Holder", (), {})  # type: ignore[attr-defined]
    sys.modules["horsies_lazy"] = module
    try:
        for text in ("horsies_lazy.thing", "horsies_lazy.Holder.thing", "horsies_unimported.Thing"):
            with pytest.raises(Unknown):
                annotation_of(text)
    finally:
        del sys.modules["horsies_lazy"]
    assert asked == []


def test_a_problem_says_where_and_which_types_and_no_value() -> None:
    assert problem("dict[str, int]", '{"amount": 12}') is None
    assert problem("dict[str, int]", '{"amount": "12 EUR"}') == "data[key 1] does not fit: expected int, got str"
    assert problem("int", '"secret"') == "data does not fit: expected int, got str"
    assert problem(f"{__name__}.Payment", '{"amount": 1}') is None
    assert "data.amount does not fit" in (problem(f"{__name__}.Payment", '{"amount": "1"}') or "")
