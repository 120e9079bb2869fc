"""The types that can be declared, and the advice for the others; annotations as texts, which run no
code; pydantic.

Models of pydantic are stored as their own JSON, and errors have the position of the wrong value.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    NegativeInt,
    PositiveInt,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
)

from horsies_django.core.codec import ArgumentsCodec, ResultCodec, UnsupportedType, shape_of
from horsies_django.core.codec.type_texts import (
    Unknown,
    annotation_of,
    annotation_text,
    fit_problem,
)
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.results import TaskResult
from tests.unit.shapes import Color, Deep, Point, T, label, refusal, unreadable, wire


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


Blob = enum.Enum("Blob", {"A": b"a"})
Twice = enum.Enum("Twice", {"A": 1, "B": "1\x00"})
Empty = enum.Enum("Empty", {})
REFUSED: list[tuple[Any, str]] = [
    (bytearray, "here: bytearray is mutable: write bytes"),
    (
        Callable[[int], str],
        "is code, which cannot be sent: write str and pass the name of the function",
    ),
    (os.PathLike, "here: PathLike is a path: write pathlib.Path"),
    (Set[str], "here: Set[str] is an abstract type: write set[str]"),
    (SecretStr | str, "SecretStr | str cannot be distinguished"),
    (
        ByteSize,
        "here: ByteSize is refused by pydantic: only types that are text in its JSON schema can be "
        "declared",
    ),
    (Annotated[Any, Discriminator(3)], "here: Any is refused by pydantic: "),
    (T, "here: T is a type variable: write the type itself"),
    (object, "here: object does not describe the value: write Any for any plain JSON value"),
    (type[int], "here: type[int] is a class, which cannot be sent: write str and pass its name"),
    (
        tuple,
        "here: tuple does not define the types of its elements: write tuple[int, str], or "
        "tuple[Any, ...]",
    ),
    (
        dict[int, str],
        "here: dict[int, str] has keys that are not str, but the keys of a JSON object are str: "
        "write dict[str, str]",
    ),
    (Sequence[int], "here: Sequence[int] is an abstract type: write list[int] and pass list(...)"),
    (Mapping[str, int], "here: Mapping[str, int] is an abstract type: write dict[str, int]"),
    (
        Customer,
        "here: Customer is a model, whose row may change before the task runs: annotate int and "
        "send its pk",
    ),
    (
        Elder,
        "here: Elder is not a model of pydantic 2: use pydantic 2.8 or newer, or write a dataclass",
    ),
    (complex, "here: complex cannot be encoded as JSON: write a dataclass, or send a key"),
    (TaskResult[int], "is the result of a task: use it only as the return annotation of a task"),
    (Holder, "here, field 'tags' of Holder: bytearray is mutable: write bytes"),
    (
        Secret,
        "here: Secret cannot be built from its fields alone, because of 'key': write a dataclass "
        "without InitVar",
    ),
    (
        Handmade,
        "here: Handmade cannot be built from its fields alone, because of 'text', 'x': write a "
        "dataclass",
    ),
    (
        Blob,
        "here: a member of Blob: a value is bytes, which JSON cannot hold: use bool, int, float or "
        "str",
    ),
    (
        Twice,
        "here: a member of Twice: a value cannot be encoded as JSON (the text has a NUL byte "
        "(\\x00), which",
    ),
    (Empty, "here: Empty has no members: write an Enum with members"),
    (Literal["red", Color.RED], "has values that are the same in JSON: keep one of them"),
]


@pytest.mark.parametrize(("annotation", "message"), REFUSED, ids=label)
def test_a_type_that_cannot_be_stored_is_refused_with_a_fix(annotation: Any, message: str) -> None:
    assert message in undeclarable(annotation)


STRING = "both are stored as a string"
NUMBER = "both are stored as a number"
LIST = "both are stored as a list"
OBJECT = "both are stored as an object"
VALUE = "both may be the same JSON value"
FIELDS = "their fields do not distinguish them: give each a field"
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
def test_an_ambiguous_union_is_refused_with_a_reason(
    annotation: Any, members: str, why: str
) -> None:
    """A union whose members cannot be distinguished is refused with the reason."""
    refusal = f"{members} cannot be distinguished when they are decoded ({why}"
    assert refusal in undeclarable(annotation)


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
    assert annotation_text(annotation) == text
    assert annotation_text(annotation_of(text)) == text


def test_what_has_no_text_is_not_checked() -> None:
    @dataclasses.dataclass
    class Local:
        amount: int

    class Moved:
        pass

    Moved.__module__ = "datetime"
    Moved.__qualname__ = "date"

    for annotation in (
        Any,
        Local,
        list[Local],
        Moved,
        "Payment",
        Literal[Color.RED],
        Literal["x" * 2_000],
        3,
    ):
        assert annotation_text(annotation) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "x",
        "print('boom')",
        "__import__('os')",
        "os.system('true')",
        "[int for _ in x]",
        "lambda: 0",
        "nowhere.Payment",
        "int()",
        "list[print]",
        "list[int()]",
        "(" * 900,
        "a." * 400 + "b",
        "sys.modules",
        "list[...][int]",
        "list[int](3)",
        "dict[str]",
        "Literal[print]",
        "Literal[f'{x}']",
        "types.SimpleNamespace[int]",
        "int if x else str",
        "x" * 5_000,
        "\x00",
    ],
)
def test_a_stored_annotation_runs_no_code(text: str) -> None:
    """A text from a table runs no code, and an unknown annotation checks nothing."""
    assert fit_problem(text, "3") is None

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


def test_a_problem_contains_the_place_and_types_but_no_value() -> None:
    assert fit_problem("dict[str, int]", '{"amount": 12}') is None
    assert (
        fit_problem("dict[str, int]", '{"amount": "12 EUR"}')
        == "data[key 1] does not fit: expected int, got str"
    )
    assert fit_problem("int", '"secret"') == "data does not fit: expected int, got str"
    assert fit_problem(f"{__name__}.Payment", '{"amount": 1}') is None
    assert "data.amount does not fit" in (
        fit_problem(f"{__name__}.Payment", '{"amount": "1"}') or ""
    )


ROOT = Path(__file__).parents[2]


class Line(BaseModel):
    sku: str
    price: Decimal = Decimal("1.50")
    count: int = Field(default=1, gt=0)


class Order(BaseModel):
    number: int
    lines: list[Line] = []
    by_name: dict[str, Line] = {}
    at: dt.datetime | None = None
    tags: set[str] = set()


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = "Rex"


class Tree(BaseModel):
    children: list[Tree] = []


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
LINE = Line(sku="a")
OTHER = Line(sku="b", price=Decimal("0.10"), count=3)
AT = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)


@dataclass
class Parcel:
    line: Line
    note: str = ""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: dt.datetime
    pair: tuple[int, Decimal]
    raw: Json[list[int]]


class Numbers(RootModel[list[int]]):
    """A model that is stored as a list, not as an object."""


class Longer(Line):
    colour: str = "red"


class Odd(BaseModel):
    """A model with different aliases for writing and reading."""

    size: int = Field(validation_alias=AliasChoices("in", "input"), serialization_alias="out")


class Checked(BaseModel):
    """A model with a validator and a serializer that raise."""

    size: int

    @field_validator("size")
    @classmethod
    def even(cls, size: int) -> int:
        if size == 13:
            raise KeyError("thirteen")
        return size

    @field_serializer("size")
    def write(self, size: int) -> int:
        return size // (size - 2)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Line, LINE),
        (Order, Order(number=1, lines=[LINE, OTHER], by_name={"b": OTHER}, at=AT, tags={"x"})),
        (tuple[Line, ...], (LINE,)),
        (Line | None, LINE),
        (Line | int | str, LINE),
        (Parcel, Parcel(LINE, "to the door")),
        (Pet, Dog(name="Ada")),
        (list[Pet | None], [Cat(lives=7), None, Dog()]),
        (Annotated[Cat | Dog | None, Field(discriminator="kind")], None),
        (Tree, Tree(children=[Tree(children=[Tree()]), Tree()])),
        (Strict, Strict(at=AT, pair=(1, Decimal("2.5")), raw="[1, 2]")),  # type: ignore[arg-type]
        (Numbers, Numbers([1, 2])),
    ],
    ids=label,
)
def test_a_model_comes_back_equal_wherever_it_is_nested(annotation: Any, value: Any) -> None:
    """Fails if: the codec stores str() of the model, or ``model_dump()`` with its datetimes, which
    JSON cannot hold.
    """
    back = wire(annotation, value)

    assert back == value
    assert type(back) is type(value)


def test_a_model_is_stored_as_the_json_of_its_own_schema() -> None:
    """Fails if: our own rules write the fields, which refuse a set and do not support aliases."""

    class Person(BaseModel):
        model_config = ConfigDict(extra="forbid")
        full_name: str = Field(alias="fullName")
        born: dt.date
        colours: frozenset[str] = frozenset()

        @computed_field  # type: ignore[prop-decorator]
        @property
        def initials(self) -> str:
            return self.full_name[0]

    value = Person(fullName="Ada", born=dt.date(1815, 12, 10), colours=frozenset({"red"}))
    stored = shape_of(Person, "here").encode(value, "x")

    assert stored == {"fullName": "Ada", "born": "1815-12-10", "colours": ["red"]}
    assert set(stored) == set(Person.model_json_schema()["properties"])
    assert wire(Person, value) == value


@pytest.mark.parametrize(
    ("annotation", "stored", "path", "problem"),
    [
        (
            Order,
            {"number": "many"},
            "x.number",
            "Order refused it: Input should be a valid integer",
        ),
        (
            Order,
            {"number": 1, "lines": [{"sku": "a"}, {"sku": 5}]},
            "x.lines[1].sku",
            "valid string",
        ),
        (
            Order,
            {"number": 1, "by_name": {"no name": {"sku": 5}}},
            "x.by_name[key].sku",
            "valid string",
        ),
        (Order, {"number": "x", "lines": 5}, "x.number", "(and 1 more)"),
        (Order, "text", "x", "Order refused it"),
        (list[Parcel], [{"line": {"sku": "a", "count": 0}}], "x[0].line.count", "greater than 0"),
        (Checked, {"size": 13}, "x", "Checked refused it: KeyError: 'thirteen'"),
    ],
)
def test_stored_data_that_a_model_refuses_have_a_position(
    annotation: Any, stored: Any, path: str, problem: str
) -> None:
    """Fails if: pydantic's ValidationError is raised as it is, and its text writes the values into
    the log.
    """
    error = unreadable(annotation, stored)

    assert error.path == path
    assert problem in error.problem
    assert "many" not in str(error)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Line, {"sku": "a"}, "argument 'x': expected Line, got dict"),
        (
            Line,
            OTHER.model_copy(update={"count": "none"}),
            "argument 'x.count': Line refused it: Input should be a valid",
        ),
        (Line, Line.model_construct(), "argument 'x.sku': Line refused it: Field required"),
        (Line, Line(sku="a\x00b"), "the text has a NUL byte"),
        (Pet, LINE, "argument 'x': expected Cat | Dog, got Line"),
        (list[Line], [LINE, None], "argument 'x[1]': expected Line, got None"),
        (
            Line,
            Longer(sku="a"),
            "argument 'x': expected Line, got Longer, whose 'colour' would be lost",
        ),
        (Odd, Odd.model_validate({"in": 1}), "argument 'x.in': Odd refused it: Field required"),
        (Checked, Checked(size=2), "Checked cannot be written"),
    ],
    ids=label,
)
def test_a_model_that_could_not_be_read_back_is_not_sent(
    annotation: Any, value: Any, message: str
) -> None:
    """Fails if: only the class is checked, so that a value that was assigned to a field later fails
    the task at the worker.
    """
    assert message in str(refusal(annotation, value))


def test_a_subclass_that_adds_no_field_comes_back_as_its_base() -> None:
    class Same(Line):
        pass

    assert wire(Line, Same(sku="a")) == LINE


def test_models_without_a_discriminator_are_refused_with_a_fix() -> None:
    """Two models without a discriminator are refused, with the annotation to write instead."""
    with pytest.raises(
        UnsupportedType, match=r"Annotated\[Cat \| Dog, Field\(discriminator='kind'\)\]"
    ):
        shape_of(Cat | Dog, "here")


def test_a_model_not_stored_as_an_object_is_ambiguous_in_a_union() -> None:
    """In a union, a root model or a model with its own serializer does not count as an object.

    Fails if: every model counts as an object, so that another member, or none, reads a list.
    """

    class Short(BaseModel):
        a: int

        @model_serializer
        def write(self) -> str:
            return str(self.a)

    for annotation in (Numbers | list[int], Short | str):
        with pytest.raises(UnsupportedType, match="cannot be distinguished"):
            shape_of(annotation, "here")


class Early(BaseModel):
    item: Later


def swap(early: Early) -> Early: ...


# The class Later does not exist yet.
SWAP = ArgumentsCodec.of(swap)
SWAPPED = ResultCodec.of(swap)


class Later(BaseModel):
    size: int


class Lost(BaseModel):
    item: Nowhere  # type: ignore[name-defined]  # noqa: F821


def lose(lost: Lost) -> None: ...


def test_a_model_with_a_later_definition_compiles_at_first_use() -> None:
    """A model whose field has a type that is defined later is compiled at its first use.

    Fails if: the decorator raises pydantic's error, so that modules cannot import one another.
    """
    value = Early(item=Later(size=3))

    assert SWAP.decode(SWAP.encode((value,), {})) == ([], {"early": value})
    assert SWAPPED.decode(SWAPPED.encode_ok(value)).ok_value == value

    with pytest.raises(TaskDefinitionError, match="Nowhere"):
        ArgumentsCodec.of(lose).resolve()


def test_a_project_without_models_never_imports_pydantic() -> None:
    """Fails if: the codec has ``import pydantic``, so that every process of a project that has it
    installed imports it.
    """
    code = (
        "import sys; from horsies_django.core.codec import UnsupportedType, shape_of; from "
        "tests.unit.shapes import Point\n"
        "print(shape_of(list[Point], 'here').encode([Point(1)], 'x'))\n"
        "try: shape_of(type(sys), 'here')\n"
        "except UnsupportedType: print('pydantic' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "[{'x': 1, 'y': 0}]\nFalse\n"
