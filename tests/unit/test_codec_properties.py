"""Properties of the codec over generated values and generated types: each value comes back equal,
or is refused.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import json
import uuid
from collections.abc import Callable
from typing import Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PositiveInt

from horsies_django.core.codec import CodecError, Shape, UnsupportedType, shape_of
from tests.support.sizes import examples
from tests.unit.shapes import FLOATS, PLAIN, TEXT, Box, Doc, Line, Order, Span, Tree

pytestmark = pytest.mark.thorough

CALM = settings(max_examples=examples(20, 500), deadline=None, database=None)


Color = enum.Enum("Color", {"RED": "red", "NONE": None, "HALF": 0.5, "ON": True})
Access = enum.IntFlag("Access", "READ WRITE RUN")
FIXED = st.none() | st.integers(-86_399, 86_399).map(lambda s: dt.timezone(dt.timedelta(seconds=s)))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
SPANS = st.builds(Span, st.integers(), st.timedeltas())
LINES = st.builds(Line, TEXT, DECIMALS, st.none() | st.datetimes())
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(10**4000), 10**4000),
    float: FLOATS,
    str: TEXT,
    dt.datetime: st.datetimes(timezones=FIXED),
    dt.date: st.dates(),
    dt.time: st.times(timezones=FIXED),
    dt.timedelta: st.timedeltas(),
    uuid.UUID: st.uuids(),
    decimal.Decimal: DECIMALS,
    Color: st.sampled_from(Color),
    Access: st.integers(0, 7).map(Access),
    Literal["a", 1, False, None]: st.sampled_from(["a", 1, False, None]),
    Order: st.builds(Order, st.uuids(), st.lists(LINES, max_size=3), PLAIN),
    Tree: st.recursive(
        st.builds(Tree, st.integers() | FLOATS),
        lambda inner: st.builds(Tree, st.none(), st.lists(inner, max_size=3)),
        max_leaves=5,
    ),
    Any: PLAIN,
    bytes: st.binary(),
    ipaddress.IPv6Address: st.ip_addresses(v=6),
    frozenset[dt.date]: st.frozensets(st.dates(), max_size=3),
    Span: SPANS,
    Doc: st.fixed_dictionaries({"a": st.integers()}, optional={"spans": st.lists(SPANS)}),
    Box[dt.timedelta]: st.builds(Box, st.timedeltas(), st.lists(st.timedeltas(), max_size=3)),
    PositiveInt: st.integers(min_value=1),
    dict: st.dictionaries(TEXT, PLAIN, max_size=3),
    list: st.lists(PLAIN, max_size=3),
}
Typed = tuple[Any, st.SearchStrategy[Any]]


def shape_if_declarable(annotation: Any) -> Shape | None:
    try:
        return shape_of(annotation, "here")
    except UnsupportedType:  # a union whose members cannot be told apart
        return None


def tried(convert: Callable[[Any, str], Any], value: Any) -> tuple[Any, CodecError | None]:
    try:
        return convert(value, "x"), None
    except CodecError as error:
        return None, error


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Build containers of generated types, each with the strategy of its values."""
    lists = inner.map(lambda typed: (list[typed[0]], st.lists(typed[1], max_size=3)))
    dicts = inner.map(
        lambda typed: (dict[str, typed[0]], st.dictionaries(TEXT, typed[1], max_size=3))
    )
    rows = inner.map(
        lambda typed: (tuple[typed[0], ...], st.lists(typed[1], max_size=3).map(tuple))
    )
    pairs = st.tuples(inner, inner).map(
        lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))
    )
    unions = st.lists(inner, min_size=2, max_size=3).map(
        lambda some: (
            Union[tuple(typed[0] for typed in some)],  # noqa: UP007
            st.one_of(*(typed[1] for typed in some)),
        )
    )

    return lists | dicts | rows | pairs | unions


TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(list(SCALARS.items())), containers, max_leaves=4
)


def through_jsonb(stored: Any) -> Any:
    """Return JSON data as PostgreSQL's jsonb gives it back.

    It has its own order of keys and its own form of numbers.
    """
    if isinstance(stored, dict):
        return {
            key: through_jsonb(stored[key])
            for key in sorted(stored, key=lambda key: (len(key.encode()), key))
        }
    if isinstance(stored, list):
        return [through_jsonb(each) for each in stored]
    if isinstance(stored, float):
        return int(stored) if "e+" in repr(stored) else stored + 0.0

    return stored


def through_text(stored: Any) -> Any:
    """Return JSON data after a trip through strict text."""
    return json.loads(json.dumps(stored, allow_nan=False, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    "annotation", [*SCALARS, TYPES], ids=lambda found: "any" if found is TYPES else str(found)
)
@given(data=st.data())
@CALM
def test_a_declarable_value_survives_json_and_jsonb(annotation: Any, data: st.DataObject) -> None:
    """A value of each declarable type comes back through JSON and through jsonb."""
    annotation, values = (
        data.draw(TYPES) if annotation is TYPES else (annotation, SCALARS[annotation])
    )

    if (shape := shape_if_declarable(annotation)) is None:
        return

    value = data.draw(values)
    stored = through_text(shape.encode(value, "x"))
    found = shape.decode(stored, "x")
    back = shape.decode(through_jsonb(stored), "x")

    assert found == back == value
    assert type(found) is type(value)
    # A number in plain JSON may come back with another type.
    assert type(back) is type(value) or annotation is Any or annotation not in SCALARS


@given(value=st.datetimes(timezones=st.timezones()))
@CALM
def test_a_datetime_of_any_time_zone_keeps_its_clock_and_offset(value: dt.datetime) -> None:
    """A datetime of any time zone keeps its clock and its offset."""
    # Compared by parts: Python calls two zones' moments unequal wherever a clock is set back.
    shape = shape_of(dt.datetime, "here")
    back = shape.decode(shape.encode(value, "x"), "x")

    assert (back.replace(tzinfo=None), back.utcoffset()) == (
        value.replace(tzinfo=None, fold=0),
        value.utcoffset(),
    )


ANYTHING = (
    st.one_of(*SCALARS.values())
    | st.floats()
    | st.binary()
    | st.text(st.characters())
    | st.sets(st.integers())
)


@given(typed=TYPES, value=ANYTHING)
@CALM
def test_a_value_of_any_kind_is_refused_or_comes_back_equal(typed: Typed, value: Any) -> None:
    if (shape := shape_if_declarable(typed[0])) is None:
        return

    stored, error = tried(shape.encode, value)

    if error is None:
        assert shape.decode(through_text(stored), "x") == value
    else:
        assert error.path.startswith("x")
        assert error.kind in ("type", "value")


@given(typed=TYPES, stored=PLAIN)
@CALM
def test_any_json_is_read_as_the_declared_type_or_refused(typed: Typed, stored: Any) -> None:
    """JSON of any kind is read as the declared type, or refused."""
    if (shape := shape_if_declarable(typed[0])) is None:
        return

    value, error = tried(shape.decode, stored)

    if error is None:
        assert shape.decode(shape.encode(value, "x"), "x") == value
    else:
        assert error.path.startswith("x")
