"""Results and errors of tasks and their counts, mappers of exceptions, and retry policies."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import horsies_django
from horsies_django import Retry, RetryPolicy
from horsies_django.core.counts import BOUNDS, NO_FAILURE, OTHER, Total, bucket, quantile, result_of
from horsies_django.core.errors import (
    FAMILIES,
    RESERVED,
    HorsiesError,
    OperationalErrorCode,
    RetrievalCode,
    TaskSendError,
    TaskSendErrorCode,
    code_problem,
)
from horsies_django.core.records import SNOOZED, Outcome
from horsies_django.core.repeats import Repeats
from horsies_django.core.results import TaskError, TaskFailed, TaskResult
from horsies_django.core.retry import mapped_code, mapper_problems


def test_no_code_stands_in_two_families_and_each_is_its_own_text() -> None:
    codes = [code for family in FAMILIES for code in family]

    assert len(codes) == len({code.value for code in codes}) == len(RESERVED)
    for code in codes:
        assert str(code) == f"{code}" == code.value == code.name


PACKAGE = Path(horsies_django.__file__).parent
# Words with an underscore that are no error codes in the SQL functions.
WORDS = {"IN_WORKFLOW", "MAX_PAYLOAD_BYTES", "MAX_SNOOZES", "WORKER_FAILURE"}


def test_all_codes_that_the_database_writes_are_reserved() -> None:
    """Fails if: a project may raise an error with a code that has a meaning in this package, such
    as WAIT_TIMED_OUT.
    """
    texts = [
        re.sub("--.*", "", path.read_text()) for path in (PACKAGE / "store" / "sql").rglob("*.sql")
    ]
    forms = [
        "'([A-Z]+_[A-Z_]+)'",
        r"horsies_error_result\(\s*'(\w+)'",
        "error_code = '([A-Z_]+)'",
        "DETAIL = '([A-Z_]+)'",
    ]

    codes = {code for text in texts for form in forms for code in re.findall(form, text)} - WORDS

    assert {"GATE_REJECTED", "POISON", "SKIPPED_BY_HAND"} <= codes
    assert codes - RESERVED == set(), "reserve it in core/errors.py, or name it in WORDS"


def test_all_codes_that_the_package_compares_are_reserved() -> None:
    asked = r"""error_code["']?\]? (?:==|!=|in) \(?(?:"[A-Z_]+"(?:, )?)+"""
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]

    codes = {
        code
        for text in texts
        for found in re.findall(asked, text)
        for code in re.findall('"([A-Z_]+)"', found)
    }

    assert "WAIT_TIMED_OUT" in codes
    assert codes - RESERVED == set()


def test_the_page_of_codes_has_all_that_are_reserved() -> None:
    page = (PACKAGE.parent / "docs" / "reference" / "tasks.md").read_text()

    assert {code for code in RESERVED if f"`{code}`" not in page} == set()


OWN = enum.StrEnum("OWN", {"MAILBOX_FULL": "MAILBOX_FULL"})
FORM = "use upper-case letters, digits and underscores, at most 100, as in 'MAILBOX_FULL'"


@pytest.mark.promise("S3.8")
@pytest.mark.parametrize(
    ("codes", "problem"),
    [
        (
            [*sorted(RESERVED), OperationalErrorCode.WORKER_CRASHED],
            "is reserved for horsies_django: choose a name of your own",
        ),
        (["MAILBOX_FULL", "A", "E404", "X" * 100, OWN.MAILBOX_FULL], None),
        (
            [
                "",
                "mailbox",
                "Mailbox_Full",
                "1ST",
                "_A",
                "A B",
                "MAILBOX-FULL",
                "A\n",
                "É",
                "X" * 101,
            ],
            FORM,
        ),
        ([404], "an error code must be a str, not int"),
    ],
    ids=["built in", "of a user", "of another form", "no text"],
)
def test_a_user_s_code_is_an_upper_case_name_and_no_built_in_one(
    codes: list[Any], problem: str | None
) -> None:
    for code in codes:
        found = code_problem(code)
        assert found is None if problem is None else problem in str(found), code


