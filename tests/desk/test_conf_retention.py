"""The settings of retention: how long rows are kept, for each kind and for each queue, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from horsies_django.conf import RANGES, Retention, config
from tests.desk.test_conf import only_problem, parsed, problems_of

HOURS = (
    "TERMINAL_RECORD_RETENTION_HOURS",
    "WORKER_STATE_RETENTION_HOURS",
    "WORKER_RETENTION_HOURS",
    "AUDIT_RETENTION_HOURS",
)
COUNTS = ("RETENTION_SWEEP_INTERVAL_S", "RETENTION_DELETE_BATCH_SIZE")
PLACE = "HORSIES['RETENTION']"


def retention(**values: Any) -> dict[str, Any]:
    return {"QUEUES": {"mail": {}, "payments": {}}, "RETENTION": values}


def by_queue(**hours: Any) -> dict[str, Any]:
    return retention(QUEUE_RETENTION_HOURS=hours)


def test_tasks_are_kept_for_thirty_days_unless_set_otherwise() -> None:
    found = parsed({}).retention
    assert found == Retention(720, {}, 168, 168, 8_760, 300, 500)
    assert config().retention == found


@pytest.mark.parametrize("key", [*HOURS, *COUNTS])
def test_each_number_takes_its_range_and_nothing_beyond(key: str) -> None:
    low, high = RANGES[key]
    assert high is not None
    for value in (low, high):
        assert getattr(parsed(retention(**{key: value})).retention, key.lower()) == value
    for value in (low - 1, high + 1):
        problem = only_problem(retention(**{key: value}))
        assert (problem.id, problem.where) == ("E003", f"{PLACE}['{key}']")
        assert f"from {low:_} to {high:_}" in problem.hint


@pytest.mark.parametrize("key", HOURS)
def test_none_keeps_rows_for_ever(key: str) -> None:
    assert getattr(parsed(retention(**{key: None})).retention, key.lower()) is None


@pytest.mark.parametrize("key", COUNTS)
def test_how_to_delete_cannot_be_none(key: str) -> None:
    assert only_problem(retention(**{key: None})).id == "E001"


def test_a_time_may_be_a_timedelta_of_whole_hours_or_seconds() -> None:
    found = parsed(
        retention(
            TERMINAL_RECORD_RETENTION_HOURS=timedelta(days=7),
            RETENTION_SWEEP_INTERVAL_S=timedelta(minutes=1),
            QUEUE_RETENTION_HOURS={"mail": timedelta(days=1)},
        )
    ).retention
    assert (found.terminal_record_retention_hours, found.retention_sweep_interval_s) == (168, 60)
    assert found.queue_retention_hours == {"mail": 24}
    for values, unit in (
        ({"AUDIT_RETENTION_HOURS": timedelta(minutes=90)}, "hours"),
        ({"RETENTION_SWEEP_INTERVAL_S": timedelta(milliseconds=60_500)}, "seconds"),
    ):
        problem = only_problem(retention(**values))
        assert problem.id == "E003"
        assert f"is not a whole number of {unit}" in problem.message


def test_each_queue_may_be_kept_for_a_time_of_its_own_or_for_ever() -> None:
    found = parsed(by_queue(mail=1, payments=None, default=43_800)).retention.queue_retention_hours
    assert found == {"mail": 1, "payments": None, "default": 43_800}


@pytest.mark.parametrize("name", ["mial", "Mail", "*", "", 5, None])
def test_a_queue_that_is_not_declared_is_refused_with_those_that_are(name: object) -> None:
    problem = only_problem(retention(QUEUE_RETENTION_HOURS={name: 24}))
    assert (problem.id, problem.where) == ("E019", f"{PLACE}['QUEUE_RETENTION_HOURS'][{name!r}]")
    assert "default, mail, payments" in problem.hint


@pytest.mark.parametrize(
    ("value", "id_"), [(0, "E003"), (43_801, "E003"), ("24", "E001"), (True, "E001"), (1.5, "E001")]
)
def test_the_hours_of_a_queue_take_their_range_and_nothing_beyond(value: object, id_: str) -> None:
    problem = only_problem(by_queue(mail=value))
    assert (problem.id, problem.where) == (id_, f"{PLACE}['QUEUE_RETENTION_HOURS']['mail']")
    assert "from 1 to 43_800, or None" in problem.hint
    assert "the default, 720" in problem.hint


@pytest.mark.parametrize(
    "raw", [{"RETENTION": None}, {"RETENTION": []}, {"RETENTION": {"QUEUE_RETENTION_HOURS": ["mail"]}}], ids=str
)
def test_a_dict_is_said_where_there_must_be_one(raw: dict[str, Any]) -> None:
    problem = only_problem(raw)
    assert problem.id == "E001"
    assert "must be a dict" in problem.message


def test_all_problems_are_told_at_once() -> None:
    raw = retention(
        TERMINAL_RECORD_RETENTION_HOURS=0, AUDIT_RETENTION="1 year", QUEUE_RETENTION_HOURS={"mial": 0, "mail": 0}
    )
    assert [problem.id for problem in problems_of(raw)] == ["E002", "E003", "E019", "E003"]
    assert "'AUDIT_RETENTION_HOURS'" in problems_of(raw)[0].hint
