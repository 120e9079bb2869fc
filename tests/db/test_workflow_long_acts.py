"""Large runs are ended and paused in parts: what decides happens at once, the rest in transactions of bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db.models import Count

from horsies_django import Batch, Workflow, WorkflowError
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.tasks.redaction import redact
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.db.drives import Engine

pytestmark = pytest.mark.django_db(transaction=True)

PART = 1_000  # see horsies_move_run
MANY = 2_500


@pytest.fixture
def engine(connect: Callable[[], psycopg.Connection[Any]]) -> Engine:
    return Engine(connect())


def mapped(**how: Any) -> Workflow:
    flow = Workflow("map", **how)
    flow.map(flows.number, n=list(range(MANY)), name="map")
    return flow


def chain(**how: Any) -> Workflow:
    flow = Workflow("chain", **how)
    node: Any = ()
    for _ in range(MANY):
        node = flow.add(flows.number, 1, after=node)
    return flow


def flat(**how: Any) -> Workflow:
    flow = Workflow("flat", **how)
    for _ in range(MANY):
        flow.add(flows.number, 1)
    return flow


def counted(model: Any, handle: WorkflowHandle) -> dict[str, int]:
    """Return how many tasks or nodes of a run have each status."""
    rows = model.objects.filter(workflow_id=handle.workflow_id).values_list("status").annotate(Count("status"))
    return dict(rows)


def ended(handle: WorkflowHandle) -> int:
    """Return how many tasks of a run, and nodes without a task, are CANCELLED."""
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id, status="CANCELLED", task_id=None)
    return max(counted(Task, handle).get("CANCELLED", 0), nodes.count())


def largest_part(engine: Engine, handle: WorkflowHandle) -> int:
    """Advance a run until nothing is left; return how many tasks, or nodes without one, it ended at most in a transaction."""
    found = [ended(handle)]
    while engine.advance_run(handle.workflow_id).more:
        found.append(ended(handle))
    return max(new - old for old, new in zip(found, [*found[1:], ended(handle)], strict=True))


@pytest.mark.parametrize("build", [mapped, flat, chain])
def test_a_cancel_ends_the_run_at_once_and_its_tasks_and_nodes_in_parts(
    engine: Engine, build: Callable[[], Workflow]
) -> None:
    """Naive: one statement that takes a minute for 80,000 tasks, and during which the worker loses its connection."""
    handle = build().send()
    engine.advance()
    assert handle.cancel()
    assert (handle.status(), handle.get(0).err_value.error_code) == ("CANCELLED", "WORKFLOW_CANCELLED")
    assert ended(handle) == PART
    with pytest.raises(WorkflowError, match="still"):
        handle.retry()
    assert [owed.workflow for owed in engine.workflows.owed(None, 9) if owed.task is None] == [handle.workflow_id]
    assert largest_part(engine, handle) <= PART
    assert counted(Task, handle).keys() == {"CANCELLED"} == counted(WorkflowNode, handle).keys()
    assert engine.workflows.owed(None, 9) == []
    assert handle.progress().open == 0
    handle.retry()
    assert handle.status() == "RUNNING"


def test_a_stop_ends_tasks_and_nodes_in_parts_and_then_runs_what_runs_when_others_ended(engine: Engine) -> None:
    """Naive: all of them in the statement that takes the failed task into account; or callbacks that end with the others."""
    flow = Batch("stop", on_error="stop")
    flow.add(flows.number, 1)
    second = flow.add(flows.number, 1)
    for _ in range(MANY):
        flow.add(flows.number, 1)
        flow.add(flows.number, 1, after=second)
    flow.on_failure(flows.number, 1, name="told")
    handle = flow.send()
    claims = engine.take(2)
    engine.settle(claims[0], code="BROKEN")
    halts = engine.advance_run(handle.workflow_id, [claims[0].id])
    assert (halts.halted, halts.more) == ("stop", True)
    assert handle.pause()
    assert handle.resume()
    assert largest_part(engine, handle) <= PART
    assert WorkflowNode.objects.get(name="told").status == "PENDING", "one task still runs"
    assert counted(Task, handle) == {"FAILED": 1, "RUNNING": 1, "CANCELLED": MANY}
    engine.settle(claims[1])
    engine.run_all()
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "COMPLETED": 2, "CANCELLED": 2 * MANY}
    assert handle.status() == "FAILED"


def test_a_stopped_run_waits_for_the_tasks_of_a_map_in_any_state(engine: Engine) -> None:
    """Naive: a map whose tasks were not all sent has ended at once, and the run with it, while some of its tasks run."""
    flow = Workflow("stop", on_error="stop", max_in_flight=3)
    flow.add(flows.number, 1)
    flow.map(flows.number, n=[1, 2, 3], name="map")
    handle = flow.send()
    claims = engine.take()
    engine.settle(claims[0], code="BROKEN")
    engine.advance()
    assert (handle.status(), WorkflowNode.objects.get(name="map").status) == ("RUNNING", "ENQUEUED")
    engine.settle(*claims[1:])
    engine.advance()
    assert (handle.status(), WorkflowNode.objects.get(name="map").status) == ("FAILED", "CANCELLED")
    assert handle.progress() == (4, 2, 2, 0, 0)


@pytest.mark.parametrize(
    ("begins", "status", "code"), [(0, "CANCELLED", "TASK_CANCELLED"), (1, "FAILED", "MAP_FAILED")]
)
def test_a_map_none_of_whose_tasks_began_is_cancelled_by_a_stop(
    engine: Engine, begins: int, status: str, code: str
) -> None:
    """Naive: it has FAILED, though nothing of it was tried."""
    flow = Workflow("stop", on_error="stop")
    flow.add(flows.number, 1)
    flow.map(flows.number, n=[1, 2, 3], name="map")
    handle = flow.send()
    claims = engine.take(1 + begins)
    engine.settle(claims[0], code="BROKEN")
    engine.advance()
    engine.settle(*claims[1:], code="TASK_CANCELLED")
    engine.advance()
    node = WorkflowNode.objects.get(name="map")
    assert (handle.status(), node.status, node.error_code) == ("FAILED", status, code)


def test_a_continued_run_ends_what_it_left_in_parts(engine: Engine) -> None:
    successor = Workflow("next")
    successor.add(flows.number, 1)
    flow = mapped()
    flow.continue_as(successor, after=flow.add(flows.number, 1, name="first"))
    handle = flow.send()
    (first,) = [claim for claim in engine.take(MANY + 1) if claim.id == WorkflowNode.objects.get(name="first").task_id]
    Task.objects.exclude(id=first.id).filter(workflow_id=handle.workflow_id).update(
        status="PENDING", claimed_by=None, claimed_at=None, started_at=None
    )
    engine.settle(first)
    assert engine.advance_run(handle.workflow_id, [first.id]).halted == "continued"
    assert handle.status() == "COMPLETED"
    assert counted(Task, handle)["CANCELLED"] <= PART
    assert largest_part(engine, handle) <= PART
    assert counted(Task, handle) == {"COMPLETED": 1, "CANCELLED": MANY}


@pytest.mark.parametrize("build", [mapped, flat])
def test_a_pause_withdraws_tasks_in_parts_and_a_resume_sends_them_again(
    engine: Engine, build: Callable[[], Workflow]
) -> None:
    """Naive: all of them in one statement; or what is left is sent twice."""
    handle = build().send()
    engine.advance()
    assert handle.pause()
    assert counted(Task, handle) == {"PENDING": MANY - PART}
    assert engine.advance_run(handle.workflow_id).more
    assert counted(Task, handle) == {"PENDING": MANY - 2 * PART}
    assert handle.resume()
    engine.advance()
    assert counted(Task, handle) == {"PENDING": MANY}
    assert handle.pause()
    engine.advance()
    assert counted(Task, handle) == {}
    assert WorkflowRun.objects.get().owed_at is None
    assert handle.resume()
    engine.advance()
    assert counted(Task, handle) == {"PENDING": MANY}


def test_a_map_that_cannot_be_sent_as_a_whole_ends_after_the_tasks_that_were_sent(engine: Engine) -> None:
    """Naive: it has FAILED while one of its tasks runs, and a cancel does not reach that."""
    flow = Workflow("map", max_in_flight=2)
    first = flow.map(flows.number, n=[0, 1, 2], name="first")
    flow.map(flows.number, n=first, name="second")
    handle = flow.send()
    for _ in range(2):
        engine.settle(*engine.take())
        engine.advance()
    redact(Task.objects.get(node=0, node_index=2).id, actor="ada", reason="a request")
    one, other = engine.take()
    engine.settle(one)
    engine.advance()
    node = WorkflowNode.objects.get(name="second")
    assert (handle.status(), node.status, node.error_code) == ("RUNNING", "ENQUEUED", "RESULT_REDACTED")
    handle.cancel()
    assert Task.objects.filter(cancel_requested_at__isnull=False).count() == 1
    engine.settle(other)
    engine.advance()
    node.refresh_from_db()
    assert (node.status, node.error_code, node.items_ok) == ("FAILED", "RESULT_REDACTED", 2)
