"""The values of nodes and runs: where they go, what is left out, and as which types they come back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

from horsies_django import Results, Workflow, explain_node, get_workflow, task
from horsies_django.core.codec import shape_of
from horsies_django.models import Task
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from horsies_django.workflows import arguments
from tests.apps.project import flows
from tests.db.test_workflows import run, statuses

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
def gather(values: list[int]) -> list[int]:
    return values


@task
def read(values: Results[int]) -> list[int]:
    return [len(values), *values]


def values(handle: Any) -> dict[str, Any]:
    """Return the values of the nodes that have one."""
    return {name: found.ok_value for name, found in handle.results().items() if found is not None and found.is_ok()}


# elements that were skipped


def test_elements_that_were_passed_over_are_not_open_in_progress() -> None:
    """Naive: the elements that the second map passed over count as open until it has ended."""
    flow = Workflow("evens")
    even = flow.map(flows.odd_skips, n=[0, 1, 3, 4])
    flow.map(flows.number.with_options(delay=60), n=even)
    assert run(flow).progress() == (8, 6, 0, 0, 2)


def test_a_map_that_was_skipped_by_hand_is_skipped_in_progress_and_what_a_cancel_kept_back_a_failure() -> None:
    """Naive: skipped elements count as failed, because it is known how many they are; or what was not sent as completed."""
    flow = Workflow("skipped", max_in_flight=1)
    flow.map(flows.plus, a=[1, 2, 3], name="map")
    flow.add(flows.number, 1)
    cancelled, handle = flow.send(), flow.send()
    cancelled.cancel()
    assert cancelled.progress() == (4, 0, 4, 0, 0)
    handle.pause()
    handle.skip("map")
    handle.resume()
    drain()
    assert (handle.progress(), handle.status()) == ((4, 1, 0, 3, 0), "COMPLETED")


# lists that contain maps


def mixed(flow: Workflow) -> list[Any]:
    """Return a list of tasks and maps whose values, in order, are 100, 0, 2, 4, 101, 102; one map is empty."""
    return [
        flow.add(flows.number, 100),
        flow.map(flows.odd_skips, n=[0, 1, 2, 3, 4]),
        flow.map(flows.number, n=[]),
        flow.map(flows.number, n=flow.map(flows.number, n=[101, 102])),
    ]


def test_a_map_in_a_list_gives_its_elements_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: its place is None, and left out of Results; a page ends with a node, or an empty page ends the list."""
    flow = Workflow("mixed")
    nodes = mixed(flow)
    flow.add(gather, nodes)
    reader = flow.add(read, nodes)
    handle = run(flow)
    expected = [100, 0, 2, 4, 101, 102]
    assert values(handle)["gather"] == expected
    assert values(handle)["read"] == [6, *expected]
    for size in range(1, 10):
        monkeypatch.setattr(arguments, "CHUNK", size)
        assert [*Results(handle.workflow_id, reader.number, "values", shape_of(int, "it"))] == expected


def test_a_redacted_result_or_element_of_a_map_fails_what_takes_it() -> None:
    """Naive: only results of plain nodes are looked at, and None takes the place of the element."""
    flow = Workflow("redacted")
    nodes, plain = mixed(flow), flow.add(flows.number, 1, name="one")
    gate = flow.gate("go")
    flow.add(gather, nodes, after=gate)
    flow.map(flows.plus, a=nodes, after=gate)
    flow.map(flows.plus, a=nodes[1], after=gate, name="map over map")
    flow.add(flows.plus, plain, after=gate, name="plain")
    handle = run(flow)
    for row in ({"node": nodes[1].number, "node_index": 2}, {"node": plain.number}):
        redact(Task.objects.get(**row).pk, actor="x", reason="y")
    handle.approve("go", actor="ada")
    drain(raise_errors=False)
    found = handle.results()
    for name in ("gather", "plus", "map over map", "plain"):
        assert found[name].err_value.error_code == "RESULT_REDACTED", name


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
    """Allow values of 2,000 bytes."""
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 2_000}


@pytest.mark.usefixtures("small_payloads")
def test_a_run_whose_value_is_too_large_has_failed_and_its_node_too(settings: Any) -> None:
    """Naive: it is COMPLETED, and only get() says that there is no value, or None is the value of its node; or all that completed
    is undone; or it cannot be retried, as no task of its has failed."""
    flow = large()
    flow.add(flows.charge, 1, undo=flows.refund)
    alone, parent = run(flow), run(inside(large()))
    assert (alone.status(), code_of(alone)) == ("FAILED", "PAYLOAD_TOO_LARGE")
    assert statuses(alone) == {"map": "COMPLETED", "charge": "COMPLETED"}
    assert "handle.results() reads them one by one" in alone.get(0).err_value.message
    assert alone.results()["map"].ok_value == ["x" * 500] * 9
    assert statuses(parent) == {"child": "FAILED", "taker": "SKIPPED"}
    error = parent.results()["child"].err_value
    assert (error.error_code, "MAX_PAYLOAD_BYTES" in error.message) == ("PAYLOAD_TOO_LARGE", True)
    assert parent.get(0).err_value.data == {"node": "child", "error_code": "PAYLOAD_TOO_LARGE"}
    for status in ("FAILED", "COMPLETED"):
        for handle in (alone, parent):
            handle.retry()
            drain(raise_errors=False)
            assert handle.status() == status
        settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 20_000}
    assert alone.get(0).ok_value == parent.get(0).ok_value == ["x" * 500] * 9


