"""What a workflow engine has to get right, scenario by scenario. Where the order of ends matters, it is made by hand."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

from horsies_django import Workflow, WorkflowDefinitionError, explain_node, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from horsies_django.workflows import advancer
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.db.drives import Hand
from tests.db.test_workflows import run, statuses
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db(transaction=True)


def tasks_of(handle: WorkflowHandle) -> int:
    return Task.objects.filter(workflow_id=handle.workflow_id).count()


def test_any_runs_at_the_first_success_and_a_quorum_is_skipped_as_soon_as_it_cannot_be_met(hand: Hand) -> None:
    """Naive: they wait for all, each success sends "any" again, or the last one brings the quorum back."""
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
    """Naive: it waits for all branches that are arguments, or fails because one is missing."""
    flow = Workflow("arguments")
    slow, fast = flow.add(flows.number, 1, name="slow"), flow.add(flows.number, 2, name="fast")
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
    """Naive: a node with a quorum that is skipped counts as a failure, whatever it was skipped for, or for an argument that
    failed, although only a condition kept the branches from running."""
    flow = Workflow("skipped", on_error=on_error)
    page, bad = flow.add(flows.number, 1), flow.add(flows.broken)
    flow.add(flows.describe, bad, allow_failed=True)
    sides = [flow.add(flows.number, n, when=page.matches("$ == 2"), name=f"side {n}") for n in range(2)]
    flow.add(flows.number, 1, after=sides, join="any", name="end")
    flow.add(flows.act, bad, after=sides, join="any", name="argument")
    flow.add(flows.number, 1, after=page, name="other")
    handle = run(flow)
    found = statuses(handle)
    assert (handle.status(), found["other"]) == ("COMPLETED", "COMPLETED")
    assert (found["end"], found["argument"]) == ("SKIPPED", "SKIPPED")


def test_a_quorum_counts_its_branches_and_no_other_nodes() -> None:
    """Naive: an argument or the node of a condition completes, so a node runs although the only branch that it needs failed.
    Or nodes that are arguments never count, so a quorum of prices is none."""
    flow = Workflow("branches")
    page, mapped, bad = flow.add(flows.number, 1), flow.map(flows.number, n=[1], name="map"), flow.add(flows.broken)
    one = page.matches("$ == 1")
    flow.add(flows.number, 1, after=bad, join="any", when=one, name="condition")
    flow.add(flows.act, page, after=bad, join="any", name="argument")
    flow.add(flows.total_list, mapped, after=bad, join="any", name="list argument")
    flow.add(flows.act, page, after=[page, bad], join="any", when=one, name="argument that is a branch")
    prices = [flow.add(flows.number, 4), bad, flow.signal("never")]
    flow.add(flows.total_list, prices, join=quorum(2), name="list")
    flow.add(flows.total_list, prices, join=quorum(2), allow_failed=True, name="list that allows failures")
    handle = run(flow)
    found = statuses(handle)
    assert [name for name, status in found.items() if status == "SKIPPED"] == ["condition", "argument", "list argument"]
    assert (found["argument that is a branch"], found["list"]) == ("COMPLETED", "PENDING")
    assert found["list that allows failures"] == "COMPLETED"
    assert explain_node(handle.workflow_id, "condition").reasons[0].code == "UPSTREAM_NOT_COMPLETED"


def test_an_input_never_counts_in_a_quorum() -> None:
    """Naive: it is there from the start, so the quorum is met before anything has run."""
    child = Workflow("child")
    a = child.input("a", int)
    child.returns(child.add(flows.act, a, after=[a, child.add(flows.broken)], join="any", name="end"))
    flow = Workflow("parent")
    flow.add(child, a=1)
    assert statuses(run(flow)) == {"child": "FAILED"}
    assert WorkflowNode.objects.get(name="end").status == "SKIPPED"


@pytest.mark.parametrize("on_error", ["fail", "stop", "pause"])
def test_a_handler_whose_condition_is_false_takes_no_failure(on_error: Any) -> None:
    """The run neither stops nor pauses: when the failure came, it was not known that the handler would be skipped."""
    flow = Workflow("handler", on_error=on_error)
    bad = flow.add(flows.broken, name="bad")
    asked = flow.add(flows.act, 0, name="asked", after=flow.add(flows.act, name="before"))
    flow.add(flows.act, after=bad, when=asked.matches("$ == 1"), allow_failed=True, name="handler")
    handle = run(flow)
    assert statuses(handle) == {"bad": "FAILED", "before": "COMPLETED", "asked": "COMPLETED", "handler": "SKIPPED"}
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
def test_a_failed_child_that_pauses_is_resumed_and_retried_with_its_parent(hand: Hand, verb: str, ended: str) -> None:
    """Naive: the parent is not paused itself, and none of its nodes has failed, so both do nothing and it waits for ever."""
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
    assert (handle.status(), statuses(handle)) == ("COMPLETED", {"child": ended, "end": "COMPLETED"})


def test_a_child_without_an_output_gives_null_and_one_that_returns_a_map_a_list() -> None:
    """Naive: no result, no argument; one child per turn; or the type of a map's element is that of its value."""
    nothing, mapped, flow = Workflow("nothing"), Workflow("mapped"), Workflow("parent")
    nothing.add(flows.number, 1)
    mapped.returns(mapped.map(flows.number, n=[1, 2, 3]))
    flow.add(flows.anything, [flow.add(nothing) for _ in range(9)], name="nulls")
    flow.add(flows.total_list, flow.add(mapped), name="sum")
    handle = flow.send()
    assert Task.objects.count() == 9 + 3
    drain()
    assert handle.results()["nulls"].ok_value == [None] * 9
    assert handle.results()["sum"].ok_value == 6


