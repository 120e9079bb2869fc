"""Compensation: the undone nodes, their order, their arguments, and the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow, WorkflowDefinitionError
from horsies_django.models import Task, WorkflowEdge, WorkflowNode
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import sql
from tests.db.conftest import Parts
from tests.db.drives import Hand, chain, inside
from tests.db.test_workflows import refuses, statuses


def undos(handle: WorkflowHandle) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id, kind="undo").order_by(
        "number"
    )
    return {node.name.removeprefix("undo "): node.status for node in nodes}


def sent(handle: WorkflowHandle) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the tasks of undos in the order in which they were sent.

    Each comes with the name of the undone node and with its arguments.
    """
    names = dict(
        WorkflowNode.objects.filter(workflow_id=handle.workflow_id, kind="undo").values_list(
            "number", "name"
        )
    )
    tasks = Task.objects.filter(workflow_id=handle.workflow_id, node__in=names).order_by(
        "sent_at", "node_index"
    )
    return [
        (names[task.node].removeprefix("undo "), task.node_index, task.kwargs) for task in tasks
    ]


def go(hand: Hand, *names: str, value: Any = 1, code: str | None = None) -> None:
    for name in names:
        hand.take()
        hand.end(name, value=value, code=code)


def failing(*names: str, **options: Any) -> Workflow:
    """Return a chain of nodes with undos, and a last node "bad" that has none."""
    flow = chain(*names, undo=flows.unact, **options)
    flow.add(flows.act, after=flow.nodes[-1], name="bad")
    return flow


# the undone nodes and the arguments of their undos


def test_an_undo_waits_only_for_the_nearest_undos_below_it(hand: Hand) -> None:
    """An undo waits for the nearest undos below its node, and for no others.

    Fails if: it waits only for direct neighbours, or for all others, or for the undo of a node that
    did not begin; or it does not wait for the undo of a node that its task added.
    """
    flow = Workflow("order")
    undo: dict[str, Any] = {"undo": flows.unact}

    top = flow.add(flows.act, name="top", **undo)
    plain = flow.add(flows.act, after=top, name="plain")
    left = flow.add(flows.act, after=plain, name="left", **undo)
    flow.add(flows.act, after=left, name="leaf", **undo)
    refused = flow.add(flows.act, after=top, name="refused", **undo)
    flow.add(flows.act, after=[refused], allow_failed=True, name="right", **undo)
    flow.add(flows.act, name="apart", **undo)
    flow.add(flows.act, after=flow.nodes[1:], allow_failed=True, name="late")
    flow.add(flows.broken, after=flow.nodes[-1], name="bad")

    handle = flow.send()
    while names := hand.take():
        for name in sorted(names):
            if name == "left":
                inside(hand.claims[name]).add(flows.act, name="grown", **undo)
            hand.end(name, code="BROKEN" if name in ("bad", "refused") else None)
        if handle.status() == "COMPENSATING":
            break

    names = dict(WorkflowNode.objects.filter(kind="undo").values_list("number", "name"))
    edges = {
        (names[up].removeprefix("undo "), names[down].removeprefix("undo "))
        for up, down in WorkflowEdge.objects.filter(upstream__in=names).values_list(
            "upstream", "downstream"
        )
    }

    assert edges == {("leaf", "left"), ("grown", "left"), ("left", "top"), ("right", "top")}
    assert {name for name, status in undos(handle).items() if status == "ENQUEUED"} == {
        "leaf",
        "grown",
        "right",
        "apart",
    }

    hand.finish()
    assert set(undos(handle).values()) == {"COMPLETED"}


def test_undos_keep_to_max_in_flight_but_not_to_the_deadline(hand: Hand) -> None:
    """Undos respect ``max_in_flight``, but not the deadline of the run.

    Fails if: a run that failed because of its deadline cannot be undone.
    """
    flow = Workflow("deadline", max_in_flight=2, good_until=timedelta(hours=1))
    for place in range(5):
        flow.add(flows.act, place, name=f"n{place}", undo=flows.unact)
    flow.add(flows.broken, after=[*flow.nodes], name="bad")

    handle = flow.send()
    while handle.status() == "RUNNING":
        names = hand.take()
        hand.end(*names, code="BROKEN" if names == {"bad"} else None)

    assert len(hand.take()) == 2
    assert set(Task.objects.filter(status="RUNNING").values_list("good_until", flat=True)) == {None}

    hand.finish()
    assert len(sent(handle)) == 5


# cancel, stop, pause


