"""Workflows, run to their end in the test's own process: batches, sends, maps, tasks that add
nodes, and values.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import (
    Batch,
    CurrentTask,
    Results,
    Workflow,
    WorkflowDefinitionError,
    WorkflowError,
    explain_node,
    get_workflow,
    quorum,
    task,
)
from horsies_django.core.codec import shape_of
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from horsies_django.workflows import arguments, send
from horsies_django.workflows.growth import workflow_of
from tests.apps.project import flows

pytestmark = pytest.mark.django_db


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


def refuses(
    said: str, call: Callable[..., object], *args: Any, error: Any = WorkflowError, **how: Any
) -> None:
    """Check that a call raises an error with this text."""
    with pytest.raises(error, match=said):
        call(*args, **how)


@pytest.mark.parametrize(
    "path",
    [
        '$.language.datetime() < "2026-01-01T00:00:00+00".datetime()',  # a date has no time zone
        "$.pages > $most",
        "$.language like_regex",  # as after a change by hand
    ],
)
def test_a_condition_that_raises_in_spite_of_silent_is_false(path: str) -> None:
    """Fails if: the value of one tenant makes each advance of the run raise, so that it stays
    RUNNING for ever.
    """
    flow = Workflow("raises")
    page = flow.add(flows.page, "2025-12-24", 12)
    flow.add(flows.number, 1, when=page.matches("$ == 1"), name="when")
    handle = flow.send()

    WorkflowNode.objects.filter(name="when").update(when_path=path)
    drain()

    assert statuses(handle) == {"page": "COMPLETED", "when": "SKIPPED"}
    assert handle.status() == "COMPLETED"


def test_child_runs_added_under_one_name_are_all_listed() -> None:
    """Child runs that tasks added under one name are all listed."""
    flow = Workflow("grows")
    flow.add(flows.adds_a_run)
    flow.add(flows.adds_a_run)
    handle = run(flow)

    first, second = handle.children()
    assert (first, second.startswith("inner (")) == ("inner", True)
    assert async_to_sync(handle.achildren)() == handle.children()
    assert handle.children()["inner"].children() == {}
    refuses("never sent", get_workflow(uuid.uuid4()).children, error=LookupError)


# batches


def with_callbacks(batch: Batch) -> Batch:
    batch.on_success(flows.number, 1, name="good")
    batch.on_failure(flows.number, 1, name="bad")
    batch.on_finish(flows.number, 1, name="end")
    return batch


def test_a_batch_calls_back_about_a_member_that_expired() -> None:
    batch = Batch("batch")
    past = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    batch.add(flows.number.with_options(good_until=past), 1, name="member")

    handle = run(with_callbacks(batch))

    assert statuses(handle) == {
        "member": "EXPIRED",
        "good": "SKIPPED",
        "bad": "COMPLETED",
        "end": "COMPLETED",
    }
    assert handle.status() == "FAILED"


@pytest.mark.parametrize("members", [None, []])
def test_an_empty_batch_is_a_success_and_no_failure(members: list[int] | None) -> None:
    """A batch is empty if it has no member, or only a map without elements."""
    batch = Batch("nothing to do")
    if members is not None:
        batch.map(flows.plus, a=members, name="map")
    outer = Workflow("outer")
    outer.add(with_callbacks(batch), name="batch")

    for handle in (run(batch), run(outer).children()["batch"]):
        assert handle.status() == "COMPLETED"
        assert (
            statuses(handle).items()
            >= {"good": "COMPLETED", "bad": "SKIPPED", "end": "COMPLETED"}.items()
        )
        assert handle.results()["bad"].err_value.error_code == "UPSTREAM_SKIPPED"

    only_failure = Batch("nothing failed")
    only_failure.on_failure(flows.number, 1)
    assert run(only_failure).status() == "COMPLETED"


# sending


def test_a_key_makes_a_send_idempotent() -> None:
    """A second send with the same key and the same graph gives the first run.

    A key belongs to the name of the workflow, and a send without a key always makes a new run;
    absolute times may differ.
    """

    def send(name: str = "import", key: str | None = "book 7", **other: Any) -> Any:
        how = {"n": 1, "signal": "paid", "days": 1, "undo": flows.unact} | other
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)

        flow = Workflow(name, key=key, good_until=tomorrow)
        flow.add(flows.act.with_options(good_until=tomorrow), how["n"], undo=how["undo"])
        flow.until(tomorrow)
        flow.signal(how["signal"], timeout=dt.timedelta(days=how["days"]))

        return flow.send()

    assert send() == send()
    assert len({send(), send(name="export"), send(key=None), send(key=None)}) == 4
    for other in ({"n": 2}, {"signal": "sent"}, {"days": 2}, {"undo": flows.note_undo}):
        refuses("another graph", send, **other)


def numbered(*numbers: int, key: str | None = None) -> Workflow:
    flow = Workflow("numbered", key=key)
    for n in numbers:
        flow.returns(flow.add(flows.number, n))
    return flow


@pytest.mark.parametrize("chunk", [1, 2, 5_000])
def test_many_workflows_are_sent_in_order_in_any_chunks(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(send, "CHUNK_ROWS", chunk)
    sizes = (1, 1, 3, 1, 2, 1)

    handles = Workflow.send_many(numbered(*range(size)) for size in sizes)
    handles += async_to_sync(Workflow.asend_many)([numbered(7)])
    assert Workflow.send_many([]) == []
    drain()

    assert [handle.get(0).ok_value for handle in handles] == [*(size - 1 for size in sizes), 7]
    assert [len(statuses(handle)) for handle in handles] == [*sizes, 1]


def test_of_many_workflows_all_or_none_are_sent() -> None:
    numbered(1, key="here").send()
    bad = Workflow("bad").add("nothing").flow

    refuses(
        "no task named",
        Workflow.send_many,
        [numbered(1), numbered(2), bad],
        error=WorkflowDefinitionError,
    )
    refuses("another graph", Workflow.send_many, [numbered(1), numbered(2, key="here")])
    assert WorkflowRun.objects.count() == 1

    one, other, same = Workflow.send_many(
        [numbered(1, key="new"), numbered(2), numbered(1, key="new")]
    )
    assert (one == same, WorkflowRun.objects.count()) == (True, 3)


def test_all_problems_are_named_at_once() -> None:
    flow = Workflow("")
    first = flow.add(flows.number, "one", name="a")
    second = flow.add(flows.plus, first, c=2, name="a")

    flow.add("no.such.task", 1)
    flow.add(flows.total_list, first)
    flow.add(flows.page, first, 1)
    first.after(second)
    flow.add(flows.number, 1, join=quorum(2))
    flow.add(flows.number, Workflow("other").add(flows.number, 1))

    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()

    assert len(raised.value.problems) == 9, raised.value
    assert not WorkflowRun.objects.exists()


def test_a_bad_path_is_refused_when_sent() -> None:
    flow = Workflow("path")
    first = flow.add(flows.number, 1)
    for path in ("$.a ===", '$ like_regex "("', "$ ? (@ > 1)"):
        flow.add(flows.number, 1, when=first.matches(path))
    flow.add("no.such.task")

    with pytest.raises(WorkflowDefinitionError, match="not a JSON path") as raised:
        flow.send()

    assert len(raised.value.problems) == 3
    assert connection.in_atomic_block


# maps, and tasks that add nodes


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


def test_the_error_of_a_map_quotes_one_of_its_failed_tasks() -> None:
    """The error of a map quotes the error of one of its failed tasks."""
    flow = Workflow("one by one", max_in_flight=1)
    flow.map(flows.odd_fails, n=[0, 1, 2])

    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id)

    assert (
        node.error
        == "1 of 3 tasks did not complete; one of them: UNHANDLED_ERROR: ValueError: 1 is odd"
    )
    assert "ValueError: 1 is odd" in handle.get(0).err_value.message


def test_async_tasks_read_results_of_two_nodes_with_one_name() -> None:
    """Async tasks can add nodes, and ``results()`` has both of two nodes with one name.

    Fails if: results are stored by name, and one node hides the other.
    """
    flow = Workflow("async")
    for n in (1, 2):
        flow.add(flows.grows_async, n)
    flow.returns(flow.add(flows.total_async, flow.map(flows.plus, a=[1, 2, 3])))

    handle = run(flow)
    assert handle.get(0).ok_value == 9

    found = {name: result.ok_value for name, result in handle.results().items()}
    numbers = (
        WorkflowNode.objects.filter(name="first")
        .order_by("number")
        .values_list("number", flat=True)
    )

    assert sorted([found["first"], found[f"first ({numbers[1]})"]]) == [1, 2]
    assert {5, 7} <= {value for name, value in found.items() if name.startswith("sum")}
    assert len(found) == WorkflowNode.objects.count()


@pytest.mark.parametrize("what", ["same", "graph", "argument", "task", "input", "list", "key"])
def test_a_second_attempt_that_adds_another_node_is_reported(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: the earlier node silently stays, mixed with the nodes of the later attempt."""
    flow = Workflow("grows anew")
    flow.add(flows.grows_anew, what, 30)

    handle = run(flow)
    assert handle.status() == "COMPLETED"

    told = handle.history()
    if what == "same":
        assert (
            told,
            [record.message for record in caplog.records if record.levelname == "WARNING"],
        ) == ([], [])
        return

    assert len(told) == (20 if what == "argument" else 1)
    assert (told[0].actor, told[0].action) == (flows.grows_anew.name, "workflow.keep")
    assert "attempt 2 added 'node" in str(told[0].reason)
    assert str(told[0].reason).endswith(
        "with other arguments, so the node of an earlier attempt is kept"
    )

    logged = [message for message in caplog.messages if "attempt 2 added" in message]
    assert logged[0].startswith(f"workflow run {handle.workflow_id}")
    if what == "argument":
        assert handle.results()["node 0"].ok_value == 1


