"""Runs that end and continue as another run."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import Workflow, WorkflowDefinitionError, WorkflowError
from horsies_django.models import Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.store.notify import channel_prefix
from horsies_django.store.workflows import WorkflowStore
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Aside, wait_for_anybody
from tests.db.drives import MAX_BYTES, Hand, inside
from tests.db.test_workflows import statuses

pytestmark = pytest.mark.django_db(transaction=True)


def second(**options: Any) -> Workflow:
    """Return a workflow that another one continues as."""
    flow = Workflow("saga", **options)
    flow.returns(flow.add(flows.act, name="later"))
    return flow


def test_a_run_ends_and_its_successor_begins_with_its_values(hand: Hand) -> None:
    following = Workflow("following")
    following.returns(following.add(flows.plus, following.input("a", int), b=following.input("b", int)))
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
        "number": "COMPLETED", "continue": "COMPLETED", "slow": "ENQUEUED", "never": "CANCELLED"
    }  # fmt: skip
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
    assert (found.get(0).ok_value, handle.status(), statuses(handle)["slow"]) == (7, "COMPLETED", "CANCELLED")
    assert handle.get(0).ok_value == 7
    with pytest.raises(WorkflowError, match="it continued as another run"):
        handle.retry()
    assert handle.cancel() is False
    assert hand.engine.workflows.owed(None, 9) == []


def test_async_code_follows_a_loop_and_the_value_is_not_read_with_the_type_of_the_first_run() -> None:
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
    found, next_ = [handle], handle
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
    with pytest.raises(WorkflowError, match="another graph"):
        flows.loop(1, 3, key="k").send()
    WorkflowRun.objects.filter(pk=handle.workflow_id)._raw_delete("default")
    assert found[1].latest() == last
    for verb in (handle.successor, handle.latest):
        with pytest.raises(LookupError, match="there is no workflow run"):
            verb()


@pytest.mark.parametrize(
    ("code", "status", "node", "runs"), [(None, "COMPLETED", "COMPLETED", 2), ("BROKEN", "FAILED", "SKIPPED", 1)]
)
def test_a_successor_waits_for_the_success_of_the_task_that_adds_it_and_is_one_in_all_attempts(
    hand: Hand, code: str | None, status: str, node: str, runs: int
) -> None:
    """Naive: an advance takes the new node up while the task still runs, whose outcome is then lost."""
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


def test_a_run_that_continues_begins_one_successor_cancels_runs_inside_and_undoes_nothing(hand: Hand) -> None:
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
        "child": "CANCELLED", "one": "COMPLETED", "continue": "COMPLETED", "other": "CANCELLED"
    }  # fmt: skip
    assert (handle.status(), handle.latest().status()) == ("COMPLETED", "COMPLETED")
    assert WorkflowRun.objects.count() == 3
    assert not WorkflowNode.objects.filter(finished_at=None).exists()


def test_a_successor_that_cannot_begin_fails_its_node_and_not_its_neighbours(hand: Hand) -> None:
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


def test_signals_decisions_and_controls_with_the_old_id_reach_the_last_run(hand: Hand) -> None:
    following = Workflow("second")
    following.continue_as(third())
    flow = Workflow("first")
    flow.continue_as(following)
    handle = flow.send()
    last = handle.latest()
    assert last not in (handle, handle.successor())
    handle.signal("go", 7)
    with pytest.raises(LookupError, match=f"run {last.workflow_id} waits for the signal 'other'; its signals are 'go'"):
        handle.signal("other")
    handle.approve("legal", actor="ada")
    assert handle.pause(actor="ada")
    assert (handle.status(), last.status()) == ("COMPLETED", "PAUSED")
    assert handle.resume()
    hand.engine.advance()
    assert statuses(last) == {"go": "COMPLETED", "legal": "COMPLETED", "stays": "WAITING"}
    assert (statuses(handle), handle.history()) == ({"continue": "COMPLETED"}, [])
    assert [change.action for change in last.history()] == ["workflow.approve", "workflow.pause", "workflow.resume"]
    assert handle.cancel()
    assert (last.status(), handle.get(0).err_value.error_code) == ("CANCELLED", "WORKFLOW_CANCELLED")
    with pytest.raises(WorkflowError, match=f"run {last.workflow_id} has ended"):
        handle.signal("go")


def test_a_signal_whose_sender_had_not_seen_the_end_of_the_run_is_passed_on(hand: Hand, connect: Connect) -> None:
    """Naive: it commits after the run has continued, and is never looked at, or stays with the run that has ended."""
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
    assert [each.workflow for each in hand.engine.workflows.owed(None, 9)] == [handle.workflow_id]
    hand.finish()
    last = handle.latest()
    assert statuses(last)["go"] == "COMPLETED"
    assert WorkflowSignal.objects.get().workflow_id == last.workflow_id
    assert hand.engine.workflows.owed(None, 9) == []


def test_a_control_that_waited_while_the_run_continued_changes_the_last_run(
    hand: Hand, connect: Connect, aside: Aside
) -> None:
    flow = Workflow("first")
    flow.continue_as(third(), after=flow.add(flows.act, name="one"))
    handle = hand.send(flow)
    tasks = [task for _, task in hand.engine.settle(hand.claims.pop("one")).in_runs]

    with hand.engine.conn.transaction():
        while hand.engine.advance_run(handle.workflow_id, tasks).more:
            pass  # a slow machine puts some of it off
        changed = aside(handle.cancel)
        wait_for_anybody(connect())
    assert changed.result()
    assert handle.latest().status() == "CANCELLED"


def test_a_task_is_told_at_once_that_its_run_cannot_continue(hand: Hand) -> None:
    child = Workflow("child")
    child.add(flows.act, name="nested")
    flow = Workflow("outer", key="k")
    flow.add(flows.act, name="keyed")
    flow.add(child)
    hand.send(flow)
    for name, problem in (
        ("nested", "continue: its run is a node of another one, and cannot continue as another"),
        ("keyed", "continue: a run with a key continues under its name, 'outer', so that the key finds it; not 'saga'"),
    ):
        with pytest.raises(WorkflowDefinitionError, match=problem):
            inside(hand.claims[name]).continue_as(second())
