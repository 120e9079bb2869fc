"""The behaviour that a workflow engine must have, scenario by scenario.

Where the order of ends matters, it is made by hand.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import Workflow, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.store.notify import channel_prefix
from horsies_django.store.workflows import WorkflowStore
from horsies_django.testing import drain
from horsies_django.workflows import advancer
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Aside, wait_for_anybody
from tests.db.drives import MAX_BYTES, Hand, chain, inside
from tests.db.test_workflows import refuses, run, statuses
from tests.support.refusing import refused


def tasks_of(handle: WorkflowHandle) -> int:
    return Task.objects.filter(workflow_id=handle.workflow_id).count()


def test_any_runs_at_the_first_success(
    hand: Hand,
) -> None:
    """ "any" runs at the first success, and a quorum is skipped as soon as it cannot be met.

    Fails if: they wait for all branches, each success sends "any" again, or the last success
    revives the quorum.
    """
    flow = Workflow("joins")
    nodes = [flow.add(flows.act, name=name) for name in "abcd"]
    flow.add(flows.act, after=nodes[1:], join="any", name="any")
    flow.add(flows.act, after=nodes, join=quorum(3), name="quorum")
    flow.add(flows.act, after=nodes[1:], join=quorum(2), allow_failed=True, name="two ends")
    handle = hand.send(flow)

    hand.end("b")
    assert "any" in hand.take()
    assert statuses(handle)["two ends"] == "PENDING"

    hand.end("c", "a", code="BROKEN")
    found = statuses(handle)
    assert (found["d"], found["quorum"], found["two ends"]) == ("ENQUEUED", "SKIPPED", "ENQUEUED")

    hand.finish()
    assert statuses(handle)["quorum"] == "SKIPPED"
    assert (handle.status(), tasks_of(handle)) == ("FAILED", 6)
    assert handle.get(0).err_value.data["node"] == "a", "others took the failure of c"


def test_a_quorum_gets_the_results_that_are_there(hand: Hand) -> None:
    """Fails if: the node waits for all branches that are arguments, or fails because one is
    missing.
    """
    flow = Workflow("arguments")
    slow = flow.add(flows.number, 1, name="slow")
    fast = flow.add(flows.number, 2, name="fast")
    flow.add(flows.total_list, [slow, fast], join="any", name="list")
    flow.add(flows.describe, slow, after=[slow, fast], join="any", name="result")
    flow.add(flows.act, slow, after=[slow, fast], join="any", name="default")

    hand.send(flow)
    hand.end("fast", value=2)
    hand.take()

    assert [hand.claims[name].kwargs for name in ("list", "default")] == ['{"values": [2]}', "{}"]
    assert '"error_code": "RESULT_NOT_READY"' in hand.claims["result"].kwargs


@pytest.mark.parametrize("on_error", ["fail", "stop", "pause"])
def test_a_quorum_that_conditions_made_impossible_is_no_failure(on_error: str) -> None:
    """Fails if: a skipped node with a quorum counts as a failure, for whatever reason, or because
    an argument failed, although only a condition kept the branches from running.
    """
    flow = Workflow("skipped", on_error=on_error)
    page = flow.add(flows.number, 1)
    bad = flow.add(flows.broken)
    flow.add(flows.describe, bad, allow_failed=True)

    sides = [
        flow.add(flows.number, n, when=page.matches("$ == 2"), name=f"side {n}") for n in range(2)
    ]
    flow.add(flows.number, 1, after=sides, join="any", name="end")
    flow.add(flows.act, bad, after=sides, join="any", name="argument")
    flow.add(flows.number, 1, after=page, name="other")

    handle = run(flow)
    found = statuses(handle)

    assert (handle.status(), found["other"]) == ("COMPLETED", "COMPLETED")
    assert (found["end"], found["argument"]) == ("SKIPPED", "SKIPPED")


def test_an_input_never_counts_in_a_quorum() -> None:
    """Fails if: the input counts as complete from the start, so that the quorum is met before any
    task has run.
    """
    child = Workflow("child")
    a = child.input("a", int)
    child.returns(
        child.add(flows.act, a, after=[a, child.add(flows.broken)], join="any", name="end")
    )

    flow = Workflow("parent")
    flow.add(child, a=1)

    assert statuses(run(flow)) == {"child": "FAILED"}
    assert WorkflowNode.objects.get(name="end").status == "SKIPPED"


@pytest.mark.parametrize("on_error", ["fail", "stop", "pause"])
def test_a_handler_whose_condition_is_false_takes_no_failure(on_error: Any) -> None:
    """A failure with a handler neither stops nor pauses the run.

    At that time it was unknown that the condition would skip the handler.
    """
    flow = Workflow("handler", on_error=on_error)
    bad = flow.add(flows.broken, name="bad")
    asked = flow.add(flows.act, 0, name="asked", after=flow.add(flows.act, name="before"))
    flow.add(flows.act, after=bad, when=asked.matches("$ == 1"), allow_failed=True, name="handler")

    handle = run(flow)

    assert statuses(handle) == {
        "bad": "FAILED",
        "before": "COMPLETED",
        "asked": "COMPLETED",
        "handler": "SKIPPED",
    }
    assert (handle.status(), handle.get(0).err_value.data["node"]) == ("FAILED", "bad")


def test_a_second_failure_keeps_the_error_of_the_first(hand: Hand) -> None:
    flow = Workflow("two failures", on_error="pause")
    for name in "ab":
        flow.add(flows.act, name=name)
    handle = hand.send(flow)

    hand.end("b", code="FIRST")
    hand.end("a", code="SECOND")
    assert handle.status() == "PAUSED"

    handle.resume()
    assert handle.get(0).err_value.data == {"node": "b", "error_code": "FIRST"}


@pytest.mark.parametrize(("verb", "ended"), [("resume", "FAILED"), ("retry", "COMPLETED")])
def test_a_failed_child_that_pauses_is_retried_with_its_parent(
    hand: Hand, verb: str, ended: str
) -> None:
    """A failed child that pauses is resumed and retried together with its parent.

    Fails if: both do nothing, because the parent is not paused itself and none of its nodes has
    failed, and the parent waits for ever.
    """
    child = Workflow("child", on_error="pause")
    child.add(flows.act, name="bad")
    flow = Workflow("parent")
    flow.add(flows.act, after=flow.add(child, name="child"), allow_failed=True, name="end")
    handle = hand.send(flow)

    hand.end("bad", code="BROKEN")
    assert (handle.status(), WorkflowRun.objects.get(name="child").status) == ("RUNNING", "PAUSED")

    if verb == "retry":
        handle.pause()
    getattr(handle, verb)()
    assert hand.take() == ({"bad"} if verb == "retry" else set())

    hand.finish()
    assert (handle.status(), statuses(handle)) == (
        "COMPLETED",
        {"child": ended, "end": "COMPLETED"},
    )


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "COMPLETED"),  # its engine dies after it settled the task
        ({"status": "CANCELLED", "error_code": "BY_HAND"}, "CANCELLED"),
        ({"status": "COMPLETED", "result": None}, "COMPLETED"),
        ({"status": "EXPIRED", "error_code": "TASK_EXPIRED"}, "EXPIRED"),
    ],
)
def test_every_end_of_a_task_advances_its_run_once(
    hand: Hand, columns: dict[str, Any], expected: str
) -> None:
    """Fails if: only the engine of a task advances its run; or a missing result stops the run."""
    flow = Workflow("found")
    flow.add(flows.act, flow.add(flows.act, name="first"), allow_failed=True, name="second")
    handle = hand.send(flow)

    if columns:
        Task.objects.update(finished_at=dt.datetime.now(dt.UTC), **columns)
    else:
        hand.engine.settle(hand.claims["first"])
        hand.engine.advancer.pending_runs.clear()

    hand.claims.clear()
    hand.engine.advance()
    assert statuses(handle) == {"first": expected, "second": "ENQUEUED"}
    assert hand.engine.workflows.advance_reasons(None, 9) == []

    hand.engine.run_all()
    assert (handle.status(), tasks_of(handle)) == ("COMPLETED", 2)


def test_ready_nodes_that_a_turn_left_are_found_page_by_page(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: nodes beyond the limit of a turn are known only to the engine, which dies."""
    monkeypatch.setattr(advancer, "LIMIT", 2)
    flow = Workflow("many")
    root = flow.add(flows.act, name="root")
    for place in range(9):
        flow.add(flows.act, after=root, name=f"{place}")

    handle = hand.send(flow)
    hand.engine.settle(hand.claims.pop("root"))

    while hand.engine.advancer.find(hand.engine.workflows, dt.timedelta(minutes=1), 1):
        before = tasks_of(handle)
        hand.engine.advancer.turn(hand.engine.workflows)
        assert tasks_of(handle) - before <= 2
        hand.engine.advancer.pending_runs.clear()  # as if the engine died

    assert tasks_of(handle) == 10


