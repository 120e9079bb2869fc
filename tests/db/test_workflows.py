"""Workflows, run to their end in the test's own process: results, batches, sends, maps, and tasks that add nodes."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import (
    Batch,
    CurrentTask,
    Workflow,
    WorkflowDefinitionError,
    WorkflowError,
    get_handle,
    get_workflow,
    quorum,
)
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from horsies_django.workflows import send
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


def refuses(said: str, call: Callable[..., object], *args: Any, error: Any = WorkflowError, **how: Any) -> None:
    """Check that a call raises an error that says so."""
    with pytest.raises(error, match=said):
        call(*args, **how)


@pytest.mark.promise("S3.1")
def test_a_result_becomes_an_argument() -> None:
    flow = Workflow("chain")
    first = flow.add(flows.number, 4)
    second = flow.add(flows.plus, first, b=first)
    flow.returns(flow.add(flows.plus, a=second))
    handle = run(flow)
    assert handle.status() == "COMPLETED"
    assert handle.get(0).ok_value == 9
    assert {name: result.ok_value for name, result in handle.results().items()} == {"number": 4, "plus": 8, "plus-2": 9}


@pytest.mark.parametrize(
    "path",
    [
        '$.language.datetime() < "2026-01-01T00:00:00+00".datetime()',  # a date has no time zone
        "$.pages > $most",
        "$.language like_regex",  # changed by hand
    ],
)
def test_a_condition_that_raises_in_spite_of_silent_is_false(path: str) -> None:
    """Naive: the value of one tenant lets each advance of the run raise, and it stays RUNNING for ever."""
    flow = Workflow("raises")
    page = flow.add(flows.page, "2025-12-24", 12)
    flow.add(flows.number, 1, when=page.matches("$ == 1"), name="when")
    handle = flow.send()
    WorkflowNode.objects.filter(name="when").update(when_path=path)
    drain()
    assert statuses(handle) == {"page": "COMPLETED", "when": "SKIPPED"}
    assert handle.status() == "COMPLETED"


def test_runs_inside_a_run_that_tasks_added_under_one_name_are_all_there() -> None:
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


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
def test_batches_call_back(end: str) -> None:
    """Also if a member never ran."""
    batch = Batch("batch")
    past = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    member = flows.odd_fails if end == "FAILED" else flows.number
    batch.add(member.with_options(good_until=past if end == "EXPIRED" else None), 1, name="member")
    batch.add(flows.number, 2)
    handle = with_callbacks(batch).send()
    if end == "CANCELLED":
        get_handle(WorkflowNode.objects.get(name="member").task_id).cancel()
    drain(raise_errors=False)
    good, bad = ("COMPLETED", "SKIPPED") if end == "COMPLETED" else ("SKIPPED", "COMPLETED")
    assert statuses(handle) == {"member": end, "number": "COMPLETED", "good": good, "bad": bad, "end": "COMPLETED"}
    assert handle.status() == ("COMPLETED" if end == "COMPLETED" else "FAILED")


@pytest.mark.parametrize("members", [None, []])
def test_an_empty_batch_is_a_success_and_no_failure(members: list[int] | None) -> None:
    """A loop that yields nothing, and a map over nothing."""
    batch = Batch("nothing to do")
    if members is not None:
        batch.map(flows.plus, a=members, name="map")
    outer = Workflow("outer")
    outer.add(with_callbacks(batch), name="batch")
    for handle in (run(batch), run(outer).children()["batch"]):
        assert handle.status() == "COMPLETED"
        assert statuses(handle).items() >= {"good": "COMPLETED", "bad": "SKIPPED", "end": "COMPLETED"}.items()
        assert handle.results()["bad"].err_value.error_code == "UPSTREAM_SKIPPED"
    only_failure = Batch("nothing failed")
    only_failure.on_failure(flows.number, 1)
    assert run(only_failure).status() == "COMPLETED"


# sending


def test_a_key_makes_a_send_idempotent() -> None:
    """It belongs to the name of the workflow; a run without one is always new. Absolute times may differ."""

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
def test_many_workflows_are_sent_in_order_in_any_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(send, "CHUNK", chunk)
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
    refuses("no task named", Workflow.send_many, [numbered(1), numbered(2), bad], error=WorkflowDefinitionError)
    refuses("another graph", Workflow.send_many, [numbered(1), numbered(2, key="here")])
    assert WorkflowRun.objects.count() == 1
    one, other, same = Workflow.send_many([numbered(1, key="new"), numbered(2), numbered(1, key="new")])
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


def test_the_error_of_a_map_says_what_became_of_one_of_its_tasks_that_failed() -> None:
    flow = Workflow("one by one", max_in_flight=1)
    flow.map(flows.odd_fails, n=[0, 1, 2])
    handle = run(flow)
    node = WorkflowNode.objects.get(workflow_id=handle.workflow_id)
    assert node.error == "1 of 3 tasks did not complete; one of them: UNHANDLED_ERROR: ValueError: 1 is odd"
    assert "ValueError: 1 is odd" in handle.get(0).err_value.message


def test_async_tasks_grow_and_read_results_which_leave_out_no_node_although_two_have_one_name() -> None:
    """Naive: they are kept by name, and one hides the other."""
    flow = Workflow("async")
    for n in (1, 2):
        flow.add(flows.grows_async, n)
    flow.returns(flow.add(flows.total_async, flow.map(flows.plus, a=[1, 2, 3])))
    handle = run(flow)
    assert handle.get(0).ok_value == 9
    found = {name: result.ok_value for name, result in handle.results().items()}
    numbers = WorkflowNode.objects.filter(name="first").order_by("number").values_list("number", flat=True)
    assert sorted([found["first"], found[f"first ({numbers[1]})"]]) == [1, 2]
    assert {5, 7} <= {value for name, value in found.items() if name.startswith("sum")}
    assert len(found) == WorkflowNode.objects.count()


@pytest.mark.parametrize("what", ["same", "graph", "argument", "task", "input", "list", "key"])
def test_a_second_attempt_that_adds_another_node_is_told(what: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_the_workflow_of_a_running_task_cannot_be_sent_again_also_not_from_async_code() -> None:
    flow = workflow_of(CurrentTask())
    for call in (flow.send, lambda: asyncio.run(flow.asend())):
        refuses("the workflow of the current task is running", call)


def test_a_task_outside_of_a_workflow_cannot_grow_one() -> None:
    handle = flows.grows_alone.send()
    drain()
    assert "is not part of a workflow" in handle.get(0).ok_value
