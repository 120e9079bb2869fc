"""Tasks that add nodes to their own run, also in a second attempt."""

from __future__ import annotations

import pytest

from horsies_django import Workflow
from horsies_django.models import WorkflowNode
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


def test_a_running_task_adds_nodes() -> None:
    flow = Workflow("grows")
    flow.add(flows.grows, 3)
    handle = run(flow)
    assert handle.status() == "COMPLETED"
    assert WorkflowNode.objects.filter(workflow_id=handle.workflow_id, status="COMPLETED").count() == 4


def test_async_tasks_grow_and_read_results() -> None:
    flow = Workflow("async")
    flow.add(flows.grows_async, 10)
    mapped = flow.map(flows.plus, a=[1, 2, 3])
    flow.returns(flow.add(flows.total_async, mapped))
    handle = run(flow)
    assert handle.get(0).ok_value == 9
    assert handle.results()["sum"].ok_value == 23


def test_results_leave_out_no_node_although_tasks_added_some_of_one_name() -> None:
    """Naive: they are kept by name, and one hides the other."""
    flow = Workflow("one name")
    for n in (1, 2):
        flow.add(flows.grows_async, n)
    results = run(flow).results()
    firsts = {name: result.ok_value for name, result in results.items() if name.startswith("first")}
    numbers = WorkflowNode.objects.filter(name="first").order_by("number").values_list("number", flat=True)
    assert firsts.keys() == {"first", f"first ({numbers[1]})"}
    assert sorted(firsts.values()) == [1, 2]
    assert len(results) == WorkflowNode.objects.count()


def test_a_second_attempt_adds_no_node_twice() -> None:
    flow = Workflow("again")
    flow.add(flows.grows_and_fails, 4)
    handle = run(flow)
    assert statuses(handle) == {"grows_and_fails": "COMPLETED", "number": "COMPLETED", "plus": "COMPLETED"}
    assert handle.results()["plus"].ok_value == 5


@pytest.mark.parametrize("what", ["same", "graph", "argument", "task", "input", "list", "key"])
def test_a_second_attempt_that_adds_another_node_under_a_name_is_told_on_the_run(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: the earlier node is kept in silence, mixed with those of the later attempt."""
    flow = Workflow("grows anew")
    flow.add(flows.grows_anew, what, 30)
    handle = run(flow)
    assert handle.status() == "COMPLETED"
    told = handle.history()
    if what == "same":
        assert (told, caplog.messages) == ([], [])
        return
    assert len(told) == (20 if what == "argument" else 1)
    assert (told[0].actor, told[0].action) == (flows.grows_anew.name, "workflow.keep")
    assert "attempt 2 adds 'node" in str(told[0].reason)
    assert str(told[0].reason).endswith("with other arguments: the node of an earlier attempt stays")
    assert [message for message in caplog.messages if "attempt 2 adds" in message][0].startswith(
        f"workflow run {handle.workflow_id}"
    )
    if what == "argument":
        assert handle.results()["node 0"].ok_value == 1


def test_a_task_outside_of_a_workflow_cannot_grow_one() -> None:
    handle = flows.grows_alone.send()
    drain()
    assert "is not part of a workflow" in handle.get(0).ok_value