def test_the_workflow_of_a_running_task_cannot_be_sent_again() -> None:
    """The workflow of a running task cannot be sent again, even from async code."""
    flow = workflow_of(CurrentTask())
    for call in (flow.send, lambda: asyncio.run(flow.asend())):
        refuses("the workflow of the current task is running", call)


def test_a_task_outside_of_a_workflow_cannot_grow_one() -> None:
    handle = flows.grows_alone.send()
    drain()

    assert "is not part of a workflow" in handle.get(0).ok_value


# values: where they go, which are left out, and with which types they come back


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
    return {
        name: found.ok_value
        for name, found in handle.results().items()
        if found is not None and found.is_ok()
    }


# elements that were skipped


def test_elements_that_were_passed_over_are_not_open_in_progress() -> None:
    """Fails if: the elements that the second map skipped count as open until it has ended."""
    flow = Workflow("evens")
    even = flow.map(flows.odd_skips, n=[0, 1, 3, 4])
    flow.map(flows.number.with_options(delay=60), n=even)

    assert run(flow).progress() == (8, 6, 0, 0, 2)


def test_a_map_skipped_by_hand_counts_as_skipped_in_progress() -> None:
    """A map skipped by hand counts as skipped, and tasks that a cancel stopped count as failed.

    Fails if: skipped elements count as failed, because their number is known; or unsent ones as
    completed.
    """
    flow = Workflow("skipped", max_in_flight=1)
    flow.map(flows.plus, a=[1, 2, 3], name="map")
    flow.add(flows.number, 1)
    cancelled = flow.send()
    handle = flow.send()

    cancelled.cancel()
    assert cancelled.progress() == (4, 0, 4, 0, 0)

    handle.pause()
    handle.skip("map")
    handle.resume()
    drain()

    assert (handle.progress(), handle.status()) == ((4, 1, 0, 3, 0), "COMPLETED")


