"""Timers, signals and gates: what nodes wait for, what ends a wait, and what becomes of signals that nobody waits for."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.test import override_settings

from horsies_django import (
    TaskResult,
    Workflow,
    WorkflowDefinitionError,
    WorkflowError,
    current_task,
    get_workflow,
    task,
)
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowSignal
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import RetentionStore
from horsies_django.store.workflows import Advanced
from horsies_django.testing import drain, open_gate, signal
from horsies_django.workflows.advancer import LIMIT, Advancer
from tests.apps.project import flows

pytestmark = pytest.mark.django_db

MINUTE, DAY = dt.timedelta(minutes=1), dt.timedelta(days=1)


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def node(handle: Any, name: str) -> WorkflowNode:
    return WorkflowNode.objects.get(workflow_id=handle.workflow_id, name=name)


def unused() -> list[Any]:
    return list(WorkflowSignal.objects.filter(used_at=None).order_by("sent_at", "pk").values_list("data", flat=True))


# timers


def test_a_timer_lets_what_follows_wait_and_takes_nothing_meanwhile() -> None:
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


def test_until_waits_for_a_moment_and_not_for_one_that_has_passed() -> None:
    now = dt.datetime.now(dt.UTC)
    flow = Workflow("opens")
    flow.add(flows.number, 1, after=flow.until(now + DAY, name="tomorrow"))
    flow.add(flows.number, 1, after=flow.until(now - DAY, name="yesterday"))
    handle = flow.send()
    assert drain() == 1
    assert statuses(handle)["tomorrow"] == "WAITING"
    assert statuses(handle)["yesterday"] == "COMPLETED"
    assert drain(until=now + 2 * DAY) == 1


def test_waits_begin_although_max_in_flight_leaves_no_room_and_do_not_count() -> None:
    flow = Workflow("full", max_in_flight=1)
    for number in range(3):
        flow.add(flows.number, number)
    flow.sleep(DAY)
    flow.signal("go")
    handle = flow.send()
    assert sorted(statuses(handle).values()) == ["ENQUEUED", "READY", "READY", "WAITING", "WAITING"]
    assert drain() == 3


def test_more_ready_waits_than_are_promoted_at_once_all_begin() -> None:
    flow = Workflow("wide", max_in_flight=1)
    first = flow.add(flows.number, 1)
    for _ in range(450):
        flow.sleep(DAY, after=first)
    handle = flow.send()
    drain()
    assert WorkflowNode.objects.filter(workflow_id=handle.workflow_id, status="WAITING").count() == 450
    drain(until=2 * DAY)
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
    assert handle.get(0).ok_value == {"amount": 42}
    assert handle.results()["yes"].ok_value == {"amount": 42}
    taken = WorkflowSignal.objects.get()
    assert (taken.actor, taken.node, taken.used_at is None, taken.seen_at is None) == ("shop", 0, False, False)


def test_early_signals_are_kept_and_taken_in_order_one_per_node() -> None:
    flow = Workflow("three")
    first = flow.add(flows.number, 1)
    a = flow.signal("go", name="a", after=first)
    b = flow.signal("go", name="b", after=a)
    flow.signal("go", name="c", after=b)
    handle = flow.send()
    for number in range(4):
        signal(handle, "go", number)
    drain()
    assert [handle.results()[name].ok_value for name in "abc"] == [0, 1, 2]
    assert unused() == [3]
    assert handle.status() == "COMPLETED"


def test_a_signal_with_a_key_is_taken_only_by_a_node_with_that_key_or_without_one() -> None:
    flow = Workflow("keys")
    flow.signal("paid", key="b", name="b")
    flow.signal("paid", key="a", name="a")
    flow.signal("paid", name="any", after=flow.signal("ready"))
    handle = flow.send()
    handle.signal("paid", 1, key="a")
    handle.signal("paid", 2, key="c")
    handle.signal("paid", 3)
    drain()
    assert statuses(handle) == {"b": "WAITING", "a": "COMPLETED", "any": "PENDING", "ready": "WAITING"}
    assert unused() == [2, 3]
    handle.signal("ready")
    handle.signal("paid", 4, key="b")
    drain()
    assert handle.results() == handle.results()
    assert [handle.results()[name].ok_value for name in ("a", "b", "any")] == [1, 4, 2]
    assert unused() == [3]


def test_nodes_that_wait_for_the_same_signal_take_one_each_the_first_node_first() -> None:
    flow = Workflow("same")
    for name in "abc":
        flow.signal("go", name=name)
    handle = flow.send()
    for value in (1, 2):
        handle.signal("go", value)
    drain()
    assert statuses(handle) == {"a": "COMPLETED", "b": "COMPLETED", "c": "WAITING"}
    assert [handle.results()[name].ok_value for name in "ab"] == [1, 2]


def test_more_signals_than_are_taken_at_once_are_all_taken() -> None:
    flow = Workflow("many")
    for _ in range(450):
        flow.signal("go")
    handle = flow.send()
    for number in range(451):
        handle.signal("go", number)
    drain()
    assert handle.status() == "COMPLETED"
    assert [result.ok_value for result in handle.results().values()] == list(range(450))
    assert unused() == [450]


def test_a_signal_belongs_to_the_transaction_of_its_sender() -> None:
    flow = Workflow("go")
    flow.signal("go")
    handle = flow.send()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        handle.signal("go")
        raise ZeroDivisionError
    drain()
    assert statuses(handle) == {"go": "WAITING"}


def test_a_signal_that_nobody_can_take_is_refused_and_the_error_says_why() -> None:
    flow = Workflow("refuses")
    flow.signal("paid")
    flow.gate("approve")
    flow.sleep(DAY)
    handle = flow.send()
    with pytest.raises(LookupError, match=r"no node of run .* waits for the signal 'pay'; its signals are 'paid'"):
        handle.signal("pay")
    with pytest.raises(LookupError, match="waits for the gate 'reject'; its gates are 'approve'"):
        handle.approve("reject", actor="ada")
    with pytest.raises(WorkflowError, match="'approve' of run .* is not a signal but a gate: approve or reject it"):
        handle.signal("approve", {"approved": True})
    with pytest.raises(WorkflowError, match="'paid' of run .* is not a gate but a signal"):
        handle.approve("paid", actor="ada")
    handle.signal("paid")
    drain()
    with pytest.raises(WorkflowError, match="waited for the signal 'paid' have all finished"):
        handle.signal("paid")
    handle.cancel()
    with pytest.raises(WorkflowError, match="has ended"):
        handle.signal("paid")
    with pytest.raises(LookupError, match="there is no workflow run"):
        get_workflow("00000000-0000-7000-8000-000000000000").signal("paid")
    assert WorkflowSignal.objects.count() == 1


def test_data_that_cannot_be_encoded_or_is_too_large_is_refused() -> None:
    flow = Workflow("refuses")
    flow.signal("paid")
    handle = flow.send()
    with pytest.raises(WorkflowError, match="the signal 'paid' was not sent: .*object"):
        handle.signal("paid", object())
    with (
        override_settings(HORSIES={"MAX_PAYLOAD_BYTES": 2_000}),
        pytest.raises(WorkflowError, match="2,002 bytes .* allows 2,000"),
    ):
        handle.signal("paid", "x" * 2_000)
    for wrong in ("", "x" * 201, "\x00", 7):
        with pytest.raises(WorkflowError, match="name must be a str"):
            handle.signal(wrong)  # type: ignore[arg-type]
    with pytest.raises(WorkflowError, match="key must be a str"):
        handle.signal("paid", key="")
    assert WorkflowSignal.objects.count() == 0


def test_data_that_does_not_fit_the_annotation_is_refused_when_it_is_sent() -> None:
    """Naive: it is accepted, and the task that takes it fails; the run cannot be repaired, because no node waits any more."""
    flow = Workflow("order")
    flow.returns(flow.signal("paid", annotation=dict[str, int]))
    sent = flow.send()
    handle = get_workflow(sent.workflow_id)  # knows the id only
    expected = r"'paid' was not sent: it takes dict\[str, int\], and data\[key 1\] does not fit: expected int, got str"
    with pytest.raises(WorkflowError, match=expected):
        handle.signal("paid", {"amount": "12 EUR"})
    assert not WorkflowSignal.objects.exists()
    handle.signal("paid", {"amount": 12})
    drain()
    assert sent.get(0).ok_value == {"amount": 12}


def test_data_has_to_fit_one_of_the_nodes_that_can_take_it() -> None:
    flow = Workflow("several")
    first = flow.signal("go", annotation=int, name="int")
    flow.signal("go", annotation=str, key="k", name="str", after=first)
    flow.signal("any", annotation=int, name="a")
    flow.signal("any", name="b", after=first)
    for number in range(30):
        flow.signal("many", annotation=int, name=f"many {number}")
    flow.signal("many", annotation=str, name="the last")
    handle = flow.send()
    with pytest.raises(WorkflowError, match="it takes int, and data does not fit"):
        handle.signal("go", "text")
    with pytest.raises(WorkflowError, match="it takes int or str, and"):
        handle.signal("go", 1.5, key="k")
    handle.signal("any", [1])
    handle.signal("many", "text")
    with pytest.raises(WorkflowError, match="it takes int or str, and"):
        handle.signal("many", [1])
    handle.signal("go", 1)
    drain()
    handle.signal("go", "text", key="k")
    drain()
    assert (handle.results()["int"].ok_value, handle.results()["str"].ok_value) == (1, "text")
    with pytest.raises(WorkflowError, match="have all finished"):
        handle.signal("go", None)


# gates


def test_a_gate_waits_for_a_person_and_tells_who_decided() -> None:
    flow = Workflow("expense")
    amount = flow.add(flows.number, 900)
    gate = flow.gate("approve", after=amount, announce=flows.announced)
    flow.add(flows.anything, gate, name="pay")
    handle = flow.send()
    assert drain() == 2
    assert statuses(handle) == {
        "number": "COMPLETED",
        "approve": "WAITING",
        "announce approve": "COMPLETED",
        "pay": "PENDING",
    }
    assert handle.results()["announce approve"].ok_value == "approve"
    handle.approve("approve", actor="ada", reason="fine")
    assert drain() == 1
    assert handle.results()["pay"].ok_value == {"by": "ada", "reason": "fine"}
    (change,) = handle.history()
    assert (change.action, change.actor, change.reason, change.details) == (
        "workflow.approve",
        "ada",
        "fine",
        {"gate": "approve", "node": "1", "opening": "1"},
    )
    with pytest.raises(
        WorkflowError, match=r"'approve' of run .* was already decided by ada at \d\d:\d\d:\d\d: approved"
    ):
        handle.reject("approve", actor="bob")
    assert AuditEntry.objects.filter(subject=str(handle.workflow_id)).count() == 1


@task
def told(result: TaskResult[Any]) -> str:
    return "fine" if result.is_ok() else result.err_value.error_code


def test_a_rejected_gate_fails_and_says_who_rejected_it_and_why() -> None:
    flow = Workflow("expense")
    gate = flow.gate("approve")
    flow.add(flows.number, 1, after=gate)
    flow.add(told, gate, allow_failed=True)
    handle = flow.send()
    handle.reject("approve", actor="ada", reason="too much")
    drain()
    assert statuses(handle) == {"approve": "FAILED", "number": "SKIPPED", "told": "COMPLETED"}
    error = handle.results()["approve"].err_value
    assert (error.error_code, error.message) == ("GATE_REJECTED", "rejected by ada: too much")
    assert handle.results()["told"].ok_value == "GATE_REJECTED"
    assert AuditEntry.objects.get(subject=str(handle.workflow_id)).action == "workflow.reject"


def test_a_user_needs_the_permission_of_a_gate() -> None:
    ada, bob = User.objects.create_user("ada"), User.objects.create_user("bob")
    ada.user_permissions.add(Permission.objects.get(codename="operate_workflow"))
    flow = Workflow("expense")
    flow.gate("approve", permission="horsies.operate_workflow")
    handle = flow.send()
    with pytest.raises(PermissionDenied, match=r"bob .* horsies\.operate_workflow .* 'approve'"):
        handle.approve("approve", user=bob)
    assert statuses(handle) == {"approve": "WAITING"}
    assert not AuditEntry.objects.filter(subject=str(handle.workflow_id)).exists()
    handle.approve("approve", user=User.objects.get(pk=ada.pk))
    drain()
    assert node(handle, "approve").value == {"by": "ada", "reason": None}


# timeouts


@pytest.mark.parametrize(
    ("on_timeout", "status", "after", "run"),
    [
        ("fail", "FAILED", "SKIPPED", "FAILED"),
        ("skip", "SKIPPED", "SKIPPED", "COMPLETED"),
        ("complete", "COMPLETED", "COMPLETED", "COMPLETED"),
    ],
)
@pytest.mark.parametrize("kind", ["signal", "gate"])
def test_a_wait_that_times_out(kind: str, on_timeout: str, status: str, after: str, run: str) -> None:
    flow = Workflow("times out")
    wait = getattr(flow, kind)("go", timeout=DAY, on_timeout=on_timeout)
    flow.add(flows.anything, wait, name="after")
    handle = flow.send()
    drain(until=DAY - MINUTE)
    assert statuses(handle)["go"] == "WAITING"
    drain(until=2 * DAY)
    assert (statuses(handle), handle.status()) == ({"go": status, "after": after}, run)
    if status == "FAILED":
        assert handle.results()["go"].err_value.error_code == "WAIT_TIMED_OUT"
        assert handle.get(0).err_value.data["error_code"] == "WAIT_TIMED_OUT"


def test_an_advance_takes_some_of_many_signals_so_that_it_never_runs_into_a_statement_timeout() -> None:
    flow, many = Workflow("signals"), 400
    nodes = [flow.signal("go")]
    for _ in range(many - 1):
        nodes.append(flow.signal("go", after=nodes[-1]))
    handle = flow.send()
    for number in range(many):
        handle.signal("go", number)
    store = Advancer(1_000_000).store(connection, channel_prefix(connection))
    with store.advancing(handle.workflow_id, [], [], LIMIT) as cursor:
        advanced = Advanced(*cursor.fetchall()[0])
    assert advanced.more
    assert 0 < WorkflowNode.objects.filter(status="COMPLETED").count() < many
    drain()
    assert handle.status() == "COMPLETED"
    assert [*WorkflowNode.objects.order_by("number").values_list("value", flat=True)] == [*range(many)]


def test_a_signal_that_was_sent_in_time_wins_though_the_run_is_advanced_late_and_a_late_one_does_not() -> None:
    for early in (True, False):
        flow = Workflow("race")
        flow.signal("go", timeout=DAY)
        handle = flow.send()
        handle.signal("go", 1)
        due = node(handle, "go").due_at
        WorkflowSignal.objects.update(sent_at=due - MINUTE if early else due + MINUTE)
        drain(until=2 * DAY)
        assert statuses(handle) == {"go": "COMPLETED" if early else "FAILED"}
        assert unused() == ([] if early else [1])
        WorkflowSignal.objects.all().delete()


def test_signals_with_keys_that_were_sent_in_time_win_though_there_are_more_than_an_advance_takes() -> None:
    """Naive: an advance takes some signals, then ends all waits whose time is over, also those whose signals come next."""
    flow, many = Workflow("keyed"), 450
    for number in range(many):
        flow.signal("go", key=f"k{number}", name=f"n{number}", timeout=DAY)
    handle = flow.send()
    for number in reversed(range(many)):
        handle.signal("go", number, key=f"k{number}")
    while advance_once(handle, dt.datetime.now(dt.UTC) + 2 * DAY).more:  # no worker was there before
        pass
    assert set(statuses(handle).values()) == {"COMPLETED"}
    assert [result.ok_value for result in handle.results().values()] == [*range(many)]


@pytest.mark.parametrize("key", [None, "mine"])
def test_only_signals_of_its_name_and_key_that_came_in_time_hold_a_timeout_back(key: str | None) -> None:
    """Naive: a run that gets many signals times nothing out, until it has seen them all."""
    flow = Workflow("noise")
    flow.signal("noise", key="x")
    flow.signal("go", key=key, name="none came", timeout=DAY)
    flow.signal("go", key="other", name="late", timeout=DAY)
    flow.signal("come", key=key, name="in time", timeout=DAY)
    handle = flow.send()
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO horsies_workflow_signals (id, workflow_id, name, key, data, actor, sent_at)
            SELECT horsies_uuid7(0), %s, 'noise', 'y', '1', 'test', now() FROM generate_series(1, 300)""",
            [handle.workflow_id],
        )
    handle.signal("come", 1, key=key)
    if key is not None:
        handle.signal("go", 1, key="other")
        WorkflowSignal.objects.filter(name="go").update(sent_at=dt.datetime.now(dt.UTC) + 2 * DAY)
    advance_once(handle, dt.datetime.now(dt.UTC) + 3 * DAY)
    assert statuses(handle) == {"noise": "WAITING", "none came": "FAILED", "late": "FAILED", "in time": "WAITING"}
    drain(until=3 * DAY)
    assert statuses(handle)["in time"] == "COMPLETED"


