"""The values of nodes and runs: where they go, what is left out, and as which types they come back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

from horsies_django import Results, Workflow, WorkflowDefinitionError, explain_node, get_workflow, task
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


# the value of a run


def inside(child: Workflow, **how: Any) -> Workflow:
    """Return a workflow that has another one as its node, returns that, and gives it to a task."""
    flow = Workflow("parent")
    node = flow.add(child, name="child")
    flow.add(flows.act, node, name="taker", **how)
    flow.returns(node)
    return flow


def large() -> Workflow:
    child = Workflow("large")
    child.returns(child.map(flows.anything, value=["x" * 500] * 9, name="map"))
    return child


def code_of(handle: Any) -> str:
    return str(handle.get(0).err_value.error_code)


@pytest.fixture
def small_payloads(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 2_000}


@pytest.mark.usefixtures("small_payloads")
def test_a_run_whose_value_is_too_large_has_failed_and_keeps_what_completed() -> None:
    """Naive: it is COMPLETED, and only get() says that there is no value."""
    handle = run(large())
    assert (handle.status(), code_of(handle), statuses(handle)) == ("FAILED", "PAYLOAD_TOO_LARGE", {"map": "COMPLETED"})
    assert "handle.results() reads them one by one" in handle.get(0).err_value.message
    assert handle.results()["map"].ok_value == ["x" * 500] * 9


@pytest.mark.usefixtures("small_payloads")
@pytest.mark.parametrize(
    ("element", "many", "status"), [("x" * 1_900, 2, "FAILED"), (7, 600, "COMPLETED"), (7, 700, "FAILED")]
)
def test_the_values_of_a_map_are_as_large_as_their_json(element: Any, many: int, status: str) -> None:
    """Naive: as large as what is stored: a long text is compressed there, and a small number takes more."""
    flow = Workflow("sizes")
    flow.returns(flow.map(flows.anything, value=[element] * many))
    assert run(flow).status() == status


@pytest.mark.usefixtures("small_payloads")
def test_a_child_whose_value_is_too_large_fails_its_node_with_its_code() -> None:
    """Naive: the node is COMPLETED, and None is its value."""
    handle = run(inside(large()))
    assert statuses(handle) == {"child": "FAILED", "taker": "SKIPPED"}
    error = handle.results()["child"].err_value
    assert (error.error_code, "MAX_PAYLOAD_BYTES" in error.message) == ("PAYLOAD_TOO_LARGE", True)
    assert handle.get(0).err_value.data == {"node": "child", "error_code": "PAYLOAD_TOO_LARGE"}


@pytest.mark.parametrize("nested", [False, True])
def test_a_run_whose_value_was_too_large_is_retried_with_a_higher_limit(settings: Any, nested: bool) -> None:
    """Naive: none of its nodes has failed, so it cannot be retried, nor can the run that it is a node of."""
    before = settings.HORSIES
    settings.HORSIES = {**before, "MAX_PAYLOAD_BYTES": 2_000}
    handle = run(inside(large()) if nested else large())
    assert handle.status() == "FAILED"
    handle.retry()
    drain(raise_errors=False)
    assert handle.status() == "FAILED"
    settings.HORSIES = before
    handle.retry()
    drain()
    assert (handle.status(), handle.get(0).ok_value) == ("COMPLETED", ["x" * 500] * 9)


@pytest.mark.usefixtures("small_payloads")
def test_a_value_that_is_too_large_undoes_nothing() -> None:
    """Naive: all that completed is undone, because the run has failed."""
    flow = large()
    flow.add(flows.charge, 1, undo=flows.refund)
    handle = run(flow)
    assert (handle.status(), code_of(handle)) == ("FAILED", "PAYLOAD_TOO_LARGE")
    assert statuses(handle) == {"map": "COMPLETED", "charge": "COMPLETED"}


@pytest.mark.parametrize("how", ["condition", "itself", "timeout", "map", "child"])
def test_a_child_whose_output_was_skipped_skips_its_node(how: str) -> None:
    """Naive: the node is COMPLETED, and None is its value."""
    child = Workflow("skipped")
    no = child.add(flows.number, 1).matches("$ == 2")
    output = {
        "condition": lambda: child.add(flows.number, 1, when=no),
        "itself": lambda: child.add(flows.skips),
        "timeout": lambda: child.signal("never", timeout=0, on_timeout="skip"),
        "map": lambda: child.map(flows.number, n=[1], when=no),
        "child": lambda: child.add(inside(child_of_skips())),
    }[how]()
    child.returns(output)
    handle = run(inside(child))
    drain()
    assert statuses(handle) == {"child": "SKIPPED", "taker": "SKIPPED"}
    assert (handle.status(), code_of(handle)) == ("COMPLETED", "UPSTREAM_SKIPPED")
    alone = run(child)
    assert (alone.status(), alone.get(0).is_err()) == ("COMPLETED", True)
    reason = explain_node(handle.workflow_id, "child").reasons[0]
    assert (reason.code, reason.text) == (
        "SKIPPED_ITSELF", "It was skipped because the node that its run returns was skipped."
    )  # fmt: skip


def child_of_skips() -> Workflow:
    child = Workflow("skips")
    child.returns(child.add(flows.skips))
    return child


def test_a_run_whose_output_failed_has_failed_although_the_failure_was_handled() -> None:
    """Naive: it is COMPLETED without a value, and None is what its parent gets."""
    child = Workflow("handled")
    bad = child.add(flows.broken)
    child.add(flows.describe, bad, allow_failed=True)
    child.add(flows.charge, 1)
    child.returns(bad)
    alone = run(child)
    assert (alone.status(), code_of(alone)) == ("FAILED", "UNHANDLED_ERROR")
    assert values(alone) == {"describe": "err UNHANDLED_ERROR", "charge": 1001}
    handle = run(inside(child, allow_failed=True))
    assert statuses(handle) == {"child": "FAILED", "taker": "COMPLETED"}
    assert (handle.status(), code_of(handle)) == ("FAILED", "UNHANDLED_ERROR")


def test_a_run_whose_output_was_redacted_has_failed() -> None:
    """Naive: it is COMPLETED, and None is what its parent gets."""
    for output in ("task", "map"):
        child = Workflow("redacted")
        node = child.add(flows.number, 7) if output == "task" else child.map(flows.number, n=[7])
        gate = child.gate("go")
        child.returns(node)
        handle = run(inside(child))
        inner = WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="child").task_id
        redact(Task.objects.get(workflow_id=inner, node=node.number).pk, actor="x", reason="y")
        get_workflow(inner).approve(gate.name, actor="ada")
        drain()
        assert (get_workflow(inner).status(), code_of(get_workflow(inner))) == ("FAILED", "RESULT_REDACTED")
        assert handle.results()["child"].err_value.error_code == "RESULT_REDACTED"


def test_a_child_that_failed_says_with_which_code() -> None:
    """Naive: only that a run inside the run has failed."""
    child = Workflow("fails")
    child.add(flows.broken)
    error = run(inside(child)).results()["child"].err_value
    assert (error.error_code, error.message) == (
        "SUBWORKFLOW_FAILED", "node broken failed: UNHANDLED_ERROR: ValueError: broken 0"
    )  # fmt: skip


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
