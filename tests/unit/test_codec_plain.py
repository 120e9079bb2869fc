"""The codec of plain functions: which values may be sent, how they are stored, and how they come
back.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import json
import math
import types
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.codec import CodecError, PlainArguments, PlainResult
from horsies_django.core.codec.plain import named_arguments
from horsies_django.tasks.definition import define_plain
from tests.support.sizes import examples
from tests.unit.shapes import PLAIN, TEXT, Color, Customer, Level, error_of
from tests.unit.test_codec import at, greet, loose

CALM = settings(max_examples=examples(50, 1_000), deadline=None, database=None)


Word = enum.Enum("Word", {"A": "a"}, type=str)
Name = enum.StrEnum("Name", {"B": "b"})


class Text(str):
    def __str__(self) -> str:
        return "something else"


def anything(*args, **kwargs): ...  # type: ignore[no-untyped-def]


def with_context(context, name): ...  # type: ignore[no-untyped-def]


ANYTHING = PlainArguments(anything)
NAMES = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@CALM
@given(st.lists(PLAIN, max_size=3), st.dictionaries(NAMES, PLAIN, max_size=3))
def test_every_json_value_comes_back_as_it_was(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert ANYTHING.decode(ANYTHING.encode(args, kwargs)) == (args, kwargs)

    result = PlainResult(anything)
    assert result.decode(result.encode_ok([args, kwargs])).ok == [args, kwargs]


ODD = [
    Word.A,
    Name.B,
    Level.LOW,
    Text("text"),
    b"bytes",
    Color.RED,
    math.nan,
    math.inf,
    "\x00",
    "\ud800",
]
NO_JSON = [
    dt.date(2030, 1, 1),
    decimal.Decimal(1),
    uuid.UUID(int=1),
    {1, 2},
    object(),
    Customer(),
    1j,
    b"\xff",
]
LOOSE = st.recursive(
    PLAIN | st.sampled_from(ODD) | st.sampled_from(NO_JSON),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=2).map(collections.deque)
        | st.dictionaries(
            TEXT | st.integers() | st.sampled_from([Name.B, b"key"]), inner, max_size=3
        )
        | st.dictionaries(TEXT, inner, max_size=2).map(types.MappingProxyType)
    ),
    max_leaves=8,
)


@CALM
@given(LOOSE)
def test_a_value_is_sent_as_strict_json_or_refused(value: Any) -> None:
    """Fails if: json.dumps() accepts NaN, NUL, lone surrogates and keys that are numbers, which the
    database refuses or changes.
    """
    try:
        text = ANYTHING.encode([value], {})
    except CodecError:
        return

    text.encode()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["args"][
        0
    ]

    assert "\x00" not in json.dumps(found, ensure_ascii=False)
    assert ANYTHING.encode([found], {}) == text, (
        "what is stored stays the same when it is sent again"
    )


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2,)), [1, [2]]),
        (range(2), [0, 1]),
        (collections.deque([1]), [1]),
        (b"text \xc3\xbc", "text ü"),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
        ({b"key": 1, Name.B: 2}, {"key": 1, "b": 2}),
        ([Word.A, Name.B, Level.LOW], ["a", "b", 1]),
        (Text("own"), "own"),
    ],
)
def test_what_resembles_json_becomes_json(value: Any, stored: Any) -> None:
    """Fails if: a member of an enum, or a str with another ``__str__``, is stored as that text."""
    found = json.loads(ANYTHING.encode([value], {}))["args"][0]

    assert (found, type(found)) == (stored, type(stored))
    assert PlainResult(anything).decode(PlainResult(anything).encode_ok(value)).ok == stored


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "NaN is not valid JSON"),
        ("a\x00b", "NUL byte"),
        (b"a\x00b", "NUL byte"),
        (Text("\ud800"), "lone surrogate"),
        ({b"a\x00": 1}, "NUL byte"),
        ({1, 2}, "got set"),
        (b"\xff", "these bytes are not text in UTF-8"),
        ({1: 2}, "a key is of type int; the keys of a JSON object are str"),
        ({b"a": 1, "a": 2}, "two keys are the same in JSON"),
        (
            dt.datetime(2030, 1, 1),
            "expected plain JSON (None, bool, int, float, str, list or dict), got datetime",
        ),
        (Color.RED, "Color is an Enum whose members are neither str nor int: pass its value"),
        (Customer(), "is a model instance (Customer): pass user"),
        pytest.param(10**5_000, "an int of more than 4300 digits", id="a vast int"),
    ],
)
@pytest.mark.parametrize(
    ("inside", "path"),
    [
        (lambda value: value, "user"),
        (lambda value: {"x": [1, value]}, "user[key 1][1]"),
        (
            lambda value: types.MappingProxyType({"x": (1, collections.deque([value]))}),
            "user[key 1][1][0]",
        ),
    ],
    ids=["itself", "in JSON", "in what resembles JSON"],
)
def test_what_is_no_json_is_refused_with_its_position(
    value: Any, said: str, inside: Callable[[Any], Any], path: str
) -> None:
    """Fails if: json.dumps() accepts NaN, NUL, lone surrogates and keys that are numbers, which the
    database refuses or changes.
    """
    by_keyword = error_of(ANYTHING.encode, [], {"user": inside(value)})

    assert said in str(by_keyword)
    assert by_keyword.path.startswith(path)
    assert error_of(PlainArguments(greet).encode, [inside(value)], {}).path.startswith("name")
    assert str(error_of(PlainResult(anything).encode_ok, inside(value))).startswith("result")


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(CodecError, match="nested more than 200 levels deep, or contains itself"):
        ANYTHING.encode([circle], {})

    deep: Any = 1
    for _ in range(200):
        deep = [deep]

    assert ANYTHING.decode(ANYTHING.encode([deep], {})) == ([deep], {})


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "stored"),
    [
        (
            greet,
            ["Ann", "hi"],
            {"loud": 1},
            {"args": ["Ann", "hi"], "kwargs": {"loud": 1}, "names": ["name", "greeting"]},
        ),
        (greet, [], {"name": "Ann"}, {"args": [], "kwargs": {"name": "Ann"}}),
        (anything, [1, 2], {"a": 3}, {"args": [1, 2], "kwargs": {"a": 3}}),
        (loose, [1, 2], {"x": 3}, {"args": [1, 2], "kwargs": {"x": 3}, "names": ["x"]}),
        (at, [1], {"scale": 2}, {"args": [1], "kwargs": {"scale": 2}, "names": ["x"]}),
    ],
)
def test_a_call_is_stored_with_the_names_of_its_parameters(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], stored: dict[str, Any]
) -> None:
    """A call is stored as it was made, together with the names of its positional parameters."""
    text = PlainArguments(function).encode(args, kwargs)

    assert json.loads(text) == stored
    assert PlainArguments(function).decode(text) == (args, kwargs)


def test_a_context_is_no_argument() -> None:
    """Fails if: the call is bound to the whole signature, so that the first argument takes the
    place of the context.
    """
    codec = PlainArguments(with_context, takes_context=True)

    assert codec.decode(codec.encode(["Ann"], {})) == (["Ann"], {})
    assert json.loads(codec.encode(["Ann"], {}))["names"] == ["name"]
    assert codec.names == {"name"}

    with pytest.raises(CodecError, match="missing a required argument: 'name'"):
        codec.encode([], {})


def test_arguments_by_name_reach_positional_only_parameters() -> None:
    """Arguments that were given by name reach positional-only parameters.

    A workflow and a schedule put arguments together by name.

    Fails if: f(x=1) for def f(x, /) raises.
    """
    codec = PlainArguments(at)

    assert codec.decode('{"args": [], "kwargs": {"x": 1, "scale": 2}}') == ([1], {"scale": 2})
    assert codec.decode('{"args": [], "kwargs": {"x": 1, "y": 5}}') == ([1, 5], {})
    assert codec.decode_values('{"x": 3}') == ([3], {})

    with pytest.raises(CodecError, match="'x'"):
        codec.decode('{"args": [], "kwargs": {"y": 1}}')


def test_a_node_of_a_workflow_binds_by_name() -> None:
    assert PlainArguments(greet).bind(("Ann",), {"loud": True}) == {"name": "Ann", "loud": True}
    assert PlainArguments(at).bind((1, 2), {}) == {"x": 1, "y": 2}
    assert ANYTHING.bind((), {"whatever": 1}) == {"whatever": 1}

    for function, args, kwargs, said in (
        (anything, (1,), {}, "gets arguments for \\*args, which have no name: pass one list"),
        (loose, (1,), {}, "positional-only parameters beside \\*\\*"),
        (greet, ("Ann",), {"name": "Bob"}, "multiple values"),
        (greet, (), {}, "missing a required argument"),
        (greet, ("a", "b", "c"), {}, "too many positional arguments"),
    ):
        with pytest.raises(CodecError, match=said):
            PlainArguments(function).bind(args, kwargs)  # type: ignore[arg-type]


def test_annotations_of_a_plain_function_do_not_matter() -> None:
    """Fails if: a name that only a type checker can resolve makes the definition fail."""

    def typed(when: Undefined, who: set[int] = {1}) -> Undefined:  # type: ignore[name-defined]  # noqa: B006, F821
        return None

    definition = define_plain(typed, name="shop.tell", queue="mail")

    assert (definition.name, definition.queue, definition.codec) == ("shop.tell", "mail", "plain")

    definition.arguments.resolve()
    definition.result.resolve()
    assert definition.arguments.decode(definition.arguments.encode([1], {})) == ([1], {})


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ({"args": [1, 2], "kwargs": {"c": 3}, "names": ["a", "b"]}, {"a": 1, "b": 2, "c": 3}),
        ({"args": [1, 2, 3], "kwargs": {}, "names": ["a"]}, {"a": 1, "*": [2, 3]}),
        ({"args": [], "kwargs": {}}, {}),
        ({}, {}),
        ({"args": 1}, {"args": 1}),
        ("text", "text"),
    ],
)
def test_the_arguments_of_a_call_by_name(stored: Any, named: Any) -> None:
    assert named_arguments(stored) == named