def advance_once(handle: Any, now: dt.datetime) -> Advanced:
    """Advance a run once at a moment, in which only some of its signals are seen."""
    advancer = Advancer(1_000_000)
    advancer.now = now
    with advancer.store(connection, channel_prefix(connection)).advancing(handle.workflow_id, [], [], LIMIT) as cursor:
        return Advanced(*cursor.fetchall()[0])


# control


def test_waits_go_on_while_a_run_is_paused_and_nothing_follows_before_it_is_resumed() -> None:
    flow = Workflow("pauses")
    flow.add(flows.number, 1, after=flow.sleep(DAY), name="slept")
    flow.add(flows.anything, flow.signal("go"), name="told")
    handle = flow.send()
    handle.pause()
    handle.signal("go", 5)
    assert drain(until=2 * DAY) == 0
    assert statuses(handle) == {"sleep": "COMPLETED", "slept": "READY", "go": "COMPLETED", "told": "READY"}
    handle.resume()
    assert drain() == 2
    assert handle.status() == "COMPLETED"


def test_cancel_and_stop_end_what_waits_and_a_retry_waits_anew() -> None:
    flow = Workflow("ends")
    flow.sleep(DAY)
    flow.signal("go", timeout=MINUTE)
    flow.gate("approve")
    handle = flow.send()
    before = {each.name: each.due_at for each in WorkflowNode.objects.all()}
    handle.cancel()
    assert set(statuses(handle).values()) == {"CANCELLED"}
    drain(until=2 * DAY)
    handle.retry()
    drain()
    assert set(statuses(handle).values()) == {"WAITING"}
    after = {each.name: each.due_at for each in WorkflowNode.objects.all()}
    assert all(after[name] > before[name] for name in ("sleep", "go"))
    stops = Workflow("stops", on_error="stop")
    stops.gate("approve")
    stops.add(flows.broken)
    handle = stops.send()
    drain(raise_errors=False)
    assert statuses(handle) == {"approve": "CANCELLED", "broken": "FAILED"}


