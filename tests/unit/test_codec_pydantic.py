"""Models of pydantic as arguments and results: their own JSON, and errors with the position of what is wrong."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
)

from horsies_django.core.codec import ArgumentsCodec, ResultCodec, UnsupportedType, shape_of
from horsies_django.core.errors import TaskDefinitionError
from tests.unit.shapes import label, refusal, unreadable, wire

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
LINE, OTHER = Line(sku="a"), Line(sku="b", price=Decimal("0.10"), count=3)
AT = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)


@dataclass
class Parcel:
    line: Line
    note: str = ""


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
    ],
    ids=label,
)
def test_a_model_comes_back_equal_wherever_it_is_nested(annotation: Any, value: Any) -> None:
    """Naive: str() of the model, or model_dump() with its datetimes, which JSON cannot hold."""
    back = wire(annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_a_model_is_stored_as_the_json_of_its_own_schema() -> None:
    """Naive: the fields are written by our rules: a set would be refused, an alias not be known."""

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


def test_a_strict_model_reads_what_json_has_no_type_for() -> None:
    """Naive: the data are validated as Python's: a strict model then refuses the text of its own datetime."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        at: dt.datetime
        pair: tuple[int, Decimal]
        raw: Json[list[int]]

    assert wire(Strict, value := Strict(at=AT, pair=(1, Decimal("2.5")), raw="[1, 2]")) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotation", "stored", "path", "problem"),
    [
        (Order, {"number": "many"}, "x.number", "Order refused it: Input should be a valid integer"),
        (Order, {"number": 1, "lines": [{"sku": "a"}, {"sku": 5}]}, "x.lines[1].sku", "valid string"),
        (Order, {"number": 1, "by_name": {"no name": {"sku": 5}}}, "x.by_name[key].sku", "valid string"),
        (Order, {"number": "x", "lines": 5}, "x.number", "(and 1 more)"),
        (Order, "text", "x", "Order refused it"),
        (list[Parcel], [{"line": {"sku": "a", "count": 0}}], "x[0].line.count", "greater than 0"),
    ],
)
def test_stored_data_that_a_model_refuses_have_a_position(
    annotation: Any, stored: Any, path: str, problem: str
) -> None:
    """Naive: pydantic's ValidationError passes through, and its text shows the values to everybody who reads the log."""
    error = unreadable(annotation, stored)
    assert error.path == path
    assert problem in error.problem
    assert "many" not in str(error)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Line, {"sku": "a"}, "argument 'x': expected Line, got dict"),
        (Line, OTHER.model_copy(update={"count": "none"}), "argument 'x.count': Line refused it: Input should be a valid"),
        (Line, Line.model_construct(), "argument 'x.sku': Line refused it: Field required"),
        (Line, Line(sku="a\x00b"), "the text has a NUL byte"),
        (Pet, LINE, "argument 'x': expected Cat | Dog, got Line"),
        (list[Line], [LINE, None], "argument 'x[1]': expected Line, got None"),
    ],
    ids=label,
)  # fmt: skip
def test_a_model_that_could_not_be_read_back_is_not_sent(annotation: Any, value: Any, message: str) -> None:
    """Naive: only the class is checked; what was assigned to a field later fails the task, at the worker."""
    assert message in str(refusal(annotation, value))


def test_a_subclass_passes_only_if_none_of_its_fields_would_be_lost() -> None:
    class Same(Line):
        pass

    class Longer(Line):
        colour: str = "red"

    assert wire(Line, Same(sku="a")) == LINE
    error = refusal(Line, Longer(sku="a"))
    assert error.problem == "expected Line, got Longer, whose 'colour' would be lost"


def test_what_a_model_writes_in_one_way_and_reads_in_another_is_refused_when_it_is_sent() -> None:
    class Odd(BaseModel):
        size: int = Field(validation_alias=AliasChoices("in", "input"), serialization_alias="out")

    error = refusal(Odd, Odd.model_validate({"in": 1}))
    assert error.path == "x.in"
    assert "Field required" in error.problem


def test_validators_and_serializers_of_a_project_that_raise_are_errors_of_the_codec() -> None:
    class Checked(BaseModel):
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

    assert "Checked cannot be written" in refusal(Checked, Checked(size=2)).problem
    error = unreadable(Checked, {"size": 13})
    assert error.problem == "Checked refused it: KeyError: 'thirteen'"


def test_two_models_without_a_discriminator_are_refused_with_what_to_write() -> None:
    with pytest.raises(UnsupportedType, match=r"Annotated\[Cat \| Dog, Field\(discriminator='kind'\)\]"):
        shape_of(Cat | Dog, "here")


def test_a_root_model_and_a_model_with_its_own_serializer_are_not_taken_for_objects_in_a_union() -> None:
    """Naive: every model is an object: a list then is read by the other member, or by none."""

    class Numbers(RootModel[list[int]]):
        pass

    class Short(BaseModel):
        a: int

        @model_serializer
        def write(self) -> str:
            return str(self.a)

    assert wire(Numbers, Numbers([1, 2])) == Numbers([1, 2])
    for annotation in (Numbers | list[int], Short | str):
        with pytest.raises(UnsupportedType, match="cannot be told apart"):
            shape_of(annotation, "here")


EARLY = """
from __future__ import annotations
from pydantic import BaseModel

class Box(BaseModel):
    item: Later

def swap(box: Box) -> Box:
    return box
"""


def test_a_model_whose_field_is_defined_later_is_compiled_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: the decorator raises what pydantic says of the model, and modules that import one another cannot be written."""
    module: Any = ModuleType("later_models")
    monkeypatch.setitem(sys.modules, "later_models", module)
    exec(compile(EARLY, "later_models", "exec", dont_inherit=True), module.__dict__)
    arguments, result = ArgumentsCodec.of(module.swap), ResultCodec.of(module.swap)
    with pytest.raises(TaskDefinitionError, match="Later"):
        arguments.resolve()
    exec("class Later(BaseModel):\n    size: int", module.__dict__)
    value = module.Box(item={"size": 3})
    assert arguments.decode(arguments.encode((value,), {})) == ([], {"box": value})
    assert result.decode(result.encode_ok(value)).ok_value == value


def test_a_project_without_models_never_imports_pydantic() -> None:
    """Naive: ``import pydantic`` in the codec: every process of a project that has it installed pays for it."""
    code = """
from __future__ import annotations
import sys
from dataclasses import dataclass
from horsies_django.core.codec import ArgumentsCodec, UnsupportedType, shape_of

@dataclass
class Point:
    x: int

def take(point: Point, rest: list[dict[str, int]]) -> None: ...

print(ArgumentsCodec.of(take).encode((Point(1), []), {}))
try:
    shape_of(type(sys), "here")
except UnsupportedType as error:
    print(error)
print("pydantic" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ('{"point":{"x":1},"rest":[]}', "False")
