"""What a join with "any" or a quorum counts, and what it only waits for."""

from __future__ import annotations

from typing import Any

import pytest

from horsies_django import Workflow, WorkflowDefinitionError, current_task, explain_node, quorum, task
from horsies_django.models import WorkflowNode
from horsies_django.testing import drain
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows

pytestmark = pytest.mark.django_db


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


def status(handle: Any, name: str = "end") -> str:
    return WorkflowNode.objects.get(workflow_id=handle.workflow_id, name=name).status


@task
def label(text: Any = "none") -> str:
    return str(text)


def test_the_node_of_a_condition_does_not_count_in_a_quorum() -> None:
    """Naive: it completes, so a node runs although the only branch that it needs failed."""
    flow = Workflow("condition")
    page = flow.add(flows.number, 1)
    flow.add(flows.number, 1, after=flow.add(flows.broken), join="any", when=page.matches("$ == 1"), name="end")
    handle = run(flow)
    assert (status(handle), handle.status()) == ("SKIPPED", "FAILED")
    assert explain_node(handle.workflow_id, "end").reasons[0].code == "UPSTREAM_NOT_COMPLETED"


@pytest.mark.parametrize("take", ["value", "map"])
def test_an_argument_does_not_count_in_a_quorum(take: str) -> None:
    """Naive: it completes, so a node runs although the only branch that it needs failed."""
    flow = Workflow("argument")
    given = flow.add(flows.number, 1) if take == "value" else flow.map(flows.number, n=[1])
    how = {"after": flow.add(flows.broken), "join": "any", "name": "end"}
    flow.add(label, given, **how) if take == "value" else flow.add(flows.total_list, given, **how)
    handle = run(flow)
    assert (status(handle), handle.status()) == ("SKIPPED", "FAILED")


def test_a_quorum_waits_for_its_arguments_and_its_condition() -> None:
    """Naive: it starts with the first branch, without the argument, or before the condition can be known."""
    flow = Workflow("waits")
    branch, argument, condition = flow.signal("branch"), flow.signal("argument"), flow.signal("condition")
    flow.returns(flow.add(label, argument, after=branch, join="any", when=condition.matches("$ == 1"), name="end"))
    handle = flow.send()
    for signal, before in (("condition", "PENDING"), ("branch", "PENDING"), ("argument", "COMPLETED")):
        handle.signal(signal, 1)
        drain()
        assert status(handle) == before, signal
        if before == "PENDING":
            text = explain_node(handle.workflow_id, "end").reasons[0].text
            assert "WAITING" in text
            assert ("1 did, 0 open; and for 1 other upstream nodes" in text) == (signal == "branch"), text
    assert handle.get(0).ok_value == "1"


def test_an_argument_that_failed_does_not_keep_a_quorum_from_running() -> None:
    """It is left out, as of any node that may run without it."""
    flow = Workflow("missing")
    flow.returns(flow.add(label, flow.add(flows.broken), after=flow.add(flows.number, 1), join="any", name="end"))
    handle = run(flow)
    assert (handle.get(0).ok_value, handle.status()) == ("none", "COMPLETED")


def test_an_argument_that_failed_is_not_why_a_quorum_was_not_met() -> None:
    """Naive: the run pauses with QUORUM_NOT_MET, although only a condition kept the branch from running."""
    flow = Workflow("not met", on_error="pause")
    branch = flow.add(flows.number, 2, when=flow.add(flows.number, 1).matches("$ == 2"))
    bad = flow.add(flows.broken)
    flow.add(flows.describe, bad, allow_failed=True)
    flow.add(label, bad, after=branch, join="any", name="end")
    handle = run(flow)
    assert (status(handle), handle.status()) == ("SKIPPED", "COMPLETED")


def test_a_node_that_is_also_a_branch_counts() -> None:
    """``after=`` says so, whatever else the node is given for."""
    flow = Workflow("both")
    page = flow.add(flows.number, 1)
    flow.add(label, page, after=[page, flow.add(flows.broken)], join="any", name="end", when=page.matches("$ == 1"))
    handle = run(flow)
    assert (status(handle), handle.status()) == ("COMPLETED", "COMPLETED")


@pytest.mark.parametrize("allow_failed", [False, True])
def test_a_quorum_counts_the_nodes_of_a_list(allow_failed: bool) -> None:
    """Naive: nodes that are arguments never count, so a quorum of prices is none."""
    flow = Workflow("list")
    nodes = [flow.add(flows.number, 4), flow.add(flows.broken), flow.signal("never")]
    flow.returns(flow.add(flows.total_list, nodes, join=quorum(2), allow_failed=allow_failed, name="end"))
    handle = run(flow)
    assert status(handle) == ("COMPLETED" if allow_failed else "PENDING")


def test_an_input_never_counts_in_a_quorum() -> None:
    """Naive: it is there from the start, so the quorum is met before anything has run."""
    child = Workflow("child")
    a = child.input("a", int)
    child.returns(child.add(label, a, after=[a, child.add(flows.broken)], join="any", name="end"))
    flow = Workflow("parent")
    flow.add(child, a=1)
    handle = run(flow)
    assert status(handle, "child") == "FAILED"
    assert WorkflowNode.objects.get(name="end").status == "SKIPPED"


@pytest.mark.parametrize("join", ["any", quorum(1), quorum(3)])
def test_a_quorum_of_more_than_its_branches_is_refused(join: Any) -> None:
    """Naive: arguments and the node of the condition make up the number."""
    flow = Workflow("refused")
    page = flow.add(flows.number, 1)
    after: list[Node] = [page, flow.add(flows.number, 2)] if join == quorum(3) else []
    flow.add(label, flow.add(flows.number, 3), after=after, join=join, when=page.matches("$ == 1"), name="end")
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    needs = 3 if after else 1
    assert raised.value.problems[0].startswith(
        f"end: a quorum of {needs} of {len(after)} branches is impossible: it counts"
    )


@task
def grows_a_quorum() -> None:
    flow = current_task().workflow
    page, bad = flow.add(flows.number, 1), flow.add(flows.broken)
    flow.add(flows.number, 1, after=bad, join="any", when=page.matches("$ == 1"), name="end")
    flow.add(label, page, after=page, join="any", when=page.matches("$ == 1"), name="other")


def test_a_quorum_of_a_node_that_a_task_adds_counts_branches() -> None:
    """Naive: nodes that are admitted later count their upstream nodes otherwise."""
    flow = Workflow("grows")
    flow.add(grows_a_quorum)
    handle = run(flow)
    assert (status(handle), status(handle, "other")) == ("SKIPPED", "COMPLETED")


def test_a_retry_counts_branches_only() -> None:
    """Naive: the counters of a node that ran nevertheless are counted again over all upstream nodes."""
    flow = Workflow("again")
    page, bad = flow.add(flows.number, 1), flow.add(flows.broken)
    flow.add(label, page, after=[bad, flow.add(flows.number, 2)], join="any", when=bad.matches("$ == 1"), name="end")
    flow.add(label, page, after=[bad, flow.add(flows.number, 2)], join="any", name="ran")
    handle = run(flow)
    handle.retry()
    drain(raise_errors=False)
    counted = {node.name: (node.branches, node.open, node.ok, node.bad) for node in WorkflowNode.objects.all()}
    assert (counted["ran"], counted["end"]) == ((2, 0, 1, 1), (2, 0, 1, 1))
