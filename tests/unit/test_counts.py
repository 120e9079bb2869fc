"""What is counted: results of attempts, durations in buckets, and log lines that would repeat."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest

from horsies_django.core.counts import BOUNDS, NO_FAILURE, OTHER, Total, bucket, quantile, result_of
from horsies_django.core.errors import code_problem
from horsies_django.core.records import SNOOZED, Outcome
from horsies_django.core.repeats import Repeats

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
def test_each_way_in_which_an_attempt_ends_is_counted_as_one_result(
    outcome: dict[str, Any], decided: dict[str, Any], result: str | None
) -> None:
    made = Outcome(
        uuid.uuid4(), 1, result="{}", error_code=None if outcome["status"] == "COMPLETED" else "OH_NO", **outcome
    )
    assert result_of(made, decided) == result


@pytest.mark.parametrize("code", sorted(NO_FAILURE))
def test_a_failure_with_the_code_of_another_result_is_a_failure_all_the_same(code: str) -> None:
    """Naive: a task that fails with EXPIRED is told by no problem, and one that fails with CLAIMED counts as a claim."""
    assert code_problem(code) is None, "projects may use it"
    result = result_of(Outcome(uuid.uuid4(), 1, "FAILED", "{}", error_code=code), {})
    assert result == OTHER
    assert Total("q", "t", result, 1, 0.0, ()).failed


def test_only_the_codes_of_final_failures_are_failures() -> None:
    def failed(result: str) -> bool:
        return Total("q", "t", result, 1, 0.0, ()).failed

    assert [failed(code) for code in ("TASK_EXCEPTION", "OH_NO", "POISON", "(other)")] == [True] * 4
    others = ("COMPLETED", "RETURNED", "RETRIED", "CRASHED", "CANCELLED", "EXPIRED", "CLAIMED")
    assert not any(map(failed, others))


def test_a_bucket_includes_its_upper_bound() -> None:
    assert [bucket(seconds) for seconds in (0.0, 0.005, 0.0051, 7_200.0, 7_200.1)] == [0, 0, 1, 14, 15]
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
def test_a_quantile_is_interpolated_in_its_bucket(counts: dict[int, int], share: float, seconds: float | None) -> None:
    buckets = [counts.get(place, 0) for place in range(len(BOUNDS))]
    assert quantile(buckets, share) == (seconds if seconds is None else pytest.approx(seconds))


def test_what_is_new_since_an_earlier_count_is_the_difference() -> None:
    now, before = Total("q", "t", "r", 5, 2.5, (3, 2)), Total("q", "t", "r", 4, 2.0, (3, 1))
    assert now.minus(before) == Total("q", "t", "r", 1, 0.5, (0, 1))
    assert now.minus(None) == now


def test_a_line_is_said_once_a_minute_for_each_kind_with_how_many_were_left_out() -> None:
    repeats = Repeats()
    said = [repeats.due("refused", now) for now in (5.0, 5.0, 64.9, 65.0, 66.0, 200.0)]
    assert said == [
        "",
        None,
        None,
        " (and 2 more since the last such line)",
        None,
        " (and 1 more since the last such line)",
    ]
    assert repeats.due("other", 66.0) == ""
