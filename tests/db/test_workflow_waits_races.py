"""Two sessions and one wait: each signal is taken once, one of a signal and a timeout wins, and nothing is lost in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from horsies_django import Workflow, get_workflow
from horsies_django.models import Task, WorkflowNode, WorkflowSignal
from horsies_django.worker.maintenance.reaper import OverdueWorkflows
from horsies_django.workflows.advancer import WAKING, Advancer
from tests.apps.project import flows
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.drives import MAX_BYTES, MISCOUNTED, Engine

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
Engines = Callable[[], Engine]


@pytest.fixture
def engine(connect: Connect) -> Engines:
    """Give a function that makes engines, each on a connection of its own."""
    return lambda: Engine(connect())


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def waiting(**options: Any) -> Any:
    """Send a run with a node that waits for a signal, and one that takes its value."""
    flow = Workflow("waits")
    flow.add(flows.act, flow.signal("go", **options), name="after")
    return flow.send()


def let_time_pass() -> None:
    """Let the time of everything that waits be over."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_workflow_nodes SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")


def in_thread(action: Callable[[], object]) -> None:
    """Do something in another session of Django's, and commit it."""

    def act() -> None:
        try:
            action()
        finally:
            connection.close()

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_two_signals_at_once_for_one_wait_are_taken_by_one_and_kept(engine: Engines) -> None:
    """Naive: each engine gives its signal to the node, and the second value replaces the first, or both are marked as taken."""
    one, two = engine(), engine()
    handle = waiting()
    with transaction.atomic():
        handle.signal("go", 1)
        in_thread(lambda: handle.signal("go", 2))
        with one.conn.transaction():
            assert not one.advance_run(handle.workflow_id, [], [], 9).busy
    assert two.advance_run(handle.workflow_id, [], [], 9).many == 0
    two.advance()
    assert WorkflowNode.objects.get(name="go").value == 2, "the other one was not committed yet"
    assert list(WorkflowSignal.objects.filter(used_at=None).values_list("data", flat=True)) == [1]
    assert Task.objects.count() == 1


def test_a_signal_that_is_sent_does_not_wait_for_an_advance_and_is_found_after_it(engine: Engines) -> None:
    """Naive: the sender locks the run, or the advance marks signals as seen that it did not see."""
    one, two = engine(), engine()
    handle = waiting()
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [], [], 9).busy
        handle.signal("go", 1)
        assert two.advance_run(handle.workflow_id, [], [], 9).busy
    assert statuses(handle)["go"] == "WAITING"
    two.advance()
    assert statuses(handle) == {"go": "COMPLETED", "after": "ENQUEUED"}


def test_a_signal_that_commits_in_the_middle_of_an_advance_is_not_marked_as_seen(
    engine: Engines, connect: Connect, aside: Aside
) -> None:
    """Naive: all unseen signals are marked at the end. The advance stands still after it has read the signals."""
    one, holder = engine(), connect()
    handle = waiting()
    handle.signal("go", 1)
    with holder.transaction():
        holder.execute("SELECT FROM horsies_workflow_signals FOR UPDATE")
        advancing = aside(one.advance_run, handle.workflow_id, [], [], 9)
        wait_for_waiting(connect(), one.conn)
        handle.signal("go", 2)
    advancing.result()
    assert WorkflowNode.objects.get(name="go").value == 1
    assert WorkflowSignal.objects.get(data=2).seen_at is None
    assert [each.workflow for each in one.workflows.owed(None, 9)] == [handle.workflow_id]


@pytest.mark.parametrize("in_time", [True, False])
def test_of_a_timeout_and_a_signal_at_the_same_moment_exactly_one_wins(engine: Engines, in_time: bool) -> None:
    """Naive: the signal completes the node, and the timeout fails it, or the signal is taken by a node that has failed."""
    one, two = engine(), engine()
    handle = waiting(timeout=1_000)
    if in_time:
        handle.signal("go", 1)
    let_time_pass()
    if not in_time:
        handle.signal("go", 1)
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [], [], 9).busy
        assert two.advance_run(handle.workflow_id, [], [], 9).busy
    two.advance()
    used = WorkflowSignal.objects.filter(used_at__isnull=False).count()
    if in_time:
        assert (statuses(handle), used) == ({"go": "COMPLETED", "after": "ENQUEUED"}, 1)
    else:
        assert (statuses(handle), used) == ({"go": "FAILED", "after": "SKIPPED"}, 0)


