"""A retry of a large run, and the skips below a failed node, are done in parts; between two of them anything may happen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db.models import Count
from django.utils import timezone

from horsies_django import Batch, Workflow, WorkflowError, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from horsies_django.workflows import operations
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.db.conftest import Parts
from tests.db.drives import MISCOUNTED, Engine

pytestmark = pytest.mark.django_db(transaction=True)

PART = 1_000  # see horsies_part
MANY = 2_500


@pytest.fixture
def engine(connect: Callable[[], psycopg.Connection[Any]]) -> Engine:
    return Engine(connect())


def chain(many: int = MANY, **how: Any) -> Workflow:
    flow = Workflow("chain", **how)
    node: Any = ()
    for _ in range(many):
        node = flow.add(flows.number, 1, after=node)
    return flow


def fan(many: int = MANY, **how: Any) -> Workflow:
    flow = Workflow("fan", **how)
    first = flow.add(flows.number, 1)
    for _ in range(many - 1):
        flow.add(flows.number, 1, after=first)
    return flow


def backwards(many: int = MANY) -> Workflow:
    """Return a chain whose first node has the greatest number."""
    flow = Workflow("backwards")
    nodes = [flow.add(flows.number, 1) for _ in range(many)]
    for one, other in zip(nodes, nodes[1:], strict=False):
        one.after(other)
    return flow


def flat(many: int = MANY, **how: Any) -> Workflow:
    flow = Workflow("flat", **how)
    for _ in range(many):
        flow.add(flows.number, 1)
    return flow


def mapped(many: int = MANY) -> Workflow:
    flow = Workflow("map")
    flow.map(flows.number, n=list(range(many)), name="map")
    return flow


def counted(model: Any, handle: WorkflowHandle) -> dict[str, int]:
    """Return how many tasks or nodes of a run have each status."""
    rows = model.objects.filter(workflow_id=handle.workflow_id).values_list("status").annotate(Count("status"))
    return dict(rows)


def fail(engine: Engine, many: int = 1, *, complete: int = 0) -> None:
    """Let tasks fail, and others complete; let what follows from that happen."""
    claims = engine.take(many + complete)
    assert len(claims) == many + complete
    engine.settle(*claims[:complete])
    engine.settle(*claims[complete:], code="BROKEN")
    engine.advance()


def steps(engine: Engine, handle: WorkflowHandle) -> list[dict[str, int]]:
    """Advance a run until nothing is left; return the statuses of its nodes before each transaction and at the end."""
    found = [counted(WorkflowNode, handle)]
    while engine.advance_run(handle.workflow_id).more:
        found.append(counted(WorkflowNode, handle))
    return [*found, counted(WorkflowNode, handle)]


def largest(found: list[dict[str, int]], status: str) -> int:
    """Return how many nodes got, or lost, a status at most in one transaction."""
    return max(abs(new.get(status, 0) - old.get(status, 0)) for old, new in zip(found, found[1:], strict=False))


def miscounted(engine: Engine) -> list[Any]:
    return engine.conn.execute(MISCOUNTED).fetchall()  # type: ignore[arg-type]


# a retry


@pytest.mark.parametrize("build", [chain, fan, backwards])
def test_a_retry_reaches_what_was_skipped_in_parts(engine: Engine, build: Callable[[], Workflow]) -> None:
    """Naive: all in one transaction. Or only what has a greater number than the failed node; or a node that is not skipped any
    more waits for one that still is, and never ends."""
    handle = build().send()
    fail(engine)
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "SKIPPED": MANY - 1}
    handle.retry()
    assert handle.status() == "RUNNING"
    assert counted(WorkflowNode, handle)["SKIPPED"] >= MANY - 2 * PART
    assert [owed.workflow for owed in engine.workflows.owed(None, 9) if owed.task is None] == [handle.workflow_id] * 2
    assert largest(steps(engine, handle), "SKIPPED") <= 1.5 * PART
    assert counted(WorkflowNode, handle) == {"ENQUEUED": 1, "PENDING": MANY - 1}
    assert WorkflowRun.objects.get().retrying is None
    assert miscounted(engine) == []
    engine.settle(*engine.take(1))
    engine.advance()
    assert counted(WorkflowNode, handle)["COMPLETED"] == 1


def test_a_retry_of_a_thousand_nodes_is_one_part(engine: Engine) -> None:
    handle = chain(PART).send()
    fail(engine)
    handle.retry()
    assert counted(WorkflowNode, handle) == {"ENQUEUED": 1, "PENDING": PART - 1}


def test_no_task_is_sent_before_all_failed_nodes_were_found(engine: Engine) -> None:
    """Naive: the first of them run again, and what waits for all of them is decided about, while others have still failed."""
    flow = flat()
    flow.add(flows.anything, 1, after=flow.nodes[:], join=quorum(2), name="two")
    handle = flow.send()
    engine.advance()
    fail(engine, MANY)
    assert counted(WorkflowNode, handle) == {"FAILED": MANY, "SKIPPED": 1}
    handle.retry()
    while WorkflowRun.objects.get().retrying is not None:
        assert counted(Task, handle).keys() == {"FAILED"}
        assert engine.advance_run(handle.workflow_id).more
    engine.advance()
    assert counted(WorkflowNode, handle) == {"ENQUEUED": MANY, "PENDING": 1}


def test_the_tasks_of_a_failed_map_are_replaced_in_parts_and_completed_elements_kept(engine: Engine) -> None:
    """Naive: one node is one part, also if it has 150,000 tasks."""
    handle = mapped().send()
    engine.advance()
    fail(engine, MANY - 7, complete=7)
    done = set(Task.objects.filter(status="COMPLETED").values_list("id", flat=True))
    handle.retry()
    kept = Task.objects.filter(node=0).count()
    assert kept >= MANY - PART
    while engine.advance_run(handle.workflow_id).more and Task.objects.filter(status="PENDING").count() == 0:
        assert kept - Task.objects.filter(node=0).count() <= PART
        kept = Task.objects.filter(node=0).count()
    engine.advance()
    assert set(Task.objects.filter(node=0, status="COMPLETED").values_list("id", flat=True)) == done
    assert counted(Task, handle) == {"COMPLETED": 7, "FAILED": MANY - 7, "PENDING": MANY - 7}
    while claims := engine.take(1_000):
        engine.settle(*claims)
        engine.advance()
    node = WorkflowNode.objects.get()
    assert (handle.status(), node.items_ok, node.items_bad, node.in_flight) == ("COMPLETED", MANY, 0, 0)


def test_another_worker_goes_on_with_a_retry_after_one_died(engine: Engine, parts: Parts) -> None:
    """Naive: where the retry was is known to the process that began it."""
    parts(3)
    handle = chain(40).send()
    fail(engine)
    handle.retry()
    with engine.conn.transaction(force_rollback=True):
        assert engine.advance_run(handle.workflow_id).more
    engine.start()
    engine.run_all()
    assert counted(WorkflowNode, handle) == {"COMPLETED": 40}
    assert handle.status() == "COMPLETED"


def test_drain_does_all_parts_of_a_retry(parts: Parts) -> None:
    parts(2)
    flow = chain(30)
    flow.nodes[0].delay = None
    handle = flow.send()
    Task.objects.update(
        status="FAILED", finished_at="2020-01-01T00:00Z", started_at="2020-01-01T00:00Z", error_code="X"
    )
    drain()
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "SKIPPED": 29}
    handle.retry()
    drain()
    assert counted(WorkflowNode, handle) == {"COMPLETED": 30}


@pytest.mark.parametrize("build", [chain, flat])
def test_a_cancel_ends_a_retry_and_a_later_retry_runs_everything(
    engine: Engine, build: Callable[..., Workflow]
) -> None:
    """Naive: nodes that the retry had reached stay ADDED for ever, or the cancelled run goes on being retried."""
    handle = build(MANY).send()
    engine.advance()
    fail(engine, 1 if build is chain else MANY)
    handle.retry()
    assert engine.advance_run(handle.workflow_id).more
    assert handle.cancel()
    engine.advance()
    assert counted(WorkflowNode, handle).keys() == {"CANCELLED", "SKIPPED" if build is chain else "FAILED"}
    assert (handle.status(), WorkflowRun.objects.get().retrying) == ("CANCELLED", None)
    assert engine.workflows.owed(None, 9) == []
    assert handle.progress().open == 0
    handle.retry()
    engine.advance()
    assert counted(WorkflowNode, handle).keys() == ({"ENQUEUED", "PENDING"} if build is chain else {"ENQUEUED"})
    assert miscounted(engine) == []


def test_a_cancel_ends_a_retry_of_a_run_that_is_then_undone(engine: Engine, parts: Parts) -> None:
    """Naive: it is undone while nodes that the retry had reached seem to be open, or not at all."""
    parts(5)
    flow = Workflow("undone")
    flow.add(flows.number, 1, undo=flows.note_undo, name="first")
    for place in range(5):
        flow.map(flows.number, n=list(range(9)), name=f"map {place}")
    handle = flow.send()
    engine.advance()
    claims = engine.take()
    engine.settle(*[claim for claim in claims if Task.objects.get(id=claim.id).node == 0])
    engine.settle(*[claim for claim in claims if Task.objects.get(id=claim.id).node != 0], code="BROKEN")
    handle.pause()  # or it would be undone at once
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
    assert (handle.status(), [*undos.values_list("name", "status")]) == ("CANCELLED", [("undo first", "COMPLETED")])


def test_a_pause_during_a_retry_lets_it_end_and_sends_nothing(engine: Engine) -> None:
    """Naive: the last part lets the run go on; or the run stays between failed and retried until it is resumed."""
    handle = flat().send()
    engine.advance()
    fail(engine, MANY)
    handle.retry()
    assert handle.pause()
    engine.advance()
    assert counted(WorkflowNode, handle) == {"READY": MANY}
    assert (handle.status(), WorkflowRun.objects.get().retrying) == ("PAUSED", None)
    assert handle.resume()
    engine.advance()
    assert counted(WorkflowNode, handle) == {"ENQUEUED": MANY}


def test_a_second_retry_goes_on_with_the_first_and_resumes_the_run(engine: Engine) -> None:
    """Naive: it begins anew, or says that no node has failed."""
    handle = chain().send()
    fail(engine)
    handle.retry()
    left = counted(WorkflowNode, handle)["SKIPPED"]
    assert handle.pause()
    handle.retry()
    assert handle.status() == "RUNNING"
    assert left - 3 * PART <= counted(WorkflowNode, handle).get("SKIPPED", 0) < left
    engine.advance()
    assert counted(WorkflowNode, handle) == {"ENQUEUED": 1, "PENDING": MANY - 1}
    engine.settle(*engine.take(1))
    engine.advance()
    with pytest.raises(WorkflowError, match="none of its nodes has failed"):
        handle.retry()


def test_what_ends_during_a_retry_is_told_after_it_and_what_fails_runs_again(engine: Engine, parts: Parts) -> None:
    """Naive: a node runs because one that has failed is counted, though that one is to run again. Or one that failed meanwhile
    lets the run fail."""
    parts(2)
    flow = Workflow("mixed", on_error="fail")
    bad = flow.add(flows.number, 1, name="bad")
    node = bad
    for place in range(20):
        node = flow.add(flows.number, 1, after=node, name=f"skipped {place}")
    slow, late = flow.add(flows.number, 1, name="slow"), flow.add(flows.number, 1, name="late")
    flow.add(flows.anything, 1, after=[node, slow], allow_failed=True, name="both")
    flow.add(flows.anything, 1, after=late, name="after late")
    flow.add(flows.anything, 1, after=slow, name="after slow")
    handle = flow.send()
    claims = {WorkflowNode.objects.get(task_id=claim.id).name: claim for claim in engine.take()}
    engine.settle(claims["bad"], code="BROKEN")
    engine.advance()
    assert WorkflowNode.objects.get(name="skipped 19").status == "SKIPPED"
    handle.retry()
    engine.settle(claims["slow"])
    engine.settle(claims["late"], code="BROKEN")
    engine.advance_run(handle.workflow_id, [claims["slow"].id, claims["late"].id])
    assert WorkflowRun.objects.get().retrying is not None
    engine.advance()
    found = dict(WorkflowNode.objects.values_list("name", "status"))
    assert (found["bad"], found["late"], found["slow"]) == ("ENQUEUED", "ENQUEUED", "COMPLETED")
    assert (found["both"], found["after late"], found["skipped 19"]) == ("PENDING", "PENDING", "PENDING")
    assert found["after slow"] == "ENQUEUED"
    assert miscounted(engine) == []
    engine.run_all()
    assert handle.status() == "COMPLETED"


def test_a_gate_that_is_decided_during_a_retry_opens_after_it(engine: Engine, parts: Parts) -> None:
    parts(2)
    flow = chain(20)
    gate = flow.gate("gate")
    flow.add(flows.anything, 1, after=[gate, flow.nodes[19]], allow_failed=True, name="both")
    handle = flow.send()
    fail(engine)
    handle.retry()
    handle.approve("gate", actor="ada")
    assert WorkflowNode.objects.get(name="both").status in ("ADDED", "PENDING")
    engine.advance()
    assert (WorkflowNode.objects.get(name="both").status, WorkflowNode.objects.get(name="gate").status) == (
        "PENDING", "COMPLETED",
    )  # fmt: skip
    engine.run_all()
    assert handle.status() == "COMPLETED"


def test_runs_inside_are_retried_in_parts_and_those_whose_inputs_may_change_begin_anew(
    engine: Engine, parts: Parts
) -> None:
    """Naive: all of them in the transaction of the caller. Or a node keeps its run because the failed one before it, whose number
    is greater, was not found yet."""
    parts(2)
    inner = Workflow("inner")
    inner.add(flows.number, 1)
    flow = Workflow("outer")
    tolerant = flow.add(inner, name="tolerant", allow_failed=True)
    for place in range(7):
        flow.add(inner, name=f"inner {place}")
    tolerant.after(flow.add(flows.number, 1, name="before"))
    handle = flow.send()
    engine.advance()
    while claims := engine.take():
        engine.settle(*claims, code="BROKEN")
        engine.advance()
    assert counted(WorkflowNode, handle) == {"FAILED": 9}
    runs = dict(WorkflowNode.objects.filter(kind="workflow").values_list("name", "task_id"))
    handle.retry()
    assert WorkflowRun.objects.filter(parent_id=handle.workflow_id, status="RUNNING").count() <= 2
    engine.run_all()
    assert (handle.status(), counted(WorkflowNode, handle)) == ("COMPLETED", {"COMPLETED": 9})
    after = dict(WorkflowNode.objects.filter(kind="workflow").values_list("name", "task_id"))
    assert {name for name in runs if runs[name] != after[name]} == {"tolerant"}


def test_a_retry_is_refused_while_tasks_of_a_cancelled_run_inside_are_still_running(engine: Engine) -> None:
    """Naive: the run inside runs its node again while the first task of that still runs."""
    inner = Workflow("inner")
    inner.add(flows.number, 1)
    flow = Workflow("outer")
    flow.add(inner)
    handle = flow.send()
    (claim,) = engine.take()
    operations.control(WorkflowRun.objects.get(name="inner").pk, "cancel")
    engine.advance()
    assert handle.status() == "FAILED"
    with pytest.raises(WorkflowError, match="still run"):
        handle.retry()
    engine.settle(claim, code="TASK_CANCELLED")
    engine.advance()
    handle.retry()
    engine.run_all()
    assert handle.status() == "COMPLETED"


# a resume


def test_a_resume_lets_go_in_parts_what_a_pause_held_back(
    engine: Engine, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    """Naive: one statement for all of them; or those after the first part stay due in the year 9999. Or each part reads all of
    them, to wake workers."""
    listener = connect()
    handle = flat().send()
    engine.advance()
    due = timezone.now() + dt.timedelta(hours=1)
    Task.objects.update(retry_count=1, next_retry_at=due, enqueued_at=due)
    held = Task.objects.filter(enqueued_at__year=9999)
    assert handle.pause()
    engine.advance()
    assert held.count() == MANY
    listener.execute(f'LISTEN "{engine.channel}_new"')
    assert handle.resume()
    assert held.count() == MANY - PART
    while left := held.count():
        listener.execute("NOTIFY nobody")  # what was said before has arrived
        assert not list(listener.notifies(timeout=0))
        assert engine.advance_run(handle.workflow_id).more == (left > PART)
        assert left - held.count() <= PART
    (woken,) = listener.notifies(timeout=10, stop_after=1)
    assert woken.payload.endswith(" default")
    assert abs(float(woken.payload.split()[0]) - due.timestamp()) < 1
    assert set(Task.objects.values_list("enqueued_at", flat=True)) == {due}
    engine.advance()
    assert (WorkflowRun.objects.get().resuming, engine.workflows.owed(None, 9)) == (False, [])


def test_a_pause_before_all_was_let_go_holds_it_back_again(engine: Engine, parts: Parts) -> None:
    """Naive: the parts of the resume go on during the pause; or a second resume does not finish what the first one began."""
    parts(2)
    handle = flat(9).send()
    engine.advance()
    due = timezone.now() + dt.timedelta(hours=1)
    Task.objects.update(retry_count=1, next_retry_at=due, enqueued_at=due)
    held = Task.objects.filter(enqueued_at__year=9999)
    handle.pause()
    engine.advance()
    handle.resume()
    assert 0 < held.count() < 9
    handle.pause()
    engine.advance()
    assert held.count() == 9
    handle.resume()
    engine.advance()
    assert held.count() == 0


# the skips below a failed node


def test_what_waits_for_a_failed_node_is_skipped_in_parts(engine: Engine) -> None:
    """Naive: a chain of 8,000 takes a second of the lock of the run. Or the run has ended when the first part has."""
    flow = chain()
    flow.add(flows.anything, 1, after=[*flow.nodes], allow_failed=True, name="told")
    handle = flow.send()
    (claim,) = engine.take()
    engine.settle(claim, code="BROKEN")
    assert engine.advance_run(handle.workflow_id, [claim.id]).more
    assert handle.status() == "RUNNING"
    assert 0 < counted(WorkflowNode, handle)["SKIPPED"] <= PART
    assert [owed.workflow for owed in engine.workflows.owed(None, 9)] == [handle.workflow_id] * 2
    assert largest(steps(engine, handle), "SKIPPED") <= PART
    assert miscounted(engine) == []
    assert counted(WorkflowNode, handle) == {"FAILED": 1, "SKIPPED": MANY - 1, "ENQUEUED": 1}
    engine.run_all()
    assert handle.progress() == (MANY + 1, 1, 1, MANY - 1, 0)


@pytest.mark.parametrize("on_error", ["stop", "pause"])
def test_a_failure_halts_the_run_at_once_though_not_all_is_skipped(engine: Engine, parts: Parts, on_error: str) -> None:
    """Naive: what is left is skipped only after a resume; or after a stop, what runs when others ended is cancelled, too."""
    parts(3)
    flow = Batch("halts", on_error=on_error)
    bad = node = flow.add(flows.number, 1, name="bad")
    for _ in range(20):
        node = flow.add(flows.number, 1, after=node)
    flow.add(flows.number, 1, after=flow.add(flows.number, 1, name="other"), name="after other")
    flow.on_finish(flows.number, 1, name="told")
    handle = flow.send()
    claims = {WorkflowNode.objects.get(task_id=claim.id).name: claim for claim in engine.take()}
    engine.settle(claims["bad"], code="BROKEN")
    halts = engine.advance_run(handle.workflow_id, [claims["bad"].id])
    assert (halts.halted, halts.more, bad.name) == (on_error, True, "bad")
    engine.advance()
    engine.settle(claims["other"], code="TASK_CANCELLED" if on_error == "stop" else None)
    engine.advance()
    assert miscounted(engine) == []
    if on_error == "pause":
        assert (handle.status(), counted(WorkflowNode, handle).get("SKIPPED")) == ("PAUSED", 20)
        handle.resume()
    else:
        assert counted(WorkflowNode, handle).keys() == {"FAILED", "SKIPPED", "CANCELLED", "ENQUEUED"}
    engine.run_all()
    assert WorkflowNode.objects.get(name="told").status == "COMPLETED"
    assert handle.status() == "FAILED"


def test_a_quorum_that_cannot_be_met_halts_the_run_also_in_a_later_part(engine: Engine, parts: Parts) -> None:
    """Naive: only the first part of the skips sees that. The run goes on."""
    parts(2)
    flow = Workflow("quorum", on_error="pause")
    bad = flow.add(flows.number, 1, name="bad")
    end = bad
    for _ in range(8):
        end = flow.add(flows.number, 1, after=end)
    flow.add(flows.anything, 1, after=[bad, end], join="any", name="any")
    flow.add(flows.number, 1, name="other")
    flow.send()
    claims = {WorkflowNode.objects.get(task_id=claim.id).name: claim for claim in engine.take()}
    engine.settle(claims["bad"], code="BROKEN")
    engine.advance()
    run = WorkflowRun.objects.get()
    assert WorkflowNode.objects.get(name="any").status == "SKIPPED"
    assert (run.status, run.error_code) == ("PAUSED", "QUORUM_NOT_MET")
