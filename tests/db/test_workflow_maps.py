"""Maps: a task for each element of a list, of a node, or of another map."""

from __future__ import annotations

import pytest

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("many", [0, 1, 450])
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


def test_the_error_of_a_map_says_what_became_of_one_of_its_tasks_that_failed() -> None:
    flow = Workflow("one by one", max_in_flight=1)
    flow.map(flows.odd_fails, n=[0, 1, 2])
    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id)
    assert node.error == "1 of 3 tasks did not complete; one of them: UNHANDLED_ERROR: ValueError: 1 is odd"
    assert "ValueError: 1 is odd" in handle.get(0).err_value.message


def test_a_map_over_plain_values_and_over_nodes() -> None:
    flow = Workflow("map values")
    nodes = [flow.add(flows.number, n) for n in (1, 2)]
    flow.map(flows.plus, a=[5, 6], name="values")
    flow.map(flows.plus, a=nodes, name="nodes")
    results = run(flow).results()
    assert results["values"].ok_value == [6, 7]
    assert results["nodes"].ok_value == [2, 3]


def test_a_map_with_a_failed_element_fails_and_a_retry_keeps_the_others() -> None:
    flow = Workflow("map fails")
    mapped = flow.map(flows.odd_fails, n=[0, 1, 2, 3])
    flow.add(flows.total, mapped)
    handle = run(flow)
    assert statuses(handle) == {"odd_fails": "FAILED", "total": "SKIPPED"}
    assert Task.objects.filter(workflow_id=handle.workflow_id).count() == 4
    handle.retry()
    assert handle.status() == "RUNNING"
    drain(raise_errors=False)
    assert Task.objects.filter(workflow_id=handle.workflow_id).count() == 6
    assert statuses(handle) == {"odd_fails": "FAILED", "total": "SKIPPED"}


def test_a_map_over_no_list_fails_alone() -> None:
    flow = Workflow("no list")
    value = flow.add("tests.apps.project.flows.anything", "text")
    flow.map(flows.plus, a=value)
    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="plus")
    assert (node.status, node.error_code) == ("FAILED", "MAP_WITHOUT_LIST")


def test_a_map_over_a_map_passes_over_elements_that_skipped_themselves() -> None:
    flow = Workflow("skipped elements")
    even = flow.map(flows.odd_skips, n=[0, 1, 2, 3, 4])
    more = flow.map(flows.plus, a=even, b=10)
    flow.returns(flow.add(flows.total_list, more))
    handle = run(flow)
    assert handle.get(0).ok_value == 10 + 12 + 14
    assert handle.status() == "COMPLETED"
