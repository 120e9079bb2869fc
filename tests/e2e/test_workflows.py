"""Workflows with real workers.

They advance at once, and no run waits because a process dies or takes long.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
from django.db import connection, transaction

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode
from tests.apps.project import flows, tasks
from tests.conftest import Connect, wait_until
from tests.support.workers import SHORT, Start, WorkerProcess, held_by


@pytest.mark.promise("S3.1")
@pytest.mark.boundary
def test_a_worker_runs_a_workflow_without_waiting_for_a_poll(worker: Start) -> None:
    worker("--processes=2", HORSIES_TEST_POLL_MS="60000").ready()
    flow = Workflow("many")
    mapped = flow.map(flows.plus, a=flow.add(flows.numbers, 100), b=1)
    flow.returns(flow.add(flows.total, mapped))

    handle = flow.send()

    assert handle.get(timeout_ms=30_000).ok_value == sum(range(100)) + 100
    assert handle.status() == "COMPLETED"


@pytest.mark.promise("S3.1")
def test_a_run_goes_on_after_its_worker_was_killed(worker: Start) -> None:
    first = worker("--processes=1", **SHORT).ready()
    flow = Workflow("lost")
    flow.add(tasks.hold, "held")
    handle = flow.send()
    held_by("held")

    os.kill(first.process.pid, signal.SIGKILL)
    worker("--processes=1", **SHORT).ready()

    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"


def test_the_engine_advances_a_run_that_exceeds_the_time_limit(
    worker: Start, connect: Connect
) -> None:
    """The engine advances a run for which the maintenance thread needs too long.

    Fails if: a run with very many nodes is tried again for ever, because each statement of that
    thread ends after a second.
    """
    process = worker("--processes=1").ready()
    flow = Workflow("stops", on_error="stop")
    failing = flow.add(flows.number.with_options(delay=3600), 1, name="failing")
    flow.add(flows.plus, failing, b=1, name="after")
    handle = flow.send()

    with transaction.atomic(), connection.cursor() as cursor:
        # the delay of the node stands for the time that many nodes take
        cursor.execute("SELECT FROM horsies_workflow_nodes WHERE name = 'after' FOR UPDATE")

        other = connect()
        other.execute(
            "UPDATE horsies_tasks SET status = 'CANCELLED', finished_at = now(), error_code = "
            "'TASK_CANCELLED'"
        )

        waits = (
            "SELECT FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'horsies engine' AND wait_event_type = 'Lock'"
        )
        wait_until(lambda: other.execute(waits).fetchall(), "the engine tries to advance the run")

    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"
    assert "could not be advanced" not in process.log


def test_a_task_of_a_dead_child_does_not_start_in_a_paused_run(
    shared_worker: WorkerProcess,
) -> None:
    """A task whose child died before it began does not start while its run is paused.

    Fails if: the worker gives the task back and claims it again.
    """
    child = tasks.pid.send().get().ok_value
    os.kill(child, signal.SIGSTOP)

    flow = Workflow("paused")
    flow.returns(flow.add(flows.number, 4))
    handle = flow.send()
    task = Task.objects.filter(workflow_id=handle.workflow_id)
    wait_until(lambda: task.get().status == "RUNNING", "the task is dispatched")

    assert handle.pause()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: task.get().status == "PENDING", "it was given back")

    assert tasks.add.send(5).get().ok_value == 5  # this task comes after it
    assert (task.get().status, task.get().claim_generation) == ("PENDING", 1)
    assert "1 given back" in shared_worker.log

    handle.resume()
    assert handle.get(timeout_ms=30_000).ok_value == 4


@pytest.mark.boundary
def test_a_signal_wakes_a_worker_that_does_not_poll(
    worker: Start,
) -> None:
    """A signal wakes a worker that does not poll, and a timer ends by itself."""
    worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()

    flow = Workflow("waits")
    first = flow.signal("go", annotation=int)
    slept = flow.sleep(0.5, after=first)
    gate = flow.gate("approve", after=slept, timeout=timedelta(days=31))
    flow.returns(flow.add(flows.plus, first, after=gate))
    handle = flow.send()

    handle.signal("go", 4)
    wait_until(
        lambda: WorkflowNode.objects.get(name="approve").status == "WAITING", "the timer has ended"
    )
    assert Task.objects.count() == 0, "nothing that waits takes a slot"

    handle.approve("approve", actor="ada")
    assert handle.get(timeout_ms=30_000).ok_value == 5
    assert handle.status() == "COMPLETED"
