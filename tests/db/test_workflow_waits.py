"""Timers, signals and gates: for what nodes wait, how a wait ends, and how signals without a
waiting node are treated.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from horsies_django import Workflow, current_task, get_workflow, task
from horsies_django.models import Task, WorkflowNode, WorkflowSignal
from horsies_django.store.notify import channel_prefix
from horsies_django.store.workflows import Advanced
from horsies_django.tasks.ids import uuid7
from horsies_django.testing import drain, open_gate
from horsies_django.workflows.advancer import LIMIT, Advancer
from tests.apps.project import flows
from tests.conftest import sql
from tests.db.test_workflows import refuses, run, statuses

pytestmark = pytest.mark.django_db

MINUTE = dt.timedelta(minutes=1)
DAY = dt.timedelta(days=1)


def node(handle: Any, name: str) -> WorkflowNode:
    return WorkflowNode.objects.get(workflow_id=handle.workflow_id, name=name)


def unused() -> list[Any]:
    return list(
        WorkflowSignal.objects.filter(used_at=None)
        .order_by("sent_at", "pk")
        .values_list("data", flat=True)
    )


def send_many(handle: Any, name: str, keys: list[str | None]) -> None:
    """Send signals with these keys a minute ago; the data of each is its place in the list."""
    moment = dt.datetime.now(dt.UTC) - MINUTE
    WorkflowSignal.objects.bulk_create(
        WorkflowSignal(
            id=uuid7(),
            workflow_id=handle.workflow_id,
            name=name,
            key=key,
            data=place,
            actor="test",
            sent_at=moment + dt.timedelta(milliseconds=place),
        )
        for place, key in enumerate(keys)
    )


def advance_once(handle: Any, now: dt.datetime | None = None) -> Advanced:
    """Advance a run once, at ``now`` if given; one advance reads only some of the signals."""
    advancer = Advancer(1_000_000)
    advancer.now = now
    with advancer.store(connection, channel_prefix(connection)).advancing(
        handle.workflow_id, [], [], LIMIT
    ) as cursor:
        return Advanced(*cursor.fetchall()[0])


def test_a_timer_delays_the_next_node_and_takes_no_slot() -> None:
    """A timer delays the next node, and has neither a task nor a slot of ``max_in_flight``."""
    flow = Workflow("reminds", max_in_flight=1)
    first = flow.add(flows.number, 1, name="first")
    flow.add(flows.number, 2, name="later", after=flow.sleep(DAY, after=first))
    handle = flow.send()

    assert drain() == 1
    assert statuses(handle) == {"first": "COMPLETED", "sleep": "WAITING", "later": "PENDING"}
    due = node(handle, "sleep").due_at
    assert abs(due - dt.datetime.now(dt.UTC) - DAY) < MINUTE
    assert Task.objects.filter(finished_at=None).count() == 0

    assert drain(until=DAY - MINUTE) == 0
    assert drain(until=DAY + MINUTE) == 1
    assert handle.status() == "COMPLETED"
    assert (node(handle, "sleep").finished_at, handle.results()["sleep"].ok_value) == (due, None)
    assert Task.objects.get(node=node(handle, "later").number).enqueued_at == due


def test_waits_begin_although_max_in_flight_is_reached() -> None:
    """Waits begin although ``max_in_flight`` is reached, however many they are."""
    now = dt.datetime.now(dt.UTC)
    flow = Workflow("full", max_in_flight=1)
    first, *_ = [flow.add(flows.number, number) for number in range(3)]
    flow.add(flows.number, 3, after=flow.until(now + DAY, name="tomorrow"))
    flow.until(now - DAY, name="yesterday")

    for _ in range(LIMIT + 10):
        flow.sleep(DAY, after=first)
    handle = flow.send()

    assert [*statuses(handle).values()][:5] == ["ENQUEUED", "READY", "READY", "WAITING", "PENDING"]
    assert drain() == 3
    assert statuses(handle)["yesterday"] == "COMPLETED"
    assert WorkflowNode.objects.filter(status="WAITING").count() == 1 + LIMIT + 10

    assert drain(until=now + 2 * DAY) == 1
    assert handle.status() == "COMPLETED"


# signals


def test_a_signal_is_the_value_of_the_node_that_takes_it() -> None:
    flow = Workflow("order")
    paid = flow.signal("paid", annotation=dict[str, int])
    flow.add(flows.anything, paid, name="yes", when=paid.matches("$.amount > 10"))
    flow.add(flows.anything, paid, name="no", when=paid.matches("$.amount > 1000"))
    flow.returns(paid)
    handle = flow.send()

    assert drain() == 0
    handle.signal("paid", {"amount": 42}, actor="shop")
    assert drain() == 1
    assert statuses(handle) == {"paid": "COMPLETED", "yes": "COMPLETED", "no": "SKIPPED"}
    assert handle.get(0).ok_value == handle.results()["yes"].ok_value == {"amount": 42}

    taken = WorkflowSignal.objects.get()
    assert (taken.actor, taken.node, taken.used_at is None, taken.seen_at is None) == (
        "shop",
        0,
        False,
        False,
    )


@pytest.mark.parametrize("chained", [False, True])
def test_an_advance_takes_many_signals_in_parts_and_in_order(chained: bool) -> None:
    """An advance takes a part of many signals, and all are taken in order.

    Fails if: one advance takes all of them, and runs into a statement timeout; or the rest waits
    for another reason to advance.
    """
    flow = Workflow("many")
    many = 210
    nodes: list[Any] = []
    for _ in range(many):
        nodes.append(flow.signal("go", after=nodes[-1:] if chained else []))
    handle = flow.send()

    send_many(handle, "go", [None] * (many + 1))
    assert advance_once(handle).more
    assert 0 < WorkflowNode.objects.filter(status="COMPLETED").count() < many

    drain()
    assert handle.status() == "COMPLETED"
    assert [*WorkflowNode.objects.order_by("number").values_list("value", flat=True)] == [
        *range(many)
    ]
    assert unused() == [many]


def test_a_signal_that_no_node_can_take_is_refused() -> None:
    """A signal that no node can take, or that cannot be stored, is refused with a precise error.

    Fails if: the database refuses data that it cannot store, which ends the transaction.
    """
    flow = Workflow("refuses")
    flow.signal("paid")
    flow.gate("approve")
    flow.sleep(DAY)
    handle = flow.send()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        handle.signal("paid")
        raise ZeroDivisionError

    drain()
    assert statuses(handle)["paid"] == "WAITING", (
        "a signal belongs to the transaction of its sender"
    )

    refuses("the signal 'paid' was not sent: .*object", handle.signal, "paid", object())
    with override_settings(HORSIES={"MAX_PAYLOAD_BYTES": 2_000}):
        refuses("2,002 bytes .* allows 2,000", handle.signal, "paid", "x" * 2_000)
    for wrong in ("", "x" * 201, "\x00", 7):
        refuses("name must be a str", handle.signal, wrong)
    refuses("key must be a str", handle.signal, "paid", key="")

    for bad in ("a\x00b", "a\ud800b"):
        said = "without NUL bytes and lone surrogates"
        refuses(said, handle.approve, bad, actor="ada")
        refuses(said, handle.approve, "approve", actor=bad)
        refuses(said, handle.approve, "approve", actor="ada", reason=bad)
        refuses(said, handle.signal, bad)
        refuses(said, handle.signal, "paid", key=bad)
        refuses(said, handle.signal, "paid", actor=bad)

    refuses(
        "no node .* waits for the signal 'pay'; its signals are 'paid'",
        handle.signal,
        "pay",
        error=LookupError,
    )

    no_gate = "has no gate 'reject'; its gates are 'approve'"
    refuses(no_gate, handle.approve, "reject", actor="ada", error=LookupError)
    refuses(
        "'approve' of run .* is a gate, not a signal. Approve or",
        handle.signal,
        "approve",
        {"approved": True},
    )
    refuses("'paid' of run .* is a signal, not a gate", handle.approve, "paid", actor="ada")

    handle.signal("paid")
    drain()
    refuses("waited for the signal 'paid' have all finished", handle.signal, "paid")

    handle.cancel()
    refuses("has ended", handle.signal, "paid")
    refuses("there is no workflow run", get_workflow(uuid7()).signal, "paid", error=LookupError)
    assert WorkflowSignal.objects.count() == 1


def test_data_has_to_fit_one_of_the_nodes_that_can_take_it() -> None:
    """Fails if: unfit data are accepted, and the task that takes them fails: the run cannot be
    repaired, because no node waits any more.
    """
    flow = Workflow("several")
    flow.signal("paid", annotation=dict[str, int])
    first = flow.signal("go", annotation=int, name="int")
    flow.signal("go", annotation=str, key="k", name="str", after=first)
    flow.signal("any", annotation=int, name="a")
    flow.signal("any", name="b", after=first)

    for number in range(30):
        flow.signal("many", annotation=int, name=f"many {number}")
    flow.signal("many", annotation=str, name="the last")
    handle = get_workflow(flow.send().workflow_id)  # a handle without the types of the workflow

    expected = (
        r"'paid' was not sent: its data must be dict\[str, int\], "
        r"but data\[key 1\] does not fit: expected int, got str"
    )
    refuses(expected, handle.signal, "paid", {"amount": "12 EUR"})
    refuses("its data must be int, but data does not fit", handle.signal, "go", "text")
    refuses("its data must be int or str, but", handle.signal, "go", 1.5, key="k")
    assert not WorkflowSignal.objects.exists()

    handle.signal("paid", {"amount": 12})
    handle.signal("any", [1])
    handle.signal("many", "text")
    refuses("its data must be int or str, but", handle.signal, "many", [1])

    handle.signal("go", 1)
    drain()
    handle.signal("go", "text", key="k")
    drain()

    found = handle.results()
    assert [found[name].ok_value for name in ("paid", "int", "str")] == [{"amount": 12}, 1, "text"]
    refuses("have all finished", handle.signal, "go", None)


@pytest.mark.parametrize("key", [None, "mine"])
def test_only_matching_signals_in_time_hold_a_timeout_back(
    key: str | None,
) -> None:
    """Only signals that have the name and the key of a node and came in time delay its timeout.

    Fails if: a run with many signals has no timeouts until it has read all of them.
    """
    flow = Workflow("noise")
    flow.signal("noise", key="x")
    flow.signal("go", key=key, name="none came", timeout=DAY)
    flow.signal("go", key="other", name="late", timeout=DAY)
    flow.signal("come", key=key, name="in time", timeout=DAY)
    handle = flow.send()

    send_many(handle, "noise", ["y"] * 300)
    handle.signal("come", 1, key=key)
    if key is not None:
        handle.signal("go", 1, key="other")
        WorkflowSignal.objects.filter(name="go").update(sent_at=dt.datetime.now(dt.UTC) + 2 * DAY)

    advance_once(handle, dt.datetime.now(dt.UTC) + 3 * DAY)
    assert statuses(handle) == {
        "noise": "WAITING",
        "none came": "FAILED",
        "late": "FAILED",
        "in time": "WAITING",
    }

    drain(until=3 * DAY)
    assert statuses(handle)["in time"] == "COMPLETED"


# control


def test_waits_end_during_a_pause_without_starting_the_next_node() -> None:
    """Waits end while a run is paused, and the next nodes start after the resume."""
    flow = Workflow("pauses")
    flow.add(flows.number, 1, after=flow.sleep(DAY), name="slept")
    flow.add(flows.anything, flow.signal("go"), name="told")
    handle = flow.send()

    handle.pause()
    handle.signal("go", 5)
    assert drain(until=2 * DAY) == 0
    assert statuses(handle) == {
        "sleep": "COMPLETED",
        "slept": "READY",
        "go": "COMPLETED",
        "told": "READY",
    }

    handle.resume()
    assert drain() == 2
    assert handle.status() == "COMPLETED"


def test_a_retry_begins_cancelled_and_timed_out_waits_anew() -> None:
    """After a retry, waits that were cancelled, rejected or timed out begin anew.

    A node that waits can be skipped.
    """
    flow = Workflow("ends")
    flow.sleep(DAY)
    flow.signal("go", timeout=MINUTE)
    flow.gate("approve")
    flow.add(flows.number, 1, after=flow.gate("skipped"))
    handle = flow.send()

    handle.skip("skipped")
    assert (statuses(handle)["skipped"], statuses(handle)["number"]) == ("SKIPPED", "SKIPPED")

    before = {each.name: each.due_at for each in WorkflowNode.objects.all()}
    handle.cancel()
    waits = ("sleep", "go", "approve")
    assert {statuses(handle)[name] for name in waits} == {"CANCELLED"}

    drain(until=2 * DAY)
    handle.retry()
    drain()
    assert {statuses(handle)[name] for name in waits} == {"WAITING"}
    after = {each.name: each.due_at for each in WorkflowNode.objects.all()}
    assert all(after[name] > before[name] for name in ("sleep", "go"))

    handle.reject("approve", actor="ada")
    drain(until=dt.timedelta(hours=1))
    assert [statuses(handle)[name] for name in waits] == ["WAITING", "FAILED", "FAILED"]

    handle.retry()
    assert {statuses(handle)[name] for name in waits} == {"WAITING"}


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_text_of_digits_names_a_gate_and_is_not_its_number(verb: str) -> None:
    """Fails if: gates are named after orders, and a decision about order 1 counts for node 1."""
    flow = Workflow("orders")
    flow.add(flows.number, 1)
    flow.gate("refund all")
    handle = flow.send()
    drain()
    number = node(handle, "refund all").number
    decide = getattr(handle, verb)

    refuses(
        "Pass the number of a node as an int", decide, str(number), actor="ada", error=LookupError
    )
    for other in (number + 1, -1, 2**70):
        refuses("its gates are 'refund all'", decide, other, actor="ada", error=LookupError)
    refuses("gate must be a str", decide, True, actor="ada")

    assert node(handle, "refund all").status == "WAITING"
    decide(number, actor="ada")
    assert node(handle, "refund all").decided_by == "ada"


# elsewhere in the graph


def test_waits_support_joins_and_conditions() -> None:
    """Waits support joins and conditions, and can be nodes of child runs."""
    child = Workflow("child")
    child.returns(child.signal("go"))

    flow = Workflow("parent")
    ten = flow.add(flows.number, 10)
    inner = flow.add(child)
    flow.signal("never", after=ten, when=ten.matches("$ > 10"))
    flow.add(flows.anything, inner, name="end")
    flow.sleep(0, after=[ten, inner], join="any", name="any")

    handle = run(flow)
    found = statuses(handle)
    assert (found["never"], found["end"], found["any"]) == ("SKIPPED", "PENDING", "COMPLETED")

    waits = handle.children()["child"]
    refuses(
        f"The run of its node 'child' waits for it. Send the signal to run {waits.workflow_id}",
        handle.signal,
        "go",
        3,
        error=LookupError,
    )

    waits.signal("go", 3)
    drain()
    assert (handle.results()["end"].ok_value, handle.status()) == (3, "COMPLETED")


@task
def adds_waits(n: int) -> int:
    flow = current_task().workflow
    flow.add(flows.anything, flow.signal("go", after=flow.sleep(60)), name="told")
    flow.until(dt.datetime.now(dt.UTC) + DAY)
    flow.gate("approve", announce=flows.announced)
    return n


def test_a_running_task_adds_waits() -> None:
    """A running task can add waits, and those of the tasks of a map have names of their own."""
    flow = Workflow("grows")
    flow.map(adds_waits, n=[1, 2])
    handle = flow.send()

    assert drain() == 4
    found = {
        name.removesuffix("[1]"): status
        for name, status in statuses(handle).items()
        if name.endswith("[1]")
    }
    assert found == {
        "sleep": "WAITING",
        "go": "PENDING",
        "told": "PENDING",
        "until": "WAITING",
        "approve": "WAITING",
        "announce approve": "COMPLETED",
    }

    open_gate(handle, "approve[1]")
    assert (statuses(handle)["approve[0]"], statuses(handle)["approve[1]"]) == (
        "WAITING",
        "COMPLETED",
    )

    for number in (7, 8):
        handle.signal("go", number)
    assert drain(until=2 * DAY) == 2
    assert (handle.results()["told[0]"].ok_value, handle.results()["told[1]"].ok_value) == (7, 8)

    handle.signal("go", 9)
    drain()
    assert unused() == [9], "a task may add another node of this name"


def test_signals_and_waits_of_a_run_deleted_by_hand_are_deleted() -> None:
    """If a run is deleted by hand, its signals and waits are deleted, too.

    Fails if: workers find them for ever.
    """
    flow = Workflow("gone")
    flow.signal("go")
    flow.sleep(DAY)
    flow.send().signal("go", 1)

    sql("DELETE FROM horsies_workflows")
    drain(until=2 * DAY)

    assert not WorkflowSignal.objects.exists()
    assert not WorkflowNode.objects.filter(finished_at=None).exists()


@pytest.mark.parametrize("many", [1, 200], ids=["one", "more than an advance looks at"])
@pytest.mark.parametrize("early", [True, False], ids=["before the wait", "during the wait"])
def test_the_signal_that_was_sent_first_is_taken_first(early: bool, many: int) -> None:
    """The signal that was sent first is taken first, whatever its id."""
    flow = Workflow("two")
    flow.signal("go", name="wait", after=flow.add(flows.number, 1))
    handle = flow.send()
    if not early:
        drain()

    send_many(handle, "go", [None] * many)
    handle.signal("go", "first")
    WorkflowSignal.objects.filter(data="first").update(sent_at=dt.datetime.now(dt.UTC) - DAY)
    drain()

    assert node(handle, "wait").value == "first"
    assert len(unused()) == many