def test_workflows_that_contain_one_another_are_refused() -> None:
    """Naive: definitions that refer to each other are followed for ever, or one of them is sent as it was before."""
    one, two, three, itself = (Workflow(name) for name in ("one", "two", "three", "itself"))
    one.add(flows.number, 1)
    two.add(one)
    three.add(two)
    one.add(three)
    for flow in (one, two, three):
        with pytest.raises(WorkflowDefinitionError, match="'one' got the node 'three' after it was added to 'two'"):
            flow.send()
    itself.add(itself)
    with pytest.raises(WorkflowDefinitionError, match="itself"):
        itself.send()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "COMPLETED"),  # its engine dies after it settled the task
        ({"status": "CANCELLED", "error_code": "BY_HAND"}, "CANCELLED"),
        ({"status": "COMPLETED", "result": None}, "COMPLETED"),
        ({"status": "EXPIRED", "error_code": "TASK_EXPIRED"}, "EXPIRED"),
    ],
)
def test_whatever_ends_a_task_is_found_once(hand: Hand, columns: dict[str, Any], expected: str) -> None:
    """Naive: only engines that settle advance a run; or a missing result stops it."""
    flow = Workflow("found")
    flow.add(flows.act, flow.add(flows.act, name="first"), allow_failed=True, name="second")
    handle = hand.send(flow)
    if columns:
        Task.objects.update(finished_at=dt.datetime.now(dt.UTC), **columns)
    else:
        hand.engine.settle(hand.claims["first"])
        hand.engine.advancer.owed.clear()
    hand.claims.clear()
    hand.engine.advance()
    assert statuses(handle) == {"first": expected, "second": "ENQUEUED"}
    assert hand.engine.workflows.owed(None, 9) == []
    hand.engine.run_all()
    assert (handle.status(), tasks_of(handle)) == ("COMPLETED", 2)


def test_ready_nodes_that_a_turn_left_are_found_page_by_page(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: what is more than one turn sends is remembered only by the engine that dies."""
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
        hand.engine.advancer.owed.clear()  # it dies
    assert tasks_of(handle) == 10


def chains(many: int) -> list[WorkflowHandle]:
    """Send runs of two tasks."""
    flow = Workflow("chain")
    flow.add(flows.act, after=flow.add(flows.act, name="first"), name="second")
    return [flow.send() for _ in range(many)]


def test_a_run_that_cannot_be_advanced_does_not_hold_up_the_others(hand: Hand) -> None:
    """Naive: one poisoned run ends the round trip of eight; all wait as long as it does."""
    handles = chains(5)
    poisoned = handles[2]
    hand.engine.goes_on = None
    hand.engine.settle(*hand.engine.take())
    with refused("horsies_workflow_nodes", f"new.workflow_id = '{poisoned.workflow_id}'"):
        hand.engine.advancer.turn(hand.engine.workflows)
    assert [statuses(handle)["second"] for handle in handles] == ["ENQUEUED"] * 2 + ["PENDING"] + ["ENQUEUED"] * 2
    assert statuses(poisoned)["first"] == "ENQUEUED"
    hand.engine.start()
    hand.engine.run_all()
    assert {handle.status() for handle in handles} == {"COMPLETED"}


def test_a_kind_of_error_of_many_runs_is_logged_once_without_the_rows(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: a line of kilobytes for each run, again every 5 s; 300 such runs filled a disk."""
    chains(9)
    hand.engine.goes_on = None
    hand.engine.settle(*hand.engine.take())
    with refused("horsies_workflow_nodes", "true"):
        hand.engine.advancer.turn(hand.engine.workflows, seconds=60)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert re.fullmatch(r"workflow run [-0-9a-f]{36} could not be advanced; trying again: refused", record.getMessage())
    assert not record.exc_info
    twin = hand.engine.advancer.twin(lambda _: None)
    assert twin.repeats.kinds == {"RaiseException": (hand.engine.advancer.repeats.kinds["RaiseException"][0], 8)}
