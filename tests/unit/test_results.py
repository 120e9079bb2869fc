"""TaskResult and TaskError: one of two, and it says which."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from horsies_django.core.errors import RetrievalCode
from horsies_django.core.results import TaskError, TaskFailed, TaskResult

ERROR = TaskError("MAILBOX_FULL", "no room left")


@pytest.mark.promise("S3.7")
def test_a_success_gives_its_value_by_every_way_of_asking() -> None:
    result: TaskResult[int] = TaskResult(ok=7)
    assert (result.is_ok(), result.is_err()) == (True, False)
    assert result.ok == result.ok_value == result.unwrap() == 7
    assert result.err is None


@pytest.mark.promise("S3.7")
def test_an_error_gives_itself_by_every_way_of_asking() -> None:
    result: TaskResult[int] = TaskResult(err=ERROR)
    assert (result.is_ok(), result.is_err()) == (False, True)
    assert result.err is result.err_value is result.unwrap_err() is ERROR
    assert result.ok is None


@pytest.mark.promise("S3.7")
@pytest.mark.parametrize("given", [{}, {"ok": 1, "err": ERROR}, {"ok": None, "err": ERROR}])
def test_a_result_is_made_of_exactly_one_of_two(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of ok= and err="):
        TaskResult(**given)


def test_none_is_a_value_like_any_other() -> None:
    result: TaskResult[None] = TaskResult(ok=None)
    assert result.is_ok()
    assert result.ok_value is None


def test_an_error_is_a_task_error_and_nothing_else() -> None:
    with pytest.raises(ValueError, match="err= takes a TaskError, not str"):
        TaskResult(err="MAILBOX_FULL")  # type: ignore[type-var]


def test_asking_an_error_for_its_value_raises() -> None:
    with pytest.raises(ValueError, match="this TaskResult is an error: TaskError.*MAILBOX_FULL"):
        _ = TaskResult(err=ERROR).ok_value


@pytest.mark.parametrize("ask", [lambda result: result.err_value, lambda result: result.unwrap_err()])
def test_asking_a_success_for_its_error_raises(ask: Any) -> None:
    with pytest.raises(ValueError, match="is a success and has no error"):
        ask(TaskResult(ok=1))


def test_unwrapping_an_error_raises_a_failure_that_carries_it() -> None:
    with pytest.raises(TaskFailed, match=r"^MAILBOX_FULL: no room left$") as raised:
        TaskResult(err=ERROR).unwrap()
    assert raised.value.error is ERROR


def test_a_failure_without_a_message_shows_its_code_alone() -> None:
    assert str(TaskFailed(TaskError("MAILBOX_FULL"))) == "MAILBOX_FULL"


@pytest.mark.parametrize("result", [TaskResult(ok=0), TaskResult(ok=1), TaskResult(err=ERROR)])
def test_a_result_has_no_truth_value(result: TaskResult[int]) -> None:
    with pytest.raises(TypeError, match=r"ask is_ok\(\) or is_err\(\)"):
        bool(result)


def test_results_are_equal_when_they_hold_the_same() -> None:
    assert TaskResult(ok=[1]) == TaskResult(ok=[1])
    assert TaskResult(err=ERROR) == TaskResult(err=TaskError("MAILBOX_FULL", "no room left"))
    assert TaskResult(ok=None) != TaskResult(err=ERROR)
    assert TaskResult(ok=1) != 1


def test_a_result_cannot_be_a_key_because_its_value_may_change() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(TaskResult(ok=1))


def test_a_result_shows_what_it_holds() -> None:
    assert repr(TaskResult(ok=7)) == "TaskResult(ok=7)"
    assert repr(TaskResult(err=ERROR)).startswith("TaskResult(err=TaskError(error_code='MAILBOX_FULL'")


@pytest.mark.promise("S3.8")
@pytest.mark.parametrize("code", ["WAIT_TIMEOUT", RetrievalCode.WAIT_TIMEOUT])
def test_a_users_error_cannot_carry_a_built_in_code(code: str) -> None:
    with pytest.raises(ValueError, match="is reserved for horsies_django"):
        TaskError(code)


@pytest.mark.promise("S3.8")
def test_the_house_makes_errors_with_its_own_codes_as_plain_text() -> None:
    error = TaskError.built_in(RetrievalCode.WAIT_TIMEOUT, "still running", data={"waited": 5}, exception={"type": "E"})
    assert (error.error_code, error.message, error.data) == ("WAIT_TIMEOUT", "still running", {"waited": 5})
    assert type(error.error_code) is str
    assert error.exception == {"type": "E"}


def test_an_error_does_not_change_once_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ERROR.message = "other"  # type: ignore[misc]
