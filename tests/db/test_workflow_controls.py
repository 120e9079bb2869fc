"""Pause, resume, cancel, retry and skip, what on_error does, and the cap on tasks in flight."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow, WorkflowError, get_workflow
from horsies_django.conf import config
from horsies_django.core.records import Wanted
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.testing import drain
from horsies_django.testing.draining import run_here
from horsies_django.workflows.advancer import Advancer
from tests.apps.project import flows
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


def test_pause_withdraws_and_resume_sends_again() -> None:
    flow = Workflow("pause")
    first = flow.add(flows.number, 1)
    flow.map(flows.plus, a=[1, 2, 3])
    flow.add(flows.plus, first)
    handle = flow.send()
    assert handle.pause(reason="look")
    assert not Task.objects.exists()
    assert drain() == 0
    assert handle.resume()
    assert drain() == 5
    assert handle.status() == "COMPLETED"
    assert [change.action for change in handle.history()] == ["workflow.pause", "workflow.resume"]


def test_cancel_ends_everything_and_retry_runs_it_again() -> None:
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("cancel")
    flow.add(flows.plus, flow.add(flows.number, 1))
    flow.add(child)
    handle = flow.send()
    assert handle.cancel(reason="wrong book")
    assert not handle.cancel()
    assert drain() == 0
    assert set(statuses(handle).values()) == {"CANCELLED"}
    assert set(Task.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert handle.get(0).err_value.error_code == "WORKFLOW_CANCELLED"
    handle.retry()
    drain()
    assert handle.status() == "COMPLETED"


@pytest.mark.parametrize(
    ("on_error", "status", "second"), [("stop", "FAILED", "CANCELLED"), ("pause", "PAUSED", "READY")]
)
def test_on_error(on_error: str, status: str, second: str) -> None:
    flow = Workflow("error", on_error=on_error, max_in_flight=1)
    flow.add(flows.broken)
    flow.add(flows.number, 1, name="second")
    handle = run(flow)
    assert handle.status() == status
    assert statuses(handle)["second"] == second
    if status == "PAUSED":
        handle.resume()
        drain()
        assert handle.status() == "FAILED"
        assert statuses(handle)["second"] == "COMPLETED"


def test_a_node_is_skipped_by_hand() -> None:
    flow = Workflow("skip")
    first = flow.add(flows.number, 1)
    flow.add(flows.describe, first, allow_failed=True)
    handle = flow.send()
    handle.skip("number")
    drain()
    assert statuses(handle) == {"number": "SKIPPED", "describe": "COMPLETED"}
    with pytest.raises(WorkflowError, match="has finished"):
        handle.skip("number")


def test_a_node_that_was_skipped_by_hand_stays_skipped_when_the_run_is_retried() -> None:
    flow = Workflow("skip")
    first = flow.add(flows.odd_fails, 1)
    second = flow.add(flows.number, 2, after=first, name="second")
    flow.add(flows.number, 3, after=second, name="third")
    flow.add(flows.describe, second, allow_failed=True)
    handle = flow.send()
    handle.skip("second")
    drain(raise_errors=False)
    WorkflowNode.objects.filter(name="odd_fails").update(kwargs={"n": 2})
    handle.retry()
    drain()
    expected = {"odd_fails": "COMPLETED", "second": "SKIPPED", "third": "SKIPPED", "describe": "COMPLETED"}
    assert statuses(handle) == expected


def test_a_cap_on_tasks_in_flight_holds_through_a_pause_and_a_retry() -> None:
    flow = Workflow("capped", max_in_flight=2)
    mapped = flow.map(flows.odd_fails, n=list(range(10)))
    flow.add(flows.total, mapped, allow_failed=True)
    handle = flow.send()
    most = []

    def in_flight() -> int:
        return Task.objects.filter(workflow_id=handle.workflow_id, finished_at=None).count()

    for place in range(40):
        most.append(in_flight())
        step()
        if place == 2:
            handle.pause()
            handle.resume()
        if handle.status() == "COMPLETED":
            break
    handle.results()
    assert max(most) == 2
    assert handle.results()["total"].ok_value == 20
    assert WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="odd_fails").status == "FAILED"


def step(meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Run one task, do something else before it is settled, and advance its workflow."""
    conf = config()
    store, channel = TaskStore(connection), channel_prefix(connection)
    worker, served = uuid.uuid4(), Served(conf.queues)
    passed = store.run_pass(worker, channel, served, Wanted(1, 0))
    meanwhile()
    passed = store.run_pass(worker, channel, served, outcomes=run_here(connection, worker, passed.claims))
    advancer = Advancer(conf.max_payload_bytes)
    advancer.owe(passed.in_runs)
    while advancer.owed:
        advancer.turn(advancer.store(connection, channel))


def test_a_run_that_stops_before_a_worker_took_a_task_ends_at_once() -> None:
    flow = Workflow("stops", on_error="stop")
    flow.map(flows.plus, a=flow.add(flows.anything, "no list"))
    flow.add(flows.number, 1, after=flow.add(flows.number, 1))
    other = flow.add(flows.number, 2, after=flow.add(flows.number.with_options(delay=3600), 1, name="later"))
    handle = flow.send()
    drain(raise_errors=False)
    assert handle.status() == "FAILED"
    assert statuses(handle)["later"] == statuses(handle)[other.name] == "CANCELLED"


def test_a_retry_counts_upstream_nodes_again_for_nodes_that_ran_nevertheless() -> None:
    flow = Workflow("counted")
    bad = flow.add(flows.broken)
    flow.add(flows.describe, bad, allow_failed=True)
    flow.add(flows.plus, bad)
    handle = run(flow)
    handle.retry()
    drain(raise_errors=False)
    counted = dict(WorkflowNode.objects.filter(workflow_id=handle.workflow_id).values_list("name", "open"))
    assert counted == {"broken": 0, "describe": 0, "plus": 0}


def test_a_run_that_was_cancelled_when_all_its_nodes_had_completed_is_retried() -> None:
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("parent")
    flow.add(flows.number, 2, after=flow.add(child))
    handle = flow.send()
    step(lambda: get_workflow(WorkflowRun.objects.get(name="child").pk).pause())
    assert WorkflowRun.objects.get(name="child").status == "PAUSED"
    assert handle.cancel()
    drain()
    assert set(statuses(handle).values()) == {"CANCELLED"}
    handle.retry()
    drain()
    assert handle.status() == "COMPLETED"
