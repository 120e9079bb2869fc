"""The arguments of a call, by name and bound as Python binds them; the result and the error of a
task; and reading them back.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.utils.functional import lazy
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.codec import (
    ArgumentsCodec,
    CodecError,
    PlainArguments,
    ResultCodec,
    encode_error,
)
from horsies_django.core.errors import OperationalErrorCode, TaskDefinitionError
from horsies_django.core.results import TaskError, TaskResult
from tests.support.sizes import examples
from tests.unit.shapes import Customer, error_of

LAZY_YES: Any = lazy(lambda: "yes", str)()


@dataclass
class Line:
    price: float
    sku: str = "none"


@dataclass
class Order:
    id: int
    lines: list[Line]


def welcome(user_id: int, *, lang: str = "en") -> int: ...


def bill(order: Order, note: Any = None) -> None: ...


def mixed(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> None: ...


def price(prices: dict[str, int]) -> None:
    """Take data with keys."""


def nothing() -> None: ...


def greet(name, greeting="hello", *, loud=False): ...  # type: ignore[no-untyped-def]


def at(x, y=0, /, scale=1): ...  # type: ignore[no-untyped-def]


def loose(x, /, *rest, **others): ...  # type: ignore[no-untyped-def]


WELCOME, BILL, MIXED, PRICES = map(ArgumentsCodec.of, (welcome, bill, mixed, price))
GREET, AT, LOOSE = map(PlainArguments, (greet, at, loose))
Codec = ArgumentsCodec | PlainArguments


def refusal(codec: Codec, *args: Any, **kwargs: Any) -> CodecError:
    return error_of(codec.encode, args, kwargs)


@pytest.mark.promise("S3.12")
def test_only_names_travel_and_omitted_defaults_stay_at_home() -> None:
    assert WELCOME.encode((7,), {}) == '{"user_id":7}'
    assert WELCOME.encode((7,), {"lang": "tr"}) == '{"user_id":7,"lang":"tr"}'
    assert WELCOME.encode((), {"lang": "ç\n", "user_id": 7}) == '{"lang":"ç\\n","user_id":7}'
    assert MIXED.encode((1, 5, 6), {"d": 7}) == '{"a":1,"b":5,"c":6,"d":7}'
    assert ArgumentsCodec.of(nothing).encode((), {}) == "{}"


def test_positional_only_parameters_are_decoded_by_position() -> None:
    """Decoded arguments are ready for the call, positional-only ones by position."""

    def gap(a: int = 1, b: int = 2, /) -> None: ...

    assert WELCOME.decode('{"user_id": 7}') == ([], {"user_id": 7})
    assert WELCOME.decode(b'{"lang": "\xc3\xa7", "user_id": 7}') == (
        [],
        {"user_id": 7, "lang": "ç"},
    )
    assert MIXED.decode('{"a":1,"b":5,"c":6,"d":7}') == ([1, 5], {"c": 6, "d": 7})
    assert ArgumentsCodec.of(gap).decode('{"b":9}') == ([1, 9], {})
    assert ArgumentsCodec.of(nothing).decode("{}") == ([], {})


@pytest.mark.promise("S3.12")
@pytest.mark.parametrize(
    ("codec", "args", "kwargs", "problem"),
    [
        (WELCOME, (), {}, "missing a required argument: 'user_id'"),
        (WELCOME, (7, "tr"), {}, "too many positional arguments"),
        (WELCOME, (7,), {"user_id": 7}, "multiple values for argument 'user_id'"),
        (WELCOME, (7,), {"lnag": "tr"}, "got an unexpected keyword argument 'lnag'"),
        (MIXED, (), {"a": 1}, ""),  # the words differ between versions of Python
        (MIXED, (1,), {"b": 1}, ""),
        (GREET, (), {}, "missing a required argument: 'name'"),
        (GREET, (1,), {"nmae": 2}, "got an unexpected keyword argument 'nmae'"),
        (AT, (), {"x": 1}, ""),
        (LOOSE, (), {"y": 1}, "missing a required argument: 'x'"),
    ],
)
def test_an_unsuitable_call_is_refused_with_the_signature(
    codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    """A call that does not fit is refused in Python's words, with the signature."""
    error = refusal(codec, *args, **kwargs)

    assert str(error).startswith(f"{codec.function.__name__}() {problem}")
    signature = "(user_id: int, *, lang: str = 'en') -> int" if codec is WELCOME else ""
    assert f"; its signature is {codec.function.__name__}{signature}" in str(error)
    assert error.kind == "type"


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None, database=None)
@given(
    st.sampled_from([welcome, bill, mixed, nothing]),
    st.lists(st.just(1), max_size=5),
    st.dictionaries(st.sampled_from("abcde"), st.just(1)),
)
def test_a_call_fits_exactly_when_its_signature_binds(
    function: Any, args: list[int], kwargs: dict[str, int]
) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
        fits = True
    except TypeError:
        fits = False

    try:
        ArgumentsCodec.of(function).encode(tuple(args), kwargs)
        told = ""
    except CodecError as error:  # the type of a value is checked after the call was found to fit
        told = str(error)

    assert ("its signature is" in told) is not fits


