"""Two and three sessions on one run: nothing is advanced twice, nothing waits for ever, and nothing is half done.

Sessions are engines reduced to their statements. One is held by running its statement in a transaction that stays open; who waits
is read from pg_blocking_pids.
"""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from horsies_django import Workflow, WorkflowError
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.store.workers import WorkerStore
from horsies_django.workflows.advancer import Debt
from tests.apps.project import flows
from tests.conftest import Connect, wait_until
from tests.db.conftest import Aside, Engines, wait_for_anybody, wait_for_waiting
from tests.db.drives import Engine, chain, inside
from tests.db.graphs import AGAIN
from tests.db.lives import THRESHOLD
from tests.db.test_workflows import statuses
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db(transaction=True)


def parent_of(child: Workflow, *others: str, **options: Any) -> Any:
    """Send a run with another one inside, and other tasks."""
    flow = Workflow("parent", **options)
    flow.add(child)
    for name in others:
        flow.add(flows.act, name=name)
    return flow.send()


def single() -> Workflow:
    flow = Workflow("child")
    flow.add(flows.act, name="inner")
    return flow


def test_a_child_that_failed_again_before_its_first_end_was_noted_is_told_to_its_parent(engines: Engines) -> None:
    """Naive: whoever advanced the parent then notes that the child was told, though a retry has run it once more meanwhile."""
    one, two = engines(), engines()
    flow = Workflow("parent")
    flow.add(flows.act, after=flow.add(single()), name="after")
    handle = flow.send()
    one.settle(*one.take(), code="BROKEN")
    run = WorkflowRun.objects.get(parent_id=handle.workflow_id).pk
    one.advance_run(run, Task.objects.values_list("id", flat=True))
    one.advance_run(handle.workflow_id, children=[run])
    assert (statuses(handle), handle.status()) == ({"child": "FAILED", "after": "SKIPPED"}, "FAILED")
    handle.retry()
    assert statuses(handle) == {"child": "ENQUEUED", "after": "PENDING"}
    two.advance()
    two.settle(*two.take(), code="BROKEN")
    two.advance_run(run, Task.objects.values_list("id", flat=True))
    one.workflows.mark_advanced([run])  # of its first end
    engines().advance()
    assert (statuses(handle), handle.status()) == ({"child": "FAILED", "after": "SKIPPED"}, "FAILED")


# two engines


def test_two_engines_that_advance_one_run_send_its_next_task_once(engines: Engines) -> None:
    """Naive: no lock of the run, or one that waits. Both would send the second task, or one engine would stand still."""
    one, two = engines(), engines()
    two.conn.execute("SET lock_timeout = '5s'")
    handle = chain("first", "second").send()
    one.goes_on = None
    passed = one.settle(*one.take())
    with one.conn.transaction():
        tasks = [task for _, task in passed.in_runs]
        first = one.advance_run(handle.workflow_id, tasks)
        second = two.advance_run(handle.workflow_id, tasks)
    assert ((first.busy, first.many), second.busy) == ((False, 1), True)
    again = two.advance_run(handle.workflow_id, tasks)
    assert (again.busy, again.many) == (False, 0)
    assert Task.objects.count() == 2
    one.run_all()
    assert handle.status() == "COMPLETED"


def test_an_engine_that_found_a_run_busy_counts_its_task_later(engines: Engines) -> None:
    """Naive: what a busy run was owed is forgotten. The holder's snapshot does not have the sibling, and nobody counts it."""
    one, two = engines(), engines()
    flow = Workflow("join")
    flow.add(flows.act, after=[flow.add(flows.act, name=name) for name in "ab"], name="end")
    handle = flow.send()
    (first,), (second,) = one.take(1), two.take(1)
    one.settle(first)
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [first.id]).busy
        two.settle(second)
        two.advancer.turn(two.workflows)
        assert two.advancer.owed[handle.workflow_id].tasks == {second.id}
    wait_until(lambda: two.advancer.turn(two.workflows), "the run is free, and its last task is sent")
    assert statuses(handle)["end"] == "ENQUEUED"


def rows() -> list[Any]:
    return [*WorkflowNode.objects.order_by("pk").values_list(), *Task.objects.order_by("pk").values_list()]