def test_a_rejected_gate_and_a_wait_that_timed_out_wait_anew_after_a_retry() -> None:
    flow = Workflow("again")
    flow.gate("approve")
    flow.signal("go", timeout=DAY)
    handle = flow.send()
    handle.reject("approve", actor="ada")
    drain(until=2 * DAY)
    assert set(statuses(handle).values()) == {"FAILED"}
    handle.retry()
    assert set(statuses(handle).values()) == {"WAITING"}
    handle.approve("approve", actor="ada")
    handle.signal("go", 1)
    drain()
    assert handle.status() == "COMPLETED"


def test_a_node_that_waits_can_be_skipped() -> None:
    flow = Workflow("skips")
    flow.add(flows.number, 1, after=flow.gate("approve"))
    handle = flow.send()
    handle.skip("approve")
    assert statuses(handle) == {"approve": "SKIPPED", "number": "SKIPPED"}
    assert handle.status() == "COMPLETED"


# elsewhere in the graph


def test_waits_join_have_conditions_and_are_members_of_child_runs() -> None:
    child = Workflow("child")
    child.returns(child.signal("go"))
    flow = Workflow("parent")
    ten, inner = flow.add(flows.number, 10), flow.add(child)
    flow.signal("never", after=ten, when=ten.matches("$ > 10"))
    flow.add(flows.anything, inner, name="end")
    flow.sleep(0, after=[ten, inner], join="any", name="any")
    handle = flow.send()
    drain()
    assert statuses(handle) == {
        "number": "COMPLETED", "child": "ENQUEUED", "never": "SKIPPED", "end": "PENDING", "any": "COMPLETED"
    }  # fmt: skip
    with pytest.raises(LookupError, match=f"The run of its node 'child' does: signal {node(handle, 'child').task_id}"):
        handle.signal("go", 3)
    get_workflow(node(handle, "child").task_id).signal("go", 3)
    drain()
    assert handle.results()["end"].ok_value == 3
    assert handle.status() == "COMPLETED"


