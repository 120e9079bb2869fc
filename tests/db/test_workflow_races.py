"""Two and three sessions on one run: nothing is advanced twice, nothing waits for ever, and nothing
is half done.

Sessions are engines reduced to their statements. A session is held by running its statement in a
transaction that stays open; blocked sessions are read from ``pg_blocking_pids``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.store.workers import WorkerStore
from horsies_django.workflows.advancer import PendingRun
from tests.apps.project import flows
from tests.conftest import Connect, wait_until
from tests.db.conftest import Aside, Engines, heard, wait_for_anybody, wait_for_waiting
from tests.db.drives import Engine, chain, ended, inside, miscounted
from tests.db.graphs import AGAIN
from tests.db.lives import THRESHOLD
from tests.db.test_statements import explained
from tests.db.test_workflows import refuses, statuses
from tests.support.refusing import refused


def parent_of(child: Workflow, *others: str, **options: Any) -> Any:
    """Send a run with a child run and other tasks."""
    flow = Workflow("parent", **options)
    flow.add(child)
    for name in others:
        flow.add(flows.act, name=name)
    return flow.send()


def test_a_child_that_fails_twice_is_reported_to_its_parent(
    engines: Engines,
) -> None:
    """The second failure of a child run is reported even if its first end is marked late.

    Fails if: the engine that advanced the parent marks the child as reported, although a retry has
    run the child once more meanwhile.
    """
    one = engines()
    two = engines()
    flow = Workflow("parent")
    flow.add(flows.act, after=flow.add(chain("inner")), name="after")
    handle = flow.send()

    one.settle(*one.take(), code="BROKEN")
    run = WorkflowRun.objects.get(parent_id=handle.workflow_id).pk
    one.advance_run(run, Task.objects.values_list("id", flat=True))
    one.advance_run(handle.workflow_id, children=[run])

    assert (statuses(handle), handle.status()) == (
        {"chain": "FAILED", "after": "SKIPPED"},
        "FAILED",
    )

    handle.retry()
    assert statuses(handle) == {"chain": "ENQUEUED", "after": "PENDING"}

    two.advance()
    two.settle(*two.take(), code="BROKEN")
    two.advance_run(run, Task.objects.values_list("id", flat=True))
    one.workflows.mark_advanced([run])  # belongs to the first end of the child

    engines().advance()
    assert (statuses(handle), handle.status()) == (
        {"chain": "FAILED", "after": "SKIPPED"},
        "FAILED",
    )


# two engines


def test_an_engine_that_found_a_run_busy_counts_its_task_later(engines: Engines) -> None:
    """Fails if: an engine forgets the finished task of a busy run.

    The holder's snapshot does not contain the sibling, so no engine would count it.
    """
    one = engines()
    two = engines()
    flow = Workflow("join")
    flow.add(flows.act, after=[flow.add(flows.act, name=name) for name in "ab"], name="end")
    handle = flow.send()

    (first,) = one.take(1)
    (second,) = two.take(1)
    one.settle(first)

    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [first.id]).busy
        two.settle(second)
        two.advancer.turn(two.workflows)
        assert two.advancer.pending_runs[handle.workflow_id].tasks == {second.id}

    wait_until(
        lambda: two.advancer.turn(two.workflows), "the run is free, and its last task is sent"
    )
    assert statuses(handle)["end"] == "ENQUEUED"


def rows() -> list[Any]:
    return [
        *WorkflowNode.objects.order_by("pk").values_list(),
        *Task.objects.order_by("pk").values_list(),
    ]


@pytest.mark.parametrize("table", ["edges", "nodes", "tasks"])
def test_an_advance_that_is_killed_in_the_middle_changes_nothing(
    engines: Engines, connect: Connect, aside: Aside, table: str
) -> None:
    """An advance that is killed in the middle changes nothing.

    Fails if: an advance takes several transactions.

    A lock of a table stops the advance before it reads the edges, or writes nodes or tasks.
    """
    one = engines()
    two = engines()
    holder = connect()

    handle = chain("first", "second").send()
    (first,) = one.take()
    one.goes_on = None
    one.settle(first)

    before = rows()
    lock = "horsies_tasks" if table == "tasks" else f"horsies_workflow_{table}"

    with holder.transaction():
        holder.execute(
            f"LOCK TABLE {lock} IN {'SHARE' if table != 'edges' else 'ACCESS EXCLUSIVE'} MODE"
        )
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
def test_a_second_sender_of_a_key_waits_for_the_first(
    connect: Connect, aside: Aside, commits: bool
) -> None:
    """A second sender of a key waits for the first, and sends only if the first rolls back.

    Fails if: a send searches for the key and then inserts it.

    Both would send, or the second would get a run that was rolled back.
    """

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


def test_a_task_that_ends_during_a_pause_counts_after_the_resume(
    engine: Engine,
) -> None:
    """A task that starts or ends while its run is paused counts.

    No task follows it before the resume.

    Fails if: the pause waits for the worker's rows, or takes them back, while the settle and the
    claim are uncommitted.
    """
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
    assert statuses(handle) == {
        "a": "COMPLETED",
        "b": "COMPLETED",
        "a-next": "READY",
        "b-next": "READY",
    }
    assert (engine.take(), handle.status()) == ([], "PAUSED")

    handle.resume()
    assert [claim.kwargs for claim in engine.take()] == ['{"value": 1}'] * 2


def test_a_cancel_and_a_settle_of_one_task_do_not_deadlock(
    engines: Engines, connect: Connect, aside: Aside
) -> None:
    """A cancel and a settle of the same task do not deadlock; the first one decides.

    Fails if: the settle also waits for the row of the run, in the other order.

    The settle is uncommitted when the cancel begins.
    """
    one = engines()
    two = engines()
    handle = chain("first", "second").send()
    (first,) = one.take()

    with one.conn.transaction():
        one.settle(first)
        cancelling = aside(two.workflows.control, handle.workflow_id, "cancel")
        wait_for_waiting(connect(), two.conn)

    assert cancelling.result() == ("RUNNING", "CANCELLED")
    two.advance()
    assert (statuses(handle), handle.status()) == (
        {"first": "COMPLETED", "second": "CANCELLED"},
        "CANCELLED",
    )
    assert Task.objects.count() == 2


def test_a_skip_does_not_touch_a_task_that_was_just_claimed(engine: Engine) -> None:
    """A skip does not change a task that a worker has just claimed.

    Fails if: the skip waits for the claim and then takes away the row of a running task.
    """
    handle = chain("first", "second").send()

    with engine.conn.transaction():
        (first,) = engine.take()
        refuses("has begun", handle.skip, "first")

    engine.settle(first)
    engine.run_all()
    assert set(statuses(handle).values()) == {"COMPLETED"}


def test_a_child_does_not_stay_paused_after_its_parent_resumes(engine: Engine) -> None:
    """A child does not stay paused if its parent is resumed before the child is paused.

    Fails if: ``on_error`` pauses the run, a person resumes it, and only then the engine pauses the
    children.
    """
    handle = parent_of(chain("inner"), "bad", on_error="pause")
    bad = engine.named()["bad"]

    engine.settle(bad, code="BROKEN")
    advanced = engine.advance_run(handle.workflow_id, [bad.id])
    assert (advanced.halted, handle.status()) == ("pause", "PAUSED")

    handle.resume()
    engine.advancer.note_advance(engine.workflows, handle.workflow_id, PendingRun(), advanced)
    engine.advance()
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"RUNNING"}


@pytest.mark.parametrize(("on_error", "status"), [("stop", "CANCELLED"), ("pause", "PAUSED")])
def test_runs_inside_follow_their_parent_though_its_engine_died(
    engines: Engines, on_error: str, status: str
) -> None:
    """Fails if: only the memory of the engine leads from the stopped run to its child runs."""
    one = engines()
    child = Workflow("child")
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
    # any reason to advance the run is enough
    two.advancer.note_finished([(WorkflowNode.objects.get(name="early").workflow_id, uuid.uuid4())])
    two.advance()
    assert set(inner.values_list("status", flat=True)) == {status}


def test_a_parent_keeps_the_end_of_a_child_advanced_with_it(
    engine: Engine,
) -> None:
    """A parent keeps the end of a child even if both are advanced in one round trip.

    Fails if: the end of the child is added to the pending run of the parent, and that is then
    removed with the parent's turn.
    """
    handle = parent_of(chain("inner"), "other")
    claims = engine.named()

    engine.settle(claims["inner"])
    engine.settle(claims["other"])
    engine.advancer.turn(engine.workflows)

    run = WorkflowRun.objects.get(parent_id=handle.workflow_id).pk
    assert engine.advancer.pending_runs[handle.workflow_id].children == {run}


def test_an_error_after_the_commit_puts_the_run_off(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: the run is removed from the pending ones first, and the engine ends with a KeyError
    when it postpones the run.
    """
    one = engines()
    handle = parent_of(chain("inner"))
    one.settle(*one.take())

    with refused("horsies_workflows", event="UPDATE OF advanced_at"):
        one.advancer.turn(one.workflows)
        one.advancer.turn(one.workflows)

    assert (
        f"workflow run {handle.workflow_id} could not be advanced, and is tried again: refused"
        in caplog.text
    )
    assert one.advancer.pending_runs[handle.workflow_id].at > 0

    engines().advance()
    assert handle.status() == "COMPLETED"
    assert not WorkflowRun.objects.filter(
        parent_id__isnull=False, advanced_at__isnull=True
    ).exists()


