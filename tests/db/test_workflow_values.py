"""The values of nodes and runs: where they go, what is left out, and as which types they come back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

from horsies_django import Results, Workflow, WorkflowDefinitionError, get_workflow, task
from horsies_django.core.codec import shape_of
from horsies_django.models import Task, WorkflowNode
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from horsies_django.workflows import results
from tests.apps.project import flows

pytestmark = pytest.mark.django_db


@dataclass
class Invoice:
    number: int
    due: dt.date


INVOICE = Invoice(7, dt.date(2026, 11, 24))


@task
def make(n: int) -> Invoice:
    return Invoice(n, INVOICE.due)


@task
def fails_on_four(n: int) -> int:
    if n == 4:
        raise ValueError(n)
    return n


@task
def gather(values: list[int]) -> list[int]:
    return values


@task
def make_of(text: str) -> Invoice:
    return make(len(text))


@task
def read(values: Results[int]) -> list[int]:
    return [len(values), *values]


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def values(handle: Any) -> dict[str, Any]:
    """Return the values of the nodes that have one."""
    return {name: found.ok_value for name, found in handle.results().items() if found is not None and found.is_ok()}


# elements that were skipped


def test_results_leave_out_skipped_elements_as_list_arguments_do() -> None:
    """Naive: they are None in results(), so the lists of a map and of the map over it are of different lengths."""
    flow = Workflow("evens")
    even = flow.map(flows.odd_skips, n=[0, 1, 2, 3, 4])
    double = flow.map(flows.plus, a=even, b=10)
    flow.add(gather, even, name="list")
    flow.add(gather, double, name="list of the second")
    handle = run(flow)
    assert values(handle) == {
        "odd_skips": [0, 2, 4], "plus": [10, 12, 14], "list": [0, 2, 4], "list of the second": [10, 12, 14]
    }  # fmt: skip


def test_skipped_elements_are_no_failures_in_progress() -> None:
    """Naive: the elements that the second map passed over count as failed once it has ended, and as open until then."""
    flow = Workflow("evens")
    even = flow.map(flows.odd_skips, n=[1, 3, 4])
    flow.map(flows.plus.with_options(delay=60), a=even)
    handle = run(flow)
    assert handle.progress() == (6, 5, 0, 0, 1)
    drain(until=dt.timedelta(hours=1))
    assert (handle.progress(), handle.status()) == ((6, 6, 0, 0, 0), "COMPLETED")


def test_failed_elements_are_failures_in_progress_and_passed_over_ones_are_not() -> None:
    """Naive: all elements of a map that ended without a value count alike."""
    flow = Workflow("evens")
    even = flow.map(flows.odd_skips, n=[0, 1, 3, 4])
    flow.map(fails_on_four, n=even)
    handle = run(flow)
    assert (handle.progress(), handle.status()) == ((8, 7, 1, 0, 0), "FAILED")


def test_a_map_that_was_skipped_by_hand_is_skipped_in_progress() -> None:
    """Naive: its elements count as failed, because it knew how many they are."""
    flow = Workflow("skipped")
    flow.map(flows.plus, a=[1, 2, 3], name="map")
    flow.add(flows.number, 1)
    handle = flow.send()
    handle.pause()
    handle.skip("map")
    handle.resume()
    drain()
    assert (handle.progress(), handle.status()) == ((4, 1, 0, 3, 0), "COMPLETED")


def test_elements_that_a_cancel_kept_from_being_sent_are_failures_in_progress() -> None:
    """Naive: what was not sent looks passed over, so it counts as completed."""
    flow = Workflow("cancelled", max_in_flight=1)
    flow.map(flows.plus, a=[1, 2, 3])
    handle = flow.send()
    handle.cancel()
    assert handle.progress() == (3, 0, 3, 0, 0)


# lists that contain maps


def mixed(flow: Workflow) -> list[Any]:
    """Return a list of tasks and maps whose values, in order, are 100, 0, 2, 4, 101, 102; one map is empty."""
    return [
        flow.add(flows.number, 100),
        flow.map(flows.odd_skips, n=[0, 1, 2, 3, 4]),
        flow.map(flows.number, n=[]),
        flow.map(flows.number, n=flow.map(flows.number, n=[101, 102])),
    ]


def test_a_map_in_a_list_gives_its_elements_in_order() -> None:
    """Naive: the place of the map is None in the list, and is left out of Results."""
    flow = Workflow("mixed")
    nodes = mixed(flow)
    flow.add(gather, nodes)
    flow.add(read, nodes)
    flow.map(flows.plus, a=nodes, b=1000)
    flow.map(flows.plus, a=[nodes[1], nodes[3]], b=2000, name="maps")
    handle = run(flow)
    expected = [100, 0, 2, 4, 101, 102]
    assert values(handle)["gather"] == expected
    assert values(handle)["read"] == [6, *expected]
    assert values(handle)["plus"] == [1000 + n for n in expected]
    assert values(handle)["maps"] == [2000, 2002, 2004, 2101, 2102]


def test_a_map_over_a_list_with_maps_is_sent_in_parts() -> None:
    """Naive: a part begins again at the first element of each map, or counts those that were passed over."""
    flow = Workflow("parts", max_in_flight=2)
    flow.map(flows.plus, a=mixed(flow), b=1000)
    handle = run(flow)
    assert values(handle)["plus"] == [1100, 1000, 1002, 1004, 1101, 1102]
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="plus")
    assert (node.total, node.items_ok, handle.status()) == (8, 6, "COMPLETED")


def test_results_of_a_list_with_maps_are_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: a page ends with a node, begins anew in a map, or an empty page in the middle ends the list."""
    flow = Workflow("pages")
    flow.add(read, mixed(flow))
    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="read").number
    for size in range(1, 10):
        monkeypatch.setattr(results, "CHUNK", size)
        assert [*Results(handle.workflow_id, node, "values", shape_of(int, "it"))] == [100, 0, 2, 4, 101, 102]


