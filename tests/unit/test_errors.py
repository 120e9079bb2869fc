"""The error codes: reserved in families, and a user's own ones apart from them."""

from __future__ import annotations

import enum

import pytest

from horsies_django.core.errors import (
    FAMILIES,
    RESERVED,
    HorsiesError,
    OperationalErrorCode,
    TaskSendError,
    TaskSendErrorCode,
    code_problem,
)


def test_no_code_stands_in_two_families() -> None:
    codes = [code.value for family in FAMILIES for code in family]
    assert len(codes) == len(set(codes)) == len(RESERVED)


def test_a_code_is_its_own_text() -> None:
    for family in FAMILIES:
        for code in family:
            assert str(code) == f"{code}" == code.value == code.name


@pytest.mark.promise("S3.8")
@pytest.mark.parametrize("code", sorted(RESERVED))
def test_a_built_in_code_is_not_a_users_to_take(code: str) -> None:
    assert code_problem(code) == f"error code {code!r} is reserved for horsies_django: choose a name of your own"


@pytest.mark.promise("S3.8")
def test_a_built_in_member_is_not_a_users_to_take() -> None:
    assert "is reserved" in str(code_problem(OperationalErrorCode.WORKER_CRASHED))


@pytest.mark.parametrize("code", ["MAILBOX_FULL", "A", "E404", "X" * 100])
def test_an_upper_case_code_is_a_users_own(code: str) -> None:
    assert code_problem(code) is None


@pytest.mark.parametrize(
    "code", ["", "mailbox", "Mailbox_Full", "1ST", "_A", "A B", "MAILBOX-FULL", "A\n", "É", "X" * 101]
)
def test_a_code_of_another_form_is_refused_with_an_example(code: str) -> None:
    assert "use upper-case letters, digits and underscores, at most 100, as in 'MAILBOX_FULL'" in str(
        code_problem(code)
    )


def test_a_code_that_is_no_text_is_refused() -> None:
    assert code_problem(404) == "an error code must be a str, not int"


def test_a_users_own_text_enum_serves_as_a_code() -> None:
    class Code(enum.StrEnum):
        MAILBOX_FULL = "MAILBOX_FULL"

    assert code_problem(Code.MAILBOX_FULL) is None


def test_a_send_error_says_its_code_and_whether_trying_again_may_help() -> None:
    error = TaskSendError(TaskSendErrorCode.ENQUEUE_FAILED, "the database did not accept the task")
    assert str(error) == "[ENQUEUE_FAILED] the database did not accept the task"
    assert isinstance(error, HorsiesError)
    assert [TaskSendError(code, "").retryable for code in TaskSendErrorCode] == [
        code is TaskSendErrorCode.ENQUEUE_FAILED for code in TaskSendErrorCode
    ]