def test_an_attempt_that_was_given_up_adds_nothing(engines: Engines) -> None:
    """Fails if: there is no fence, so that a stopped worker wakes up and adds nodes although
    another attempt of its task has begun.
    """
    one = engines()
    two = engines()
    flow = Workflow("zombie")
    flow.add(flows.act.with_options(retry_policy=AGAIN), name="grows")
    handle = flow.send()

    (lost,) = one.take()
    inside(lost).add(flows.act, name="once")

    connection.cursor().execute(
        "UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [one.id]
    )
    assert [
        told.kind for told in WorkerStore(two.conn).reap(THRESHOLD, declare_dead=False, many=9)
    ] == ["retried"]

    for name in ("once", "late"):
        refuses("no longer the current one", inside(lost).add, flows.act, name=name)

    (again,) = two.take()
    refuses("no longer the current one", inside(lost).add, flows.act, name="late")
    inside(again).add(flows.act, name="once")

    two.settle(again)
    two.run_all()
    assert statuses(handle) == {"grows": "COMPLETED", "once": "COMPLETED"}


@pytest.mark.parametrize("end", ["CANCELLED", "COMPLETED"])
def test_nodes_committed_after_the_end_of_the_run_are_cancelled(engine: Engine, end: str) -> None:
    """Fails if: no engine advances the run again, so that the nodes stay open for ever; or their
    tasks run.
    """
    handle = chain("inner").send()
    (claim,) = engine.take()

    with transaction.atomic():
        inside(claim).add(flows.act, name="added")
        inside(claim).add(flows.act, name="after")
        if end == "CANCELLED":
            engine.workflows.control(handle.workflow_id, "cancel")
        engine.end(claim)
        assert engine.conn.execute("SELECT w.status FROM horsies_workflows w").fetchall() == [
            (end,)
        ]

    engine.advance()
    assert statuses(handle) == {"inner": "COMPLETED", "added": "CANCELLED", "after": "CANCELLED"}
    assert (handle.status(), engine.take(), engine.workflows.advance_reasons(None, 9)) == (
        end,
        [],
        [],
    )