def test_an_advance_that_is_killed_leaves_the_signal_to_another(engine: Engines, connect: Connect) -> None:
    """Naive: the signal is marked as taken in a transaction of its own."""
    one, two, watcher = engine(), engine(), connect()
    handle = waiting()
    handle.signal("go", 1)
    with pytest.raises(psycopg.OperationalError), one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [], [], 9).busy
        watcher.execute("SELECT pg_terminate_backend(%s)", [one.conn.info.backend_pid])
    assert statuses(handle)["go"] == "WAITING"
    two.advance()
    assert (statuses(handle)["after"], Task.objects.count()) == ("ENQUEUED", 1)


def test_a_cancel_and_a_signal_at_once_leave_nothing_that_waits(engine: Engines) -> None:
    """Naive: the signal wakes a node of a run that has ended, or is looked for for ever."""
    one = engine()
    handle = waiting()
    with transaction.atomic():
        handle.cancel()
        in_thread(lambda: get_workflow(handle.workflow_id).signal("go", 1))
    one.advance()
    assert statuses(handle) == {"go": "CANCELLED", "after": "CANCELLED"}
    assert one.workflows.owed(None, 9) == []
    assert WorkflowSignal.objects.get().used_at is None


# many that wake together


def sleeping(many: int) -> list[Any]:
    handles = []
    for _ in range(many):
        flow = Workflow("sleeps")
        flow.add(flows.act, after=flow.sleep(1_000))
        handles.append(flow.send())
    return handles


def test_two_workers_that_wake_runs_share_them_and_each_sends_its_task_once(engine: Engines) -> None:
    """Naive: the second worker waits for the runs that the first one holds, or finds only those."""
    one, two = engine(), engine()
    two.conn.execute("SET lock_timeout = '5s'")
    handles = sleeping(WAKING + 10)
    let_time_pass()
    with one.conn.transaction():
        assert len(one.workflows.wake(WAKING, 9)) == WAKING
        assert len(two.workflows.wake(WAKING, 9)) == 10
    assert two.workflows.wake(WAKING, 9) == []
    assert Task.objects.count() == len(handles)
    with connection.cursor() as cursor:
        cursor.execute(MISCOUNTED)
        assert cursor.fetchall() == []


def test_a_run_that_cannot_be_woken_does_not_keep_the_others_asleep(engine: Engines, connect: Connect) -> None:
    """Naive: one error rolls back all that wake together, each second again."""
    one = engine()
    handles = sleeping(5)
    let_time_pass()
    bad = handles[2].workflow_id
    admin = connect()
    admin.execute("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$")
    admin.execute(f"""
        CREATE TRIGGER refuse BEFORE UPDATE ON horsies_workflow_nodes FOR EACH ROW WHEN (new.workflow_id = '{bad}')
        EXECUTE FUNCTION refuse()""")
    try:
        OverdueWorkflows(Advancer(MAX_BYTES)).tick(one.conn)
        woken = [statuses(handle)["sleep"] for handle in handles]
        assert woken == ["COMPLETED", "COMPLETED", "WAITING", "COMPLETED", "COMPLETED"]
    finally:
        admin.execute("DROP FUNCTION refuse CASCADE")


def test_a_child_run_whose_parent_was_stopped_by_a_timeout_is_ended(engine: Engines) -> None:
    """Naive: what was woken together is not told on, and the child waits for months in a run that has ended."""
    one = engine()
    child = Workflow("child")
    child.gate("approve")
    flow = Workflow("parent", on_error="stop")
    flow.add(child)
    flow.signal("go", timeout=1_000)
    handle = flow.send()
    let_time_pass()
    overdue = OverdueWorkflows(Advancer(MAX_BYTES))
    for _ in range(3):
        overdue.tick(one.conn)
    assert handle.status() == "FAILED"
    assert WorkflowNode.objects.get(name="approve").status == "CANCELLED"


