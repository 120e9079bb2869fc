"""Races of two sessions for one wait.

Each signal is taken once, either a signal or a timeout ends a wait, and sleeping runs are not read.
The same holds for gates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.exceptions import PermissionDenied
from django.db import transaction

from horsies_django import TaskResult, Workflow, current_task, get_workflow, task
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowSignal
from horsies_django.testing import drain, open_gate
from horsies_django.worker.maintenance.reaper import OverdueWorkflows
from horsies_django.workflows import operations
from horsies_django.workflows.advancer import WAKING, Advancer
from horsies_django.workflows.nodes import Node
from horsies_django.workflows.operations import writing
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Aside, Engines, wait_for_anybody, wait_for_waiting
from tests.db.drives import MAX_BYTES, Engine, miscounted
from tests.db.test_workflows import refuses, run, statuses
from tests.db.test_workflows_plans import entries
from tests.support.refusing import refused


def waiting(**options: Any) -> Any:
    """Send a run with a node that waits for a signal, and one that takes its value."""
    flow = Workflow("waits")
    flow.add(flows.act, flow.signal("go", **options), name="after")
    return flow.send()


def let_time_pass() -> None:
    """Set the due time of all waits to now."""
    WorkflowNode.objects.exclude(due_at=None).update(due_at=dt.datetime.now(dt.UTC))


def sleeping(many: int) -> list[Any]:
    flow = Workflow("sleeps")
    flow.add(flows.act, after=flow.sleep(1_000))
    return [flow.send() for _ in range(many)]


def test_one_of_two_simultaneous_signals_is_taken_and_one_kept(
    engines: Engines, aside: Aside
) -> None:
    """Of two simultaneous signals for one wait, one is taken and the other is kept.

    Fails if: each engine gives its signal to the node, and the second value replaces the first, or
    both are marked as taken.
    """
    one = engines()
    two = engines()
    handle = waiting()

    with transaction.atomic():
        handle.signal("go", 1)
        aside(handle.signal, "go", 2).result()
        with one.conn.transaction():
            assert not one.advance_run(handle.workflow_id).busy

    assert two.advance_run(handle.workflow_id).many == 0
    two.advance()
    committed_first = 2
    assert WorkflowNode.objects.get(name="go").value == committed_first
    assert list(WorkflowSignal.objects.filter(used_at=None).values_list("data", flat=True)) == [1]
    assert Task.objects.count() == 1


def test_a_signal_that_commits_during_an_advance_is_not_seen(
    engines: Engines, connect: Connect, aside: Aside
) -> None:
    """Fails if: at its end the advance marks all signals as seen, including those it has not read.

    A lock stops the advance after it has read the signals.
    """
    one = engines()
    holder = connect()
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
    assert [each.workflow for each in one.workflows.advance_reasons(None, 9)] == [
        handle.workflow_id
    ]


def test_no_node_waits_after_a_concurrent_cancel_and_signal(engine: Engine, aside: Aside) -> None:
    """Fails if: the signal wakes a node of an ended run, or workers process it for ever."""
    handle = waiting()

    with transaction.atomic():
        handle.cancel()
        aside(handle.signal, "go", 1).result()

    engine.advance()
    assert statuses(handle) == {"go": "CANCELLED", "after": "CANCELLED"}
    assert engine.workflows.advance_reasons(None, 9) == []
    assert WorkflowSignal.objects.get().used_at is None


# many runs that wake together


def test_two_workers_share_the_runs_that_they_wake(
    engines: Engines,
) -> None:
    """Two workers share the runs that are due, and each task is sent once.

    Fails if: the second worker waits for the runs that the first one holds, or finds only those.
    """
    one = engines()
    two = engines()
    two.conn.execute("SET lock_timeout = '5s'")
    handles = sleeping(WAKING + 10)
    let_time_pass()

    with one.conn.transaction():
        assert len(one.workflows.wake(WAKING, 9)) == WAKING
        assert len(two.workflows.wake(WAKING, 9)) == 10

    assert two.workflows.wake(WAKING, 9) == []
    assert Task.objects.count() == len(handles)
    assert miscounted() == []


def test_a_run_that_cannot_be_woken_does_not_block_the_others(engines: Engines) -> None:
    """A run that cannot be woken does not block the others.

    Fails if: one error rolls back all runs that wake together, again each second.
    """
    handles = sleeping(5)
    let_time_pass()

    with refused("horsies_workflow_nodes", f"new.workflow_id = '{handles[2].workflow_id}'"):
        OverdueWorkflows(Advancer(MAX_BYTES)).tick(engines().conn)

    woken = [statuses(handle)["sleep"] for handle in handles]
    assert woken == ["COMPLETED", "COMPLETED", "WAITING", "COMPLETED", "COMPLETED"]


def test_a_timeout_is_reported_to_child_runs_and_parents(engines: Engines) -> None:
    """The end of a timeout reaches child runs and parents.

    Fails if: an end in runs that wake together is not passed on, and a child or a parent waits for
    months.
    """
    child = Workflow("child")
    waits = Workflow("waits")
    child.sleep(1_000)
    waits.gate("approve")

    goes_on = Workflow("goes on")
    stops = Workflow("stops", on_error="stop")
    goes_on.add(flows.act, after=goes_on.add(child), name="after")
    stops.add(waits)
    stops.signal("go", timeout=1_000)

    first = goes_on.send()
    second = stops.send()
    let_time_pass()

    one = engines()
    overdue = OverdueWorkflows(Advancer(MAX_BYTES))
    overdue.tick(one.conn)
    assert statuses(first) == {"child": "COMPLETED", "after": "ENQUEUED"}

    for _ in range(2):
        overdue.tick(one.conn)
    assert second.status() == "FAILED"
    assert WorkflowNode.objects.get(name="approve").status == "CANCELLED"


# The nodes that wait in a run with a timer, two tasks and perhaps a task that fails.
WOKEN: list[Callable[[Workflow, Node, Node, Node], object]] = [
    # paused
    lambda flow, timer, one, two: [
        flow.add(flows.act, one, after=timer, name=name) for name in "ab"
    ],
    # one at a time
    lambda flow, timer, one, two: [
        flow.add(flows.act, one, after=timer, name=name) for name in "ab"
    ],
    lambda flow, timer, one, two: flow.add(
        flows.act, after=[timer, flow.gate("never")], join="any"
    ),
    lambda flow, timer, one, two: flow.add(flows.act, after=timer, when=one.matches("$ == 2")),
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.sleep(1_000)]),
    lambda flow, timer, one, two: flow.add(flows.act, after=[timer, flow.gate("never")]),
    lambda flow, timer, one, two: flow.add(
        flows.act, after=[timer, flow.signal("go", timeout=1_000)], allow_failed=True
    ),
    lambda flow, timer, one, two: flow.map(flows.act, value=[1, 2], after=timer),
    lambda flow, timer, one, two: flow.signal(
        "go", timeout=1_000, after=timer, on_timeout="complete"
    ),
    lambda flow, timer, one, two: flow.add(
        flows.act, [one, two], after=[timer, flow.add(flows.act, name="bad")], allow_failed=True
    ),
    lambda flow, timer, one, two: flow.add(
        flows.act, after=[timer, flow.add(flows.act, name="bad")]
    ),
    lambda flow, timer, one, two: None,
]


def test_runs_that_wake_together_end_like_runs_advanced_singly(
    engines: Engines,
) -> None:
    """Runs that wake together end like runs that are advanced one by one.

    Fails if: waking many runs at once ignores a join, a condition, a limit, a pause, or a node that
    only waits.
    """

    def ends(wake: Callable[[Engine], object]) -> list[Any]:
        one = engines()
        handles = []

        for number, build in enumerate(WOKEN):
            flow = Workflow(f"wakes {number}", max_in_flight=1 if number == 1 else None)
            build(
                flow,
                flow.sleep(1_000),
                flow.add(flows.act, name="first"),
                flow.add(flows.act, name="second"),
            )
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
        assert not WorkflowNode.objects.filter(
            status="WAITING", kind="timer", workflow_id__in=runs
        ).exists()

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


def test_a_run_with_a_signal_is_advanced_by_one_notified_worker(
    engines: Engines,
) -> None:
    """A worker that gets the notification of a signal advances the run, unless another one did.

    Fails if: every worker of a large fleet locks and advances each run that gets a signal.
    """
    one = engines()
    two = engines()
    handle = waiting()
    handle.signal("go", 1)

    for each in (one, two):
        each.advancer.note_signal(handle.workflow_id)
        assert each.advancer.next_at == 0.0

    assert one.advancer.turn(one.workflows) or one.advancer.turn(one.workflows)
    assert statuses(handle)["go"] == "COMPLETED"

    with one.conn.transaction():
        assert not one.advance_run(handle.workflow_id).busy
        two.advancer.turn(two.workflows)
        assert (two.advancer.pending_runs, two.advancer.signalled) == ({}, set())


# sleeping runs cost nothing


SLEEPING = """
INSERT INTO horsies_workflows (id, name, status, on_error, sent_at)
SELECT md5(run::text)::uuid, 'sleeps', 'RUNNING', 'fail', now()
FROM generate_series(1, 3000) AS run;
INSERT INTO horsies_workflow_nodes (workflow_id, number, name, kind, status, task_name, queue_name,
                                    lane, priority, on_timeout, signal, due_at)
