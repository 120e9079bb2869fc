"""Retry policies: what they accept, their delays, and which failures are followed by another attempt."""

from __future__ import annotations

import datetime as dt

import pytest

from horsies_django import Retry, RetryPolicy
from horsies_django.core.retry import class_names
from tests.support.models.retry import Failure, decide

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def seconds(due: object) -> float:
    assert isinstance(due, dt.datetime)
    return (due - NOW).total_seconds()


def test_a_fixed_policy_has_one_retry_per_pause() -> None:
    policy = RetryPolicy.fixed([60, 300, 900], auto_retry_for=["MAIL_DOWN"])
    assert policy.max_retries == 3
    assert [policy.delay(retry) for retry in (1, 2, 3)] == [60, 300, 900]


def test_an_exponential_policy_doubles_its_pause_up_to_the_longest() -> None:
    policy = RetryPolicy.exponential(base_seconds=2, max_retries=6, max_delay_seconds=20)
    assert [policy.delay(retry) for retry in range(1, 7)] == [2, 4, 8, 16, 20, 20]
    assert RetryPolicy.exponential(base_seconds=86_400, max_retries=100).delay(100) == 30 * 86_400


def test_a_policy_names_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="max_retries") as error:
        RetryPolicy.exponential(base_seconds=-1, max_retries=101, auto_retry_for=["not a code", "WORKER_CRASHED"])
    text = str(error.value)
    assert "-1" in text
    assert "101" in text
    assert "not a code" in text
    assert "WORKER_CRASHED" not in text


@pytest.mark.parametrize("intervals", [[], "60", 60, [0, "1"], [True], [float("nan")], [10**9]])
def test_pauses_that_cannot_be_are_refused(intervals: object) -> None:
    with pytest.raises(ValueError, match="retry delay"):
        RetryPolicy.fixed(intervals)  # type: ignore[arg-type]


def test_one_code_may_be_given_as_a_text() -> None:
    assert RetryPolicy.fixed([1], auto_retry_for="WORKER_CRASHED").auto_retry_for == ("WORKER_CRASHED",)


@pytest.mark.parametrize("arguments", [{"delay_seconds": -1}, {"delay_seconds": "1"}, {"code": "WORKER_CRASHED"}])
def test_a_retry_that_cannot_be_is_refused_where_it_is_raised(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"delay_seconds|reserved"):
        Retry(**arguments)  # type: ignore[arg-type]


def test_only_listed_codes_are_retried_and_only_as_often_as_the_policy_says() -> None:
    policy = RetryPolicy.fixed([10, 20], auto_retry_for=["MAIL_DOWN"])
    assert seconds(decide(Failure("MAIL_DOWN"), policy, retry_count=0, now=NOW)) == 10
    assert seconds(decide(Failure("MAIL_DOWN"), policy, retry_count=1, now=NOW)) == 20
    assert decide(Failure("MAIL_DOWN"), policy, retry_count=2, now=NOW) is None
    assert decide(Failure("OTHER"), policy, retry_count=0, now=NOW) is None
    assert decide(Failure("MAIL_DOWN"), None, retry_count=0, now=NOW) is None


def test_a_task_that_asks_is_retried_whatever_its_code_and_after_the_pause_that_it_names() -> None:
    policy = RetryPolicy.fixed([10])
    assert seconds(decide(Failure("RETRY_REQUESTED", asked=True), policy, retry_count=0, now=NOW)) == 10
    assert seconds(decide(Failure("X", asked=True, delay_seconds=77), policy, retry_count=0, now=NOW)) == 77
    assert decide(Failure("X", asked=True, delay_seconds=77), policy, retry_count=1, now=NOW) is None


def test_no_retry_starts_at_or_after_the_deadline_or_once_the_task_is_cancelled() -> None:
    policy = RetryPolicy.fixed([10], auto_retry_for=["X"])
    late, early = NOW + dt.timedelta(seconds=10), NOW + dt.timedelta(seconds=11)
    assert decide(Failure("X"), policy, retry_count=0, now=NOW, good_until=late) is None
    assert seconds(decide(Failure("X"), policy, retry_count=0, now=NOW, good_until=early)) == 10
    assert decide(Failure("X"), policy, retry_count=0, now=NOW, cancelled=True) is None


def test_a_task_that_takes_too_many_processes_with_it_is_poison() -> None:
    policy = RetryPolicy.fixed([10] * 9, auto_retry_for=["WORKER_CRASHED"])
    crash = Failure("WORKER_CRASHED", crashed=True)
    assert seconds(decide(crash, policy, retry_count=1, crashes=1, max_crashes=3, now=NOW)) == 10
    assert decide(crash, policy, retry_count=2, crashes=2, max_crashes=3, now=NOW) == "POISON"
    assert decide(crash, None, retry_count=0, crashes=0, max_crashes=1, now=NOW) == "POISON"
    assert seconds(decide(crash, policy, retry_count=8, crashes=8, max_crashes=0, now=NOW)) == 10


def test_a_policy_without_a_list_retries_exceptions_crashes_and_timeouts_and_no_errors_that_were_returned() -> None:
    policy = RetryPolicy.fixed([10])
    raised = Failure("UNHANDLED_ERROR", class_names(ConnectionResetError("gone")))
    for failure in (raised, Failure("WORKER_CRASHED", crashed=True), Failure("TASK_TIMEOUT")):
        assert seconds(decide(failure, policy, retry_count=0, now=NOW)) == 10
    for failure in (Failure("MAILBOX_FULL"), Failure("RETURN_TYPE_MISMATCH"), Failure("X", class_names(SystemExit(1)))):
        assert decide(failure, policy, retry_count=0, now=NOW) is None
    assert decide(raised, RetryPolicy.fixed([10], auto_retry_for=[]), retry_count=0, now=NOW) is None


class MailDown(OSError):
    pass


@pytest.mark.parametrize("listed", [MailDown, OSError, "builtins.OSError", f"{__name__}.MailDown"])
def test_an_exception_class_covers_itself_and_what_is_derived_from_it(listed: str | type[BaseException]) -> None:
    policy = RetryPolicy.exponential(base_seconds=10, auto_retry_for=[listed, "BUSY"])
    down = Failure("MAIL_DOWN", class_names(MailDown()))  # by its class, whatever code it is mapped to
    assert seconds(decide(down, policy, retry_count=0, now=NOW)) == 10
    assert decide(Failure("UNHANDLED_ERROR", class_names(LookupError())), policy, retry_count=0, now=NOW) is None
    assert policy.codes == ("BUSY",)
    assert RetryPolicy.fixed([1], auto_retry_for=listed).auto_retry_for == policy.auto_retry_for[:1]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("no.such.Error", "'no.such.Error' cannot be imported"),
        ("builtins.OSErorr", "'builtins.OSErorr' cannot be imported"),
        (".OSError", "cannot be imported"),
        ("builtins.len", "neither an error code"),
        (int, "nor an exception class"),
        (None, "nor an exception class"),
        (OSError(), "nor an exception class"),
    ],
)
def test_an_entry_that_is_neither_a_code_nor_an_exception_class_is_refused(listed: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RetryPolicy.fixed([1], auto_retry_for=[listed])  # type: ignore[list-item]