def test_a_run_inside_another_that_ends_by_its_timer_is_told_to_its_parent(engine: Engines) -> None:
    one = engine()
    child = Workflow("child")
    child.sleep(1_000)
    flow = Workflow("parent")
    flow.add(flows.act, after=flow.add(child), name="after")
    handle = flow.send()
    let_time_pass()
    OverdueWorkflows(Advancer(MAX_BYTES)).tick(one.conn)
    assert statuses(handle) == {"child": "COMPLETED", "after": "ENQUEUED"}


def test_runs_that_wake_together_end_like_those_that_are_advanced_one_by_one(engine: Engines) -> None:
    """Naive: what is done for many at once forgets a join, a condition, a limit, a pause, or a node that only waits."""

    def built(number: int) -> Workflow:
        flow = Workflow(f"wakes {number}", max_in_flight=1 if number == 1 else None)
        timer, first, second = flow.sleep(1_000), flow.add(flows.act, name="first"), flow.add(flows.act, name="second")
        if number < 2:
            for name in "ab":
                flow.add(flows.act, first, after=timer, name=name)
        elif number == 2:
            flow.add(flows.act, after=[timer, flow.gate("never")], join="any", name="end")
        elif number == 3:
            flow.add(flows.act, after=timer, when=first.matches("$ == 2"), name="end")
        elif number == 4:
            flow.add(flows.act, after=[timer, flow.sleep(1_000)], name="end")
        elif number == 5:
            flow.add(flows.act, after=[timer, flow.gate("never")], name="end")
        elif number == 6:
            flow.add(flows.act, after=[timer, flow.signal("go", timeout=1_000)], name="end", allow_failed=True)
        elif number == 7:
            flow.map(flows.act, value=[1, 2], after=timer)
        elif number == 8:
            flow.add(flows.act, flow.signal("go", after=timer, timeout=1_000, on_timeout="complete"), name="told")
        elif number == 9:
            flow.add(
                flows.act,
                [first, second],
                after=[timer, flow.add(flows.act, name="bad")],
                name="end",
                allow_failed=True,
            )
        elif number == 10:
            flow.add(flows.act, after=[timer, flow.add(flows.act, name="bad")], name="end")
        return flow

    def ends(wake: Callable[[Engine], object]) -> list[Any]:
        one = engine()
        handles = [built(number).send() for number in range(12)]
        for claim in one.take():
            name = WorkflowNode.objects.get(task_id=claim.id).name
            one.settle(claim, value=1, code="BROKEN" if name == "bad" else None)
        one.advance()
        handles[0].pause()
        let_time_pass()
        wake(one)
        before = [statuses(handle) for handle in handles]
        assert not WorkflowNode.objects.filter(status="WAITING", kind="timer", workflow_id__in=[
            handle.workflow_id for handle in handles]).exists()  # fmt: skip
        handles[0].resume()
        one.run_all()
        let_time_pass()
        one.run_all()
        with connection.cursor() as cursor:
            cursor.execute(MISCOUNTED)
            assert cursor.fetchall() == []
        return [before, [(statuses(handle), handle.status()) for handle in handles]]

    def together(one: Engine) -> None:
        assert one.advancer.wake(one.workflows), "all together, without an error"
        one.advance()

    assert ends(together) == ends(Engine.advance)


def test_a_worker_that_is_told_of_a_signal_advances_the_run_unless_another_one_has_done_it(engine: Engines) -> None:
    """Naive: every worker of a large fleet advances, and locks, each run that gets a signal."""
    one, two = engine(), engine()
    handle = waiting()
    handle.signal("go", 1)
    for each in (one, two):
        each.advancer.tell(handle.workflow_id)
        assert each.advancer.next_at == 0.0
    assert one.advancer.turn(one.workflows) or one.advancer.turn(one.workflows)
    assert statuses(handle)["go"] == "COMPLETED"
    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id, [], [], 9).busy
        two.advancer.turn(two.workflows)
        assert (two.advancer.owed, two.advancer.signalled) == ({}, set())