# what a pass itself does for the runs whose tasks it settles, and what it leaves to an advance


def test_a_pass_settles_advances_and_claims_in_one_round_trip(
    engine: Engine, connect: Connect
) -> None:
    """A pass continues a chain, claims the task that it sends, and at last ends the run.

    Fails if: settle, advance and claim are three round trips and two more commits; or callers that
    wait for the value get no notification.
    """
    flow = chain("a", "b", "c")
    listener = connect()
    flow.returns(flow.nodes[0])
    handle = flow.send()

    listener.execute(
        "INSERT INTO horsies_waiters VALUES (gen_random_uuid(), now() + interval '1 h')"
    )
    listener.execute(f"LISTEN {engine.channel}_done")

    (first,) = engine.take()
    passed = engine.run_pass(5, [ended(first, 7)])
    (second,) = passed.claims
    assert (passed.in_runs, second.task_name) == ([], flows.act.name)
    assert statuses(handle) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "PENDING"}
    assert "7" in second.kwargs, "it has the result of the task that this pass settled"

    (third,) = engine.run_pass(5, [ended(second)]).claims
    assert None not in Task.objects.exclude(pk=third.id).values_list("advanced_at", flat=True)
    assert engine.run_pass(5, [ended(third)]).in_runs == []

    assert (handle.status(), handle.get(0).ok_value) == ("COMPLETED", 7)
    assert str(handle.workflow_id) in " ".join(heard(listener)).split()
    assert (miscounted(), engine.workflows.advance_reasons(None, 1_000)) == ([], [])


