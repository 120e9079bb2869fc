"""Snoozes: a task asks to run again later, and that uses no attempt."""

from __future__ import annotations

import copy
import datetime as dt
import logging
import pickle
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django import Snooze, Workflow, explain, task
from horsies_django.models import Task, WorkflowNode
from horsies_django.signals import task_finished, task_retried
from horsies_django.testing import drain, fail_next
from tests.apps.project import flows, tasks
from tests.support.factories import now

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def attempts(handle: Any) -> list[tuple[int, str, bool]]:
    return [(one.attempt, one.outcome, one.will_retry) for one in handle.info().attempts]


def test_snoozes_use_no_attempt_and_are_one_row() -> None:
    handle = tasks.snoozes.send(3, fails=True)
    assert drain() == 1
    row = Task.objects.get()
    assert (row.status, row.retry_count, row.snooze_count, row.result) == ("PENDING", 0, 1, None)
    assert dt.timedelta(seconds=50) < row.enqueued_at - now() <= dt.timedelta(seconds=60)
    assert drain(until=HOUR) == 4
    assert handle.get(0).ok_value == 3
    assert attempts(handle) == [(1, "SNOOZED", True), (1, "FAILED", True), (2, "COMPLETED", False)]
    assert Task.objects.get().snooze_count == 3


@pytest.mark.parametrize("until", [0, 2.5, dt.timedelta(minutes=2), "in an hour", "a minute ago"])
def test_a_snooze_takes_seconds_a_timedelta_or_an_aware_datetime(until: Any) -> None:
    today = dt.datetime.now(dt.UTC)
    moment = {"in an hour": today + HOUR, "a minute ago": today - dt.timedelta(minutes=1)}.get(until, until)
    handle = tasks.noop.send()
    with fail_next(tasks.noop, Snooze(moment)):
        drain()
        if until in (0, "a minute ago"):
            assert handle.get(0).is_ok(), "it was due at once"
            return
    later = moment - today if isinstance(moment, dt.datetime) else moment
    wanted = later if isinstance(later, dt.timedelta) else dt.timedelta(seconds=later)
    row = Task.objects.get()
    assert abs(row.enqueued_at - row.sent_at - wanted) < dt.timedelta(seconds=10)


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (-1, "from 0 to 2_592_000 seconds"),
        (2_592_001, "from 0 to 2_592_000 seconds"),
        (float("nan"), "from 0 to"),
        (True, "from 0 to"),
        ("60", "or a timedelta, not '60'"),
        (dt.timedelta(days=31), "from 0 to"),
        (dt.datetime(2030, 1, 1), "has no time zone"),  # noqa: DTZ001 - that is the mistake
        (dt.datetime(9999, 12, 31, tzinfo=dt.UTC), "within 30 days"),
    ],
)
def test_what_is_no_time_to_snooze_is_refused_where_it_is_written(until: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Snooze(until)


def test_a_snooze_can_be_copied_and_pickled() -> None:
    """Naive: its argument is lost, and a process pool that passes it on dies."""
    for made in (copy.copy(Snooze(5, "busy")), pickle.loads(pickle.dumps(Snooze(5, "busy")))):
        assert (made.until, str(made)) == (5, "busy")


def test_a_task_that_snoozes_too_often_fails(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_SNOOZES": 2}
    handle = tasks.snoozes.send(9)
    assert drain(until=HOUR, raise_errors=False) == 3
    error = handle.get(0).err_value
    assert (error.error_code, "HORSIES['MAX_SNOOZES']" in error.message) == ("SNOOZED_TOO_OFTEN", True)
    assert attempts(handle) == [(1, "SNOOZED", True), (1, "FAILED", False)]
    assert any("SNOOZED_TOO_OFTEN" in line.message and line.levelno == logging.ERROR for line in caplog.records)
    handle.retry()
    assert drain(until=HOUR, raise_errors=False) == 3, "snoozes count from the retry"
    settings.HORSIES = {**settings.HORSIES, "MAX_SNOOZES": 9}
    handle.retry()
    drain(until=HOUR)
    assert handle.get(0).ok_value == 9
    with pytest.raises(ExceptionGroup, match="tasks that failed: 1"):
        Group.objects.all().delete()
        settings.HORSIES = {**settings.HORSIES, "MAX_SNOOZES": 1}
        tasks.snoozes.send(3)
        drain(until=HOUR)


def test_a_snoozed_task_can_be_cancelled_made_due_and_expires() -> None:
    first, second, third = tasks.snoozes.send(9), tasks.snoozes.send(9), tasks.snoozes.send(9)
    drain()
    Task.objects.filter(pk=third.task_id).update(good_until=now() + dt.timedelta(seconds=30))
    assert first.cancel() == "CANCELLED"
    second.retry()
    assert drain() == 1
    drain(until=dt.timedelta(seconds=70))
    assert [each.info().status for each in (first, second, third)] == ["CANCELLED", "PENDING", "EXPIRED"]


def test_what_was_cancelled_while_it_ran_does_not_snooze() -> None:
    @task(name="tests.cancelled_snooze")
    def cancelled_snooze() -> None:
        Task.objects.filter(task_name="tests.cancelled_snooze").update(cancel_requested_at=now())
        raise Snooze(60)

    handle = cancelled_snooze.send()
    drain()
    assert handle.get(0).err_value.error_code == "TASK_CANCELLED"
    assert attempts(handle) == [(1, "CANCELLED", False)]


def test_explain_says_until_when_it_is_snoozed() -> None:
    handle = tasks.snoozes.send(9)
    drain()
    (reason,) = [one for one in explain(handle.task_id).reasons if one.code == "SNOOZED"]
    assert reason.details["snooze_count"] == 1
    assert reason.text.startswith("It is snoozed until ")
    Task.objects.update(enqueued_at=now() - HOUR, next_retry_at=now() - HOUR)
    assert "SNOOZED" not in [one.code for one in explain(handle.task_id).reasons]


def test_the_log_and_the_signals_tell_of_it(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    def note(sender: Any, signal: Any, **values: Any) -> None:
        told.append((signal, values["error_code"], values.get("status")))

    for signal in (task_retried, task_finished):
        signal.connect(note)
    try:
        with caplog.at_level(logging.INFO, "horsies.task"):
            tasks.snoozes.send(1)
            drain(until=HOUR)
    finally:
        for signal in (task_retried, task_finished):
            signal.disconnect(note)
    assert told == [(task_retried, "SNOOZED", None), (task_finished, None, "COMPLETED")]
    assert [line.levelname for line in caplog.records if " snoozed until " in line.message] == ["INFO"]


def test_a_node_of_a_workflow_snoozes_and_a_pause_keeps_its_task() -> None:
    """Naive: the pause takes it for a task that nobody has tried, and deletes it with its steps and its snoozes."""
    flow = Workflow[int]("asks later")
    flow.returns(flow.add(flows.plus, flow.add(tasks.snoozes, 2)))
    run = flow.send()
    drain()
    assert WorkflowNode.objects.filter(status="ENQUEUED").count() == 1
    run.pause()
    (kept,) = Task.objects.all()
    assert kept.snooze_count == 1
    assert drain(until=HOUR) == 0
    run.resume()
    drain(until=HOUR)
    assert run.get(0).ok_value == 3
    assert Task.objects.get(pk=kept.pk).snooze_count == 2
