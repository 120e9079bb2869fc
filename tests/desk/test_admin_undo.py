"""Runs that are undone, and runs that continue as others, in the admin and in the command."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from horsies_django import Workflow
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.desk.test_admin_workflows import body, listed, node_url, table, url
from tests.desk.test_workflow_command import machine, run
from tests.support.commands import lines

pytestmark = pytest.mark.django_db


def saga() -> Any:
    """Send a run, and let it fail with one undo that fails and one that waits."""
    flow = Workflow("trip")
    first = flow.add(flows.charge, 1, undo=flows.refund, name="first")
    second = flow.add(flows.charge, 2, after=first, undo=flows.broken_undo.with_options(queue="mail"), name="second")
    flow.add(flows.broken, after=second)
    handle = flow.send()
    drain(queues=["default"], raise_errors=False)
    assert handle.status() == "COMPENSATING"
    return handle


def tools(boss: Client, handle: Any) -> set[str]:
    """Return the verbs of the buttons on the page of a run."""
    return {tool.url.rstrip("/").rpartition("/")[2] for tool in boss.get(url(handle)).context["tools"][1:]}


def test_a_run_that_is_undone_shows_its_undos_and_what_they_wait_for(boss: Client) -> None:
    handle = saga()
    assert listed(boss, status="COMPENSATING") == [handle.workflow_id]
    html = body(boss, url(handle))
    assert "↶" in html
    assert "Compensating" in html
    numbers = dict(WorkflowNode.objects.values_list("name", "number"))
    rows = {row[1]: row for row in table(html, "horsies-nodes")}
    kind, task, status = rows["undo first"][2:5]
    assert (kind, task.replace(" ", ""), status) == ("undo", flows.refund.name, "○ Pending Why?")
    html = body(boss, node_url(handle, numbers["undo first"]))
    found = dict(table(html, "horsies-facts"))
    assert (found["Kind"], found["Undoes"], "Join" in found, "Added by" in found) == ("undo", "first", False, False)
    assert f'<a href="{node_url(handle, numbers["first"])}">first</a>' in html
    assert "It undoes" in html
    found = dict(table(body(boss, node_url(handle, numbers["first"])), "horsies-facts"))
    assert found["Undo"].replace(" ", "") == flows.refund.name
    assert tools(boss, handle) == {"skip"}


def test_the_form_says_that_a_run_that_was_undone_is_not_retried(boss: Client) -> None:
    handle = saga()
    drain(raise_errors=False)
    assert WorkflowRun.objects.get().error_code == "COMPENSATION_FAILED"
    assert "retry" in tools(boss, handle)
    boss.post(url(handle, "retry"), {"reason": "again"}, follow=True)
    assert handle.status() == "COMPENSATING"
    handle.skip("undo second")
    drain(raise_errors=False)
    response = boss.post(url(handle, "retry"), {"reason": "again"}, follow=True)
    assert "its nodes were undone; send it again" in response.content.decode()
    assert (handle.status(), "retry" in tools(boss, handle)) == ("FAILED", False)


def test_the_command_shows_and_lists_what_is_undone() -> None:
    handle = saga()
    assert [one["id"] for one in machine("list", "--status", "COMPENSATING")] == [str(handle.workflow_id)]
    shown = lines(run("show", handle.workflow_id))
    assert any("undo first undo PENDING" in line for line in shown)
    by_name = {node["name"]: node for node in machine("show", handle.workflow_id)["nodes"]}
    assert by_name["undo first"]["undoes"] == by_name["first"]["number"]
    assert "UNDO: It undoes 'second'." in run("explain", handle.workflow_id, "undo second")
    assert run("cancel", handle.workflow_id).startswith("Nothing changed:")


def test_runs_that_continue_one_another_are_linked(boss: Client) -> None:
    handle = flows.loop(0, 2, key="k").send()
    drain()
    middle, last = handle.successor(), handle.latest()
    assert middle is not None
    html = body(boss, url(middle))
    for other in (handle, last):
        assert f'<a href="{url(other)}">{other.workflow_id}</a>' in html
    number = WorkflowNode.objects.get(workflow_id=middle.workflow_id, kind="continue").number
    assert f'<a href="{url(last)}">Run</a>' in body(boss, node_url(middle, number))
    shown = lines(run("show", middle.workflow_id))
    assert f"continues {handle.workflow_id}" in shown
    assert f"continued as {last.workflow_id}" in shown
    assert machine("show", handle.workflow_id)["continued_as"] == str(middle.workflow_id)
