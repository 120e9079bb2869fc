"""Maps, which run a task for each element of a list, and tasks that add nodes to their own run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import connection

from horsies_django import CurrentTask, Workflow, WorkflowError
from horsies_django.models import Task, WorkflowNode
from horsies_django.testing import drain
from horsies_django.workflows.growth import workflow_of
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


def values(handle: Any) -> dict[str, Any]:
    return {name: result.ok_value for name, result in handle.results().items()}


@pytest.mark.parametrize("many", [0, 450])
def test_a_map_runs_a_task_per_element(many: int) -> None:
    flow = Workflow("map")
    parts = flow.add(flows.numbers, many)
    mapped = flow.map(flows.plus, a=parts, b=10)
    again = flow.map(flows.plus, a=mapped)
    flow.add(flows.total, mapped, name="lazy")
    flow.returns(flow.add(flows.total_list, again))
    handle = run(flow)
    assert handle.get(0).ok_value == sum(n + 11 for n in range(many))
    assert handle.results()["lazy"].ok_value == sum(n + 10 for n in range(many))
    assert handle.results()["plus"].ok_value == [n + 10 for n in range(many)]
    assert handle.progress().total == 3 + 2 * many


def test_a_map_is_over_plain_values_or_nodes_and_over_anything_else_it_fails() -> None:
    flow = Workflow("maps")
    nodes = [flow.add(flows.number, n) for n in (1, 2)]
    flow.map(flows.plus, a=[5, 6], name="values")
    flow.map(flows.plus, a=nodes, name="nodes")
    flow.map(flows.plus, a=flow.add("tests.apps.project.flows.anything", "text"), name="text")
    results = run(flow).results()
    assert (results["values"].ok_value, results["nodes"].ok_value) == ([6, 7], [2, 3])
    node = WorkflowNode.objects.get(name="text")
    assert (node.status, node.error_code) == ("FAILED", "MAP_WITHOUT_LIST")


def test_the_error_of_a_map_says_what_became_of_one_of_its_tasks_that_failed() -> None:
    flow = Workflow("one by one", max_in_flight=1)
    flow.map(flows.odd_fails, n=[0, 1, 2])
    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id)
    assert node.error == "1 of 3 tasks did not complete; one of them: UNHANDLED_ERROR: ValueError: 1 is odd"
    assert "ValueError: 1 is odd" in handle.get(0).err_value.message


def test_async_tasks_grow_and_read_results() -> None:
    flow = Workflow("async")
    flow.add(flows.grows_async, 10)
    flow.returns(flow.add(flows.total_async, flow.map(flows.plus, a=[1, 2, 3])))
    handle = run(flow)
    assert handle.get(0).ok_value == 9
    assert handle.results()["sum"].ok_value == 23


def test_results_leave_out_no_node_although_tasks_added_some_of_one_name() -> None:
    """Naive: they are kept by name, and one hides the other."""
    flow = Workflow("one name")
    for n in (1, 2):
        flow.add(flows.grows_async, n)
    found = values(run(flow))
    numbers = WorkflowNode.objects.filter(name="first").order_by("number").values_list("number", flat=True)
    firsts = {name: value for name, value in found.items() if name.startswith("first")}
    assert firsts.keys() == {"first", f"first ({numbers[1]})"}
    assert sorted(firsts.values()) == [1, 2]
    assert len(found) == WorkflowNode.objects.count()


def test_a_second_attempt_adds_no_node_twice() -> None:
    flow = Workflow("again")
    flow.add(flows.grows_and_fails, 4)
    assert values(run(flow)) == {"grows_and_fails": 4, "number": 4, "plus": 5}


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
        assert (told, [record.message for record in caplog.records if record.levelname == "WARNING"]) == ([], [])
        return
    assert len(told) == (20 if what == "argument" else 1)
    assert (told[0].actor, told[0].action) == (flows.grows_anew.name, "workflow.keep")
    assert "attempt 2 adds 'node" in str(told[0].reason)
    assert str(told[0].reason).endswith("with other arguments: the node of an earlier attempt stays")
    logged = [message for message in caplog.messages if "attempt 2 adds" in message]
    assert logged[0].startswith(f"workflow run {handle.workflow_id}")
    if what == "argument":
        assert handle.results()["node 0"].ok_value == 1


def test_what_a_task_added_before_an_outage_stays_and_its_next_attempt_adds_the_rest(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outage() -> None:
        with connection.cursor() as cursor:
            pid = cursor.execute("SELECT pg_backend_pid()").fetchone()[0]
        connect().execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    monkeypatch.setattr(flows, "outage", outage)
    flow = Workflow("outage")
    flow.add(flows.grows_through_an_outage, 3, name="grows")
    handle = run(flow)
    assert handle.status() == "COMPLETED"
    assert Task.objects.get(task_name=flows.grows_through_an_outage.name).retry_count == 1
    assert values(handle) == {"grows": 3, "number": 0, "number-2": 1, "number-3": 2}


def test_what_a_task_added_runs_although_the_task_failed_for_good() -> None:
    flow = Workflow("grows")
    flow.add(flows.grows_and_fails_for_good, name="grows")
    handle = run(flow)
    assert statuses(handle) == {"grows": "FAILED", "number": "COMPLETED"}
    assert handle.status() == "FAILED"


def test_the_workflow_of_a_running_task_cannot_be_sent_again_also_not_from_async_code() -> None:
    flow = workflow_of(CurrentTask())
    for send in (flow.send, lambda: asyncio.run(flow.asend())):
        with pytest.raises(WorkflowError, match="the workflow of the current task is running"):
            send()


def test_a_task_outside_of_a_workflow_cannot_grow_one() -> None:
    handle = flows.grows_alone.send()
    drain()
    assert "is not part of a workflow" in handle.get(0).ok_value