def test_a_send_error_has_a_code_and_a_retryable_flag() -> None:
    """A send error has a code, and ``retryable`` says whether a second try may help."""
    error = TaskSendError(TaskSendErrorCode.ENQUEUE_FAILED, "the database did not accept the task")

    assert str(error) == "[ENQUEUE_FAILED] the database did not accept the task"
    assert isinstance(error, HorsiesError)
    assert [TaskSendError(code, "").retryable for code in TaskSendErrorCode] == [
        code is TaskSendErrorCode.ENQUEUE_FAILED for code in TaskSendErrorCode
    ]


ERROR = TaskError("MAILBOX_FULL", "no room left")


@pytest.mark.promise("S3.7")
@pytest.mark.parametrize("value", [7, 0, None])
def test_a_success_gives_its_value_by_every_way_of_asking(value: int | None) -> None:
    result = TaskResult(ok=value)

    assert (result.is_ok(), result.is_err()) == (True, False)
    assert result.ok == result.ok_value == result.unwrap() == value
    assert result.err is None
    assert result == TaskResult(ok=value)
    assert result != value
    assert repr(result) == f"TaskResult(ok={value})"


@pytest.mark.promise("S3.7")
def test_an_error_gives_itself_by_every_way_of_asking() -> None:
    result: TaskResult[int] = TaskResult(err=ERROR)

    assert (result.is_ok(), result.is_err()) == (False, True)
    assert result.err is result.err_value is result.unwrap_err() is ERROR
    assert result.ok is None
    assert (
        result == TaskResult(err=TaskError("MAILBOX_FULL", "no room left")) != TaskResult(ok=None)
    )
    assert repr(result).startswith("TaskResult(err=TaskError(error_code='MAILBOX_FULL'")


def test_unwrapping_an_error_raises_a_failure_that_carries_it() -> None:
    with pytest.raises(TaskFailed, match=r"^MAILBOX_FULL: no room left$") as raised:
        TaskResult(err=ERROR).unwrap()

    assert raised.value.error is ERROR
    assert str(TaskFailed(TaskError("MAILBOX_FULL"))) == "MAILBOX_FULL"


@pytest.mark.promise("S3.7", "S3.8")
@pytest.mark.parametrize(
    ("misuse", "error", "said"),
    [
        (lambda: TaskResult(), ValueError, "exactly one of ok= and err="),
        (lambda: TaskResult(ok=None, err=ERROR), ValueError, "exactly one of ok= and err="),
        (lambda: TaskResult(err="MAILBOX_FULL"), ValueError, "err= takes a TaskError, not str"),
        (
            lambda: TaskResult(err=ERROR).ok_value,
            ValueError,
            "this TaskResult is an error: TaskError.*MAILBOX_FULL",
        ),
        (lambda: TaskResult(ok=1).err_value, ValueError, "is a success and has no error"),
        (lambda: bool(TaskResult(ok=1)), TypeError, r"call is_ok\(\) or is_err\(\)"),
        (lambda: hash(TaskResult(ok=1)), TypeError, "unhashable"),
        (lambda: setattr(ERROR, "message", "other"), dataclasses.FrozenInstanceError, "message"),
        (lambda: TaskError("WAIT_TIMEOUT"), ValueError, "is reserved for horsies_django"),
        (
            lambda: TaskError(RetrievalCode.WAIT_TIMEOUT),
            ValueError,
            "is reserved for horsies_django",
        ),
    ],
)
def test_a_result_or_an_error_is_not_misused(
    misuse: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        misuse()


@pytest.mark.promise("S3.8")
def test_the_house_makes_errors_with_its_own_codes_as_plain_text() -> None:
    error = TaskError.built_in(
        RetrievalCode.WAIT_TIMEOUT, "still running", data={"waited": 5}, exception={"type": "E"}
    )

    assert (error.error_code, error.message, error.data) == (
        "WAIT_TIMEOUT",
        "still running",
        {"waited": 5},
    )
    assert type(error.error_code) is str
    assert error.exception == {"type": "E"}


def test_an_exponential_policy_doubles_its_pause_up_to_a_maximum() -> None:
    """A fixed policy has one retry per pause; an exponential one doubles it up to a maximum."""
    policy = RetryPolicy.fixed([60, 300, 900], auto_retry_for=["MAIL_DOWN"])
    assert policy.max_retries == 3
    assert [policy.delay(retry) for retry in (1, 2, 3)] == [60, 300, 900]

    policy = RetryPolicy.exponential(base_seconds=2, max_retries=6, max_delay_seconds=20)
    assert [policy.delay(retry) for retry in range(1, 7)] == [2, 4, 8, 16, 20, 20]

    assert RetryPolicy.exponential(base_seconds=86_400, max_retries=100).delay(100) == 30 * 86_400
    assert (
        RetryPolicy.fixed([1], auto_retry_for=OSError).auto_retry_for
        == listing(OSError).auto_retry_for
    )


def test_a_policy_names_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="max_retries") as error:
        RetryPolicy.exponential(
            base_seconds=-1, max_retries=101, auto_retry_for=["not a code", "WORKER_CRASHED"]
        )

    for word in ("-1", "101", "not a code"):
        assert word in str(error.value)
    assert "WORKER_CRASHED" not in str(error.value)


