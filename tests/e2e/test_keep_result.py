"""keep_result with a real worker: the value never arrives in the table, and the row goes while others stay."""

from __future__ import annotations

import datetime as dt

from django.db.models import F

from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start


def test_values_are_dropped_and_rows_go_when_they_are_due_also_by_a_worker_that_ran_no_such_task(worker: Start) -> None:
    """Naive: the worker that ran them has to live until they are due, or all wait for the retention of the settings."""
    first = worker("--processes=0").ready()
    dropped = tasks.add.with_options(keep_result=False).send(1)
    for_an_hour = tasks.add.with_options(keep_result=dt.timedelta(hours=1)).send(2)
    for_a_day = tasks.add.with_options(keep_result=dt.timedelta(days=1)).send(3)
    plain, failed = tasks.add.send(4), tasks.raises.with_options(keep_result=False).send("no")
    assert [handle.get().ok_value for handle in (dropped, for_an_hour, for_a_day, plain)] == [None, 2, 3, 4]
    assert failed.get().is_err()
    assert Task.objects.get(pk=dropped.task_id).result == {"ok": None, "kept": False}
    assert first.stop() == 0
    Task.objects.update(finished_at=F("finished_at") - dt.timedelta(hours=2))
    second = worker("--processes=0").ready()
    stay = {one.task_id for one in (for_a_day, plain, failed)}
    wait_until(lambda: set(Task.objects.values_list("pk", flat=True)) == stay, "those that are due are deleted")
    assert set(TaskAttempt.objects.values_list("task_id", flat=True)) == stay
    assert second.stop() == 0
    assert "retention deleted tasks: 2, attempts: 2" in second.log