@task
def adds_waits(n: int) -> int:
    flow = current_task().workflow
    flow.add(flows.anything, flow.signal("go", after=flow.sleep(60)), name="told")
    flow.until(dt.datetime.now(dt.UTC) + DAY)
    flow.gate("approve", announce=flows.announced)
    return n


@task
async def adds_waits_async() -> None:
    flow = current_task().workflow
    await flow.asleep(60)
    await flow.auntil(dt.datetime.now(dt.UTC))
    await flow.asignal("go")
    await flow.agate("approve", announce=flows.announced)


def test_a_running_task_adds_waits() -> None:
    flow = Workflow("grows")
    flow.add(adds_waits, 1)
    handle = flow.send()
    assert drain() == 2
    assert statuses(handle) == {
        "adds_waits": "COMPLETED", "sleep": "WAITING", "go": "PENDING", "told": "PENDING", "until": "WAITING",
        "approve": "WAITING", "announce approve": "COMPLETED",
    }  # fmt: skip
    handle.signal("go", 7)
    open_gate(handle, "approve")
    assert drain(until=2 * DAY) == 1
    assert handle.results()["told"].ok_value == 7
    assert handle.status() == "COMPLETED"
    with pytest.raises(WorkflowError, match="has ended"):
        handle.signal("go")


