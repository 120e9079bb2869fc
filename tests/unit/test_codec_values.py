"""Values of each declared type come back as they were, however they are nested.

Other values are refused.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import ipaddress
import uuid
import zoneinfo
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, Union

import pytest
import typing_extensions
from pydantic import AfterValidator, AnyUrl, AwareDatetime, BaseModel, Field, PositiveInt, SecretStr

from horsies_django.core.codec import ArgumentsCodec, ResultCodec, shape_of
from tests.unit.shapes import (
    Box,
    Color,
    Deep,
    Doc,
    Level,
    Line,
    Order,
    Point,
    Span,
    Tree,
    label,
    refusal,
    unreadable,
    wire,
)

UserId = NewType("UserId", int)
UTC = dt.UTC
Access = enum.Flag("Access", "READ WRITE")


class Word(str):
    """A text that is not exactly a str."""


@dataclass
class Moved(Point):
    """Adds behaviour, but no fields."""

    moves: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Odd:
    name: str
    _: KW_ONLY
    tags: list[str] = field(default_factory=list)
    size: int = field(init=False, default=0)


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


class Size(BaseModel):
    width: int
    at: dt.datetime


class Part(typing_extensions.TypedDict, total=False):
    docs: typing_extensions.Required[list[Doc]]
    note: typing_extensions.ReadOnly[str]


OFFSET = dt.timezone(dt.timedelta(hours=5, minutes=45, seconds=1))
LINES = [
    Line("ç", decimal.Decimal("1.50")),
    Line("b", decimal.Decimal("1E+3"), dt.datetime(2026, 1, 2, 3, 4, 5, 6, OFFSET)),
]
ORDER = Order(uuid.UUID(int=7), LINES, {"a": [1, None]})
ORDER_TEXT = (
    '{"id":"00000000-0000-0000-0000-000000000007","lines":[{"sku":"ç","price":"1.50","at":null},'
    '{"sku":"b","price":"1E+3","at":"2026-01-02T03:04:05.000006+05:45:01"}],"note":{"a":[1,null]}}'
)
# The texts of the first release. Partition keys and the digests of steps are made of them.
STORED: list[tuple[Any, Any, str]] = [
    (None, None, "null"),
    (bool, True, "true"),
    (int, -(2**70), "-1180591620717411303424"),
    (float, 1e16, "1e+16"),
    (str, 'a"\n\x1f\u2028ç\x7f', '"a\\"\\n\\u001f\u2028ç\x7f"'),
    (dt.datetime, dt.datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00+00:00"'),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6), '"2026-01-02T03:04:05.000006"'),
    (dt.date, dt.date(2026, 1, 2), '"2026-01-02"'),
    (dt.time, dt.time(23, 59, 59, 999999, tzinfo=UTC), '"23:59:59.999999+00:00"'),
    (decimal.Decimal, decimal.Decimal("-0.10E+500"), '"-1.0E+499"'),
    (Color, Color.RED, '"red"'),
    (Access, Access.READ | Access.WRITE, "3"),
    (Literal["a", 1, None, True, Color.RED], Color.RED, '"red"'),
    (Order, ORDER, ORDER_TEXT),
    (
        Size,
        Size(width=1, at=dt.datetime(2026, 1, 2, tzinfo=UTC)),
        '{"width":1,"at":"2026-01-02T00:00:00Z"}',
    ),
    (dict[str, int], {"b": 1, "a": 2}, '{"b":1,"a":2}'),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (tuple[dt.timedelta, ...], (dt.timedelta(days=-1),), "[-86400000000]"),
    (Union[int, float, None], 1.5, "1.5"),  # noqa: UP007 - the older spelling
    (int | str | list[dt.date] | dict[str, Any], [dt.date(2026, 1, 2)], '["2026-01-02"]'),
    (Annotated[int, "positive", []], 3, "3"),
    (UserId, UserId(3), "3"),
    (Any, {"b": [1, 1.5, None, True, "x"], "a": {}}, '{"b":[1,1.5,null,true,"x"],"a":{}}'),
    (Odd, Odd("n", tags=["t"]), '{"name":"n","tags":["t"]}'),
    (
        Tree,
        Tree(1, [Tree(2)]),
        '{"value":1,"children":[{"value":2,"children":[],"parent":null}],"parent":null}',
    ),
    (Circle | Square, Square("square", 2.0), '{"kind":"square","r":2.0}'),
    (list[Point | Named | None], [Named("a"), None, Point(1)], '[{"name":"a"},null,{"x":1,"y":0}]'),
    (
        Sum | Leaf,
        Sum((Leaf(1, kind="leaf"),), kind="sum"),
        '{"terms":[{"terms":1,"kind":"leaf"}],"kind":"sum"}',
    ),
    (Literal["today"] | dt.date, dt.date(2026, 1, 2), '"2026-01-02"'),
    (Color | Level | None, Level.LOW, "1"),
    # The texts of later releases:
    (bytes, b"\x00\xff", '"AP8="'),
    (set[str], {"b", "a", "c"}, '["a","b","c"]'),
    (set, {"a", 1}, '["a",1]'),
    (Path, Path("/a/b"), '"/a/b"'),
    (ipaddress.IPv4Address, ipaddress.ip_address("10.0.0.1"), '"10.0.0.1"'),
    (ipaddress.IPv4Interface, ipaddress.ip_interface("10.0.0.1/8"), '"10.0.0.1/8"'),
    (Span, Span(1, dt.timedelta(seconds=5)), "[1,5000000]"),
    (Doc, {"a": 1, "spans": [Span(1, dt.timedelta(1))]}, '{"a":1,"spans":[[1,86400000000]]}'),
    (Part, {"docs": [{"a": 1}]}, '{"docs":[{"a":1}]}'),
    (Doc | Part, {"docs": []}, '{"docs":[]}'),
    (Box[int], Box(1, [2]), '{"item":1,"others":[2],"next":null}'),
    (Annotated[int, Field(gt=0)], 1, "1"),
    (AnyUrl | int, AnyUrl("http://a.b/c?d"), '"http://a.b/c?d"'),
    (
        AwareDatetime,
        dt.datetime(2026, 1, 2, 3, 4, 5, 6, OFFSET),
        '"2026-01-02T03:04:05.000006+05:45:01"',
    ),
]


@pytest.mark.parametrize(("annotation", "value", "text"), STORED, ids=label)
def test_a_value_of_its_declared_type_round_trips(annotation: Any, value: Any, text: str) -> None:
    """A value of its declared type is stored as in all releases, and comes back."""

    def call(value): ...  # type: ignore[no-untyped-def]

    call.__annotations__ = {"value": annotation, "return": annotation}
    arguments = ArgumentsCodec.of(call)
    result = ResultCodec.of(call)

    assert (arguments.encode((value,), {}), result.encode_ok(value)) == (
        f'{{"value":{text}}}',
        f'{{"ok":{text}}}',
    )

    for found in (
        arguments.decode(f'{{"value":{text}}}')[1]["value"],
        result.decode(f'{{"ok":{text}}}').ok_value,
    ):
        assert found == value
        assert type(found) is type(value)


def test_a_validator_that_changes_a_value_changes_it_once() -> None:
    """Fails if: the sender stores the value that its validator returned, and the worker validates
    it again.
    """
    shape = shape_of(Annotated[str, AfterValidator(lambda text: text + "!")], "here")

    assert shape.decode(shape.encode("a", "x"), "x") == "a!"


def test_an_int_serves_as_a_float_and_a_subclass_as_its_base() -> None:
    for annotation, value in (
        (float, 3),
        (str, Word("a")),
        (int, Level.LOW),
        (str, enum.StrEnum("S", "A").A),
    ):
        found = wire(annotation, value)
        assert (found, type(found)) == (value, annotation)

    assert wire(dict[str, int], collections.OrderedDict(a=1)) == {"a": 1}
    assert wire(Literal["a"], Word("a")) == "a"
    assert wire(Point, Moved(1, 2)) == wire(Point | Named, Moved(1, 2)) == Point(1, 2)


def test_an_int_or_float_keeps_its_type_in_a_union_of_both() -> None:
    """In a union of both, an int stays an int and a float a float, in either order."""
    for annotation in (int | float, float | int, float | None | int):
        for value in (1, 1.0, 2**60 + 1):
            assert type(wire(annotation, value)) is type(value)


def test_the_class_fills_fields_that_were_not_stored() -> None:
    """The class fills fields that were not stored; a value that lacks a field is refused."""
    assert shape_of(Point, "here").decode({"x": 1}, "x") == Point(1, 0), (
        "the field y was added later"
    )
    assert shape_of(Odd, "here").encode(Odd("n"), "x") == {"name": "n", "tags": []}

    point = Point(1)
    del point.x
    assert str(refusal(Point, point)) == "argument 'x': this Point has no value for its field 'x'"


def chain(length: int) -> Tree:
    tree = Tree(0)
    for value in range(length):
        tree = Tree(value, [tree])
    return tree


def test_a_value_may_be_deep_but_not_without_end() -> None:
    assert wire(Tree, chain(90)) == chain(90)

    tree = Tree(0)
    loop = []
    table = {}
    tree.parent = tree
    loop.append(loop)
    table["a"] = table

    for annotation, value in ((Tree, chain(110)), (Tree, tree), (Any, loop), (dict, table)):
        error = refusal(annotation, value)
        assert (error.problem, error.kind) == (
            "it is nested more than 200 levels deep, or contains itself",
            "value",
        )


def test_a_deep_alternation_of_unions_is_read_in_linear_time() -> None:
    value: Sum | Leaf = Leaf(1, kind="leaf")
    for _ in range(60):
        value = Sum((value,), kind="sum")

    shape = shape_of(Leaf | Sum, "here")
    stored = shape.encode(value, "x")
    before = Sum.made

    assert shape.decode(stored, "x") == value
    assert Sum.made - before == 60  # no part was tried as the wrong member first


def test_a_class_made_inside_a_function_can_be_stored() -> None:
    """A class made inside a function can be stored, even if it names itself or has final fields."""

    @dataclass
    class Chain:
        size: Final[int] = 3
        next: Chain | None = None

    class Size(enum.Enum):
        BIG = 1.5

    assert wire(Chain, Chain(4, Chain())) == Chain(4, Chain())
    assert wire(list[Size], [Size.BIG]) == [Size.BIG]


@dataclass
class Even:
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("n must be even")


Namesake = type("Point", (), {"__module__": "elsewhere"})
# Values of another type.
BAD: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (bool, 1, "expected bool, got int"),
    (float, True, "expected float, got bool"),
    (dt.date, dt.datetime(2026, 1, 2), "expected date, got datetime"),
    (dt.datetime, dt.date(2026, 1, 2), "expected datetime, got date"),
    (dt.timedelta, 5, "expected timedelta, got int"),
    (Color, "red", "expected Color, got str"),
    (Level, 1, "expected Level, got int"),
    (Literal[1, "a"], True, "expected Literal[1, 'a'], got another bool"),
    (Literal["a"], 1.5, "expected Literal['a'], got float"),
    (Path, "/a", "expected Path, got str"),
    (Literal[Color.RED], "red", "expected Literal[Color.RED], got another str"),
    (list[int], (1, 2), "expected list[int], got tuple"),
    (dict[str, int], {1: 1}, "a key is of type int; the keys of a JSON object are str"),
    (tuple[int, str], (1,), "expected tuple[int, str], got 1 items instead of 2"),
    (int | str, 1.5, "expected int | str, got float"),
    (Any, (1, 2), "a tuple would come back as a list: pass a list, or declare tuple[...]"),
    (
        Any,
        dt.date(2026, 1, 2),
        "expected plain JSON (None, bool, int, float, str, list or dict), got date",
    ),
    (Point, {"x": 1}, "expected Point, got dict"),
    (set[str], frozenset("a"), "expected set[str], got frozenset"),
    (Point | Named, Deep(1, 2, 3), "expected Point | Named, got Deep"),
    (Point, Deep(1, 2, 3), "expected Point, got Deep, whose 'z' would be lost"),
    (
        ipaddress.IPv4Address,
        ipaddress.ip_interface("10.0.0.1/8"),
        "expected IPv4Address, got IPv4Interface",
    ),
    (Span, (1, dt.timedelta(1)), "expected Span, got tuple"),
    (Doc, {"spans": []}, "the dict has no 'a', which Doc needs"),
    (Doc, {"a": 1, "secret": 2}, "the dict has 1 field that Doc does not have"),
    (Doc, [], "expected Doc, got list"),
    (PositiveInt, 0, "int refused it: Input should be greater than 0"),
    # Of a union, the error is that of the member that came furthest.
    (list[list[int]] | list[str], [[1, "a"]], "'x[0][1]': expected int, got str"),
    (dict[str, int], {"a": 1, "k" * 100: "a"}, "'x[key 2]': expected int, got str"),
    (Point, Namesake(), "expected Point, got another class of that name, elsewhere.Point"),
]


# Values that JSON or PostgreSQL cannot hold.
UNWRITABLE: list[tuple[Any, Any, str]] = [
    (float, float("nan"), "NaN is not valid JSON"),
    (float, float("inf"), "Infinity is not valid JSON"),
    (float, 2**53 + 1, "a float cannot hold this int exactly: declare int, or send a float"),
    (int, 10**4300, "an int of more than 4300 digits cannot be encoded as JSON: send it as a str"),
    (
        Any,
        -(10**4300),
        "an int of more than 4300 digits cannot be encoded as JSON: send it as a str",
    ),
    (str, "a\x00", "the text has a NUL byte (\\x00), which PostgreSQL cannot hold"),
    (str, "aé\ud800", "the text has a lone surrogate (character 2), so it is not valid Unicode"),
    (dict, {"a\x00": 1}, "a key: the text has a NUL byte (\\x00), which PostgreSQL cannot hold"),
    (dict[str, int], {"\udc80": 1}, "a key: the text has a lone surrogate (character 0)"),
    (Path, Path("a\udc80"), "the text has a lone surrogate"),
    (AnyUrl, "http://a.b", "this str would come back as another "),
    (SecretStr, SecretStr("x"), "this SecretStr would come back as another SecretStr"),
    (decimal.Decimal, decimal.Decimal("NaN"), "a Decimal must be finite to be encoded"),
    (
        dt.time,
        dt.time(3, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
        "its time zone gives this time no offset from UTC",
    ),
]


@pytest.mark.parametrize(
    ("kind", "annotation", "value", "problem"),
    [*(("type", *row) for row in BAD), *(("value", *row) for row in UNWRITABLE)],
    ids=label,
)
def test_a_value_of_another_type_is_refused_and_never_coerced(
    kind: str, annotation: Any, value: Any, problem: str
) -> None:
    """A value of another type, or one that cannot be stored, is refused and never coerced."""
    error = refusal(annotation, value)

    assert (problem in str(error), error.kind) == (True, kind), str(error)


UNREADABLE: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (float, True, "expected float, got bool"),
    (float, 10**400, "Infinity is not valid JSON"),
    (str, 1, "expected str, got int"),
    (dt.date, "2026-01-02T00:00:00", "the stored text is not a date"),
    (dt.timedelta, 10**30, "the stored number of microseconds is too large for a timedelta"),
    (dt.timedelta, "5", "expected timedelta as microseconds, got str"),
    (uuid.UUID, "{00000000-0000-0000-0000-000000000005}", "the stored text is not a UUID"),
    (decimal.Decimal, "Infinity", "the stored text is not a Decimal"),
    (Color, "green", "the stored str is not the value of any member of Color"),
    (Color, ["red"], "the stored list is not the value of any member of Color"),
    (Level, True, "the stored bool is not the value of any member of Level"),
    (Literal[1], True, "the stored bool is none of Literal[1]"),
    (tuple[int, str], [1, "a", 2], "expected tuple[int, str], got 3 items instead of 2"),
    (tuple[int, ...], {}, "expected list[int], got dict"),
    (
        Point,
        {"x": 1, "old": 2, "older": 3},
        "the stored object has 2 fields that Point does not have",
    ),
    (Point, {"y": 1}, "the stored object has no 'x', which Point needs"),
    (bytes, "%%", "the stored text is not a bytes"),
    (set, [[1]], "the stored list has an element that cannot be in a set"),
    (Span, [1], "expected Span, got 1 items instead of 2"),
    (Point | Named, {"x": "1"}, "'x.x': expected int, got str"),
    (Even, {"n": 1}, "Even() refused the stored fields: ValueError: n must be even"),
]


@pytest.mark.parametrize(("annotation", "stored", "problem"), UNREADABLE, ids=label)
def test_what_encode_never_wrote_is_not_read(annotation: Any, stored: Any, problem: str) -> None:
    assert str(unreadable(annotation, stored)).endswith(problem)
