"""A real worker deletes what is old while it works, and writes down how it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horsies_django.models import Task, TaskAttempt, WorkerState
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.db.test_retention import DAY, finished
from tests.support.factories import TaskAttemptFactory
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.promise("S1.17", "S3.4")
def test_a_worker_deletes_old_tasks_and_writes_snapshots_of_itself_and_its_children(
    worker: Callable[..., WorkerProcess],
) -> None:
    old, young = finished(31 * DAY, 300), finished(29 * DAY, 20)
    TaskAttemptFactory(task_id=old[0])
    TaskAttemptFactory(task_id=young[0])
    process = worker("--processes=2", HORSIES_TEST_SNAPSHOT_MS="1000").ready()
    wait_until(lambda: not Task.objects.filter(pk__in=old).exists(), "the old tasks are gone")
    assert tasks.add.send(2, b=3).get().ok_value == 5
    assert Task.objects.filter(pk__in=young).count() == 20
    assert set(TaskAttempt.objects.filter(task_id__in=[*old, *young]).values_list("task_id", flat=True)) == {young[0]}
    wait_until(lambda: WorkerState.objects.filter(cpu_percent__isnull=False).count() >= 2, "two snapshots with CPU")
    wait_until(lambda: "retention deleted tasks: 300, attempts: 1" in process.log, "the log says so")
    last = WorkerState.objects.latest("pk")
    assert last.children == 2
    assert last.memory_usage_mb > 10
    assert last.children_memory_mb > 20
    assert process.stop() == 0