def test_a_join_starts_in_the_pass_that_settles_its_last_task(engine: Engine) -> None:
    flow = Workflow("join")
    flow.add(flows.act, after=[flow.add(flows.act, name=name) for name in "abc"], name="end")
    handle = flow.send()
    first, *others = engine.take()

    assert engine.run_pass(5, [ended(first)]).claims == []
    assert statuses(handle)["end"] == "PENDING"

    (last,) = engine.run_pass(5, [ended(claim) for claim in others]).claims
    assert (Task.objects.get(pk=last.id).node, miscounted()) == (
        WorkflowNode.objects.get(name="end").number,
        [],
    )


LEFT: dict[str, Callable[[Workflow, Any], object]] = {
    "a condition": lambda flow, first: flow.add(
        flows.act, after=first, when=first.matches("$ == 1")
    ),
    "any": lambda flow, first: flow.add(flows.act, after=[first, flow.gate("never")], join="any"),
    "a delay": lambda flow, first: flow.add(flows.act.with_options(delay=60), after=first),
    "a map": lambda flow, first: flow.map(flows.act, value=[1, 2], after=first),
    "a timer": lambda flow, first: flow.sleep(1_000, after=first),
    "a run inside": lambda flow, first: flow.add(chain("inner"), after=first),
    "one task beside another": lambda flow, first: [
        flow.add(flows.act, after=first),
        flow.gate("wait", after=first),
    ],
}


@pytest.mark.parametrize("what", LEFT)
def test_a_pass_does_not_advance_a_run_with_more_decisions(engine: Engine, what: str) -> None:
    """A pass leaves a run with more decisions to an advance, and does not change it."""
    flow = Workflow("left")
    LEFT[what](flow, flow.add(flows.act, name="first"))
    handle = flow.send()
    (claim,) = engine.take()
    before = statuses(handle)

    passed = engine.settle(claim)
    assert (passed.in_runs, statuses(handle)) == ([(handle.workflow_id, claim.id)], before)
    assert Task.objects.get(pk=claim.id).advanced_at is None

    engine.advance()
    assert (statuses(handle)["first"], miscounted()) == ("COMPLETED", [])