def test_an_error_names_the_place_deep_inside() -> None:
    error = refusal(BILL, Order(1, [Line(1.0), Line(2.0), Line(3.0), Line(float("nan"))]))

    assert str(error) == "argument 'order.lines[3].price': NaN is not valid JSON"
    assert (error.path, error.kind) == ("order.lines[3].price", "value")

    assert str(refusal(BILL, Order(1, []), note={"a b": [0, {1: 2}]})).startswith(
        "argument 'note[key 1][1]': a key is"
    )


@pytest.mark.parametrize(
    "refused",
    [
        lambda: refusal(WELCOME, "secret"),
        lambda: error_of(WELCOME.decode, '{"user_id": "secret"}'),
        lambda: error_of(WELCOME.decode, '{"user_id": 1, "secret": 2, "secreted": 3}'),
        lambda: error_of(BILL.decode, '{"order": {"id": 1, "lines": [], "secret": 2}}'),
        lambda: error_of(PRICES.decode, '{"prices": {"open": 1, "secret": "a"}}'),
        lambda: refusal(PRICES, {"secret": "a"}),
        lambda: refusal(PRICES, {"secret\x00": 1}),
        lambda: refusal(BILL, Order(1, []), note={"secret": {"secret": Customer()}}),
    ],
    ids=[
        "value",
        "stored value",
        "argument",
        "field",
        "stored key",
        "key",
        "bad key",
        "key of plain JSON",
    ],
)
def test_an_error_never_shows_values_or_keys_of_data(
    refused: Callable[[], CodecError],
) -> None:
    """An error never shows values or keys of data, because it is written into logs.

    Fails if: an address that is a key, or the name of an argument of another release, is written
    into a log.
    """
    error = refused()

    assert "secret" not in f"{error} {error.path}"


def test_a_model_instance_is_refused_for_any_declared_type() -> None:
    assert (
        str(refusal(WELCOME, Customer()))
        == "argument 'user_id' is a model instance (Customer): pass user_id.pk"
    )

    error = refusal(BILL, Order(1, [Customer()]))  # type: ignore[list-item]
    assert (
        str(error)
        == "argument 'order.lines[0]' is a model instance (Customer): pass order.lines[0].pk"
    )

    assert refusal(BILL, Order(1, []), note=[{"who": Customer()}]).path == "note[0][key 1]"


@pytest.mark.parametrize(
    ("codec", "text", "problem"),
    [
        (WELCOME, "[1]", "arguments: expected an object, got list"),
        (WELCOME, "null", "arguments: expected an object, got NoneType"),
        (WELCOME, "{", "arguments: the stored text is not JSON: "),
        (
            WELCOME,
            '{"user_id": NaN}',
            "arguments: the stored text is not JSON: NaN is not valid JSON",
        ),
        (WELCOME, "[" * 200_000, "arguments: it is nested more than 200 levels deep"),
        (WELCOME, '{"user_id": 1.0}', "argument 'user_id': expected int, got float"),
        (WELCOME, b"\xff", "arguments: the stored text is not JSON: "),
        (
            WELCOME,
            '{"user_id": 1, "secret": 2}',
            "welcome() got an argument that it does not take;",
        ),
        (WELCOME, '{"lang": "en"}', "welcome() missing a required argument: 'user_id';"),
        (GREET, '{"name": "Ann"}', "the format of tasks of django.tasks"),
        (GREET, '{"args": {}, "kwargs": []}', "the format of tasks of django.tasks"),
        (GREET, '{"args": [], "kwargs": {}}', "missing a required argument"),
        (GREET, '{"args": [NaN], "kwargs": {}}', "is not JSON"),
        (
            GREET,
            '{"args": ["Ann"], "kwargs": {"secret": 1}}',
            "greet() got an argument that it does not take;",
        ),
    ],
)
def test_a_malformed_stored_call_is_refused_without_its_content(
    codec: Codec, text: Any, problem: str
) -> None:
    """The error of a stored text that is no valid call does not show its content.

    Fails if: the error is Python's own, and a key of the arguments can be read in the log.
    """
    error = str(error_of(codec.decode, text))

    assert problem in error
    assert "secret" not in error