# lists that contain maps


def mixed(flow: Workflow) -> list[Any]:
    """Return a list of tasks and maps with the values 100, 0, 2, 4, 101, 102 in this order.

    One of the maps is empty.
    """
    return [
        flow.add(flows.number, 100),
        flow.map(flows.odd_skips, n=[0, 1, 2, 3, 4]),
        flow.map(flows.number, n=[]),
        flow.map(flows.number, n=flow.map(flows.number, n=[101, 102])),
    ]


def test_a_map_in_a_list_gives_its_elements_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if: the map is None in the list, and missing in ``Results``; or a page ends with each
    node; or an empty page ends the list.
    """
    flow = Workflow("mixed")
    nodes = mixed(flow)
    flow.add(gather, nodes)
    reader = flow.add(read, nodes)

    handle = run(flow)

    expected = [100, 0, 2, 4, 101, 102]
    assert values(handle)["gather"] == expected
    assert values(handle)["read"] == [6, *expected]

    for size in range(1, 10):
        monkeypatch.setattr(arguments, "RESULTS_PER_QUERY", size)
        assert [
            *Results(handle.workflow_id, reader.number, "values", shape_of(int, "it"))
        ] == expected


def test_a_redacted_result_fails_the_node_that_takes_it() -> None:
    """A redacted result, or a redacted element of a map, fails the node that takes it.

    Fails if: only results of plain nodes are checked, and None takes the place of the element.
    """
    flow = Workflow("redacted")
    nodes = mixed(flow)
    plain = flow.add(flows.number, 1, name="one")
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
    """Return a workflow with a child whose value it returns and gives to a task."""
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
def test_a_run_whose_value_is_too_large_fails_with_its_node(settings: Any) -> None:
    """A run whose value is too large fails, and so does its node in the parent.

    Fails if: the run is COMPLETED, and only ``get()`` reports the missing value, or None is the
    value of its node; or all completed nodes are undone; or it cannot be retried, because none of
    its tasks has failed.
    """
    flow = large()
    flow.add(flows.charge, 1, undo=flows.refund)

    alone = run(flow)
    parent = run(inside(large()))

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
    ("element", "many", "status"),
    [("x" * 1_900, 2, "FAILED"), (7, 600, "COMPLETED"), (7, 700, "FAILED")],
)
def test_the_values_of_a_map_are_as_large_as_their_json(
    element: Any, many: int, status: str
) -> None:
    """Fails if: the stored size counts, in which a long text is compressed and a small number is
    larger.
    """
    flow = Workflow("sizes")
    flow.returns(flow.map(flows.anything, value=[element] * many))

    assert run(flow).status() == status


@pytest.mark.parametrize("how", ["itself", "timeout"])
def test_a_child_whose_output_was_skipped_skips_its_node(how: str) -> None:
    """Fails if: the node is COMPLETED with the value None."""
    child = Workflow("skipped")
    wait = {"timeout": 0, "on_timeout": "skip"}
    child.returns(child.add(flows.skips) if how == "itself" else child.signal("never", **wait))

    handle = run(inside(child))
    alone = run(child)
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
    """Fails if: the run is COMPLETED, and its parent gets None."""
    child = Workflow("redacted")
    node = child.add(flows.number, 7) if output == "task" else child.map(flows.number, n=[7])
    child.gate("go")
    child.returns(node)

    handle = run(inside(child))
    inner = handle.children()["child"]
    redact(
        Task.objects.get(workflow_id=inner.workflow_id, node=node.number).pk, actor="x", reason="y"
    )
    inner.approve("go", actor="ada")
    drain()

    assert (inner.status(), code_of(inner)) == ("FAILED", "RESULT_REDACTED")
    assert handle.results()["child"].err_value.error_code == "RESULT_REDACTED"


def test_the_error_of_a_failed_child_contains_its_code() -> None:
    """Fails if: the error says only that a child run has failed."""
    child = Workflow("fails")
    child.add(flows.broken)

    error = run(inside(child)).results()["child"].err_value
    said = "node broken failed: UNHANDLED_ERROR: ValueError: broken 0"
    assert (error.error_code, error.message) == ("SUBWORKFLOW_FAILED", said)


def nested(depth: int) -> Workflow:
    flow = Workflow(f"child {depth}")
    flow.returns(flow.add(nested(depth - 1), name="inner") if depth else flow.map(make, n=[7]))
    return flow


def test_the_value_of_a_returned_workflow_has_its_type() -> None:
    """The value of a returned workflow has its type.

    A handle by id has types for tasks and maps only, because the database does not contain the
    workflow of a node.
    """
    flow = nested(2)
    flow.add(make, 7)
    handle = run(flow)

    assert (handle.get(0).ok_value, values(handle)) == (
        [INVOICE],
        {"inner": [INVOICE], "make": INVOICE},
    )

    by_id = get_workflow(handle.workflow_id)
    stored = {"number": 7, "due": "2026-11-24"}
    assert (by_id.get(0).ok_value, values(by_id)) == (
        [stored],
        {"inner": [stored], "make": INVOICE},
    )


def test_the_data_of_a_signal_has_the_type_of_its_annotation() -> None:
    """Fails if: a sent date becomes a str in the value of the run; or ``get()`` raises after the
    type has changed.
    """
    flow = Workflow("waiting")
    changed = Workflow("waiting")
    flow.returns(flow.signal("due", annotation=dt.date))
    flow.signal("never", annotation=dt.date, timeout=0, on_timeout="complete")
    changed.returns(changed.signal("due", annotation=int))

    handle = flow.send()
    handle.signal("due", INVOICE.due)
    drain()

    assert handle.get(0).ok_value == INVOICE.due
    assert (
        values(handle)
        == values(flow.handle(handle.workflow_id))
        == {"due": INVOICE.due, "never": None}
    )
    assert (
        changed.handle(handle.workflow_id).get(0).err_value.error_code
        == "RESULT_DESERIALIZATION_ERROR"
    )
    assert get_workflow(handle.workflow_id).get(0).ok_value == "2026-11-24"