@pytest.mark.parametrize(
    "what",
    ["a limit", "a pause", "a part that is left", "added nodes", "a failure", "another's lock"],
)
def test_a_run_in_which_something_matters_is_left_to_an_advance(
    engine: Engine, connect: Connect, what: str
) -> None:
    engine.conn.execute("SET lock_timeout = '5s'")
    handle = chain("a", "b", "c", max_in_flight=1 if what == "a limit" else None).send()
    (claim,) = engine.take()

    if what == "a pause":
        handle.pause()
    elif what == "a part that is left":
        WorkflowRun.objects.update(owed_at=Now())
    elif what == "added nodes":
        inside(claim).add(flows.act, name="added")

    with connect() as holder:
        if what == "another's lock":
            holder.execute("BEGIN")
            holder.execute("SELECT FROM horsies_workflows FOR UPDATE")

        passed = engine.settle(claim, code="BROKEN" if what == "a failure" else None)

    assert ([task for _, task in passed.in_runs], Task.objects.count()) == ([claim.id], 1)
    engine.advance()
    assert miscounted() == []


def test_a_task_that_cannot_be_sent_does_not_refuse_outcomes(engine: Engine) -> None:
    """A pass accepts outcomes even if it cannot send the next task.

    Fails if: the error of the send ends the pass, and all of its outcomes are refused.
    """
    handle = chain("a", "b").send()
    other = chain("a", "b").send()
    claims = engine.take()
    engine.goes_on = 100

    long = next(
        claim for claim in claims if Task.objects.get(pk=claim.id).workflow_id == handle.workflow_id
    )
    (short,) = (claim for claim in claims if claim is not long)

    passed = engine.run_pass(5, [ended(long, "x" * 200), ended(short, 1)])
    assert (passed.landed, len(passed.in_runs)) == ({long.id, short.id}, 2)
    assert set(Task.objects.values_list("advanced_at", flat=True)) == {None}

    engine.advancer.note_finished(passed.in_runs)
    engine.advancer.max_bytes = 100
    engine.run_all()
    assert (statuses(handle)["b"], other.status()) == ("FAILED", "COMPLETED")


def test_a_pass_sends_no_task_that_breaks_a_rule_of_its_table(
    engine: Engine,
) -> None:
    """A pass sends no task that breaks a rule of its table, even if other code wrote the node.

    Fails if: rows that a pass writes are not checked, so that later statements fail at them.
    """
    chain("a", "b").send()
    (first,) = engine.take()
    WorkflowNode.objects.filter(name="b").update(priority=0)

    passed = engine.run_pass(5, [ended(first)])
    assert (passed.landed, len(passed.in_runs), Task.objects.count()) == ({first.id}, 1, 1)


def test_a_pass_announces_only_unclaimed_tasks_that_it_sent(
    engine: Engine, connect: Connect
) -> None:
    """Fails if: all sent tasks are announced, so that each hop wakes a worker for nothing; or none
    is, and an unclaimed one waits.
    """
    flow = Workflow("fan")
    first = flow.add(flows.act, name="first")
    for name in "abc":
        flow.add(flows.act, after=flow.add(flows.act, after=first, name=name), name=f"after {name}")
    flow.send()

    listener = connect()
    (claim,) = engine.take()
    listener.execute(f"LISTEN {engine.channel}_new")

    claims = engine.run_pass(2, [ended(claim)]).claims
    assert (len(claims), [text.split()[-1] for text in heard(listener)]) == (2, ["default"]), (
        "one is left"
    )

    claims += engine.take(1)
    claims = engine.run_pass(3, [ended(claim) for claim in claims]).claims
    assert (len(claims), heard(listener)) == (3, [])


def test_of_a_run_of_many_nodes_a_pass_reads_those_that_it_moves(
    engine: Engine, connect: Connect
) -> None:
    """Fails if: with the run as a constant, a plan of an empty table reads all nodes of the run for
    each of its tasks.
    """
    for _ in range(100):
        chain("a", "b", "c").send()
    connect().execute("ANALYZE")

    for _ in range(3):
        engine.settle(*engine.take())

    flow = chain(*map(str, range(300)))
    flow.send()

    notices = explained(engine)
    engine.run_pass(1, [ended(claim) for claim in engine.take()])

    scans = re.findall(
        r"Scan using horsies_workflow_nodes_pkey on .*\n\s+Index Cond: (.*)", "\n".join(notices)
    )
    assert len(scans) > 5
    assert [condition for condition in scans if "number = " not in condition] == []
