"""Compensation with real workers and real deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group

from horsies_django import Workflow
from horsies_django.models import WorkflowNode
from tests.apps.project import flows, tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]


def undone() -> list[str]:
    """Return what was undone, in order."""
    return list(Group.objects.filter(name__startswith="undone").order_by("pk").values_list("name", flat=True))


@pytest.mark.boundary
def test_a_node_whose_process_was_killed_is_undone_without_a_result(worker: Start) -> None:
    worker("--processes=1").ready()
    flow = Workflow("killed")
    first = flow.add(tasks.hold, "first", undo=flows.undo_hold)
    flow.add(tasks.hold, "second", after=first, undo=flows.undo_hold)
    handle = flow.send()
    pid = held_by("first")
    let_go("first")
    os.kill(held_by("second"), signal.SIGKILL)
    error = handle.get(timeout_ms=60_000).err_value
    assert (error.error_code, error.data["undone"]) == ("WORKFLOW_FAILED", 2)
    assert undone() == ["undone second None", f"undone first {pid}"]


def test_a_cancelled_run_is_undone_after_its_running_task_has_stopped(worker: Start) -> None:
    worker("--processes=2").ready()
    flow = Workflow("cancelled")
    flow.add(tasks.hold, "first", undo=flows.undo_hold)
    handle = flow.send()
    pid = held_by("first")
    assert handle.cancel()
    assert (handle.status(), undone()) == ("COMPENSATING", [])
    let_go("first")
    assert handle.get(timeout_ms=60_000).err_value.error_code == "WORKFLOW_CANCELLED"
    assert (handle.status(), undone()) == ("CANCELLED", [f"undone first {pid}"])


def test_the_undos_go_on_after_the_worker_that_ran_them_was_killed(worker: Start) -> None:
    one = worker("--processes=1", HORSIES_TEST_STALE_MS="2500").ready()
    flow = Workflow("killed twice")
    first = flow.add(flows.number, 1, undo=flows.note_undo)
    second = flow.add(flows.number, 2, after=first, name="second", undo=tasks.hold_undo)
    flow.add(flows.broken, after=second)
    handle = flow.send()
    held_by("undo")
    assert handle.status() == "COMPENSATING"
    os.kill(one.process.pid, signal.SIGKILL)
    worker("--processes=1", HORSIES_TEST_STALE_MS="2500").ready()
    wait_until(
        lambda: Group.objects.filter(name__startswith="undo:").count() == 2, "another worker runs the undo again"
    )
    let_go("undo")
    assert handle.get(timeout_ms=60_000).err_value.data["undone"] == 2
    assert set(WorkflowNode.objects.filter(kind="undo").values_list("status", flat=True)) == {"COMPLETED"}