LACKS = "lacks annotations, without which values cannot be encoded and decoded: "


@pytest.mark.parametrize(
    ("codec", "source", "says", "line"),
    [
        (
            ArgumentsCodec,
            "def f(*names: str, n: int = 0) -> None",
            "*names",
            "def f(*, names: list[str], n: int = 0) -> None:",
        ),
        (
            ArgumentsCodec,
            "def f(a: int, **rest: int) -> int",
            "**rest",
            "def f(a: int, *, rest: dict[str, str]) -> int:",
        ),
        (
            ArgumentsCodec,
            "def f(a, b: int) -> None",
            f"f {LACKS}a.",
            "def f(a: int, b: int) -> None:",
        ),
        (
            ArgumentsCodec,
            "async def f(a: int, flag=True, note=None) -> None",
            "flag, note. Write types",
            "async def f(a: int, flag: bool = True, note: int | None = None) -> None:",
        ),
        (
            ArgumentsCodec,
            "def f(customer: Customer, cents: int = 100) -> None",
            "is a model (Customer), whose row may change before the task runs: annotate int and "
            "pass "
            "customer.pk",
            "def f(customer: int, cents: int = 100) -> None:",
        ),
        (
            ArgumentsCodec,
            "def f(a: 1 + None) -> None",
            "an annotation cannot be evaluated: unsupported operand",
            "",
        ),
        (
            ResultCodec,
            "async def f(to: str, *, html: bool = False)",
            f"{LACKS}return.",
            "async def f(to: str, *, html: bool = False) -> None:",
        ),
        (ResultCodec, "def f() -> TaskResult", "write '-> TaskResult[int]'", ""),
        (
            ResultCodec,
            "def f() -> TaskResult[int, str]",
            "must be TaskError: write '-> TaskResult[T]'",
            "",
        ),
        (
            ResultCodec,
            "def f() -> bytearray",
            "f: the return annotation: bytearray is mutable: write bytes",
            "",
        ),
        (
            ResultCodec,
            "def f() -> TaskResult[int] | None",
            "use it only as the return annotation of a task",
            "",
        ),
    ],
)
def test_a_function_that_cannot_be_sent_is_refused_with_a_fix(
    codec: Any, source: str, says: str, line: str
) -> None:
    """A function that cannot be sent is refused, with the line to write instead."""
    names: dict[str, Any] = {}
    exec(f"{source}: ...", globals(), names)

    with pytest.raises(TaskDefinitionError) as raised:
        codec.of(names["f"])

    assert says in str(raised.value)
    assert not line or str(raised.value).rstrip().endswith(f"as in\n    {line}")


