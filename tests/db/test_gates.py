"""Gates, and decisions about them: each counts for one opening of one gate, the first one counts, and none is kept for later."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.exceptions import PermissionDenied
from django.db import transaction

from horsies_django import (
    TaskResult,
    Workflow,
    current_task,
    get_workflow,
    task,
)
from horsies_django.models import AuditEntry, WorkflowNode, WorkflowSignal
from horsies_django.testing import drain, open_gate
from horsies_django.workflows import operations
from horsies_django.workflows.operations import writing
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Aside, wait_for_anybody
from tests.db.test_workflows import refuses, run, statuses

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)
ALREADY = r"the gate 'legal' of run .* was already decided by ada at \d\d:\d\d:\d\d: {}"


def gated(**options: Any) -> Any:
    """Send a run with a gate that waits for a decision."""
    flow = Workflow("contract")
    flow.add(flows.anything, flow.gate("legal", **options), name="sign")
    return flow.send()


def gate(handle: Any, name: str = "legal") -> WorkflowNode:
    return WorkflowNode.objects.filter(workflow_id=handle.workflow_id, name=name).latest("number")


def changes() -> list[str]:
    entries = AuditEntry.objects.filter(action__startswith="workflow.")
    return list(entries.order_by("pk").values_list("action", flat=True))


@task
def told(result: TaskResult[Any]) -> str:
    return str(result.err_value.error_code)


def test_a_gate_waits_for_a_person_and_tells_who_decided() -> None:
    flow = Workflow("expense")
    gate = flow.gate("approve", after=flow.add(flows.number, 900), announce=flows.announced)
    flow.add(flows.anything, gate, name="pay")
    wrong = flow.gate("no")
    flow.add(flows.number, 1, after=wrong, name="after")
    flow.add(told, wrong, allow_failed=True)
    handle = flow.send()
    assert drain() == 2
    assert handle.results()["announce approve"].ok_value == "approve"
    assert (statuses(handle)["approve"], statuses(handle)["pay"]) == ("WAITING", "PENDING")
    handle.approve("approve", actor="ada", reason="fine")
    (change,) = handle.history()
    assert (change.action, change.actor, change.reason) == ("workflow.approve", "ada", "fine")
    assert change.details == {"gate": "approve", "node": "1", "opening": "1"}
    handle.reject("no", actor="eve", reason="too much")
    assert drain() == 2
    found = handle.results()
    assert found["pay"].ok_value == {"by": "ada", "reason": "fine"}
    error = found["no"].err_value
    assert (error.error_code, error.message) == ("GATE_REJECTED", "rejected by eve: too much")
    assert (statuses(handle)["after"], found["told"].ok_value) == ("SKIPPED", "GATE_REJECTED")
    assert changes() == ["workflow.approve", "workflow.reject"]


@pytest.mark.parametrize(
    ("first", "how", "status"), [("approve", "approved", "COMPLETED"), ("reject", "rejected", "FAILED")]
)
def test_of_two_decisions_the_first_counts_and_the_other_is_told(first: str, how: str, status: str) -> None:
    handle = gated()
    getattr(handle, first)("legal", actor="ada")
    for verb in (handle.approve, handle.reject):
        refuses(ALREADY.format(how), verb, "legal", actor="bob")
    drain()
    assert (gate(handle).status, gate(handle).decided_by) == (status, "ada")
    assert changes() == [f"workflow.{first}"]


def test_a_decision_does_not_open_the_gate_that_a_retry_opens_anew() -> None:
    """Naive: a decision is kept by name and taken by whoever waits next."""
    handle = gated()
    handle.reject("legal", actor="ada")
    handle.retry()
    found = gate(handle)
    assert (found.status, found.opening, found.decided_by) == ("WAITING", 2, None)
    user = User.objects.create_user("bob")
    decide = partial(operations.decide_opening, handle.workflow_id, found.number, approved=True, user=user)
    refuses("was opened anew since: look at it again", decide, 1)  # a tab from before
    drain()
    assert gate(handle).status == "WAITING"
    decide(2)
    drain()
    assert handle.status() == "COMPLETED"


@task
def asks_again(round_: int) -> None:
    flow = current_task().workflow
    asked = flow.gate("legal")
    if round_:
        flow.add(asks_again, round_ - 1, after=asked, name="next")


def test_a_double_click_does_not_decide_the_gate_of_the_next_round() -> None:
    flow = Workflow("rounds")
    flow.add(asks_again, 1)
    handle = run(flow)
    number, user = gate(handle).number, User.objects.create_user("ada")
    decide = partial(operations.decide_opening, handle.workflow_id, number, 1, approved=True, user=user)
    decide()
    drain()
    assert gate(handle).number != number
    refuses(ALREADY.format("approved"), decide)
    drain()
    assert gate(handle).status == "WAITING"


@pytest.mark.parametrize(("on_timeout", "status"), [("fail", "FAILED"), ("skip", "SKIPPED"), ("complete", "COMPLETED")])
def test_an_answer_after_the_deadline_is_refused_before_a_worker_saw_it(on_timeout: str, status: str) -> None:
    handle = gated(timeout=HOUR, on_timeout=on_timeout)
    WorkflowNode.objects.filter(kind="gate").update(due_at=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1))
    refuses(r"is not open any more: its time was over at \d\d", handle.approve, "legal", actor="ada")
    drain(until=dt.timedelta(minutes=1))
    assert gate(handle).status == status
    refuses(r"its time was over at \d\d", handle.approve, "legal", actor="ada")
    assert not changes()


def test_a_gate_that_does_not_wait_is_not_decided_and_nothing_is_kept_for_it() -> None:
    flow = Workflow("contract")
    flow.gate("legal", after=flow.add(flows.number, 1))
    handle = flow.send()
    refuses("'legal' of run .* is not open yet: decide when it waits", handle.approve, "legal", actor="ada")
    refuses("is not open yet", open_gate, handle, "legal")
    drain()
    assert gate(handle).status == "WAITING"
    assert (WorkflowSignal.objects.exists(), changes()) == (False, [])
    open_gate(handle, "legal", "in a test")
    assert gate(handle).value == {"by": "test", "reason": "in a test"}
    assert handle.status() == "COMPLETED"
    skipped, cancelled = gated(), gated()
    skipped.skip("legal")
    cancelled.cancel()
    for handle, status in ((skipped, "SKIPPED"), (cancelled, "CANCELLED")):
        refuses(f"it ended as {status} at", handle.approve, "legal", actor="ada")


# who decides


def test_a_user_needs_the_permission_of_a_gate_and_another_one_that_was_checked_does_not_decide() -> None:
    """Naive: a decision that was checked against an unprotected gate opens one of that name with a permission."""
    ada, bob = User.objects.create_user("ada"), User.objects.create_user("bob")
    ada.user_permissions.add(Permission.objects.get(codename="operate_workflow"))
    handle = gated(permission="horsies.operate_workflow")
    refuses(r"bob .* horsies\.operate_workflow .* 'legal'", handle.approve, "legal", user=bob, error=PermissionDenied)
    with writing() as store:
        for checked in (None, "horsies.look"):
            assert not store.decide(handle.workflow_id, 0, 1, checked, True, "ada", None)
    assert (gate(handle).status, changes()) == ("WAITING", [])
    handle.approve("legal", user=User.objects.get(pk=ada.pk))
    assert gate(handle).value == {"by": "ada", "reason": None}


def test_without_a_permission_a_decider_is_at_least_an_active_user_or_named_by_code() -> None:
    handle = gated()
    gone = User.objects.create_user("gone", is_active=False)
    boss = User.objects.create_superuser("boss", is_active=False)
    told = "only an active user who is logged in decides about the gate 'legal'"
    for user in (AnonymousUser(), gone, boss):
        refuses(told, handle.approve, "legal", user=user, error=PermissionDenied)
    for verb in (handle.approve, handle.reject):
        refuses(r"about the gate 'legal': pass user=request\.user, or actor=", verb, "legal")
    assert gate(handle).status == "WAITING"
    handle.approve("legal", user=User.objects.create_user("ada"))
    assert gate(handle).decided_by == "ada"


def test_of_several_open_gates_of_one_name_one_is_decided_by_its_number() -> None:
    flow = Workflow("two")
    for name in "ab":
        flow.add(asks_again, 0, name=name)
    handle = flow.send()
    drain()
    one, other = WorkflowNode.objects.filter(kind="gate").order_by("number").values_list("number", flat=True)
    refuses(f"several open gates 'legal': .* by its number: {one}, {other}", handle.approve, "legal", actor="ada")
    handle.approve(str(other), actor="ada")
    drain()
    assert [*WorkflowNode.objects.filter(status="WAITING").values_list("number", flat=True)] == [one]
    handle.approve("legal", actor="ada")
    assert handle.status() == "COMPLETED"


@pytest.mark.django_db(transaction=True)
def test_a_decision_waits_for_another_one_and_is_told_that_it_came_second(connect: Connect, aside: Aside) -> None:
    handle = gated()
    with transaction.atomic():
        get_workflow(handle.workflow_id).approve("legal", actor="ada")
        second = aside(handle.reject, "legal", actor="bob")
        wait_for_anybody(connect())
    refuses(ALREADY.format("approved"), second.result)
    assert gate(handle).status == "COMPLETED"
