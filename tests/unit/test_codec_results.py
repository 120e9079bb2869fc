"""The envelope of a result: what a task returns and how it fails, stored and read back."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.codec import CodecError, ResultCodec, UnsupportedType, encode_error
from horsies_django.core.errors import OperationalErrorCode, TaskDefinitionError
from horsies_django.core.results import TaskError, TaskResult
from tests.support.sizes import examples


@dataclass
class Total:
    lines: list[float]


class Customer:
    _meta = objects = None
    pk = 7


def count() -> int:
    raise NotImplementedError


def quiet() -> None:
    raise NotImplementedError


def total() -> TaskResult[Total, TaskError]:
    raise NotImplementedError


def short() -> TaskResult[Total]:
    raise NotImplementedError


def day() -> dt.date | None:
    raise NotImplementedError


COUNT, QUIET, TOTAL, SHORT, DAY = map(ResultCodec.of, (count, quiet, total, short, day))


def refusal(codec: ResultCodec, value: Any) -> CodecError:
    with pytest.raises(CodecError) as raised:
        codec.encode_ok(value)
    return raised.value


def unreadable(codec: ResultCodec, envelope: Any) -> str:
    with pytest.raises(CodecError) as raised:
        codec.decode(envelope)
    return str(raised.value)


def stored_error(error: TaskError) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_error(error).encode())["err"]
    assert not any("\x00" in text for text in texts(found))
    assert found.keys() == {"error_code", "message", "data", "exception"}
    return found


def texts(stored: Any) -> Iterator[str]:
    if isinstance(stored, str):
        yield stored
    elif isinstance(stored, dict):
        for key, value in stored.items():
            yield key
            yield from texts(value)


def test_a_plain_return_and_a_wrapped_one_share_an_envelope() -> None:
    assert [codec.wraps_result for codec in (COUNT, QUIET, DAY, TOTAL, SHORT)] == [False, False, False, True, True]
    assert COUNT.encode_ok(3) == '{"ok":3}'
    assert QUIET.encode_ok(None) == '{"ok":null}'
    assert TOTAL.encode_ok(Total([1.5])) == SHORT.encode_ok(Total([1.5])) == '{"ok":{"lines":[1.5]}}'


def test_a_value_comes_back_by_its_declared_type() -> None:
    for codec, value in ((COUNT, 3), (QUIET, None), (TOTAL, Total([1.5])), (DAY, dt.date(2026, 1, 2)), (DAY, None)):
        text = codec.encode_ok(value)
        assert codec.decode(text) == codec.decode(json.loads(text)) == TaskResult(ok=value)


def test_a_return_of_another_type_is_a_mismatch_and_one_that_cannot_be_written_is_not() -> None:
    assert (str(refusal(COUNT, "3")), refusal(COUNT, "3").kind) == ("result: expected int, got str", "type")
    assert str(refusal(QUIET, 1)) == "result: expected None, got int"
    error = refusal(TOTAL, Total([1.0, float("inf")]))
    assert (str(error), error.kind) == ("result 'lines[1]': Infinity is not valid JSON", "value")


def test_a_returned_model_instance_is_refused() -> None:
    assert str(refusal(COUNT, Customer())) == "result is a model instance (Customer): return its pk"
    assert str(refusal(TOTAL, Total([Customer()]))) == "result 'lines[0]' is a model instance (Customer): return its pk"  # type: ignore[list-item]


def test_a_missing_return_annotation_is_refused_with_the_line_to_write() -> None:
    def send_mail(to: str, *, html: bool = False): ...  # type: ignore[no-untyped-def]

    async def fetch(): ...  # type: ignore[no-untyped-def]

    with pytest.raises(TaskDefinitionError) as raised:
        ResultCodec.of(send_mail)
    assert "send_mail lacks annotations, without which values cannot be encoded and decoded: return." in str(
        raised.value
    )
    assert "\n    def send_mail(to: str, *, html: bool = False) -> None:" in str(raised.value)
    with pytest.raises(TaskDefinitionError, match=r"\n    async def fetch\(\) -> None:"):
        ResultCodec.of(fetch)


def test_a_return_type_that_cannot_travel_is_refused_with_what_to_write() -> None:
    def bare() -> TaskResult: ...  # type: ignore[type-arg,empty-body]

    def odd() -> TaskResult[int, str]: ...  # type: ignore[empty-body,type-var]

    def raw() -> bytes: ...  # type: ignore[empty-body]

    def row() -> Customer: ...  # type: ignore[empty-body]

    def maybe() -> TaskResult[int] | None: ...

    for function, words in (
        (bare, "write '-> TaskResult\\[int\\]'"),
        (odd, "the error type of a TaskResult must be TaskError: write '-> TaskResult\\[T\\]'"),
        (raw, "raw: the return annotation: bytes has no form in JSON: write str and pass base64 text"),
        (row, "Customer is a model, .*: annotate int and send its pk"),
        (maybe, "use it only as the return annotation of a task"),
    ):
        with pytest.raises(UnsupportedType, match=words):
            ResultCodec.of(function)


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
        ({"err": {"error_code": "X", "exception": "x"}}, "result 'exception': the stored exception is not an object"),
    ],
)
def test_a_stored_result_that_cannot_be_read_says_why(envelope: Any, problem: str) -> None:
    assert problem in unreadable(COUNT, envelope)


def later() -> TaskResult[Defined]:
    raise NotImplementedError


def never() -> TaskResult[Nowhere]:  # type: ignore[name-defined]  # noqa: F821
    raise NotImplementedError


LATER = ResultCodec.of(later)


@dataclass
class Defined:
    x: int


def test_a_return_type_defined_after_the_task_is_found_at_the_first_use() -> None:
    assert LATER.wraps_result
    assert LATER.encode_ok(Defined(1)) == '{"ok":{"x":1}}'


def test_a_return_type_never_defined_is_an_error_at_each_use() -> None:
    codec = ResultCodec.of(never)
    assert codec.wraps_result
    assert "name 'Nowhere' is not defined" in str(refusal(codec, 1))
    assert "name 'Nowhere' is not defined" in unreadable(codec, {"ok": 1})


@pytest.mark.promise("S3.8")
def test_an_error_comes_back_with_its_code_and_all_it_carried() -> None:
    own = TaskError("MAILBOX_FULL", "no room", data={"left": 0}, exception={"type": "OSError", "traceback": "..."})
    built_in = TaskError.built_in(OperationalErrorCode.WORKER_CRASHED, "gone")
    for error in (own, built_in):
        assert COUNT.decode(encode_error(error)) == TaskResult(err=error)
        assert ResultCodec.decode_error(json.loads(encode_error(error))) == TaskResult(err=error)


def test_data_that_is_not_json_is_kept_as_its_repr_with_a_note() -> None:
    found = stored_error(TaskError("X", "no room", data={"at": dt.date(2026, 1, 2)}))
    assert found["data"] == "{'at': datetime.date(2026, 1, 2)}"
    assert found["message"].startswith("no room\n(data is stored as its repr, because it is not plain JSON: ")
    assert "got date" in found["message"]


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_data_of_any_kind_never_stops_an_error_from_being_stored() -> None:
    for data in (
        float("nan"),
        "a\x00b",
        "\udc80",
        {1: 2},
        {"\x00": 1},
        {1, 2},
        10**5000,
        cyclic(),
        object(),
        Customer(),
    ):
        assert isinstance(stored_error(TaskError("X", data=data))["data"], str)
    assert stored_error(TaskError("X", data=Hostile(a=1)))["data"] == "<Hostile whose repr fails: RuntimeError>"


def test_a_long_repr_is_cut() -> None:
    assert len(stored_error(TaskError("X", data=b"x" * 100_000))["data"]) < 11_000


def test_nul_bytes_and_lone_surrogates_are_made_visible() -> None:
    exception = {"message": "a\x00b", "traceback": "\udc80 é"}
    found = stored_error(TaskError("X", "a\x00b\ud800c", exception=exception))
    assert found["message"] == "a\\x00b\\ud800c"
    assert found["exception"] == {"message": "a\\x00b", "traceback": "\\udc80 é"}


def test_an_error_whose_fields_are_not_what_they_declare_is_stored_too() -> None:
    found = stored_error(TaskError("X", None, exception=ValueError("no")))  # type: ignore[arg-type]
    assert (found["message"], found["exception"]) == ("None", {"repr": "ValueError('no')"})
    found = stored_error(TaskError("X", exception={1: Hostile()}))  # type: ignore[dict-item]
    assert found["exception"] == {"1": "<Hostile whose repr fails: RuntimeError>"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner) | st.tuples(inner),
    max_leaves=5,
)


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None, database=None)
@given(st.text(st.characters()), ANYTHING)
def test_whatever_an_error_carries_can_be_stored_and_read(message: str, data: Any) -> None:
    found = COUNT.decode(encode_error(TaskError("X", message, data=data))).err_value
    assert found.error_code == "X"
    assert "\x00" not in found.message