def test_the_gates_of_a_map_have_names_of_their_own() -> None:
    flow = Workflow("maps")
    flow.map(adds_waits, n=[1, 2])
    handle = flow.send()
    drain()
    assert node(handle, "announce approve[1]").status == "COMPLETED"
    handle.approve("approve[1]", actor="ada")
    drain()
    assert (statuses(handle)["approve[0]"], statuses(handle)["approve[1]"]) == ("WAITING", "COMPLETED")


def test_async_tasks_add_waits_and_a_signal_is_kept_while_a_task_may_add_another_wait() -> None:
    flow = Workflow("grows")
    flow.add(adds_waits_async)
    handle = flow.send()
    drain()
    assert statuses(handle)["until"] == "COMPLETED"
    for number in (1, 2):
        handle.signal("go", number)
        drain()
    assert statuses(handle)["go"] == "COMPLETED"
    assert unused() == [2], "a task may add another node of this name"


def test_retention_deletes_signals_with_their_run() -> None:
    flow = Workflow("go")
    flow.signal("go")
    handle = flow.send()
    handle.signal("go", 1)
    handle.signal("go", 2)
    drain()
    assert WorkflowSignal.objects.count() == 2
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_workflows SET finished_at = now() - interval '2 days'")
    assert RetentionStore(connection).prune_runs(DAY, 3)[3]
    assert RetentionStore(connection).prune_runs(DAY, 1_000)[0] == 1
    assert WorkflowSignal.objects.count() == 0


