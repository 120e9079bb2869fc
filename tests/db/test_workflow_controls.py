"""Stops, skips, caps and retries of runs, and what comes late: the end of a task, a deadline, new code."""

from __future__ import annotations

import datetime as dt

import pytest

from horsies_django import Workflow, WorkflowError, get_workflow
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.tasks import registry
from horsies_django.tasks.definition import define
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import sql
from tests.db.drives import Hand
from tests.db.test_workflows import statuses

pytestmark = pytest.mark.django_db


def chain() -> Workflow:
    flow = Workflow("chain")
    flow.returns(flow.add(flows.plus, flow.add(flows.number, 1)))
    return flow


# controls


def test_a_node_that_was_skipped_by_hand_stays_skipped_when_the_run_is_retried() -> None:
    flow = Workflow("skip")
    first = flow.add(flows.odd_fails, 1)
    second = flow.add(flows.number, 2, after=first, name="second")
    flow.add(flows.number, 3, after=second, name="third")
    flow.add(flows.describe, second, allow_failed=True)
    handle = flow.send()
    handle.skip("second")
    drain(raise_errors=False)
    with pytest.raises(WorkflowError, match="has finished"):
        handle.skip("second")
    WorkflowNode.objects.filter(name="odd_fails").update(kwargs={"n": 2})
    handle.retry()
    drain()
    expected = {"odd_fails": "COMPLETED", "second": "SKIPPED", "third": "SKIPPED", "describe": "COMPLETED"}
    assert statuses(handle) == expected


def test_a_cap_on_tasks_in_flight_holds_through_a_pause_and_a_retry(hand: Hand) -> None:
    flow = Workflow("capped", max_in_flight=2)
    flow.map(flows.act, value=list(range(10)))
    handle, most = flow.send(), []

    def end(place: int, code: str | None = None) -> None:
        most.append(Task.objects.filter(workflow_id=handle.workflow_id, finished_at=None).count())
        hand.take()
        hand.end(f"element {place}", code=code)

    for place in range(10):
        end(place, "BROKEN" if place % 2 else None)
        if place == 2:
            handle.pause()
            handle.resume()
    assert handle.status() == "FAILED"
    handle.retry()
    for place in range(1, 10, 2):
        end(place)
    assert (max(most), handle.status()) == (2, "COMPLETED")


def test_a_run_that_was_cancelled_when_all_its_nodes_had_completed_is_retried(hand: Hand) -> None:
    child = Workflow("child")
    child.add(flows.number, 1, name="inside")
    flow = Workflow("parent")
    flow.add(flows.number, 2, after=flow.add(child))
    handle = flow.send()
    hand.take()
    inside = WorkflowRun.objects.get(name="child")
    get_workflow(inside.pk).pause()
    hand.end("inside")
    assert (get_workflow(inside.pk).status(), statuses(get_workflow(inside.pk))) == ("PAUSED", {"inside": "COMPLETED"})
    assert handle.cancel()
    hand.engine.advance()
    assert set(statuses(handle).values()) == {"CANCELLED"}
    handle.retry()
    hand.finish()
    assert handle.status() == "COMPLETED"


# what comes late


def test_a_task_that_completes_after_the_cancel_does_not_revive_its_run(hand: Hand) -> None:
    handle = chain().send()
    hand.take()
    assert handle.cancel()
    hand.end("number")
    assert handle.status() == "CANCELLED"
    assert statuses(handle) == {"number": "COMPLETED", "plus": "CANCELLED"}
    assert Task.objects.count() == 1


def test_what_completes_during_a_pause_is_an_argument_after_it(hand: Hand) -> None:
    handle = chain().send()
    hand.take()
    assert handle.pause()
    hand.end("number", value=41)
    assert statuses(handle) == {"number": "COMPLETED", "plus": "READY"}
    assert hand.take() == set()
    assert handle.resume()
    drain()
    assert handle.get(0).ok_value == 42


def test_a_deadline_that_passes_during_a_pause_lets_nothing_run_after_it() -> None:
    flow = Workflow("late", good_until=dt.timedelta(hours=1))
    flow.add(flows.number, 1)
    handle = flow.send()
    assert handle.pause()
    sql("UPDATE horsies_workflows SET good_until = now() - interval '1 second'")
    assert handle.resume()
    assert drain() == 0
    assert statuses(handle) == {"number": "EXPIRED"}
    assert handle.status() == "FAILED"


def test_a_result_or_an_element_that_was_erased_before_it_became_an_argument_fails_the_node(hand: Hand) -> None:
    flow = chain()
    flow.map(flows.anything, value=flow.map(flows.number, n=[1, 2]), name="over a map")
    handle = flow.send()
    hand.take()
    assert handle.pause()
    erased = [hand.claims["number"].id, hand.claims["element 1"].id]
    hand.end("number", "element 0", "element 1")
    for task in erased:
        redact(task, actor="ada", reason="a request")
    assert handle.resume()
    assert (handle.status(), Task.objects.count()) == ("FAILED", 3)
    assert handle.get(0).err_value.data == {"node": "plus", "error_code": "RESULT_REDACTED"}
    assert WorkflowNode.objects.get(name="over a map").error_code == "RESULT_REDACTED"


def plus_needs_more(a: int, c: str, b: int = 1) -> int:
    return a + b


def test_code_that_changed_under_a_waiting_run_fails_its_node_alone_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = Workflow("changed")
    first = flow.add(flows.number, 1)
    flow.returns(flow.add(flows.plus, first, b=4))
    flow.map(flows.plus, a=[1, 2], after=first, name="all")
    flow.add(flows.number, 2, after=first, name="other")
    handle = flow.send()
    with monkeypatch.context() as deployed:
        deployed.setitem(registry._tasks, flows.plus.name, define(plus_needs_more, name=flows.plus.name))
        drain(raise_errors=False)
        assert statuses(handle) == {"number": "COMPLETED", "plus": "FAILED", "all": "FAILED", "other": "COMPLETED"}
        nodes = {node.name: node for node in WorkflowNode.objects.all()}
        message = handle.get(0).err_value.message
        assert nodes["plus"].error_code == "WORKER_SERIALIZATION_ERROR"
        assert "node plus failed: WORKER_SERIALIZATION_ERROR: " in message
        for text in (message, nodes["plus"].error, nodes["all"].error):
            assert "missing a required argument: 'c'" in text
    handle.retry()
    assert drain() == 3, "what had completed is kept"
    assert (handle.status(), handle.get(0).ok_value) == ("COMPLETED", 5)
    assert handle.results()["all"].ok_value == [2, 3]
