"""What comes late to a run: the end of a task after a pause or a cancel, a deadline, nodes, and the erasure of a result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.db import connection

from horsies_django import Workflow, WorkflowError, current_task
from horsies_django.models import Task, WorkflowNode
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask, running
from horsies_django.tasks.definition import define
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import Claimer
from tests.db.test_workflows import statuses
from tests.db.test_workflows_limits import settle

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]


def chain() -> Workflow:
    flow = Workflow("chain")
    flow.returns(flow.add(flows.plus, flow.add(flows.number, 1)))
    return flow


def test_a_task_that_completes_after_the_cancel_does_not_revive_its_run(claimer: Claimers) -> None:
    worker = claimer()
    handle = chain().send()
    claims = worker.run_pass(sync=1).claims
    assert handle.cancel()
    settle(worker, claims, [1])
    assert handle.status() == "CANCELLED"
    assert statuses(handle) == {"number": "COMPLETED", "plus": "CANCELLED"}
    assert Task.objects.count() == 1


def test_what_completes_during_a_pause_is_an_argument_after_it(claimer: Claimers) -> None:
    worker = claimer()
    handle = chain().send()
    claims = worker.run_pass(sync=1).claims
    assert handle.pause()
    settle(worker, claims, [41])
    assert statuses(handle) == {"number": "COMPLETED", "plus": "READY"}
    assert worker.run_pass(sync=1).claims == []
    assert handle.resume()
    drain()
    assert handle.get(0).ok_value == 42


def test_a_deadline_that_passes_during_a_pause_lets_nothing_run_after_it() -> None:
    flow = Workflow("late", good_until=dt.timedelta(hours=1))
    flow.add(flows.number, 1)
    handle = flow.send()
    assert handle.pause()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_workflows SET good_until = now() - interval '1 second'")
    assert handle.resume()
    assert drain() == 0
    assert statuses(handle) == {"number": "EXPIRED"}
    assert handle.status() == "FAILED"


def test_only_the_current_attempt_adds_nodes_and_after_the_end_they_are_cancelled(claimer: Claimers) -> None:
    handle = chain().send()
    (claim,) = claimer().run_pass(sync=1).claims
    for attempt in (2, 1):
        token = running.set(CurrentTask(str(claim.id), attempt=attempt))
        try:
            if attempt == 2:
                with pytest.raises(WorkflowError, match="not the current one"):
                    current_task().workflow.add(flows.number, 5, name="added")
            else:
                handle.cancel()
                current_task().workflow.add(flows.number, 5, name="added")
        finally:
            running.reset(token)
    drain()
    node = WorkflowNode.objects.get(name="added")
    assert (node.status, node.error_code) == ("CANCELLED", "WORKFLOW_ENDED")


def test_a_result_that_was_erased_before_it_became_an_argument_fails_the_node(claimer: Claimers) -> None:
    worker = claimer()
    handle = chain().send()
    claims = worker.run_pass(sync=1).claims
    assert handle.pause()
    settle(worker, claims, [1])
    redact(claims[0].id, actor="ada", reason="a request")
    assert handle.resume()
    assert handle.status() == "FAILED"
    assert handle.get(0).err_value.data == {"node": "plus", "error_code": "RESULT_REDACTED"}


def test_a_map_over_a_map_fails_if_one_of_its_elements_was_erased(claimer: Claimers) -> None:
    worker = claimer()
    flow = Workflow("maps")
    flow.map(flows.anything, value=flow.map(flows.plus, a=[1, 2]))
    handle = flow.send()
    claims = worker.run_pass(sync=2).claims
    assert handle.pause()
    settle(worker, claims, [2, 3])
    redact(claims[1].id, actor="ada", reason="a request")
    assert handle.resume()
    assert handle.get(0).err_value.data == {"node": "anything", "error_code": "RESULT_REDACTED"}
    assert Task.objects.count() == 2


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
        told = "was sent without the required argument 'c'"
        node = WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="plus")
        assert node.error_code == "WORKER_SERIALIZATION_ERROR"
        assert told in node.error
        assert told in WorkflowNode.objects.get(workflow_id=handle.workflow_id, name="all").error
        message = handle.get(0).err_value.message
        assert "node plus failed: WORKER_SERIALIZATION_ERROR: " in message
        assert told in message
    handle.retry()
    assert drain() == 3, "what had completed is kept"
    assert (handle.status(), handle.get(0).ok_value) == ("COMPLETED", 5)
    assert handle.results()["all"].ok_value == [2, 3]
