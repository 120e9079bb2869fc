"""Many bad ends in a row, and rows that nobody can read: the worker outlives them all and goes on with what is good."""

from __future__ import annotations

from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import put, wait_until
from tests.support.workers import Start, WorkerProcess

LONG = 120_000
HOSTILE = [
    '{"timeout_ms": "abc"}',
    '{"wire": "x"}',
    '{{"x": {}{}}}'.format("[" * 3_000, "]" * 3_000),
    '{"timeout_ms": %s}' % ("9" * 5_000),
    '{"timeout_ms": -1}',
]


def test_a_backlog_of_tasks_that_ignore_their_timeouts_is_drained_and_the_next_task_runs(worker: Start) -> None:
    """Each of them costs its child; the first ones come while the children of the others are still being made."""
    stubborn = [tasks.ignores_its_timeout.send() for _ in range(24)]
    good = tasks.add.send(1, b=1)
    process = worker("--processes=4", HORSIES_TEST_KILL_GRACE_MS="100")
    assert {handle.get(timeout_ms=LONG).err_value.error_code for handle in stubborn} == {"TASK_TIMEOUT"}
    assert good.get(timeout_ms=LONG).ok_value == 2
    assert TaskAttempt.objects.count() == 25
    assert process.stop() == 0


def test_a_storm_of_tasks_that_take_their_process_along_fails_each_of_them_once(worker: Start) -> None:
    deadly = [tasks.dies.send(how) for how in ("exit", "kill") * 6]
    good = tasks.add.send(1, b=1)
    process = worker("--processes=2")
    assert {handle.get(timeout_ms=LONG).err_value.error_code for handle in deadly} == {"WORKER_CRASHED"}
    assert good.get(timeout_ms=LONG).ok_value == 2
    ends = TaskAttempt.objects.exclude(task_id=good.task_id).values_list("task_id", "attempt", "outcome")
    assert sorted(ends) == sorted((handle.task_id, 1, "WORKER_FAILURE") for handle in deadly)
    assert process.stop() == 0


def test_options_that_cannot_be_read_fail_their_task_with_a_code_and_end_no_worker(
    shared_worker: WorkerProcess,
) -> None:
    ids = [id_ for text in HOSTILE for id_ in put(name="tests.apps.project.tasks.noop", options=text)]
    ids += put(name="tests.apps.project.tasks.anoop", lane="async", options=HOSTILE[0])
    assert tasks.add.send(1).get(30_000).is_ok()
    hostile = Task.objects.filter(pk__in=ids)
    wait_until(lambda: not hostile.exclude(status="FAILED").exists(), "each of them fails")
    assert set(hostile.values_list("error_code", flat=True)) == {"WORKER_SERIALIZATION_ERROR"}
    assert "Traceback" not in shared_worker.log