def settled(hand: Hand, many: int) -> list[WorkflowHandle]:
    """Send runs of two tasks, and complete the first ones, without advancing the runs."""
    handles = [chain("first", "second").send() for _ in range(many)]
    hand.engine.goes_on = None
    hand.engine.settle(*hand.engine.take())
    return handles


def test_a_run_that_cannot_be_advanced_does_not_delay_others(hand: Hand) -> None:
    """A run that cannot be advanced does not delay the others.

    Fails if: one broken run ends the round trip of eight, and all wait as long as it does.
    """
    handles = settled(hand, 5)
    poisoned = handles[2]

    with refused("horsies_workflow_nodes", f"new.workflow_id = '{poisoned.workflow_id}'"):
        hand.engine.advancer.turn(hand.engine.workflows)

    assert [statuses(handle)["second"] for handle in handles] == ["ENQUEUED"] * 2 + ["PENDING"] + [
        "ENQUEUED"
    ] * 2
    assert statuses(poisoned)["first"] == "ENQUEUED"

    hand.engine.start()
    hand.engine.run_all()
    assert {handle.status() for handle in handles} == {"COMPLETED"}


def test_an_error_of_many_runs_is_logged_once_without_rows(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: each run logs kilobytes, again every 5 s; 300 such runs filled a disk."""
    settled(hand, 9)
    with refused("horsies_workflow_nodes"):
        hand.engine.advancer.turn(hand.engine.workflows, seconds=60)

    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert re.fullmatch(
        r"workflow run [-0-9a-f]{36} could not be advanced, and is tried again: refused",
        record.getMessage(),
    )
    assert not record.exc_info

    twin = hand.engine.advancer.twin(lambda _: None)
    assert twin.repeats.kinds == {
        "RaiseException": (hand.engine.advancer.repeats.kinds["RaiseException"][0], 8)
    }


# runs that end and continue as another run


def second(**options: Any) -> Workflow:
    """Return a workflow that is the successor of another one."""
    flow = Workflow("saga", **options)
    flow.returns(flow.add(flows.act, name="later"))
    return flow


def test_a_run_ends_and_its_successor_begins_with_its_values(hand: Hand) -> None:
    following = Workflow("following")
    following.returns(
        following.add(flows.plus, following.input("a", int), b=following.input("b", int))
    )

    flow = Workflow("first")
    value = flow.add(flows.number, 4)
    flow.continue_as(following, a=value, b=3)
    flow.add(flows.act, after=flow.add(flows.act, name="slow"), name="never")
    handle = flow.send()

    assert handle.successor() is None
    assert handle.latest() == handle

    hand.take()
    hand.end("number", value=4)
    assert (handle.status(), handle.get(0).err_value.error_code) == ("COMPLETED", "WAIT_TIMEOUT")
    assert statuses(handle) == {
        "number": "COMPLETED",
        "continue": "COMPLETED",
        "slow": "ENQUEUED",
        "never": "CANCELLED",
    }
    assert WorkflowNode.objects.get(name="never").error_code == "WORKFLOW_CONTINUED"
    assert Task.objects.get(pk=hand.claims["slow"].id).cancel_requested_at is not None

    found = handle.successor()
    assert found is not None
    assert handle.latest() == found
    assert WorkflowRun.objects.get(pk=found.workflow_id).continues == handle.workflow_id

    hand.take()
    assert hand.claims["plus"].kwargs == '{"a": 4, "b": 3}'
    hand.end("plus", value=7)
    hand.end("slow", code="TASK_CANCELLED")

    assert (found.get(0).ok_value, handle.status(), statuses(handle)["slow"]) == (
        7,
        "COMPLETED",
        "CANCELLED",
    )
    assert handle.get(0).ok_value == 7

    refuses("it continued as another run", handle.retry)
    assert handle.cancel() is False
    assert hand.engine.workflows.advance_reasons(None, 9) == []


def test_async_code_reads_the_value_of_the_last_run_of_a_loop() -> None:
    """Async code can follow a loop, and the value is not read with the type of the first run."""
    flow = Workflow("first")
    flow.returns(flow.add(flows.page, "en", flow.add(flows.next_round_async, 2)))
    handle = flow.send()
    drain()

    async def follow() -> tuple[Any, Any, Any]:
        last = await handle.alatest()
        return await handle.asuccessor(), last, (await handle.aget(0)).ok_value

    following, last, value = async_to_sync(follow)()

    assert following.successor() == last
    assert value == handle.get(0).ok_value == last.get(0).ok_value == 0


def test_a_loop_keeps_its_key_and_one_run_lives_at_a_time() -> None:
    handle = flows.loop(0, 3, key="k").send()
    found = [handle]
    next_ = handle
    drain()

    while (next_ := next_.successor()) is not None:
        found.append(next_)

    last = found[-1]
    assert [*WorkflowRun.objects.order_by("sent_at").values_list("pk", "status", "key")] == [
        (one.workflow_id, "COMPLETED", "k" if one is last else None) for one in found
    ]

    assert len(found) == 4
    assert flows.loop(0, 3, key="k").send() == last
    assert handle.latest() == found[2].latest() == last
    assert last.get(0).ok_value == 3
    refuses("another graph", flows.loop(1, 3, key="k").send)

    WorkflowRun.objects.filter(pk=handle.workflow_id)._raw_delete("default")
    assert found[1].latest() == last
    for verb in (handle.successor, handle.latest):
        refuses("there is no workflow run", verb, error=LookupError)


@pytest.mark.parametrize(
    ("code", "status", "node", "runs"),
    [(None, "COMPLETED", "COMPLETED", 2), ("BROKEN", "FAILED", "SKIPPED", 1)],
)
def test_a_successor_begins_once_after_the_success_of_its_task(
    hand: Hand, code: str | None, status: str, node: str, runs: int
) -> None:
    """A successor begins after the success of the task that adds it, once for all attempts.

    Fails if: an advance begins the new node while the task still runs, so that the outcome of the
    task is lost.
    """
    flow = Workflow("adds")
    flow.add(flows.act, name="adder")
    handle = hand.send(flow)
    claim = hand.claims["adder"]

    for _ in range(2):
        inside(claim).continue_as(second())

    hand.engine.advancer.find(hand.engine.workflows, None, 9)
    hand.engine.advance()
    assert (handle.status(), statuses(handle)["continue"]) == ("RUNNING", "PENDING")

    hand.end("adder", code=code)
    assert (handle.status(), statuses(handle)["continue"]) == (status, node)
    hand.finish()
    assert (WorkflowRun.objects.count(), handle.latest().status()) == (runs, status)


def test_a_run_that_continues_cancels_its_child_runs(
    hand: Hand,
) -> None:
    """A run that continues begins one successor, cancels its child runs, and undoes no node."""
    child = Workflow("child")
    child.add(flows.act, after=child.add(flows.act, name="inside"), name="then")

    flow = Workflow("parent")
    flow.add(child)
    one = flow.add(flows.act, name="one", undo=flows.unact)
    flow.continue_as(second(), after=one)
    flow.continue_as(second(), after=one, name="other")
    handle = hand.send(flow)

    hand.end("one")
    assert WorkflowRun.objects.get(name="child").status == "CANCELLED"

    hand.finish()
    assert statuses(handle) == {
        "child": "CANCELLED",
        "one": "COMPLETED",
        "continue": "COMPLETED",
        "other": "CANCELLED",
    }
    assert (handle.status(), handle.latest().status()) == ("COMPLETED", "COMPLETED")
    assert WorkflowRun.objects.count() == 3
    assert not WorkflowNode.objects.filter(finished_at=None).exists()


def test_a_successor_that_cannot_begin_fails_only_its_node(hand: Hand) -> None:
    """A successor that cannot begin fails its node, and does not affect other nodes."""
    following = Workflow("following")
    following.add(flows.act, following.input("value"))
    flow = Workflow("large")
    flow.continue_as(following, value=flow.add(flows.act, name="one"))
    flow.add(flows.act, after=flow.nodes[0], name="neighbour")
    handle = hand.send(flow)

    hand.end("one", value="x" * 1_000_001)
    hand.finish()

    assert (handle.status(), handle.successor()) == ("FAILED", None)
    assert handle.get(0).err_value.data == {"node": "continue", "error_code": "PAYLOAD_TOO_LARGE"}
    assert statuses(handle)["neighbour"] == "COMPLETED"


# what reaches the successor


def third() -> Workflow:
    flow = Workflow("third")
    flow.signal("go")
    flow.gate("legal")
    flow.gate("stays")
    return flow


def test_signals_and_controls_with_the_old_id_reach_the_last_run(hand: Hand) -> None:
    """Signals, decisions and controls with the old id reach the last run."""
    following = Workflow("second")
    following.continue_as(third())
    flow = Workflow("first")
    flow.continue_as(following)

    handle = flow.send()
    last = handle.latest()
    assert last not in (handle, handle.successor())

    handle.signal("go", 7)
    other = f"run {last.workflow_id} waits for the signal 'other'; its signals are 'go'"
    refuses(other, handle.signal, "other", error=LookupError)
    handle.approve("legal", actor="ada")

    assert handle.pause(actor="ada")
    assert (handle.status(), last.status()) == ("COMPLETED", "PAUSED")
    assert handle.resume()
    hand.engine.advance()

    assert statuses(last) == {"go": "COMPLETED", "legal": "COMPLETED", "stays": "WAITING"}
    assert (statuses(handle), handle.history()) == ({"continue": "COMPLETED"}, [])
    assert [change.action for change in last.history()] == [
        "workflow.approve",
        "workflow.pause",
        "workflow.resume",
    ]

    assert handle.cancel()
    assert (last.status(), handle.get(0).err_value.error_code) == (
        "CANCELLED",
        "WORKFLOW_CANCELLED",
    )
    refuses(f"run {last.workflow_id} has ended", handle.signal, "go")


def test_a_signal_sent_during_the_end_of_a_run_is_passed_on(hand: Hand, connect: Connect) -> None:
    """A signal is passed on to the successor if its sender had not seen the end of the run.

    Fails if: the signal commits after the run has continued, and is never processed or stays with
    the ended run.
    """
    following = Workflow("second")
    following.continue_as(third(), after=following.add(flows.act, name="two"))
    flow = Workflow("first")
    flow.signal("go", after=flow.add(flows.act, name="one"))
    flow.continue_as(following, after=flow.nodes[0])
    handle = hand.send(flow)
    sender = connect()

    with sender.transaction():
        store = WorkflowStore(sender, channel_prefix(connection), MAX_BYTES)
        assert store.signal(handle.workflow_id, "go", None, "7", "late", 0)[0] == "SENT"
        hand.end("one")
        assert handle.successor() is not None

    assert [each.workflow for each in hand.engine.workflows.advance_reasons(None, 9)] == [
        handle.workflow_id
    ]
    hand.finish()

    last = handle.latest()
    assert statuses(last)["go"] == "COMPLETED"
    assert WorkflowSignal.objects.get().workflow_id == last.workflow_id
    assert hand.engine.workflows.advance_reasons(None, 9) == []


def test_a_control_that_waited_changes_the_last_run(
    hand: Hand, connect: Connect, aside: Aside
) -> None:
    flow = Workflow("first")
    flow.continue_as(third(), after=flow.add(flows.act, name="one"))
    handle = hand.send(flow)
    tasks = [task for _, task in hand.engine.settle(hand.claims.pop("one")).in_runs]

    with hand.engine.conn.transaction():
        while hand.engine.advance_run(handle.workflow_id, tasks).more:
            pass  # on a slow machine one advance does not finish
        changed = aside(handle.cancel)
        wait_for_anybody(connect())

    assert changed.result()
    assert handle.latest().status() == "CANCELLED"