def test_an_int_above_the_digit_limit_of_python_is_refused() -> None:
    """An int is refused if the interpreter has a lower limit on digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)

    try:
        assert "digits" in str(refusal(WELCOME, 10**1000))
    finally:
        sys.set_int_max_str_digits(limit)


@dataclass
class Total:
    lines: list[float]


def count() -> int: ...


def quiet() -> None: ...


def total() -> TaskResult[Total, TaskError]: ...


def short() -> TaskResult[Total]: ...


COUNT, QUIET, TOTAL, SHORT = map(ResultCodec.of, (count, quiet, total, short))


def stored_error(error: TaskError) -> dict[str, Any]:
    text = encode_error(error)
    assert "\\u0000" not in text
    found: dict[str, Any] = json.loads(text.encode())["err"]
    assert found.keys() == {"error_code", "message", "data", "exception"}
    return found


def test_a_value_and_its_task_result_share_an_envelope() -> None:
    """A value has the same stored form whether or not the task wraps it in a ``TaskResult``."""
    for codec, value, text, wraps in (
        (QUIET, None, '{"ok":null}', False),
        (TOTAL, Total([1.5]), '{"ok":{"lines":[1.5]}}', True),
        (SHORT, Total([1.5]), '{"ok":{"lines":[1.5]}}', True),
    ):
        assert (codec.encode_ok(value), codec.wraps_result) == (text, wraps)
        assert codec.decode(text) == codec.decode(json.loads(text)) == TaskResult(ok=value)


@pytest.mark.parametrize(
    ("codec", "value", "kind", "said"),
    [
        (COUNT, "3", "type", "result: expected int, got str"),
        (QUIET, 1, "type", "result: expected None, got int"),
        (
            TOTAL,
            Total([1.0, float("inf")]),
            "value",
            "result 'lines[1]': Infinity is not valid JSON",
        ),
        (COUNT, Customer(), "type", "result is a model instance (Customer): return its pk"),
        (
            TOTAL,
            Total([Customer()]),  # type: ignore[list-item]
            "type",
            "result 'lines[0]' is a model instance (Customer): return its pk",
        ),
    ],
)
def test_only_a_return_of_another_type_is_a_mismatch(
    codec: ResultCodec, value: Any, kind: str, said: str
) -> None:
    error = error_of(codec.encode_ok, value)

    assert (error.kind, str(error)) == (kind, said)


@pytest.mark.parametrize(
    ("envelope", "problem"),
    [
        ('{"ok": "3"}', "result: expected int, got str"),
        ({}, "neither"),
        ({"ok": 1, "err": {}}, "neither"),
        ([], "neither"),
        ("{", "result: the stored text is not JSON"),
        ({"err": None}, "result: the stored error has no error_code"),
        ({"err": {"message": "x"}}, "result: the stored error has no error_code"),
        (
            {"err": {"error_code": "X", "exception": "x"}},
            "result 'exception': the stored exception is not an object",
        ),
    ],
)
def test_the_error_of_an_unreadable_result_names_the_problem(envelope: Any, problem: str) -> None:
    assert problem in str(error_of(COUNT.decode, envelope))


def later(value: Defined) -> TaskResult[Defined]: ...


def never(value: Nowhere) -> TaskResult[Nowhere]: ...  # type: ignore[name-defined]  # noqa: F821


# The class Defined does not exist yet.
LATER = ArgumentsCodec.of(later)
LATER_RESULT = ResultCodec.of(later)


@dataclass
class Defined:
    x: int


def test_a_name_defined_after_the_task_is_found_at_the_first_use() -> None:
    assert LATER.encode((Defined(1),), {}) == '{"value":{"x":1}}'
    assert ArgumentsCodec.of(later).decode('{"value":{"x":1}}') == ([], {"value": Defined(1)})
    assert LATER_RESULT.wraps_result
    assert LATER_RESULT.encode_ok(Defined(1)) == '{"ok":{"x":1}}'


def test_an_undefined_name_is_an_error_at_each_use() -> None:
    """A name that is never defined is an error at each use, and when the codec is checked."""
    codec = ArgumentsCodec.of(never)
    result = ResultCodec.of(never)
    undefined = "name 'Nowhere' is not defined"

    with pytest.raises(
        TaskDefinitionError, match=f"cannot be resolved: {undefined}. Define or import"
    ):
        codec.resolve()

    assert result.wraps_result
    for _ in range(2):
        assert undefined in str(refusal(codec, 1))
        assert undefined in str(error_of(codec.decode, '{"value": 1}'))
        assert undefined in str(error_of(result.encode_ok, 1))
        assert undefined in str(error_of(result.decode, {"ok": 1}))


@pytest.mark.promise("S3.8")
def test_an_error_comes_back_with_its_code_and_all_it_carried() -> None:
    own = TaskError(
        "MAILBOX_FULL",
        "no room",
        data={"left": 0},
        exception={"type": "OSError", "traceback": "..."},
    )
    built_in = TaskError.built_in(OperationalErrorCode.WORKER_CRASHED, "gone")

    for error in (own, built_in):
        assert COUNT.decode(encode_error(error)) == TaskResult(err=error)
        assert ResultCodec.decode_error(json.loads(encode_error(error))) == TaskResult(err=error)


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


LOOP: list[Any] = []
LOOP.append(LOOP)


def test_error_data_that_is_not_json_is_stored_as_its_repr() -> None:
    """Data of an error that is no JSON is stored as its repr, with a note in the message.

    No data keeps an error from being stored.
    """
    found = stored_error(TaskError("X", "no room", data={"at": dt.date(2026, 1, 2)}))
    assert found["data"] == "{'at': datetime.date(2026, 1, 2)}"
    assert found["message"].startswith(
        "no room\n(data is stored as its repr, because it is not plain JSON: "
    )
    assert "got date" in found["message"]

    for data in (
        float("nan"),
        "a\x00b",
        "\udc80",
        {1: 2},
        {"\x00": 1},
        {1, 2},
        10**5000,
        LOOP,
        object(),
        Customer(),
    ):
        assert isinstance(stored_error(TaskError("X", data=data))["data"], str)

    assert len(stored_error(TaskError("X", data=b"x" * 100_000))["data"]) < 11_000
    assert (
        stored_error(TaskError("X", data=Hostile(a=1)))["data"]
        == "<Hostile whose repr fails: RuntimeError>"
    )


def test_characters_that_postgresql_rejects_are_stored_escaped() -> None:
    """Characters that PostgreSQL rejects are escaped, and fields of a wrong type become text."""
    exception = {"message": "a\x00b", "traceback": "\udc80 é"}
    found = stored_error(TaskError("X", "a\x00b\ud800c", exception=exception))

    assert found["message"] == "a\\x00b\\ud800c"
    assert found["exception"] == {"message": "a\\x00b", "traceback": "\\udc80 é"}

    found = stored_error(TaskError("X", None, exception=ValueError("no")))  # type: ignore[arg-type]
    assert (found["message"], found["exception"]) == ("None", {"repr": "ValueError('no')"})

    found = stored_error(TaskError("X", exception={1: Hostile()}))  # type: ignore[dict-item]
    assert found["exception"] == {"1": "<Hostile whose repr fails: RuntimeError>"}


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner)
        | st.tuples(inner)
    ),
    max_leaves=5,
)


class Broken:
    """An object whose text raises."""

    def __str__(self) -> str:
        raise LookupError("broken")


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        (LAZY_YES, "yes"),
        ({"a": [LAZY_YES, {LAZY_YES: 1}]}, {"a": ["yes", {"yes": 1}]}),
        ((LAZY_YES,), "('yes',)"),
    ],
    ids=["itself", "within", "of another type"],
)
def test_an_error_has_the_text_of_lazy_ones(data: Any, stored: Any) -> None:
    """Fails if: the message of an error is the repr of a lazy text, with quotes, or its data are
    stored as one repr.
    """
    error = COUNT.decode(encode_error(TaskError("X", LAZY_YES, data=data))).err_value

    assert (error.message.partition("\n")[0], error.data) == ("yes", stored)


def test_an_error_with_data_that_contain_themselves_is_stored() -> None:
    """Fails if: the code follows all of the 2**200 paths through the data."""
    cycle: list[Any] = []
    cycle += [cycle, cycle]

    error = COUNT.decode(encode_error(TaskError("X", "no", data=cycle))).err_value

    assert error.data == "[[...], [...]]"
    assert "contains itself" in error.message


def test_a_lazy_text_that_fails_does_not_hide_the_error() -> None:
    broken: Any = lazy(lambda: str(Broken()), str)()

    error = COUNT.decode(encode_error(TaskError("X", broken, data={"a": broken}))).err_value

    assert error.error_code == "X"
    assert "whose repr fails: LookupError" in error.message


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None, database=None)
@given(st.text(st.characters()), ANYTHING)
def test_an_error_with_any_message_and_data_is_stored_and_read(message: str, data: Any) -> None:
    found = COUNT.decode(encode_error(TaskError("X", message, data=data))).err_value

    assert found.error_code == "X"
    assert "\x00" not in found.message