NO_PAUSES: list[Any] = [[], "60", 60, [0, "1"], [True], [float("nan")], [10**9]]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((lambda pauses=pauses: RetryPolicy.fixed(pauses), "retry delay") for pauses in NO_PAUSES),
        (lambda: listing("no.such.Error"), "'no.such.Error' cannot be imported"),
        (lambda: listing(".OSError"), "cannot be imported"),
        (lambda: listing("builtins.len"), "neither an error code"),
        (lambda: listing(int), "nor an exception class"),
        (lambda: listing(OSError()), "nor an exception class"),
        (lambda: Retry(delay_seconds=-1), "delay_seconds"),
        (lambda: Retry(delay_seconds="1"), "delay_seconds"),
        (lambda: Retry(code="WORKER_CRASHED"), "reserved"),
    ],
)
def test_what_is_no_code_exception_class_or_pause_is_refused(
    make: Callable[[], Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def listing(entry: Any) -> RetryPolicy:
    return RetryPolicy.fixed([1], auto_retry_for=[entry])


class MailDown(OSError):
    pass


def test_the_exact_class_of_an_exception_precedes_its_bases() -> None:
    """The exact class precedes its bases, and the first mapper that has either decides."""
    mapper = {OSError: "IO", MailDown: "MAIL_DOWN", Exception: "ANY"}

    assert mapped_code(MailDown(), mapper) == "MAIL_DOWN"
    assert mapped_code(FileNotFoundError(), mapper) == "IO"
    assert mapped_code(ValueError(), mapper) == "ANY"
    assert mapped_code(SystemExit(), mapper) is None
    assert (
        mapped_code(MailDown(), {OSError: "TASKS_OWN"}, {MailDown: "OF_THE_SETTINGS"})
        == "TASKS_OWN"
    )
    assert (
        mapped_code(KeyError(), {OSError: "TASKS_OWN"}, {LookupError: "OF_THE_SETTINGS"})
        == "OF_THE_SETTINGS"
    )


def test_a_mapper_names_its_problems() -> None:
    assert mapper_problems({OSError: "IO"}) == []

    problems = mapper_problems(
        {"OSError": "IO", int: "X", KeyError: "WORKER_CRASHED", ValueError: "lower"}
    )

    assert len(problems) == 4
    assert "is not an exception class" in problems[0]
    assert "reserved" in problems[2]

    assert mapper_problems([OSError]) == [
        "a mapper must be a dict of exception classes and error codes, not list"
    ]


AGAIN = {"retry": 1, "of": 3, "at": 0.0}


@pytest.mark.parametrize(
    ("outcome", "decided", "result"),
    [
        ({"status": "COMPLETED"}, {}, "COMPLETED"),
        ({"status": "FAILED", "returned": True}, {}, "RETURNED"),
        ({"status": "FAILED", "returned": True}, AGAIN, "RETRIED"),
        ({"status": "FAILED"}, AGAIN, "RETRIED"),
        ({"status": "FAILED"}, {"retry": None}, "RETRIED"),
        ({"status": "FAILED", "crashed": True}, AGAIN, "CRASHED"),
        ({"status": "FAILED", "crashed": True}, {"code": "POISON"}, "POISON"),
        ({"status": "FAILED"}, {}, "OH_NO"),
        ({"status": "CANCELLED"}, {}, "CANCELLED"),
        ({"status": SNOOZED}, AGAIN, None),
        ({"status": SNOOZED}, {"code": "SNOOZED_TOO_OFTEN"}, "SNOOZED_TOO_OFTEN"),
        ({"status": SNOOZED}, {"code": "TASK_CANCELLED"}, "CANCELLED"),
    ],
)
def test_each_end_of_an_attempt_is_counted_as_one_result(
    outcome: dict[str, Any], decided: dict[str, Any], result: str | None
) -> None:
    """Each end of an attempt is counted as one result."""
    made = Outcome(
        uuid.uuid4(),
        1,
        result="{}",
        error_code=None if outcome["status"] == "COMPLETED" else "OH_NO",
        **outcome,
    )

    assert result_of(made, decided) == result


@pytest.mark.parametrize("code", sorted(NO_FAILURE))
def test_only_codes_of_final_failures_count_as_failures(
    code: str,
) -> None:
    """Only the codes of final failures count as failures.

    A code of a project that is also the name of another result counts as "other".

    Fails if: a task that fails with EXPIRED appears in no problem, or one that fails with CLAIMED
    counts as a claim.
    """
    assert code_problem(code) is None, "projects may use it"

    result = result_of(Outcome(uuid.uuid4(), 1, "FAILED", "{}", error_code=code), {})
    assert result == OTHER

    failures = {
        name
        for name in (code, result, "OH_NO", "POISON")
        if Total("q", "t", name, 1, 0.0, ()).failed
    }
    assert failures == {OTHER, "OH_NO", "POISON"}


def test_a_bucket_includes_its_upper_bound() -> None:
    assert [bucket(seconds) for seconds in (0.0, 0.005, 0.0051, 7_200.0, 7_200.1)] == [
        0,
        0,
        1,
        14,
        15,
    ]
    assert len(BOUNDS) == 16
    assert BOUNDS[-1] == math.inf


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({}, 0.5, None),
        ({0: 1}, 1.0, 0.005),
        ({7: 10}, 0.5, 0.75),
        ({7: 10}, 1.0, 1.0),
        ({7: 95, 10: 5}, 0.95, 1.0),
        ({7: 90, 10: 10}, 0.95, 10.0),
        ({15: 3}, 0.5, 7_200.0),
        ({0: 1, 15: 3}, 0.99, 7_200.0),
    ],
)
def test_a_quantile_is_interpolated_in_its_bucket(
    counts: dict[int, int], share: float, seconds: float | None
) -> None:
    buckets = [counts.get(place, 0) for place in range(len(BOUNDS))]

    assert quantile(buckets, share) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("counts", "share", "longest", "seconds"),
    [
        ({12: 1}, 0.95, 75.0, 74.25),  # in the bucket from one minute to five
        ({12: 1}, 1.0, 75.0, 75.0),
        ({7: 95, 12: 5}, 0.95, 75.0, 1.0),
        ({15: 3}, 1.0, 9_000.0, 9_000.0),
        ({12: 1}, 1.0, 0.0, 300.0),  # the longest is unknown
    ],
)
def test_no_quantile_is_above_the_longest(
    counts: dict[int, int], share: float, longest: float, seconds: float
) -> None:
    buckets = [counts.get(place, 0) for place in range(len(BOUNDS))]

    found = quantile(buckets, share, longest)

    assert found == pytest.approx(seconds)


def test_a_line_is_logged_once_a_minute_for_each_kind() -> None:
    """A line is logged once a minute for each kind, with the number of the lines left out."""
    repeats = Repeats()

    assert [repeats.due("refused", now) for now in (5.0, 5.0, 64.9)] == ["", None, None]
    assert repeats.due("refused", 65.0) == " (and 2 more since the last such line)"
    assert repeats.due("refused", 66.0) is None
    assert repeats.due("other", 66.0) == ""