def test_signals_and_waits_of_a_run_that_was_deleted_by_hand_are_not_found_for_ever() -> None:
    flow = Workflow("gone")
    flow.signal("go")
    flow.sleep(DAY)
    handle = flow.send()
    handle.signal("go", 1)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM horsies_workflows")
    drain(until=2 * DAY)
    assert not WorkflowSignal.objects.exists()
    assert not WorkflowNode.objects.filter(finished_at=None).exists()


# bad input


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (
            lambda flow: flow.sleep("1 day"),
            "sleep: delay must be a timedelta or seconds, from 0 to 100 years, not '1 day'",
        ),
        (lambda flow: flow.sleep(-1), "sleep: delay must be"),
        (lambda flow: flow.sleep(float("nan")), "sleep: delay must be"),
        (lambda flow: flow.sleep(True), "sleep: delay must be"),
        (lambda flow: flow.sleep(1e300), "sleep: delay must be"),
        (lambda flow: flow.sleep(None), "sleep: delay must be"),
        (lambda flow: flow.until(dt.datetime(2030, 1, 1)), "until: until\\(\\) takes an aware datetime"),  # noqa: DTZ001
        (lambda flow: flow.until("tomorrow"), "until: until\\(\\) takes an aware datetime"),
        (lambda flow: flow.signal(""), "the name of a signal is a str of 1 to 200"),
        (lambda flow: flow.signal(7), "the name of a signal is a str of 1 to 200"),
        (lambda flow: flow.signal("a\nb"), "the name of a signal is a str of 1 to 200"),
        (lambda flow: flow.signal("a", key=7), "a: key must be a str"),
        (lambda flow: flow.signal("a", timeout=-1), "a: timeout must be"),
        (
            lambda flow: flow.signal("a", timeout=1, on_timeout="retry"),
            "a: on_timeout must be 'fail', 'skip' or 'complete'",
        ),
        (lambda flow: flow.gate("a", permission="approve"), "a: permission must be a str like 'shop.approve'"),
        (lambda flow: flow.gate("a" * 300), "a node's name must be a str"),
        (lambda flow: (flow.gate("a"), flow.gate("a")), "the name 'a' is used for two nodes"),
        (lambda flow: flow.gate("a", announce=flows.number), "announce a: .*'gate'"),
        (lambda flow: flow.add(flows.plus, flow.signal("a", annotation=str)), "'a' takes int, but a gives str"),
        (
            lambda flow: flow.add(flows.plus, flow.signal("a", annotation=int, timeout=1, on_timeout="complete")),
            "'a' takes int, but a gives int | None",
        ),
        (lambda flow: flow.add(flows.plus, flow.sleep(1)), "'a' takes int, but sleep gives None"),
    ],
)
def test_bad_input_is_named(build: Any, problem: str) -> None:
    flow = Workflow("wrong")
    build(flow)
    with pytest.raises(WorkflowDefinitionError, match=problem):
        flow.send()
    assert WorkflowNode.objects.count() == 0


