"""Values of each declared type come back as they were, however they are nested."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import json
import uuid
import zoneinfo
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, Optional, Union

import pytest

from horsies_django.core.codec import CodecError, shape_of

UserId = NewType("UserId", int)
UTC = dt.UTC


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Word(str):
    """A text that is not exactly a str."""


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Moved(Point):
    """Adds behaviour, no fields."""

    moves: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Odd:
    name: str
    _: KW_ONLY
    tags: list[str] = field(default_factory=list)
    size: int = field(init=False, default=0)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


@dataclass
class Circle:
    kind: Literal["circle"]
    r: float


@dataclass
class Square:
    kind: Literal["square"]
    r: float


@dataclass
class Named:
    name: str


@dataclass
class Sum:
    terms: tuple[Sum | Leaf, ...]
    kind: Literal["sum"] = field(kw_only=True)
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Sum.made += 1


@dataclass
class Leaf:
    terms: int | tuple[Sum | Leaf, ...]
    kind: Literal["leaf"] = field(kw_only=True)


def label(each: Any) -> str:
    return "a huge int" if isinstance(each, int) and abs(each) > 10**100 else ascii(each)[:60]


def wire(annotation: Any, value: Any) -> Any:
    """Return what comes back after a trip through JSON text."""
    shape = shape_of(annotation, "here")
    return shape.decode(json.loads(json.dumps(shape.encode(value, "x"))), "x")


def refusal(annotation: Any, value: Any) -> CodecError:
    with pytest.raises(CodecError) as raised:
        shape_of(annotation, "here").encode(value, "x")
    return raised.value


def unreadable(annotation: Any, stored: Any) -> str:
    with pytest.raises(CodecError) as raised:
        shape_of(annotation, "here").decode(stored, "x")
    return str(raised.value)


GOOD: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -(10**4299)),
    (float, 1e308),
    (str, "çok 🐎"),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
    (dt.datetime, dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45, seconds=1)))),
    (dt.date, dt.date(1, 1, 1)),
    (dt.time, dt.time(23, 59, 59, 999999, tzinfo=UTC)),
    (dt.timedelta, dt.timedelta.max),
    (dt.timedelta, dt.timedelta.min),
    (uuid.UUID, uuid.UUID(int=5)),
    (decimal.Decimal, decimal.Decimal("-0.10E+500")),
    (Color, Color.BLUE),
    (Level, Level.HIGH),
    (Access, Access.READ | Access.WRITE),
    (Literal["a", 1, None, True, Color.RED], Color.RED),
    (list[int], [1, 2]),
    (list[list[Color]], [[], [Color.RED]]),
    (dict[str, dt.date], {"": dt.date(2026, 1, 2)}),
    (tuple[int, str], (1, "a")),
    (tuple[dt.date, ...], (dt.date(2026, 1, 2),)),
    (int | None, None),
    (Optional[str], "a"),  # noqa: UP045 - the older spelling
    (Union[int, float, None], 1.5),  # noqa: UP007 - the older spelling
    (int | str | list[dt.date] | dict[str, Any], [dt.date(2026, 1, 2)]),
    (Annotated[int, "positive", []], 3),
    (UserId, UserId(3)),
    (Any, {"a": [None, True, 1, 1.5, "x", {}]}),
    (dict, {"a": [1]}),
    (list, [{"a": None}]),
    (Point, Point(1, 2)),
    (Odd, Odd("n", tags=["t"])),
    (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])], Tree(0))),
    (Circle | Square, Square("square", 2.0)),
    (list[Point | Named | None], [Named("a"), None, Point(1)]),
    (Sum | Leaf, Sum((Leaf(1, kind="leaf"), Sum((), kind="sum")), kind="sum")),
    (Literal["all"] | list[int], "all"),
    (Literal["today"] | dt.date, "today"),
    (Literal["today"] | dt.date, dt.date(2026, 1, 2)),
    (Color | Level | None, Level.LOW),
    (str | Literal["auto"], "auto"),
    (list[int] | list[str], ["a"]),
]


@pytest.mark.parametrize(("annotation", "value"), GOOD, ids=label)
def test_a_value_of_its_declared_type_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    found = wire(annotation, value)
    assert found == value
    assert type(found) is type(value)


def test_numbers_are_read_as_jsonb_gives_them_back() -> None:
    shape = shape_of(list[float], "here")
    found = shape.decode([0.0, 10**308, 10**16, 1], "x")
    assert found == [-0.0, 1e308, 1e16, 1.0]
    assert {type(each) for each in found} == {float}
    assert shape_of(Any, "here").decode(10**16, "x") == 1e16


def test_an_int_serves_as_a_float_and_a_subclass_as_its_base() -> None:
    for annotation, value in ((float, 3), (str, Word("a")), (int, Level.LOW), (str, enum.StrEnum("S", "A").A)):
        found = wire(annotation, value)
        assert (found, type(found)) == (value, annotation)
    assert wire(dict[str, int], collections.OrderedDict(a=1)) == {"a": 1}
    assert wire(Literal["a"], Word("a")) == "a"
    assert wire(Point, Moved(1, 2)) == wire(Point | Named, Moved(1, 2)) == Point(1, 2)


def test_in_a_union_an_int_stays_an_int_and_a_float_a_float_in_either_order() -> None:
    for annotation in (int | float, float | int, float | None | int):
        for value in (1, 1.0, 2**60 + 1):
            assert type(wire(annotation, value)) is type(value)


def test_a_moment_keeps_its_offset_and_a_naive_one_stays_naive() -> None:
    paris = dt.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Paris"))
    assert wire(dt.datetime, paris).utcoffset() == dt.timedelta(hours=2)
    assert wire(dt.datetime, dt.datetime(2026, 7, 1, 12)).tzinfo is None


def test_a_field_added_with_a_default_reads_what_was_stored_before_it() -> None:
    assert shape_of(Point, "here").decode({"x": 1}, "x") == Point(1, 0)


def test_a_field_made_by_the_class_does_not_travel() -> None:
    assert shape_of(Odd, "here").encode(Odd("n"), "x") == {"name": "n", "tags": []}


def test_a_dataclass_that_refuses_its_own_fields_is_an_error_with_its_words() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("n must be even")

    assert unreadable(Even, {"n": 1}) == "argument 'x': Even() refused the stored fields: ValueError: n must be even"


def test_an_error_in_a_union_is_that_of_the_member_that_came_furthest() -> None:
    assert str(refusal(list[list[int]] | list[str], [[1, "a"]])) == "argument 'x[0][1]': expected int, got str"
    assert unreadable(Point | Named, {"x": "1"}) == "argument 'x.x': expected int, got str"


def chain(length: int) -> Tree:
    tree = Tree(0)
    for value in range(length):
        tree = Tree(value, [tree])
    return tree


def test_a_tree_may_be_deep_but_not_without_end() -> None:
    assert wire(Tree, chain(90)) == chain(90)
    error = refusal(Tree, chain(110))
    assert (error.problem, error.kind) == ("it is nested more than 200 levels deep, or contains itself", "value")


def test_a_value_that_contains_itself_is_refused() -> None:
    tree, loop, table = Tree(0), [], {}  # type: ignore[var-annotated]
    tree.parent = tree
    loop.append(loop)
    table["a"] = table
    for annotation, value in ((Tree, tree), (Any, loop), (dict, table)):
        error = refusal(annotation, value)
        assert (error.problem, error.kind) == ("it is nested more than 200 levels deep, or contains itself", "value")


def test_a_deep_alternation_of_unions_is_read_in_linear_time() -> None:
    value: Sum | Leaf = Leaf(1, kind="leaf")
    for _ in range(60):
        value = Sum((value,), kind="sum")
    shape = shape_of(Leaf | Sum, "here")
    stored, before = shape.encode(value, "x"), Sum.made
    assert shape.decode(stored, "x") == value
    assert Sum.made - before == 60  # no part was tried as something else first


def test_a_class_made_inside_a_function_works_even_when_it_names_itself() -> None:
    @dataclass
    class Chain:
        next: Chain | None = None

    class Size(enum.Enum):
        BIG = 1.5

    assert wire(Chain, Chain(Chain())) == Chain(Chain())
    assert wire(list[Size], [Size.BIG]) == [Size.BIG]


def test_a_final_field_is_its_type() -> None:
    @dataclass
    class Fixed:
        x: Final[int] = 3

    assert wire(Fixed, Fixed(4)) == Fixed(4)