def test_a_cancelled_run_is_undone_once_its_tasks_have_stopped(hand: Hand) -> None:
    """Fails if: the run is CANCELLED at once and not undone, or undos run beside its tasks."""
    handle = chain("first", "second", "third", undo=flows.unact).send()
    go(hand, "first")
    hand.take()

    assert handle.cancel(actor="ada") is True
    assert (handle.status(), undos(handle), statuses(handle)["third"]) == (
        "COMPENSATING",
        {},
        "CANCELLED",
    )

    assert [handle.cancel(), handle.pause(), handle.resume()] == [False, False, False]
    refuses("being undone", handle.retry)

    hand.end("second", code="TASK_CANCELLED")
    assert undos(handle) == {"first": "PENDING", "second": "ENQUEUED"}

    hand.finish()
    assert [kwargs["result"] for _, _, kwargs in sent(handle)] == [None, 1]
    assert (handle.status(), handle.get(0).err_value.error_code) == (
        "CANCELLED",
        "WORKFLOW_CANCELLED",
    )
    assert handle.get(0).err_value.data == {"error_code": "WORKFLOW_CANCELLED", "undone": 2}
    assert [change.details["after"] for change in handle.history()] == ["COMPENSATING"]


@pytest.fixture
def slow_begin() -> Iterator[None]:
    """Make ``horsies_begin_undo`` slower than the time in which an advance may send tasks."""
    name = "horsies_begin_undo"
    begin = "FUNCTION horsies_begin_undo(p_workflow uuid)"
    sql(f"ALTER FUNCTION {name} RENAME TO begin_undo")
    sql(
        f"CREATE {begin} RETURNS int LANGUAGE sql VOLATILE AS 'SELECT begin_undo(p_workflow) FROM "
        "pg_sleep(0.05)'"
    )

    yield
    sql(f"DROP {begin}")
    sql(f"ALTER FUNCTION begin_undo RENAME TO {name}")


@pytest.mark.usefixtures("slow_begin")
def test_a_cancel_between_two_tasks_sends_the_first_undo_at_once(
    hand: Hand,
) -> None:
    """A cancel between two tasks sends the first undo at once, even on a slow server.

    Fails if: the time is over before any undo was sent, and the undo waits until a worker finds the
    run.
    """
    handle = chain("first", "second", undo=flows.unact).send()

    assert handle.cancel()
    assert (handle.status(), undos(handle)) == ("CANCELLED", {}), "nothing has begun"

    handle.retry()
    go(hand, "first")
    handle.cancel()
    assert (handle.status(), undos(handle)) == ("COMPENSATING", {"first": "ENQUEUED"})

    hand.finish()
    assert handle.status() == "CANCELLED"


@pytest.mark.parametrize(("verb", "end"), [("resume", "FAILED"), ("cancel", "CANCELLED")])
def test_a_paused_run_is_undone_when_it_is_resumed_or_cancelled(
    hand: Hand, verb: str, end: str
) -> None:
    """Fails if: the undo of a run with ``on_error="pause"`` begins before a person has decided."""
    handle = failing("first", on_error="pause").send()
    go(hand, "first")
    go(hand, "bad", code="BROKEN")
    assert (handle.status(), undos(handle)) == ("PAUSED", {})

    getattr(handle, verb)()
    assert (handle.status(), undos(handle)) == ("COMPENSATING", {"first": "ENQUEUED"})

    hand.finish()
    assert handle.status() == end


def test_a_run_inside_ends_before_the_outer_run_is_undone(hand: Hand) -> None:
    """A child run takes no undo, and ends before the outer run is undone."""
    child = Workflow("child")
    child.add(flows.act, name="inside")
    flow = chain("first", undo=flows.unact)
    flow.add(child, name="child")
    handle = flow.send()

    go(hand, "first")
    with pytest.raises(WorkflowDefinitionError, match="the run is a node of another one"):
        inside(hand.claims["inside"]).add(flows.act, undo=flows.unact)

    handle.cancel()
    assert (handle.status(), undos(handle)) == ("COMPENSATING", {})

    hand.finish()
    assert (handle.status(), undos(handle)) == ("CANCELLED", {"first": "COMPLETED"})
    assert statuses(handle)["child"] == "CANCELLED"


# undos that fail


@pytest.mark.parametrize(("cancelled", "end"), [(False, "FAILED"), (True, "CANCELLED")])
def test_a_retry_runs_failed_undos_in_parts_and_in_order(
    hand: Hand, parts: Parts, cancelled: bool, end: str
) -> None:
    """Fails if: one statement replaces all failed undos; or the first ones run before the others
    have been reached; or one that fails ends the others.
    """
    handle = failing("first", "second", "third").send()
    go(hand, "first", "second", "third")

    if cancelled:
        handle.cancel()
    else:
        go(hand, "bad", code="BROKEN")

    go(hand, "undo third", code="REFUSED")
    go(hand, "undo second")
    go(hand, "undo first", code="REFUSED")

    error = handle.get(0).err_value
    assert (handle.status(), error.error_code) == ("FAILED", "COMPENSATION_FAILED")

    if not cancelled:
        cause = "node bad failed: BROKEN: no"
        assert error.message == f"not undone: third, first; {cause}"
        assert (error.data["cause"]["error_code"], error.data.pop("cause")["message"]) == (
            "WORKFLOW_FAILED",
            cause,
        )
        not_undone = [{"node": name, "error_code": "REFUSED"} for name in ("third", "first")]
        assert error.data == {
            "node": "bad",
            "error_code": "BROKEN",
            "undone": 1,
            "not_undone": not_undone,
        }

    parts(1)
    handle.retry(actor="ada")
    assert handle.status() == "COMPENSATING"
    assert undos(handle) == {"first": "ADDED", "second": "COMPLETED", "third": "FAILED"}

    handle.retry()  # continues the retry
    hand.engine.advance()
    assert undos(handle) == {"first": "PENDING", "second": "COMPLETED", "third": "ENQUEUED"}

    hand.finish()
    assert set(undos(handle).values()) == {"COMPLETED"}
    assert Task.objects.filter(task_name=flows.unact.name, node__isnull=False).count() == 3
    assert Task.objects.filter(task_name=flows.unact.name, node__isnull=True).count() == 2

    assert (handle.status(), handle.get(0).err_value.data["undone"]) == (end, 3)
    assert handle.get(0).err_value.error_code == f"WORKFLOW_{end}"
    refuses("its nodes were undone. Send the workflow again", handle.retry)