SELECT md5(run::text)::uuid, n, n::text, CASE n WHEN 0 THEN 'timer' ELSE 'signal' END, 'WAITING',
       '', '', '', 100, 'complete', CASE n WHEN 0 THEN NULL ELSE 'go' END,
       CASE WHEN n < 2 THEN now() + interval '1 hour' + run * interval '1 s' END
FROM generate_series(1, 3000) AS run, generate_series(0, 2) AS n;
INSERT INTO horsies_workflow_signals (id, workflow_id, name, data, actor, seen_at)
SELECT horsies_uuid7(run), md5(run::text)::uuid, 'other', '1', 'test', now()
FROM generate_series(1, 3000) AS run
"""


def idle(engine: Engine) -> int:
    """Return how many index entries the two queries of an idle tick read."""
    looks = (
        partial(engine.workflows.advance_reasons, None, 1_000),
        partial(engine.workflows.wake, 1_000, 200),
    )
    return sum(entries(engine.conn, look) for look in looks)


def test_an_idle_tick_reads_as_little_with_many_sleeping_runs(
    engines: Engines, connect: Connect
) -> None:
    """Each sleeping run waits for time and for signals, and has a signal that no node takes."""
    empty = idle(engines())
    admin = connect()
    for statement in SLEEPING.split(";"):
        admin.execute(statement)
    admin.execute("ANALYZE horsies_workflows, horsies_workflow_nodes, horsies_workflow_signals")

    assert idle(engines()) <= empty + 50


# gates: a decision counts for one opening of one gate, the first decision counts, and none is kept
# for later

HOUR = dt.timedelta(hours=1)
ALREADY = r"the gate 'legal' of run .* was already {} by ada at \d\d:\d\d:\d\d"


def gated(**options: Any) -> Any:
    """Send a run with a gate that waits for a decision."""
    flow = Workflow("contract")
    flow.add(flows.anything, flow.gate("legal", **options), name="sign")
    return flow.send()


def gate(handle: Any, name: str = "legal") -> WorkflowNode:
    return WorkflowNode.objects.filter(workflow_id=handle.workflow_id, name=name).latest("number")


def changes() -> list[str]:
    entries = AuditEntry.objects.filter(action__startswith="workflow.")
    return list(entries.order_by("pk").values_list("action", flat=True))


@task
def told(result: TaskResult[Any]) -> str:
    return str(result.err_value.error_code)


def test_a_gate_waits_for_a_person_and_stores_the_decision() -> None:
    flow = Workflow("expense")
    gate = flow.gate("approve", after=flow.add(flows.number, 900), announce=flows.announced)
    flow.add(flows.anything, gate, name="pay")

    wrong = flow.gate("no")
    flow.add(flows.number, 1, after=wrong, name="after")
    flow.add(told, wrong, allow_failed=True)
    handle = flow.send()

    assert drain() == 2
    assert handle.results()["announce approve"].ok_value == "approve"
    assert (statuses(handle)["approve"], statuses(handle)["pay"]) == ("WAITING", "PENDING")

    handle.approve("approve", actor="ada", reason="fine")
    (change,) = handle.history()
    assert (change.action, change.actor, change.reason) == ("workflow.approve", "ada", "fine")
    assert change.details == {"gate": "approve", "node": "1", "opening": "1"}

    handle.reject("no", actor="eve", reason="too much")
    assert drain() == 2

    found = handle.results()
    assert found["pay"].ok_value == {"by": "ada", "reason": "fine"}
    error = found["no"].err_value
    assert (error.error_code, error.message) == ("GATE_REJECTED", "rejected by eve: too much")
    assert (statuses(handle)["after"], found["told"].ok_value) == ("SKIPPED", "GATE_REJECTED")
    assert changes() == ["workflow.approve", "workflow.reject"]


def test_a_decision_does_not_open_a_gate_that_a_retry_reopens() -> None:
    """A decision does not open the gate that a retry opens anew.

    Fails if: a decision is stored by name, and the next gate with that name takes it.
    """
    handle = gated()
    handle.reject("legal", actor="ada")
    refuses(ALREADY.format("rejected"), handle.approve, "legal", actor="bob")

    handle.retry()
    found = gate(handle)
    assert (found.status, found.opening, found.decided_by) == ("WAITING", 2, None)

    user = User.objects.create_user("bob")
    decide = partial(
        operations.decide_opening, handle.workflow_id, found.number, approved=True, user=user
    )

    # as from a tab that was opened before the retry
    refuses("was opened again. Check it again", decide, 1)
    drain()
    assert gate(handle).status == "WAITING"

    decide(2)
    drain()
    assert handle.status() == "COMPLETED"


@task
def asks_again(round_: int) -> None:
    flow = current_task().workflow
    asked = flow.gate("legal")
    if round_:
        flow.add(asks_again, round_ - 1, after=asked, name="next")


def test_a_double_click_does_not_decide_the_gate_of_a_new_round() -> None:
    """A double click does not decide the gate of the next round."""
    flow = Workflow("rounds")
    flow.add(asks_again, 1)
    handle = run(flow)
    number = gate(handle).number

    user = User.objects.create_user("ada")
    decide = partial(
        operations.decide_opening, handle.workflow_id, number, 1, approved=True, user=user
    )

    decide()
    drain()
    assert gate(handle).number != number

    refuses(ALREADY.format("approved"), decide)
    drain()
    assert gate(handle).status == "WAITING"


def test_a_decision_on_a_gate_that_does_not_wait_is_not_stored() -> None:
    """A decision on a gate that does not wait is refused, and nothing is stored."""
    flow = Workflow("contract")
    flow.gate("legal", after=flow.add(flows.number, 1))
    handle = flow.send()

    refuses(
        "'legal' of run .* is not open yet. Decide when it",
        handle.approve,
        "legal",
        actor="ada",
    )
    refuses("is not open yet", open_gate, handle, "legal")

    drain()
    assert gate(handle).status == "WAITING"
    assert (WorkflowSignal.objects.exists(), changes()) == (False, [])

    open_gate(handle, "legal", "in a test")
    assert gate(handle).value == {"by": "test", "reason": "in a test"}
    assert handle.status() == "COMPLETED"

    skipped = gated()
    cancelled = gated()
    late = gated(timeout=HOUR)
    let_time_pass()

    for _ in range(2):  # before and after a worker processed the timeout
        refuses(r"is no longer open: it timed out at \d\d", late.approve, "legal", actor="ada")
        drain()

    skipped.skip("legal")
    cancelled.cancel()
    for handle, status in ((skipped, "SKIPPED"), (cancelled, "CANCELLED")):
        refuses(f"it ended as {status} at", handle.approve, "legal", actor="ada")


# who decides


def test_a_decision_needs_the_permission_of_its_gate() -> None:
    """A user needs the permission of a gate to decide.

    A decision that was checked for another permission does not count.

    Fails if: a decision that was checked for an unprotected gate opens a protected one of the same
    name.
    """
    ada = User.objects.create_user("ada")
    bob = User.objects.create_user("bob")
    ada.user_permissions.add(Permission.objects.get(codename="operate_workflow"))
    handle = gated(permission="horsies.operate_workflow")

    refuses(
        r"bob .* horsies\.operate_workflow .* 'legal'",
        handle.approve,
        "legal",
        user=bob,
        error=PermissionDenied,
    )

    with writing() as store:
        for checked in (None, "horsies.look"):
            assert not store.decide(handle.workflow_id, 0, 1, checked, True, "ada", None)

    assert (gate(handle).status, changes()) == ("WAITING", [])

    handle.approve("legal", user=User.objects.get(pk=ada.pk))
    assert gate(handle).value == {"by": "ada", "reason": None}


def test_a_user_needs_the_permission_of_a_gate_to_skip_it() -> None:
    """Fails if: the permission to operate runs is enough to skip a gate with another permission."""
    ada = User.objects.create_user("ada")
    handle = gated(permission="horsies.operate_workflow")
    node = gate(handle)

    refuses(
        r"ada .* horsies\.operate_workflow .* 'legal'",
        handle.skip,
        node.name,
        user=ada,
        error=PermissionDenied,
    )
    assert (gate(handle).status, changes()) == ("WAITING", [])

    ada.user_permissions.add(Permission.objects.get(codename="operate_workflow"))
    handle.skip(node.name, user=User.objects.get(pk=ada.pk))
    assert gate(handle).status == "SKIPPED"


def test_a_gate_without_a_permission_needs_an_active_user() -> None:
    """Without a permission, a gate is decided by an active user, or by code that names an actor."""
    handle = gated()
    gone = User.objects.create_user("gone", is_active=False)
    boss = User.objects.create_superuser("boss", is_active=False)
    told = "only an active user who is logged in can decide about the gate 'legal'"

    for user in (AnonymousUser(), gone, boss):
        refuses(told, handle.approve, "legal", user=user, error=PermissionDenied)
    for verb in (handle.approve, handle.reject):
        refuses(r"about the gate 'legal' needs a user or an actor\. Pass", verb, "legal")
    assert gate(handle).status == "WAITING"

    handle.approve("legal", user=User.objects.create_user("ada"))
    assert gate(handle).decided_by == "ada"


def test_one_of_several_open_gates_is_decided_by_its_number() -> None:
    """One of several open gates with the same name is decided by its number."""
    flow = Workflow("two")
    for name in "ab":
        flow.add(asks_again, 0, name=name)
    handle = flow.send()
    drain()

    one, other = (
        WorkflowNode.objects.filter(kind="gate").order_by("number").values_list("number", flat=True)
    )
    refuses(
        f"several open gates 'legal'. Pass the number of one of them: {one}, {other}",
        handle.approve,
        "legal",
        actor="ada",
    )

    handle.approve(other, actor="ada")
    drain()
    assert [*WorkflowNode.objects.filter(status="WAITING").values_list("number", flat=True)] == [
        one
    ]

    handle.approve("legal", actor="ada")
    assert handle.status() == "COMPLETED"


def test_the_second_of_two_decisions_waits_and_is_refused(connect: Connect, aside: Aside) -> None:
    """The second of two simultaneous decisions waits, and is refused."""
    handle = gated()

    with transaction.atomic():
        get_workflow(handle.workflow_id).approve("legal", actor="ada")
        second = aside(handle.reject, "legal", actor="bob")
        wait_for_anybody(connect())

    refuses(ALREADY.format("approved"), second.result)
    assert gate(handle).status == "COMPLETED"
