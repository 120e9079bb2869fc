"""Large runs are ended, paused, resumed and retried in parts; between two parts anything may
happen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.db.models import Count
from django.utils import timezone

from horsies_django import Batch, Workflow
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.tasks.redaction import redact
from horsies_django.workflows import operations
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Parts, heard
from tests.db.drives import Engine, miscounted
from tests.db.test_workflows import refuses

Build = Callable[..., Workflow]
PART = 20  # instead of a thousand, see horsies_move_run
MANY = 50


@pytest.fixture(autouse=True)
def small_parts(parts: Parts) -> None:
    parts(PART)


def flat(many: int = MANY, **options: Any) -> Workflow:
    flow = Workflow("flat", **options)
    for _ in range(many):
        flow.add(flows.number, 1)
    return flow


def chain(many: int = MANY, **options: Any) -> Workflow:
    flow = flat(many, **options)
    for one, other in pairwise(flow.nodes):
        other.after(one)
    return flow


def backwards() -> Workflow:
    """Return a chain whose first node has the greatest number."""
    flow = flat()
    for one, other in pairwise(flow.nodes):
        one.after(other)
    return flow


def fan() -> Workflow:
    flow = flat()
    for node in flow.nodes[1:]:
        node.after(flow.nodes[0])
    return flow


def mapped() -> Workflow:
    flow = Workflow("map")
    flow.map(flows.number, n=list(range(MANY)), name="map")
    return flow


def counted(model: Any, handle: WorkflowHandle) -> dict[str, int]:
    """Return how many tasks or nodes of a run have each status."""
    rows = (
        model.objects.filter(workflow_id=handle.workflow_id)
        .values_list("status")
        .annotate(Count("status"))
    )
    return dict(rows)


def skipped(handle: WorkflowHandle) -> int:
    return counted(WorkflowNode, handle).get("SKIPPED", 0)


def ended(handle: WorkflowHandle) -> int:
    """Return how many tasks of a run, and nodes without a task, are CANCELLED."""
    nodes = WorkflowNode.objects.filter(
        workflow_id=handle.workflow_id, status="CANCELLED", task_id=None
    )
    return max(counted(Task, handle).get("CANCELLED", 0), nodes.count())


def failed_elements(handle: WorkflowHandle) -> int:
    """Return how many tasks of a map have failed and are not replaced."""
    return Task.objects.filter(workflow_id=handle.workflow_id, node=0, status="FAILED").count()


def largest_part(
    engine: Engine, handle: WorkflowHandle, count: Callable[[WorkflowHandle], int]
) -> int:
    """Advance a run until nothing is left.

    Return by how much a count changed at most in one transaction.
    """
    found = [count(handle)]
    more = True

    while more:
        more = engine.advance_run(handle.workflow_id).more
        found.append(count(handle))

    return max(abs(new - old) for old, new in pairwise(found))


def fail(engine: Engine, many: int = 1, *, complete: int = 0) -> None:
    """End tasks as failed, and others as completed, and advance their runs."""
    claims = engine.take(many + complete)
    assert len(claims) == many + complete
    engine.settle(*claims[:complete])
    engine.end(*claims[complete:], code="BROKEN")


def retried(engine: Engine, flow: Workflow, fails: int = 1) -> WorkflowHandle:
    """Send a run, end so many of its tasks as failed, and retry it."""
    handle = flow.send()
    engine.advance()
    fail(engine, fails)
    handle.retry()
    return handle


def status(name: str) -> str:
    return WorkflowNode.objects.get(name=name).status


# a cancel and a stop


@pytest.mark.parametrize("build", [mapped, flat, chain])
def test_a_cancel_ends_the_run_at_once_and_its_tasks_in_parts(engine: Engine, build: Build) -> None:
    """A cancel ends the run at once, and its tasks and nodes in parts.

    Fails if: one statement ends all 80,000 tasks, and takes a minute in which the worker loses its
    connection.
    """
    handle = build().send()
    engine.advance()

    assert (handle.cancel(), handle.cancel()) == (True, False)
    assert (handle.status(), handle.get(0).err_value.error_code) == (
        "CANCELLED",
        "WORKFLOW_CANCELLED",
    )
    assert ended(handle) == PART

    refuses("still", handle.retry)
    assert [
        owed.workflow for owed in engine.workflows.advance_reasons(None, 9) if owed.task is None
    ] == [handle.workflow_id]

    assert largest_part(engine, handle, ended) <= PART
    assert counted(Task, handle).keys() == {"CANCELLED"} == counted(WorkflowNode, handle).keys()
    assert engine.workflows.advance_reasons(None, 9) == []
    assert handle.progress().open == 0

    handle.retry()
    assert handle.status() == "RUNNING"


def test_a_stop_ends_tasks_in_parts_before_callbacks_run(
    engine: Engine,
) -> None:
    """A stop ends tasks and nodes in parts, and then runs the callbacks of the end.

    Fails if: the statement that counts the failed task ends all others; or callbacks end with the
    others.
    """
    flow = Batch("stop", on_error="stop")
    flow.add(flows.number, 1)
    second = flow.add(flows.number, 1)

    for _ in range(MANY):
        flow.add(flows.number, 1)
        flow.add(flows.number, 1, after=second)

    flow.on_success(flows.number, 1, name="good")
    flow.on_failure(flows.number, 1, name="told")
    handle = flow.send()

    claims = engine.take(2)
    engine.settle(claims[0], code="BROKEN")
    halts = engine.advance_run(handle.workflow_id, [claims[0].id])
    assert (halts.halted, halts.more) == ("stop", True)

    assert handle.pause()
    assert handle.resume()
    assert largest_part(engine, handle, ended) <= PART
    assert status("told") == "PENDING", "one task still runs"
    assert counted(Task, handle) == {"FAILED": 1, "RUNNING": 1, "CANCELLED": MANY}

    engine.settle(claims[1])
    engine.run_all()
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "COMPLETED": 2, "CANCELLED": 2 * MANY + 1}
    assert (handle.status(), status("good")) == ("FAILED", "CANCELLED")


def test_a_map_that_cannot_be_sent_ends_after_its_sent_tasks(
    engine: Engine,
) -> None:
    """A map that cannot be sent completely ends after the tasks that were sent."""
    flow = Workflow("map", max_in_flight=2)
    first = flow.map(flows.number, n=[0, 1, 2], name="first")
    flow.map(flows.number, n=first, name="second")
    handle = flow.send()

    for _ in range(2):
        engine.end(*engine.take())
    redact(Task.objects.get(node=0, node_index=2).id, actor="ada", reason="a request")

    one, other = engine.take()
    engine.end(one)
    assert (handle.status(), status("second")) == ("RUNNING", "ENQUEUED")

    handle.cancel()
    assert Task.objects.filter(cancel_requested_at__isnull=False).count() == 1

    engine.end(other)
    node = WorkflowNode.objects.get(name="second")
    assert (node.status, node.error_code, node.items_ok) == ("FAILED", "RESULT_REDACTED", 2)


# a pause and a resume


@pytest.mark.parametrize("build", [mapped, flat])
def test_a_pause_withdraws_tasks_in_parts(engine: Engine, build: Build) -> None:
    """A pause withdraws tasks in parts, and a resume sends them again."""
    handle = build().send()
    engine.advance()

    assert handle.pause()
    assert counted(Task, handle) == {"PENDING": MANY - PART}
    assert engine.advance_run(handle.workflow_id).more
    assert counted(Task, handle) == {"PENDING": MANY - 2 * PART}

    for _ in range(2):
        assert handle.resume()
        engine.advance()
        assert counted(Task, handle) == {"PENDING": MANY}
        assert handle.pause()
        engine.advance()
        assert (counted(Task, handle), WorkflowRun.objects.get().owed_at) == ({}, None)


def test_a_resume_makes_the_held_tasks_due_in_parts(engine: Engine, connect: Connect) -> None:
    """Fails if: one statement starts all of them; or those after the first part stay due in the
    year 9999; or each part reads all, to wake workers; or a pause between two parts does not stop
    them, and a second resume does not finish them.
    """
    listener = connect()
    handle = flat().send()
    engine.advance()

    due = timezone.now() + dt.timedelta(hours=1)
    Task.objects.update(
        retry_count=1, next_retry_at=due, enqueued_at=due, parked=True, partition_key="{}"
    )

    held = Task.objects.filter(enqueued_at__year=9999, parked=False)
    listener.execute(f'LISTEN "{engine.channel}_new"')

    for _ in range(2):
        assert handle.pause()
        engine.advance()
        assert held.count() == MANY
        assert handle.resume()
        assert held.count() == MANY - PART

    while left := held.count():
        assert heard(listener) == []
        assert engine.advance_run(handle.workflow_id).more == (left > PART)
        assert left - held.count() <= PART

    ((moment, queue),) = (told.split() for told in heard(listener))
    assert queue == "default"
    assert abs(float(moment) - due.timestamp()) < 1
    assert set(Task.objects.values_list("enqueued_at", flat=True)) == {due}

    engine.advance()
    assert (WorkflowRun.objects.get().resuming, engine.workflows.advance_reasons(None, 9)) == (
        False,
        [],
    )


# a retry


@pytest.mark.parametrize("build", [chain, fan, backwards])
def test_a_retry_resets_skipped_nodes_in_parts(engine: Engine, build: Build) -> None:
    """Fails if: one transaction resets all skipped nodes; or only those with greater numbers than
    the failed node are reset; or a reset node waits for one that is still skipped, and never ends.
    """
    handle = build().send()
    fail(engine)
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "SKIPPED": MANY - 1}

    handle.retry()
    assert handle.status() == "RUNNING"
    assert skipped(handle) >= MANY - 2 * PART
    assert [
        owed.workflow for owed in engine.workflows.advance_reasons(None, 9) if owed.task is None
    ] == [handle.workflow_id] * 2

    assert largest_part(engine, handle, skipped) <= 1.5 * PART
    assert counted(WorkflowNode, handle) == {"ENQUEUED": 1, "PENDING": MANY - 1}
    assert WorkflowRun.objects.get().retrying is None
    assert miscounted() == []

    engine.end(*engine.take(1))
    assert counted(WorkflowNode, handle)["COMPLETED"] == 1


def test_a_retry_goes_on_during_a_pause_and_sends_nothing(engine: Engine) -> None:
    """Fails if: the run stays between failed and retried until it is resumed; or the last part of
    the retry ends the pause.
    """
    handle = retried(engine, flat(), MANY)

    assert handle.pause()
    engine.advance()
    assert counted(WorkflowNode, handle) == {"READY": MANY}
    assert (handle.status(), WorkflowRun.objects.get().retrying) == ("PAUSED", None)

    assert handle.resume()
    engine.advance()
    assert counted(WorkflowNode, handle) == {"ENQUEUED": MANY}


def test_a_retry_replaces_the_tasks_of_a_failed_map_in_parts(
    engine: Engine,
) -> None:
    """The tasks of a failed map are replaced in parts, and completed elements are kept.

    Fails if: a node is always one part, even with 150,000 tasks.
    """
    handle = mapped().send()
    engine.advance()
    fail(engine, MANY - 7, complete=7)
    done = set(Task.objects.filter(status="COMPLETED").values_list("id", flat=True))

    handle.retry()
    assert failed_elements(handle) >= MANY - 7 - PART
    assert largest_part(engine, handle, failed_elements) <= PART
    assert set(Task.objects.filter(node=0, status="COMPLETED").values_list("id", flat=True)) == done
    assert counted(Task, handle) == {"COMPLETED": 7, "FAILED": MANY - 7, "PENDING": MANY - 7}

    engine.run_all()
    node = WorkflowNode.objects.get()
    assert (handle.status(), node.items_ok, node.items_bad, node.in_flight) == (
        "COMPLETED",
        MANY,
        0,
        0,
    )


@pytest.mark.parametrize("build", [chain, flat])
def test_a_cancel_ends_a_retry_and_a_later_retry_runs_everything(
    engine: Engine, build: Build
) -> None:
    """Fails if: nodes that the retry had reached stay ADDED for ever, or the retry of the cancelled
    run continues.
    """
    handle = retried(engine, build(), 1 if build is chain else MANY)
    assert engine.advance_run(handle.workflow_id).more

    assert handle.cancel()
    engine.advance()
    assert counted(WorkflowNode, handle).keys() == {
        "CANCELLED",
        "SKIPPED" if build is chain else "FAILED",
    }
    assert (handle.status(), WorkflowRun.objects.get().retrying) == ("CANCELLED", None)
    assert engine.workflows.advance_reasons(None, 9) == []
    assert handle.progress().open == 0

    handle.retry()
    engine.advance()
    assert counted(WorkflowNode, handle).keys() == (
        {"ENQUEUED", "PENDING"} if build is chain else {"ENQUEUED"}
    )
    assert miscounted() == []


def test_a_cancel_ends_a_retry_of_a_run_that_is_then_undone(engine: Engine, parts: Parts) -> None:
    parts(5)
    flow = Workflow("undone")
    flow.add(flows.number, 1, undo=flows.note_undo, name="first")
    for place in range(5):
        flow.map(flows.number, n=list(range(9)), name=f"map {place}")

    handle = flow.send()
    engine.advance()
    for claim in engine.take():
        engine.settle(claim, code="BROKEN" if Task.objects.get(id=claim.id).node else None)

    handle.pause()  # without a pause the run would be undone at once
    engine.advance()
    handle.retry()
    reached = WorkflowNode.objects.filter(status="ADDED", finished_at__isnull=False)
    assert reached.count() == 5

    parts(2)
    undos = WorkflowNode.objects.filter(kind="undo")
    handle.cancel()

    while reached.exists():
        assert not undos.exists()
        engine.advance_run(handle.workflow_id)

    engine.run_all()
    assert (handle.status(), [*undos.values_list("name", "status")]) == (
        "CANCELLED",
        [("undo first", "COMPLETED")],
    )


def test_runs_inside_are_retried_in_parts_or_begin_anew(engine: Engine, parts: Parts) -> None:
    """Fails if: all child runs are retried in the transaction of the caller; or a node keeps its
    run because the failed node before it, whose number is greater, was not found yet.
    """
    parts(2)
    inner = chain(1)
    flow = Workflow("outer")
    tolerant = flow.add(inner, name="tolerant", allow_failed=True)
    for place in range(7):
        flow.add(inner, name=f"inner {place}")
    tolerant.after(flow.add(flows.number, 1, name="before"))

    handle = flow.send()
    engine.advance()
    while claims := engine.take():
        engine.end(*claims, code="BROKEN")

    assert counted(WorkflowNode, handle) == {"FAILED": 9}
    runs = dict(WorkflowNode.objects.filter(kind="workflow").values_list("name", "task_id"))

    handle.retry()
    assert WorkflowRun.objects.filter(parent_id=handle.workflow_id, status="RUNNING").count() <= 2
    engine.run_all()

    assert (handle.status(), counted(WorkflowNode, handle)) == ("COMPLETED", {"COMPLETED": 9})
    after = dict(WorkflowNode.objects.filter(kind="workflow").values_list("name", "task_id"))
    assert {name for name in runs if runs[name] != after[name]} == {"tolerant"}


def test_a_retry_is_refused_while_a_run_inside_has_running_tasks(
    engine: Engine,
) -> None:
    """A retry is refused while tasks of a cancelled child run are still running."""
    flow = Workflow("outer")
    flow.add(chain(1))
    handle = flow.send()

    (claim,) = engine.take()
    operations.control(WorkflowRun.objects.get(name="flat").pk, "cancel")
    engine.advance()

    assert handle.status() == "FAILED"
    refuses("still run", handle.retry)

    engine.end(claim, code="TASK_CANCELLED")
    handle.retry()
    engine.run_all()
    assert handle.status() == "COMPLETED"


def test_what_waits_for_a_failed_node_is_skipped_in_parts(engine: Engine) -> None:
    """Fails if: a chain of 8,000 nodes holds the lock of the run for a second, or the run ends with
    the first part.
    """
    flow = chain()
    flow.add(flows.anything, 1, after=[*flow.nodes], allow_failed=True, name="told")
    handle = flow.send()

    (claim,) = engine.take()
    engine.settle(claim, code="BROKEN")
    assert engine.advance_run(handle.workflow_id, [claim.id]).more
    assert handle.status() == "RUNNING"
    assert 0 < skipped(handle) <= PART

    assert [owed.workflow for owed in engine.workflows.advance_reasons(None, 9)] == [
        handle.workflow_id
    ] * 2
    assert largest_part(engine, handle, skipped) <= PART
    assert miscounted() == []
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "SKIPPED": MANY - 1, "ENQUEUED": 1}

    engine.run_all()
    assert handle.progress() == (MANY + 1, 1, 1, MANY - 1, 0)


@pytest.mark.parametrize("on_error", ["stop", "pause"])
def test_a_failure_halts_the_run_before_all_nodes_are_skipped(
    engine: Engine, parts: Parts, on_error: str
) -> None:
    """A failure halts the run at once, even if not all nodes are skipped yet.

    Fails if: the remaining nodes are skipped only after a resume; or a stop cancels the callbacks
    of the end, too.
    """
    parts(3)
    flow = Batch("halts", on_error=on_error)
    node = flow.add(flows.number, 1, name="bad")
    for _ in range(20):
        node = flow.add(flows.number, 1, after=node)

    flow.add(flows.number, 1, after=flow.add(flows.number, 1, name="other"), name="after other")
    flow.on_finish(flows.number, 1, name="told")
    handle = flow.send()

    claims = engine.named()
    engine.settle(claims["bad"], code="BROKEN")
    halts = engine.advance_run(handle.workflow_id, [claims["bad"].id])
    assert (halts.halted, halts.more) == (on_error, True)

    engine.advance()
    engine.end(claims["other"], code="TASK_CANCELLED" if on_error == "stop" else None)
    assert miscounted() == []

    if on_error == "pause":
        assert (handle.status(), skipped(handle), status("after other")) == ("PAUSED", 20, "READY")
        handle.resume()
    else:
        assert counted(WorkflowNode, handle).keys() == {
            "FAILED",
            "SKIPPED",
            "CANCELLED",
            "ENQUEUED",
        }

    engine.run_all()
    assert status("told") == "COMPLETED"
    assert handle.status() == "FAILED"


def test_a_quorum_out_of_reach_halts_the_run_in_a_later_part(engine: Engine, parts: Parts) -> None:
    """A quorum that cannot be met halts the run, even if that follows in a later part."""
    parts(2)
    flow = chain(9, on_error="pause")
    bad, *_, last = flow.nodes
    flow.add(flows.anything, 1, after=[bad, last], join="any", name="any")
    flow.add(flows.number, 1, name="other")
    flow.send()

    engine.end(engine.named()[bad.name], code="BROKEN")

    run = WorkflowRun.objects.get()
    assert (status("any"), run.status, run.error_code) == ("SKIPPED", "PAUSED", "QUORUM_NOT_MET")