@pytest.mark.usefixtures("small_payloads")
@pytest.mark.parametrize(
    ("element", "many", "status"), [("x" * 1_900, 2, "FAILED"), (7, 600, "COMPLETED"), (7, 700, "FAILED")]
)
def test_the_values_of_a_map_are_as_large_as_their_json(element: Any, many: int, status: str) -> None:
    """Naive: as large as what is stored: a long text is compressed there, and a small number takes more."""
    flow = Workflow("sizes")
    flow.returns(flow.map(flows.anything, value=[element] * many))
    assert run(flow).status() == status


@pytest.mark.parametrize("how", ["itself", "timeout"])
def test_a_child_whose_output_was_skipped_skips_its_node(how: str) -> None:
    """Naive: the node is COMPLETED, and None is its value."""
    child = Workflow("skipped")
    wait = {"timeout": 0, "on_timeout": "skip"}
    child.returns(child.add(flows.skips) if how == "itself" else child.signal("never", **wait))
    handle, alone = run(inside(child)), run(child)
    drain()
    code = "TASK_SKIPPED" if how == "itself" else "UPSTREAM_SKIPPED"
    assert (alone.status(), code_of(alone)) == ("COMPLETED", code)
    assert statuses(handle) == {"child": "SKIPPED", "taker": "SKIPPED"}
    assert (handle.status(), code_of(handle)) == ("COMPLETED", "UPSTREAM_SKIPPED")
    reason = explain_node(handle.workflow_id, "child").reasons[0]
    said = "It was skipped because the node that its run returns was skipped."
    assert (reason.code, reason.text) == ("SKIPPED_ITSELF", said)


@pytest.mark.parametrize("output", ["task", "map"])
def test_a_run_whose_output_was_redacted_has_failed(output: str) -> None:
    """Naive: it is COMPLETED, and None is what its parent gets."""
    child = Workflow("redacted")
    node = child.add(flows.number, 7) if output == "task" else child.map(flows.number, n=[7])
    child.gate("go")
    child.returns(node)
    handle = run(inside(child))
    inner = handle.children()["child"]
    redact(Task.objects.get(workflow_id=inner.workflow_id, node=node.number).pk, actor="x", reason="y")
    inner.approve("go", actor="ada")
    drain()
    assert (inner.status(), code_of(inner)) == ("FAILED", "RESULT_REDACTED")
    assert handle.results()["child"].err_value.error_code == "RESULT_REDACTED"


def test_a_child_that_failed_says_with_which_code() -> None:
    """Naive: only that a run inside the run has failed."""
    child = Workflow("fails")
    child.add(flows.broken)
    error = run(inside(child)).results()["child"].err_value
    said = "node broken failed: UNHANDLED_ERROR: ValueError: broken 0"
    assert (error.error_code, error.message) == ("SUBWORKFLOW_FAILED", said)


def nested(depth: int) -> Workflow:
    flow = Workflow(f"child {depth}")
    flow.returns(flow.add(nested(depth - 1), name="inner") if depth else flow.map(make, n=[7]))
    return flow


def test_the_value_of_a_workflow_that_returns_another_one_has_its_type() -> None:
    """By the id alone, only tasks and maps have types: the database does not know what the workflow of a node was."""
    flow = nested(2)
    flow.add(make, 7)
    handle = run(flow)
    assert (handle.get(0).ok_value, values(handle)) == ([INVOICE], {"inner": [INVOICE], "make": INVOICE})
    by_id, stored = get_workflow(handle.workflow_id), {"number": 7, "due": "2026-11-24"}
    assert (by_id.get(0).ok_value, values(by_id)) == ([stored], {"inner": [stored], "make": INVOICE})


def test_the_data_of_a_signal_has_the_type_of_its_annotation() -> None:
    """Naive: a date that was sent is a str as the value of the run; or get() raises if the type has changed since."""
    flow, changed = Workflow("waiting"), Workflow("waiting")
    flow.returns(flow.signal("due", annotation=dt.date))
    flow.signal("never", annotation=dt.date, timeout=0, on_timeout="complete")
    changed.returns(changed.signal("due", annotation=int))
    handle = flow.send()
    handle.signal("due", INVOICE.due)
    drain()
    assert handle.get(0).ok_value == INVOICE.due
    assert values(handle) == values(flow.handle(handle.workflow_id)) == {"due": INVOICE.due, "never": None}
    assert changed.handle(handle.workflow_id).get(0).err_value.error_code == "RESULT_DESERIALIZATION_ERROR"
    assert get_workflow(handle.workflow_id).get(0).ok_value == "2026-11-24"
