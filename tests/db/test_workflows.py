"""Workflows, run to their end in the test's own process."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import Batch, Workflow, WorkflowDefinitionError, WorkflowError, get_handle, get_workflow, quorum
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from horsies_django.workflows import send
from tests.apps.project import flows

pytestmark = pytest.mark.django_db


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


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


def test_a_handle_leads_to_the_runs_inside_it_at_any_time() -> None:
    """Naive: by hand, from the nodes in the database."""
    child = Workflow("child")
    child.returns(child.signal("paid"))
    outer = Workflow("outer")
    first = outer.add(child, name="first")
    outer.add(child, name="second", after=first)
    handle = outer.send()
    found = handle.children()
    assert list(found) == ["first"]
    found["first"].signal("paid", 3)
    drain()
    assert (found["first"].status(), found["first"].get(0).ok_value) == ("COMPLETED", 3)
    assert list(handle.children()) == ["first", "second"]
    handle.children()["second"].cancel()
    drain()
    assert handle.status() == "FAILED"
    handle.retry()
    assert handle.children()["second"].status() == "RUNNING"


def test_runs_inside_a_run_that_tasks_added_under_one_name_are_all_there() -> None:
    flow = Workflow("grows")
    flow.add(flows.adds_and_changes)
    flow.add(flows.adds_and_changes)
    handle = run(flow)
    first, second = handle.children()
    assert (first, second.startswith("inner (")) == ("inner", True)
    assert async_to_sync(handle.achildren)() == handle.children()
    assert handle.children()["inner"].children() == {}
    with pytest.raises(LookupError, match="never sent"):
        get_workflow(uuid.uuid4()).children()


# batches


def with_callbacks(batch: Batch) -> Batch:
    batch.on_success(flows.number, 1, name="good")
    batch.on_failure(flows.number, 1, name="bad")
    batch.on_finish(flows.number, 1, name="end")
    return batch


@pytest.mark.parametrize(("member", "called"), [(flows.number, "good"), (flows.odd_fails, "bad")])
def test_batches_call_back(member: Any, called: str) -> None:
    batch = Batch("batch")
    for n in (1, 2):
        batch.add(member, n)
    found = statuses(run(with_callbacks(batch)))
    assert {name for name in ("good", "bad", "end") if found[name] == "COMPLETED"} == {called, "end"}


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
        found = statuses(handle)
        found.pop("map", None)
        assert found == {"good": "COMPLETED", "bad": "SKIPPED", "end": "COMPLETED"}
        assert handle.results()["bad"].err_value.error_code == "UPSTREAM_SKIPPED"
    only_failure = Batch("nothing failed")
    only_failure.on_failure(flows.number, 1)
    assert run(only_failure).status() == "COMPLETED"


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_member_of_a_batch_that_never_ran_is_a_failure(how: str) -> None:
    batch = Batch("one is missing")
    past = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    batch.add(flows.number.with_options(good_until=past if how == "expired" else None), 1, name="member")
    batch.add(flows.number, 2)
    handle = with_callbacks(batch).send()
    if how == "cancelled":
        get_handle(WorkflowNode.objects.get(name="member").task_id).cancel()
    drain(raise_errors=False)
    expected = {"member": how.upper(), "number": "COMPLETED", "good": "SKIPPED", "bad": "COMPLETED", "end": "COMPLETED"}
    assert (statuses(handle), handle.status()) == (expected, "FAILED")


# sending


def test_a_key_makes_a_send_idempotent() -> None:
    """It belongs to the name of the workflow; a run without one is always new. Absolute times may differ."""

    def send(n: int = 1, name: str = "import", key: str | None = "book 7", signal: str = "paid", days: int = 1) -> Any:
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        flow = Workflow(name, key=key, good_until=tomorrow)
        flow.add(flows.number.with_options(good_until=tomorrow), n)
        flow.until(tomorrow)
        flow.signal(signal, timeout=dt.timedelta(days=days))
        return flow.send()

    assert send() == send()
    assert len({send(), send(name="export"), send(key=None), send(key=None)}) == 4
    for other in ({"n": 2}, {"signal": "sent"}, {"days": 2}):
        with pytest.raises(WorkflowError, match="another graph"):
            send(**other)


def numbered(*numbers: int, key: str | None = None) -> Workflow:
    flow = Workflow("numbered", key=key)
    for n in numbers:
        flow.returns(flow.add(flows.number, n))
    return flow


@pytest.mark.parametrize("chunk", [1, 2, 5_000])
def test_many_workflows_are_sent_in_order_whatever_fits_into_a_statement(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
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
    with pytest.raises(WorkflowDefinitionError, match="no task named 'nothing'"):
        Workflow.send_many([numbered(1), numbered(2), Workflow("bad").add("nothing").flow])
    with pytest.raises(WorkflowError, match="another graph"):
        Workflow.send_many([numbered(1), numbered(2, key="here")])
    assert WorkflowRun.objects.count() == 1
    one, other, same = Workflow.send_many([numbered(1, key="new"), numbered(2), numbered(1, key="new")])
    assert (one == same, WorkflowRun.objects.count()) == (True, 3)


@pytest.mark.parametrize("wrong", [flows.number, "number", 3, ["number"]])
def test_what_is_no_node_is_named_wherever_a_node_is_expected(wrong: object) -> None:
    flow = Workflow("no node")
    flow.add(flows.number, 1, after=wrong)
    flow.returns(wrong)
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    shown = repr(wrong[0] if isinstance(wrong, list) else wrong)
    assert raised.value.problems == [
        f"number: after(): {shown} is not a node of this workflow; use what its add() returned",
        f"returns(): {wrong!r} is not a node of this workflow; use what its add() returned",
    ]


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
    flow.add(flows.number, 1, when=first.matches("$.a ==="))
    flow.add(flows.number, 1, when=first.matches('$ like_regex "("'))
    flow.add(flows.number, 1, when=first.matches("$ ? (@ > 1)"))
    flow.add("no.such.task")
    with pytest.raises(WorkflowDefinitionError, match="not a JSON path") as raised:
        flow.send()
    assert len(raised.value.problems) == 3
    assert connection.in_atomic_block