@pytest.mark.parametrize("table", ["edges", "nodes", "tasks"])
def test_an_advance_that_is_killed_in_the_middle_leaves_nothing_half_done(
    engines: Engines, connect: Connect, aside: Aside, table: str
) -> None:
    """Naive: several transactions. A lock of a table stops the advance before it reads the edges, or writes nodes or tasks."""
    one, two, holder = engines(), engines(), connect()
    handle = chain("first", "second").send()
    (first,) = one.take()
    one.goes_on = None
    one.settle(first)
    before = rows()
    lock = "horsies_tasks" if table == "tasks" else f"horsies_workflow_{table}"
    with holder.transaction():
        holder.execute(f"LOCK TABLE {lock} IN {'SHARE' if table != 'edges' else 'ACCESS EXCLUSIVE'} MODE")
        advancing = aside(one.advance_run, handle.workflow_id, [first.id])
        wait_for_waiting(connect(), one.conn)
        connect().execute("SELECT pg_terminate_backend(%s)", [one.conn.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            advancing.result()
    assert rows() == before
    two.run_all()
    assert handle.status() == "COMPLETED"
    assert Task.objects.count() == 2


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_sender_of_a_key_waits_for_the_first_and_sends_only_if_that_one_rolls_back(
    connect: Connect, aside: Aside, commits: bool
) -> None:
    """Naive: a look before the insert. Both would send, or the second would get a run that never came to be."""

    def send() -> Any:
        flow = chain("first", "second")
        flow.key = "book 7"
        return flow.send()

    with transaction.atomic():
        first = send()
        second = aside(lambda: (send(), Task.objects.count() == 1))
        wait_for_anybody(connect())
        transaction.set_rollback(not commits)
    other, alone = second.result()
    assert (other == first, alone) == (commits, True)
    assert WorkflowRun.objects.count() == 1


# control while a worker writes


def test_a_task_that_starts_or_ends_while_its_run_is_paused_counts_and_nothing_follows_before_resume(
    engine: Engine,
) -> None:
    """Naive: a pause that waits for the worker's rows, or that takes them back. The settle and the claim are still open."""
    flow = Workflow("paused", max_in_flight=2)
    for name in "ab":
        flow.add(flows.act, flow.add(flows.act, name=name), name=f"{name}-next")
    handle = flow.send()
    (first,) = engine.take(1)
    with engine.conn.transaction():
        passed = engine.settle(first)
        claims = engine.take(1)
        assert handle.pause()
    assert (len(passed.landed), len(claims)) == (1, 1)
    engine.advance()
    assert set(Task.objects.values_list("status", flat=True)) == {"COMPLETED", "RUNNING"}
    engine.end(*claims)
    assert statuses(handle) == {"a": "COMPLETED", "b": "COMPLETED", "a-next": "READY", "b-next": "READY"}
    assert (engine.take(), handle.status()) == ([], "PAUSED")
    handle.resume()
    assert [claim.kwargs for claim in engine.take()] == ['{"value": 1}'] * 2


def test_a_cancel_and_a_settle_of_the_same_task_do_not_deadlock_and_the_first_decides(
    engines: Engines, connect: Connect, aside: Aside
) -> None:
    """Naive: the settle waits for the run's row, too, in the other order. The cancel is open when the task completes."""
    one, two = engines(), engines()
    handle = chain("first", "second").send()
    (first,) = one.take()
    with one.conn.transaction():
        one.settle(first)
        cancelling = aside(two.workflows.control, handle.workflow_id, "cancel")
        wait_for_waiting(connect(), two.conn)
    assert cancelling.result() == ("RUNNING", "CANCELLED")
    two.advance()
    assert (statuses(handle), handle.status()) == ({"first": "COMPLETED", "second": "CANCELLED"}, "CANCELLED")
    assert Task.objects.count() == 2


def test_a_skip_leaves_a_task_alone_that_a_worker_has_just_claimed(engine: Engine) -> None:
    """Naive: the skip waits for the claim and then takes the row of a running task away."""
    handle = chain("first", "second").send()
    with engine.conn.transaction():
        (first,) = engine.take()
        with pytest.raises(WorkflowError, match="has begun"):
            handle.skip("first")
    engine.settle(first)
    engine.run_all()
    assert set(statuses(handle).values()) == {"COMPLETED"}


def test_a_child_is_not_left_paused_when_its_parent_was_resumed_before_it(engine: Engine) -> None:
    """Naive: on_error pauses the run, somebody resumes it, and only then the engine comes to pause the children."""
    handle = parent_of(single(), "bad", on_error="pause")
    bad = engine.named()["bad"]
    engine.settle(bad, code="BROKEN")
    advanced = engine.advance_run(handle.workflow_id, [bad.id])
    assert (advanced.halted, handle.status()) == ("pause", "PAUSED")
    handle.resume()
    engine.advancer.learn(engine.workflows, handle.workflow_id, Debt(), advanced)
    engine.advance()
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"RUNNING"}


@pytest.mark.parametrize(("on_error", "status"), [("stop", "CANCELLED"), ("pause", "PAUSED")])
def test_runs_inside_follow_their_parent_although_the_engine_died_that_was_to_tell_them(
    engines: Engines, on_error: str, status: str
) -> None:
    """Naive: only the engine's memory leads from the run that stopped to the runs inside."""
    one, child = engines(), Workflow("child")
    child.add(chain("first", "second"))
    child.add(flows.act, child.add(flows.act, name="early"), name="late")
    handle = parent_of(child, "bad", on_error=on_error)
    bad = one.named()["bad"]
    one.settle(bad, code="BROKEN")
    assert one.advance_run(handle.workflow_id, [bad.id]).halted == on_error
    one.start()
    inner = WorkflowRun.objects.filter(parent_id__isnull=False)
    assert set(inner.values_list("status", flat=True)) == {"RUNNING"}
    two = engines()
    two.advancer.owe([(WorkflowNode.objects.get(name="early").workflow_id, uuid.uuid4())])  # any reason will do
    two.advance()
    assert set(inner.values_list("status", flat=True)) == {status}


def test_a_parent_keeps_what_its_child_is_owed_when_both_are_advanced_in_one_round_trip(engine: Engine) -> None:
    """Naive: the end of the child is noted for the parent, and then the parent's turn is crossed off with it."""
    handle = parent_of(single(), "other")
    claims = engine.named()
    engine.settle(claims["inner"])
    engine.settle(claims["other"])
    engine.advancer.turn(engine.workflows)
    run = WorkflowRun.objects.get(parent_id=handle.workflow_id).pk
    assert engine.advancer.owed[handle.workflow_id].children == {run}


def test_an_error_after_the_commit_of_an_advance_puts_the_run_off_and_the_engine_lives(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: the run is crossed off already, and the engine ends with a KeyError when it puts the run off."""
    one = engines()
    handle = parent_of(single())
    one.settle(*one.take())
    with refused("horsies_workflows", event="UPDATE OF advanced_at"):
        one.advancer.turn(one.workflows)
        one.advancer.turn(one.workflows)
    assert f"workflow run {handle.workflow_id} could not be advanced; trying again: refused" in caplog.text
    assert one.advancer.owed[handle.workflow_id].at > 0
    engines().advance()
    assert handle.status() == "COMPLETED"
    assert not WorkflowRun.objects.filter(parent_id__isnull=False, advanced_at__isnull=True).exists()


def test_an_attempt_that_was_given_up_adds_nothing(engines: Engines) -> None:
    """Naive: no fence. A stopped worker wakes up and adds nodes although another attempt of its task has begun."""
    one, two = engines(), engines()
    flow = Workflow("zombie")
    flow.add(flows.act.with_options(retry_policy=AGAIN), name="grows")
    handle = flow.send()
    (lost,) = one.take()
    inside(lost).add(flows.act, name="once")
    connection.cursor().execute("UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [one.id])
    assert [told.kind for told in WorkerStore(two.conn).reap(THRESHOLD, judge=False, many=9)] == ["retried"]
    for name in ("once", "late"):
        with pytest.raises(WorkflowError, match="not the current one"):
            inside(lost).add(flows.act, name=name)
    (again,) = two.take()
    with pytest.raises(WorkflowError, match="not the current one"):
        inside(lost).add(flows.act, name="late")
    inside(again).add(flows.act, name="once")
    two.settle(again)
    two.run_all()
    assert statuses(handle) == {"grows": "COMPLETED", "once": "COMPLETED"}


@pytest.mark.parametrize("end", ["CANCELLED", "COMPLETED"])
def test_nodes_committed_after_the_end_of_the_run_are_cancelled(engine: Engine, end: str) -> None:
    """Naive: nobody looks at the run again, and they stay open for ever; or their tasks run."""
    handle = single().send()
    (claim,) = engine.take()
    with transaction.atomic():
        inside(claim).add(flows.act, name="added")
        inside(claim).add(flows.act, name="after")
        if end == "CANCELLED":
            engine.workflows.control(handle.workflow_id, "cancel")
        engine.end(claim)
        assert engine.conn.execute("SELECT w.status FROM horsies_workflows w").fetchall() == [(end,)]
    engine.advance()
    assert statuses(handle) == {"inner": "COMPLETED", "added": "CANCELLED", "after": "CANCELLED"}
    assert (handle.status(), engine.take(), engine.workflows.owed(None, 9)) == (end, [], [])