def test_a_key_finds_the_first_run_though_its_absolute_times_differ() -> None:
    def built(name: str = "paid", days: int = 1) -> Workflow:
        flow = Workflow("monthly", key="november")
        flow.until(dt.datetime.now(dt.UTC) + DAY)
        flow.signal(name, timeout=days * DAY)
        return flow

    assert built().send() == built().send()
    for other in (built("sent"), built(days=2)):
        with pytest.raises(WorkflowError, match="another graph"):
            other.send()


@pytest.mark.parametrize("early", [True, False], ids=["before the wait", "during the wait"])
def test_the_signal_that_was_sent_first_is_taken_first_whatever_the_ids(early: bool) -> None:
    flow = Workflow("two")
    flow.signal("go", name="wait", after=flow.add(flows.number, 1))
    handle = flow.send()
    if not early:
        drain()
    handle.signal("go", 1)
    handle.signal("go", 2)
    WorkflowSignal.objects.filter(data=2).update(sent_at=dt.datetime.now(dt.UTC) - MINUTE)
    drain()
    assert WorkflowNode.objects.get(name="wait").value == 2
    assert unused() == [1]


def test_the_signal_that_was_sent_first_is_taken_first_of_more_than_an_advance_looks_at() -> None:
    flow = Workflow("many")
    flow.signal("go", name="wait")
    handle = flow.send()
    drain()
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO horsies_workflow_signals (id, workflow_id, name, key, data, actor, sent_at)
            SELECT horsies_uuid7(0), %s, 'go', NULL, '1', 'test', now() FROM generate_series(1, 200)""",
            [handle.workflow_id],
        )
    handle.signal("go", 2)
    WorkflowSignal.objects.filter(data=2).update(sent_at=dt.datetime.now(dt.UTC) - MINUTE)
    drain()
    assert WorkflowNode.objects.get(name="wait").value == 2