def test_a_list_with_a_map_that_failed_contains_what_completed() -> None:
    flow = Workflow("failed map")
    nodes = [flow.map(flows.odd_fails, n=[0, 1, 2]), flow.add(flows.broken), flow.add(flows.number, 5)]
    flow.add(gather, nodes, allow_failed=True)
    handle = run(flow)
    assert (values(handle)["gather"], handle.status()) == ([0, 2, 5], "COMPLETED")


def test_a_redacted_element_of_a_map_in_a_list_fails_what_takes_it() -> None:
    """Naive: only results of plain nodes are looked at, and None takes the place of the element."""
    flow = Workflow("redacted")
    nodes = mixed(flow)
    gate = flow.gate("go")
    flow.add(gather, nodes, after=gate)
    flow.map(flows.plus, a=nodes, after=gate)
    flow.map(flows.plus, a=nodes[1], after=gate, name="map over map")
    handle = run(flow)
    redact(
        Task.objects.get(workflow_id=handle.workflow_id, node=nodes[1].number, node_index=2).pk, actor="x", reason="y"
    )
    handle.approve("go", actor="ada")
    drain(raise_errors=False)
    found = handle.results()
    for name in ("gather", "plus", "map over map"):
        assert found[name].err_value.error_code == "RESULT_REDACTED", name


def test_the_elements_of_a_list_with_maps_are_judged_by_their_types() -> None:
    """Naive: a map in a list is a list[int], or anything."""
    flow = Workflow("types")
    numbers = [flow.add(flows.number, 1), flow.map(flows.number, n=[1])]
    flow.add(gather, numbers)
    flow.map(flows.plus, a=numbers)
    flow.add(flows.lengths, numbers, name="list")
    flow.map(make_of, text=numbers, name="map")
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    assert raised.value.problems == [
        "list: 'values' takes str, but number gives int", "map: 'text' takes str, but number gives int"
    ]  # fmt: skip


# types


def nested(depth: int) -> Workflow:
    flow = Workflow(f"child {depth}")
    flow.returns(flow.add(nested(depth - 1), name="inner") if depth else flow.map(make, n=[7]))
    return flow


def test_the_value_of_a_workflow_that_returns_another_one_has_its_type() -> None:
    """Naive: only tasks and maps have types, and what comes from a run inside the run is plain JSON."""
    handle = run(nested(2))
    assert handle.get(0).ok_value == [INVOICE]
    assert values(handle) == {"inner": [INVOICE]}


def test_the_data_of_a_signal_has_the_type_of_its_annotation() -> None:
    """Naive: a date that was sent is a str as the value of the run and in results()."""
    flow = Workflow("waiting")
    flow.returns(flow.signal("due", annotation=dt.date))
    flow.signal("never", annotation=dt.date, timeout=0, on_timeout="complete")
    handle = flow.send()
    handle.signal("due", INVOICE.due)
    drain()
    assert handle.get(0).ok_value == INVOICE.due
    assert values(handle) == values(flow.handle(handle.workflow_id)) == {"due": INVOICE.due, "never": None}


def test_by_id_only_tasks_and_maps_have_types() -> None:
    """The database does not know what a signal or the workflow of a node was declared as."""
    flow = Workflow("by id")
    flow.returns(flow.add(nested(0)))
    flow.add(make, 7)
    handle = get_workflow(run(flow).workflow_id)
    stored = {"number": 7, "due": "2026-11-24"}
    assert (handle.get(0).ok_value, values(handle)) == ([stored], {"child 0": [stored], "make": INVOICE})


def test_a_value_that_does_not_fit_its_declared_type_is_an_error_in_the_result() -> None:
    """Naive: get() raises, or gives a value of another type."""
    sent, changed = Workflow("changes"), Workflow("changes")
    sent.returns(sent.signal("due", annotation=dt.date))
    changed.returns(changed.signal("due", annotation=int))
    handle = sent.send()
    handle.signal("due", INVOICE.due)
    drain()
    assert changed.handle(handle.workflow_id).get(0).err_value.error_code == "RESULT_DESERIALIZATION_ERROR"
    assert get_workflow(handle.workflow_id).get(0).ok_value == "2026-11-24"
