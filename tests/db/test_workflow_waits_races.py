"""Two sessions and one wait: each signal is taken once, one of a signal and a timeout wins; and what sleeps costs nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode, WorkflowSignal
from horsies_django.worker.maintenance.reaper import OverdueWorkflows
from horsies_django.workflows.advancer import WAKING, Advancer
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Aside, Engines, wait_for_waiting
from tests.db.drives import MAX_BYTES, Engine, miscounted
from tests.db.test_statements import explained
from tests.db.test_workflows import statuses
from tests.db.test_workflows_plans import entries, full_scans
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db(transaction=True)


def waiting(**options: Any) -> Any:
    """Send a run with a node that waits for a signal, and one that takes its value."""
    flow = Workflow("waits")
    flow.add(flows.act, flow.signal("go", **options), name="after")
    return flow.send()


def let_time_pass() -> None:
    """Let the time of everything that waits be over."""
    WorkflowNode.objects.exclude(due_at=None).update(due_at=dt.datetime.now(dt.UTC))


def sleeping(many: int) -> list[Any]:
    flow = Workflow("sleeps")
    flow.add(flows.act, after=flow.sleep(1_000))
    return [flow.send() for _ in range(many)]


def test_two_signals_at_once_for_one_wait_are_taken_by_one_and_kept(engines: Engines, aside: Aside) -> None:
    """Naive: each engine gives its signal to the node, and the second value replaces the first, or both are marked as taken."""
    one, two = engines(), engines()
    handle = waiting()
    with transaction.atomic():
        handle.signal("go", 1)
        aside(handle.signal, "go", 2).result()
        with one.conn.transaction():
            assert not one.advance_run(handle.workflow_id).busy
    assert two.advance_run(handle.workflow_id).many == 0
    two.advance()
    assert WorkflowNode.objects.get(name="go").value == 2, "the other one was not committed yet"
    assert list(WorkflowSignal.objects.filter(used_at=None).values_list("data", flat=True)) == [1]
    assert Task.objects.count() == 1


def test_a_signal_that_commits_during_an_advance_is_not_seen(engines: Engines, connect: Connect, aside: Aside) -> None:
    """Naive: all unseen signals are marked at the end. The advance stands still after it has read the signals."""
    one, holder = engines(), connect()
    handle = waiting()
    handle.signal("go", 1)
    with holder.transaction():
        holder.execute("SELECT FROM horsies_workflow_signals FOR UPDATE")
        advancing = aside(one.advance_run, handle.workflow_id)
        wait_for_waiting(connect(), one.conn)
        handle.signal("go", 2)
    advancing.result()
    assert WorkflowNode.objects.get(name="go").value == 1
    assert WorkflowSignal.objects.get(data=2).seen_at is None
    assert [each.workflow for each in one.workflows.owed(None, 9)] == [handle.workflow_id]


@pytest.mark.parametrize("in_time", [True, False])
def test_of_a_timeout_and_a_signal_at_the_same_moment_exactly_one_wins(engines: Engines, in_time: bool) -> None:
    """Naive: the signal completes the node, and the timeout fails it, or the signal is taken by a node that has failed."""
    one, two = engines(), engines()
    handle = waiting(timeout=1_000)
    if in_time:
        handle.signal("go", 1)
    let_time_pass()
    if not in_time:
        handle.signal("go", 1)
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id).busy
        assert two.advance_run(handle.workflow_id).busy
    two.advance()
    assert [*statuses(handle).values()] == (["COMPLETED", "ENQUEUED"] if in_time else ["FAILED", "SKIPPED"])
    assert (WorkflowSignal.objects.get().used_at is not None) == in_time


def test_a_cancel_and_a_signal_at_once_leave_nothing_that_waits(engine: Engine, aside: Aside) -> None:
    """Naive: the signal wakes a node of a run that has ended, or is looked for for ever."""
    handle = waiting()
    with transaction.atomic():
        handle.cancel()
        aside(handle.signal, "go", 1).result()
    engine.advance()
    assert statuses(handle) == {"go": "CANCELLED", "after": "CANCELLED"}
    assert engine.workflows.owed(None, 9) == []
    assert WorkflowSignal.objects.get().used_at is None


# many that wake together


def test_two_workers_that_wake_runs_share_them_and_each_sends_its_task_once(engines: Engines) -> None:
    """Naive: the second worker waits for the runs that the first one holds, or finds only those."""
    one, two = engines(), engines()
    two.conn.execute("SET lock_timeout = '5s'")
    handles = sleeping(WAKING + 10)
    let_time_pass()
    with one.conn.transaction():
        assert len(one.workflows.wake(WAKING, 9)) == WAKING
        assert len(two.workflows.wake(WAKING, 9)) == 10
    assert two.workflows.wake(WAKING, 9) == []
    assert Task.objects.count() == len(handles)
    assert miscounted() == []


def test_a_run_that_cannot_be_woken_does_not_keep_the_others_asleep(engines: Engines) -> None:
    """Naive: one error rolls back all that wake together, each second again."""
    handles = sleeping(5)
    let_time_pass()
    with refused("horsies_workflow_nodes", f"new.workflow_id = '{handles[2].workflow_id}'"):
        OverdueWorkflows(Advancer(MAX_BYTES)).tick(engines().conn)
    woken = [statuses(handle)["sleep"] for handle in handles]
    assert woken == ["COMPLETED", "COMPLETED", "WAITING", "COMPLETED", "COMPLETED"]


def test_runs_inside_and_their_parents_are_told_what_a_timeout_ended(engines: Engines) -> None:
    """Naive: what was woken together is not told on, and one of them waits for months."""
    child, waits = Workflow("child"), Workflow("waits")
    child.sleep(1_000)
    waits.gate("approve")
    goes_on, stops = Workflow("goes on"), Workflow("stops", on_error="stop")
    goes_on.add(flows.act, after=goes_on.add(child), name="after")
    stops.add(waits)
    stops.signal("go", timeout=1_000)
    first, second = goes_on.send(), stops.send()
    let_time_pass()
    one, overdue = engines(), OverdueWorkflows(Advancer(MAX_BYTES))
    overdue.tick(one.conn)
    assert statuses(first) == {"child": "COMPLETED", "after": "ENQUEUED"}
    for _ in range(2):
        overdue.tick(one.conn)
    assert second.status() == "FAILED"
    assert WorkflowNode.objects.get(name="approve").status == "CANCELLED"


# What waits in a run with a timer, and two tasks beside it, and perhaps one that fails.
WOKEN: list[Callable[[Workflow, Node, Node, Node], object]] = [
    lambda flow, timer, one, two: [flow.add(flows.act, one, after=timer, name=name) for name in "ab"],  # paused
    lambda flow, timer, one, two: [flow.add(flows.act, one, after=timer, name=name) for name in "ab"],  # one at a time
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.gate("never")], join="any"),
    lambda flow, timer, one, two: flow.add(flows.act, after=timer, when=one.matches("$ == 2")),
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.sleep(1_000)]),
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.gate("never")]),
    lambda flow, timer, one, two: flow.add(
        flows.act, after=[timer, flow.signal("go", timeout=1_000)], allow_failed=True
    ),
    lambda flow, timer, one, two: flow.map(flows.act, value=[1, 2], after=timer),
    lambda flow, timer, one, two: flow.signal("go", timeout=1_000, after=timer, on_timeout="complete"),
    lambda flow, timer, one, two: flow.add(
        flows.act, [one, two], after=[timer, flow.add(flows.act, name="bad")], allow_failed=True
    ),
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.add(flows.act, name="bad")]),
    lambda flow, timer, one, two: None,
]


def test_runs_that_wake_together_end_like_those_that_are_advanced_one_by_one(engines: Engines) -> None:
    """Naive: what is done for many at once forgets a join, a condition, a limit, a pause, or a node that only waits."""

    def ends(wake: Callable[[Engine], object]) -> list[Any]:
        one, handles = engines(), []
        for number, build in enumerate(WOKEN):
            flow = Workflow(f"wakes {number}", max_in_flight=1 if number == 1 else None)
            build(flow, flow.sleep(1_000), flow.add(flows.act, name="first"), flow.add(flows.act, name="second"))
            handles.append(flow.send())
        for claim in one.take():
            name = WorkflowNode.objects.get(task_id=claim.id).name
            one.settle(claim, code="BROKEN" if name == "bad" else None)
        one.advance()
        handles[0].pause()
        let_time_pass()
        wake(one)
        before = [statuses(handle) for handle in handles]
        runs = [handle.workflow_id for handle in handles]
        assert not WorkflowNode.objects.filter(status="WAITING", kind="timer", workflow_id__in=runs).exists()
        handles[0].resume()
        one.run_all()
        let_time_pass()
        one.run_all()
        assert miscounted() == []
        return [before, [(statuses(handle), handle.status()) for handle in handles]]

    def together(one: Engine) -> None:
        assert one.advancer.wake(one.workflows), "all together, without an error"
        one.advance()

    assert ends(together) == ends(Engine.advance)


def test_a_worker_that_is_told_of_a_signal_advances_the_run_unless_another_one_has_done_it(engines: Engines) -> None:
    """Naive: every worker of a large fleet advances, and locks, each run that gets a signal."""
    one, two = engines(), engines()
    handle = waiting()
    handle.signal("go", 1)
    for each in (one, two):
        each.advancer.tell(handle.workflow_id)
        assert each.advancer.next_at == 0.0
    assert one.advancer.turn(one.workflows) or one.advancer.turn(one.workflows)
    assert statuses(handle)["go"] == "COMPLETED"
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id).busy
        two.advancer.turn(two.workflows)
        assert (two.advancer.owed, two.advancer.signalled) == ({}, set())


# what sleeps costs nothing


SLEEPING = """
INSERT INTO horsies_workflows (id, name, status, on_error, sent_at)
SELECT md5(run::text)::uuid, 'sleeps', 'RUNNING', 'fail', now() FROM generate_series(1, {many}) AS run;
INSERT INTO horsies_workflow_nodes (workflow_id, number, name, kind, status, task_name, queue_name, lane, priority, on_timeout,
                                    signal, due_at)
