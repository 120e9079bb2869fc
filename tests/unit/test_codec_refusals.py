"""Values that are refused: of another type, not for JSON or PostgreSQL, or never written by us."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from horsies_django.core.codec import CodecError, shape_of


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Deep(Point):
    z: int = 0


@dataclass
class Named:
    name: str


def label(each: Any) -> str:
    return "a huge int" if isinstance(each, int) and abs(each) > 10**100 else ascii(each)[:60]


def refusal(annotation: Any, value: Any) -> CodecError:
    with pytest.raises(CodecError) as raised:
        shape_of(annotation, "here").encode(value, "x")
    return raised.value


def unreadable(annotation: Any, stored: Any) -> str:
    with pytest.raises(CodecError) as raised:
        shape_of(annotation, "here").decode(stored, "x")
    return str(raised.value)


BAD: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (int, "1", "expected int, got str"),
    (int, None, "expected int, got None"),
    (bool, 1, "expected bool, got int"),
    (float, True, "expected float, got bool"),
    (float, "1.5", "expected float, got str"),
    (str, b"a", "expected str, got bytes"),
    (str, 1, "expected str, got int"),
    (None, 0, "expected None, got int"),
    (dt.date, dt.datetime(2026, 1, 2), "expected date, got datetime"),
    (dt.datetime, dt.date(2026, 1, 2), "expected datetime, got date"),
    (dt.datetime, "2026-01-02T00:00:00", "expected datetime, got str"),
    (dt.timedelta, 5, "expected timedelta, got int"),
    (uuid.UUID, str(uuid.UUID(int=1)), "expected UUID, got str"),
    (decimal.Decimal, 1.5, "expected Decimal, got float"),
    (Color, "red", "expected Color, got str"),
    (Level, 1, "expected Level, got int"),
    (Literal[1, "a"], True, "expected Literal[1, 'a'], got another bool"),
    (Literal["a"], "b", "expected Literal['a'], got another str"),
    (Literal[Color.RED], "red", "expected Literal[Color.RED], got another str"),
    (Literal["a"], 1.5, "expected Literal['a'], got float"),
    (list[int], (1, 2), "expected list[int], got tuple"),
    (list[int], {1}, "expected list[int], got set"),
    (list[Point | None], {}, "expected list[Point | None], got dict"),
    (dict[str, int], [], "expected dict[str, int], got list"),
    (dict[str, int], {1: 1}, "a key is of type int; the keys of a JSON object are str"),
    (dict[str, list[int]], None, "expected dict[str, list[int]], got None"),
    (tuple[int, str], (1,), "expected tuple[int, str], got 1 items instead of 2"),
    (tuple[int, ...], [1], "expected tuple[int, ...], got list"),
    (int | str, 1.5, "expected int | str, got float"),
    (int | None, "a", "expected int, got str"),
    (Any, (1, 2), "a tuple would come back as a list: pass a list, or declare tuple[...]"),
    (Any, dt.date(2026, 1, 2), "expected plain JSON (None, bool, int, float, str, list or dict), got date"),
    (dict, [], "expected dict[str, Any], got list"),
    (dict, {"a": {1}}, "expected plain JSON (None, bool, int, float, str, list or dict), got set"),
    (Any, {1: 1}, "a key is of type int; the keys of a JSON object are str"),
    (Point, {"x": 1}, "expected Point, got dict"),
    (Point, Deep(1, 2, 3), "expected Point, got Deep, whose 'z' would be lost"),
    (Point | Named, Deep(1, 2, 3), "expected Point | Named, got Deep"),
]


@pytest.mark.parametrize(("annotation", "value", "problem"), BAD, ids=label)
def test_a_value_of_another_type_is_refused_and_never_coerced(annotation: Any, value: Any, problem: str) -> None:
    error = refusal(annotation, value)
    assert (error.problem, error.kind) == (problem, "type")


UNWRITABLE: list[tuple[Any, Any, str]] = [
    (float, float("nan"), "NaN is not valid JSON"),
    (float, float("inf"), "Infinity is not valid JSON"),
    (Any, float("-inf"), "-Infinity is not valid JSON"),
    (float, 2**53 + 1, "a float cannot hold this int exactly: declare int, or send a float"),
    (float, 10**400, "a float cannot hold this int exactly: declare int, or send a float"),
    (int, 10**4300, "an int of more than 4300 digits cannot be encoded as JSON: send it as a str"),
    (Any, -(10**4300), "an int of more than 4300 digits cannot be encoded as JSON: send it as a str"),
    (str, "a\x00", "the text has a NUL byte (\\x00), which PostgreSQL cannot hold"),
    (Any, "a\x00", "the text has a NUL byte (\\x00), which PostgreSQL cannot hold"),
    (str, "aé\ud800", "the text has a lone surrogate (character 2), so it is not valid Unicode"),
    (dict, {"a\x00": 1}, "a key: the text has a NUL byte (\\x00), which PostgreSQL cannot hold"),
    (
        dict[str, int],
        {"\udc80": 1},
        "a key: the text has a lone surrogate (character 0), so it is not valid",
    ),
    (decimal.Decimal, decimal.Decimal("NaN"), "a Decimal must be finite to be encoded"),
    (decimal.Decimal, decimal.Decimal("-Infinity"), "a Decimal must be finite to be encoded"),
    (dt.time, dt.time(3, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")), "its time zone gives this time no offset from UTC"),
]


@pytest.mark.parametrize(("annotation", "value", "problem"), UNWRITABLE, ids=label)
def test_a_value_that_json_or_postgresql_cannot_hold_is_refused(annotation: Any, value: Any, problem: str) -> None:
    error = refusal(annotation, value)
    assert error.problem.startswith(problem)
    assert error.kind == "value"


UNREADABLE: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (float, True, "expected float, got bool"),
    (float, 10**400, "Infinity is not valid JSON"),
    (str, 1, "expected str, got int"),
    (dt.date, "2026-01-02T00:00:00", "the stored text is not a date"),
    (dt.date, "20260102", "the stored text is not a date"),
    (dt.datetime, "2026-01-02", "the stored text is not a datetime"),
    (dt.time, "25:00:00", "the stored text is not a time"),
    (dt.timedelta, 10**30, "the stored number of microseconds is beyond any timedelta"),
    (dt.timedelta, "5", "expected timedelta as microseconds, got str"),
    (uuid.UUID, "{00000000-0000-0000-0000-000000000005}", "the stored text is not a UUID"),
    (uuid.UUID, 5, "expected UUID as text, got int"),
    (decimal.Decimal, "one", "the stored text is not a Decimal"),
    (decimal.Decimal, "Infinity", "the stored text is not a Decimal"),
    (Color, "green", "the stored str is not the value of any member of Color"),
    (Color, ["red"], "the stored list is not the value of any member of Color"),
    (Level, True, "the stored bool is not the value of any member of Level"),
    (Access, 8, "the stored int is not the value of any member of Access"),
    (Literal["a"], "b", "the stored str is none of Literal['a']"),
    (Literal[1], True, "the stored bool is none of Literal[1]"),
    (list[int], {}, "expected list[int], got dict"),
    (tuple[int, str], [1, "a", 2], "expected tuple[int, str], got 3 items instead of 2"),
    (tuple[int, ...], {}, "expected list[int], got dict"),
    (Point, {"x": 1, "old": 2, "older": 3}, "the stored object has 2 fields that Point does not have"),
    (Point, {"y": 1}, "the stored object has no 'x', which Point needs"),
    (Point, [1, 2], "expected Point as an object, got list"),
    (int | str, [], "expected int | str, got list"),
]


@pytest.mark.parametrize(("annotation", "stored", "problem"), UNREADABLE, ids=label)
def test_what_encode_never_wrote_is_not_read(annotation: Any, stored: Any, problem: str) -> None:
    assert unreadable(annotation, stored) == f"argument 'x': {problem}"


def test_a_dataclass_without_a_value_for_a_field_is_refused() -> None:
    point = Point(1)
    del point.x
    error = refusal(Point, point)
    assert (str(error), error.kind) == ("argument 'x': this Point has no value for its field 'x'", "value")


def test_another_class_of_the_same_name_is_told_apart_in_the_message() -> None:
    other = type("Point", (), {"__module__": "elsewhere"})
    assert refusal(Point, other()).problem == "expected Point, got another class of that name, elsewhere.Point"


def test_a_key_is_told_by_its_place() -> None:
    assert refusal(dict[str, int], {"a": 1, "k" * 100: "a"}).path == "x[key 2]"