def test_an_undo_with_redacted_or_large_arguments_fails(
    hand: Hand,
) -> None:
    """The undo of a node fails if its arguments or result were redacted or are too large.

    An undo without arguments is not affected.
    """
    flow = Workflow("told")
    flow.map(flows.act, value=["a", "b"], name="each", undo=flows.unact)
    large = flow.add(flows.act, name="large", undo=flows.unact)
    flow.add(flows.act, name="plain", undo=flows.note_undo)
    flow.add(flows.act, after=[*flow.nodes], name="bad")

    handle = hand.send(flow)
    hand.end("element 0", "element 1", "plain")
    for task in Task.objects.exclude(node_index=1).filter(status="COMPLETED"):
        redact(task.pk, actor="ada", reason="asked")

    hand.end("large", value="x" * 990_000)
    Task.objects.filter(node=large.number).update(kwargs={"value": "y" * 20_000})
    go(hand, "bad", code="BROKEN")
    hand.finish()

    assert undos(handle) == {"each": "FAILED", "large": "FAILED", "plain": "COMPLETED"}
    not_undone = {
        each["node"]: each["error_code"] for each in handle.get(0).err_value.data["not_undone"]
    }
    assert not_undone == {"each": "RESULT_REDACTED", "large": "PAYLOAD_TOO_LARGE"}
    assert Task.objects.get(kwargs={"value": "b", "result": 1}).status == "COMPLETED"


def test_nodes_that_are_added_while_a_run_is_undone_do_not_run(hand: Hand) -> None:
    flow = chain("first", undo=flows.unact)
    flow.add(flows.act, name="adder")
    handle = flow.send()

    go(hand, "first")
    handle.cancel()
    inside(hand.claims["adder"]).add(flows.act, name="added", undo=flows.unact)
    hand.end("adder")

    hand.take()
    refuses(
        "undo cannot add nodes", inside(hand.claims["undo first"]).add, flows.act, name="added too"
    )

    hand.finish()
    added = WorkflowNode.objects.get(name="added")
    assert (added.status, added.error_code, handle.status()) == (
        "CANCELLED",
        "WORKFLOW_ENDED",
        "CANCELLED",
    )
    assert undos(handle) == {"first": "COMPLETED"}


def test_a_cancel_waits_for_an_advance_and_undoes_its_nodes(hand: Hand) -> None:
    """A cancel waits for an advance, and undoes the nodes that the advance completed.

    Fails if: the cancel reads before it has the lock, and does not see that the node has completed.
    """
    handle = hand.send(chain("first", "second", undo=flows.unact))
    passed = hand.engine.settle(hand.claims.pop("first"))

    with hand.engine.conn.transaction():
        hand.engine.advance_run(handle.workflow_id, [task for _, task in passed.in_runs])
        connection.cursor().execute("SET lock_timeout = '100ms'")
        refuses("lock timeout", handle.cancel, error=Exception)
        connection.cursor().execute("RESET lock_timeout")

    handle.cancel()
    assert undos(handle) == {"first": "ENQUEUED"}
    hand.finish()
    assert handle.status() == "CANCELLED"


def test_undos_work_in_a_run_with_numbers_beyond_the_sequence() -> None:
    """A run can add and undo nodes even if its numbers are ahead of the sequence.

    Logical replication copies rows, but no sequences.
    """
    flow = Workflow("moved")
    first = flow.add(flows.grows, 3, name="first")
    paid = flow.add(flows.charge, 1, after=flow.signal("go", after=first), undo=flows.refund)
    flow.add(flows.broken, after=flow.add(flows.grows, 3, after=paid, name="second"))

    handle = flow.send()
    for name in ("none", "go"):
        sql("ALTER SEQUENCE horsies_workflow_node_numbers RESTART")
        if name == "go":
            handle.signal("go")
        drain(raise_errors=False)

    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id)
    assert nodes.get(name="undo charge").status == "COMPLETED"
    assert sorted(nodes.filter(number__gte=1_000_000).values_list("number", flat=True)) == [
        *range(1_000_000, 1_000_007)
    ]
