"""keep_result with a real worker: the value never arrives in the table, and the row goes while others stay."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.db import connection

from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


def finished_long_ago(*handles: object) -> None:
    """Let tasks have finished two hours ago."""
    ids = [handle.task_id for handle in handles]  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE horsies_tasks SET finished_at = finished_at - interval '2 hours' WHERE id = ANY (%s)", [ids]
        )


@pytest.mark.parametrize("options", [("--processes=1",), ("--processes=0",)], ids=" ".join)
def test_values_are_dropped_and_rows_go_when_they_are_due_also_by_a_worker_that_ran_no_such_task(
    worker: Callable[..., WorkerProcess], options: tuple[str, ...]
) -> None:
    """Naive: the worker that ran them has to live until they are due, or all wait for the retention of the settings."""
    first = worker(*options).ready()
    dropped = tasks.add.with_options(keep_result=False).send(1)
    for_an_hour = tasks.add.with_options(keep_result=dt.timedelta(hours=1)).send(2)
    for_a_day = tasks.add.with_options(keep_result=dt.timedelta(days=1)).send(3)
    plain, failed = tasks.add.send(4), tasks.raises.with_options(keep_result=False).send("no")
    assert [handle.get().ok_value for handle in (dropped, for_an_hour, for_a_day, plain)] == [None, 2, 3, 4]
    assert failed.get().is_err()
    assert Task.objects.get(pk=dropped.task_id).result == {"ok": None, "kept": False}
    assert first.stop() == 0
    finished_long_ago(dropped, for_an_hour, for_a_day, plain, failed)

    second = worker(*options).ready()
    stay = {one.task_id for one in (for_a_day, plain, failed)}
    wait_until(lambda: set(Task.objects.values_list("pk", flat=True)) == stay, "those that are due are deleted")
    assert set(TaskAttempt.objects.values_list("task_id", flat=True)) == stay
    assert second.stop() == 0
    assert "retention deleted tasks: 2, attempts: 2" in second.log