SELECT md5(run::text)::uuid, n, n::text, CASE n WHEN 0 THEN 'timer' ELSE 'signal' END, 'WAITING', '', '', '', 100, 'complete',
       CASE n WHEN 0 THEN NULL ELSE 'go' END, CASE WHEN n < 2 THEN now() + interval '1 hour' + run * interval '1 s' END
FROM generate_series(1, {many}) AS run, generate_series(0, 2) AS n;
INSERT INTO horsies_workflow_signals (id, workflow_id, name, data, actor, seen_at)
SELECT horsies_uuid7(run), md5(run::text)::uuid, 'other', '1', 'test', now() FROM generate_series(1, {many}) AS run
"""


def put_to_sleep(connect: Connect, many: int, *, analyze: bool = True) -> None:
    """Insert runs that wait for time and for signals, with signals that nobody takes."""
    admin = connect()
    for statement in SLEEPING.format(many=many).split(";"):
        admin.execute(statement)
    if analyze:
        admin.execute("ANALYZE horsies_workflows, horsies_workflow_nodes, horsies_workflow_signals")


def idle(engine: Engine) -> int:
    """Return how many entries of indexes the two looks of an idle tick read."""
    looks = (partial(engine.workflows.owed, None, 1_000), partial(engine.workflows.wake, 1_000, 200))
    return sum(entries(engine.conn, look) for look in looks)


def test_an_idle_tick_reads_as_little_with_many_sleeping_runs(engines: Engines, connect: Connect) -> None:
    empty = idle(engines())
    put_to_sleep(connect, 3_000)
    assert idle(engines()) <= empty + 50


@pytest.mark.parametrize("analyze", [True, False], ids=["large", "stale"])
def test_waits_are_begun_found_and_ended_through_indexes(engine: Engine, connect: Connect, analyze: bool) -> None:
    put_to_sleep(connect, 3_000, analyze=analyze)
    notices = explained(engine)
    flow = Workflow("waits")
    first = flow.add(flows.act)
    flow.sleep(0, after=first)
    flow.signal("go", after=first)
    flow.signal("go", key="k", after=first)
    flow.signal("go", key="late", name="late")
    flow.gate("approve", after=first)
    handle = flow.send()
    handle.signal("go", 1)
    handle.signal("go", 2, key="k")
    engine.run_all()
    handle.signal("go", 3, key="late")
    engine.run_all()
    handle.approve("approve", actor="ada")
    while engine.workflows.wake(50, 200) or engine.advancer.find(engine.workflows, None, 100):
        engine.advance()
    assert {node.status for node in WorkflowNode.objects.filter(workflow_id=handle.workflow_id)} == {"COMPLETED"}
    shown = "\n".join(notices)
    for index in ("nodes_due", "nodes_waits", "nodes_signal"):
        assert f"using horsies_workflow_{index}" in shown
    for index in ("unseen", "unused", "keyed"):
        assert f"using horsies_signals_{index}" in shown
    assert full_scans(notices) == set()
