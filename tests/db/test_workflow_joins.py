"""What joins count and what they only wait for, what conditions decide, and which node takes a failure."""

from __future__ import annotations

from typing import Any

import pytest

from horsies_django import Workflow, WorkflowDefinitionError, explain_node, quorum, task
from horsies_django.models import WorkflowNode
from horsies_django.testing import drain
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows
from tests.db.drives import Hand
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


@task
def label(text: Any = "none") -> str:
    return str(text)


# a quorum


def test_a_quorum_counts_its_branches_and_no_other_nodes() -> None:
    """Naive: an argument or the node of a condition completes, so a node runs although the only branch that it needs failed.
    Or nodes that are arguments never count, so a quorum of prices is none."""
    flow = Workflow("branches")
    page, mapped, bad = flow.add(flows.number, 1), flow.map(flows.number, n=[1], name="map"), flow.add(flows.broken)
    one = page.matches("$ == 1")
    flow.add(flows.number, 1, after=bad, join="any", when=one, name="condition")
    flow.add(label, page, after=bad, join="any", name="argument")
    flow.add(flows.total_list, mapped, after=bad, join="any", name="list argument")
    flow.add(label, page, after=[page, bad], join="any", when=one, name="argument that is a branch")
    prices = [flow.add(flows.number, 4), bad, flow.signal("never")]
    flow.add(flows.total_list, prices, join=quorum(2), name="list")
    flow.add(flows.total_list, prices, join=quorum(2), allow_failed=True, name="list that allows failures")
    handle = run(flow)
    found = statuses(handle)
    assert [name for name, status in found.items() if status == "SKIPPED"] == ["condition", "argument", "list argument"]
    assert (found["argument that is a branch"], found["list"]) == ("COMPLETED", "PENDING")
    assert found["list that allows failures"] == "COMPLETED"
    assert explain_node(handle.workflow_id, "condition").reasons[0].code == "UPSTREAM_NOT_COMPLETED"


def test_a_retry_counts_branches_only() -> None:
    flow = Workflow("again")
    page, bad = flow.add(flows.number, 1), flow.add(flows.broken)
    flow.add(label, page, after=[bad, flow.add(flows.number, 2)], join="any", when=bad.matches("$ == 1"), name="end")
    flow.add(label, page, after=[bad, flow.add(flows.number, 2)], join="any", name="ran")
    run(flow).retry()
    drain(raise_errors=False)
    counted = {node.name: (node.branches, node.open, node.ok, node.bad) for node in WorkflowNode.objects.all()}
    assert (counted["ran"], counted["end"]) == ((2, 0, 1, 1), (2, 0, 1, 1))


def test_an_input_never_counts_in_a_quorum() -> None:
    """Naive: it is there from the start, so the quorum is met before anything has run."""
    child = Workflow("child")
    a = child.input("a", int)
    child.returns(child.add(label, a, after=[a, child.add(flows.broken)], join="any", name="end"))
    flow = Workflow("parent")
    flow.add(child, a=1)
    assert statuses(run(flow)) == {"child": "FAILED"}
    assert WorkflowNode.objects.get(name="end").status == "SKIPPED"


def test_a_quorum_waits_for_its_arguments_and_its_condition() -> None:
    """Naive: it starts with the first branch, without the argument, or before the condition can be known."""
    flow = Workflow("waits")
    branch, argument, condition = flow.signal("branch"), flow.signal("argument"), flow.signal("condition")
    flow.returns(flow.add(label, argument, after=branch, join="any", when=condition.matches("$ == 1"), name="end"))
    handle = flow.send()
    for signal, others in (("condition", False), ("branch", True)):
        handle.signal(signal, 1)
        drain()
        assert statuses(handle)["end"] == "PENDING", signal
        text = explain_node(handle.workflow_id, "end").reasons[0].text
        assert "WAITING" in text
        assert ("1 did, 0 open; and for 1 other upstream nodes" in text) == others, text
    handle.signal("argument", 1)
    drain()
    assert handle.get(0).ok_value == "1"


def test_an_argument_that_failed_is_not_why_a_quorum_was_not_met() -> None:
    """Naive: the run pauses with QUORUM_NOT_MET, although only a condition kept the branch from running."""
    flow = Workflow("not met", on_error="pause")
    branch = flow.add(flows.number, 2, when=flow.add(flows.number, 1).matches("$ == 2"))
    bad = flow.add(flows.broken)
    flow.add(flows.describe, bad, allow_failed=True)
    flow.add(label, bad, after=branch, join="any", name="end")
    handle = run(flow)
    assert (statuses(handle)["end"], handle.status()) == ("SKIPPED", "COMPLETED")


def test_with_failures_allowed_a_quorum_counts_nodes_that_ended_in_any_way(hand: Hand) -> None:
    flow = Workflow("any end")
    members = [flow.add(flows.act, name=name) for name in "abc"]
    flow.add(flows.act, after=members, join=quorum(2), allow_failed=True, name="node")
    handle = flow.send()
    hand.take()
    hand.end("a", code="BROKEN")
    assert statuses(handle)["node"] == "PENDING"
    hand.end("b", code="TASK_SKIPPED")
    assert statuses(handle)["node"] == "ENQUEUED"
    hand.finish()
    assert handle.status() == "COMPLETED"


@pytest.mark.parametrize(("join", "needs", "branches"), [("any", 1, 0), (quorum(1), 1, 0), (quorum(3), 3, 2)])
def test_a_quorum_of_more_than_its_branches_is_refused(join: Any, needs: int, branches: int) -> None:
    flow = Workflow("refused")
    page = flow.add(flows.number, 1)
    after: list[Node] = [page, flow.add(flows.number, 2)][:branches]
    flow.add(label, flow.add(flows.number, 3), after=after, join=join, when=page.matches("$ == 1"), name="end")
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    (problem,) = raised.value.problems
    assert problem.startswith(f"end: a quorum of {needs} of {branches} branches is impossible: it counts")


# conditions


@pytest.mark.parametrize("allow_failed", [False, True])
def test_a_condition_on_a_node_that_did_not_complete_is_false_also_if_failures_are_allowed(allow_failed: bool) -> None:
    """So the node does not run, and takes no failure."""
    flow = Workflow("false")
    asked = flow.add(flows.broken, name="asked")
    flow.add(flows.act, when=asked.matches("true"), allow_failed=allow_failed, name="node")
    handle = run(flow)
    assert (statuses(handle)["node"], handle.status()) == ("SKIPPED", "FAILED")


# who takes a failure


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
