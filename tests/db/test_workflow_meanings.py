"""What the pages about workflows say of conditions, edges, handlers and growth, where several of them meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django import Workflow, quorum
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.db.drives import Engine
from tests.db.test_workflow_scenarios import Hand, statuses

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hand(connect: Callable[[], psycopg.Connection[Any]]) -> Hand:
    return Hand(Engine(connect()))


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


# conditions


def test_a_node_waits_for_the_node_of_its_condition_as_for_any_other(hand: Hand) -> None:
    flow = Workflow("waits")
    asked = flow.add(flows.act, name="asked")
    flow.add(flows.act, after=flow.add(flows.act, name="before"), when=asked.matches("$ == 1"), name="node")
    handle = flow.send()
    hand.take()
    hand.end("before")
    assert statuses(handle)["node"] == "PENDING"
    hand.end("asked", value=1)
    assert statuses(handle)["node"] == "ENQUEUED"


@pytest.mark.parametrize("allow_failed", [False, True])
def test_a_condition_on_a_node_that_did_not_complete_is_false_also_if_failures_are_allowed(allow_failed: bool) -> None:
    """So the node does not run, and takes no failure."""
    flow = Workflow("false")
    asked = flow.add(flows.broken, name="asked")
    flow.add(flows.act, when=asked.matches("true"), allow_failed=allow_failed, name="node")
    handle = run(flow)
    assert (statuses(handle)["node"], handle.status()) == ("SKIPPED", "FAILED")


@pytest.mark.parametrize("on_error", ["fail", "stop", "pause"])
def test_a_handler_whose_condition_is_false_takes_no_failure(on_error: Any) -> None:
    """The run neither stops nor pauses: when the failure came, it was not known that the handler would be skipped."""
    flow = Workflow("handler", on_error=on_error)
    bad = flow.add(flows.broken, name="bad")
    asked = flow.add(flows.act, 0, name="asked", after=flow.add(flows.act, name="before"))
    flow.add(flows.act, after=bad, when=asked.matches("$ == 1"), allow_failed=True, name="handler")
    handle = run(flow)
    assert statuses(handle) == {"bad": "FAILED", "before": "COMPLETED", "asked": "COMPLETED", "handler": "SKIPPED"}
    assert (handle.status(), handle.get(0).err_value.data["node"]) == ("FAILED", "bad")


# handlers


def test_only_a_node_with_an_edge_to_the_failed_one_takes_its_failure() -> None:
    """A node farther down runs, after a skipped one, and the run fails nevertheless."""
    flow = Workflow("edges")
    bad = flow.add(flows.broken, name="bad")
    middle = flow.add(flows.act, after=bad, name="middle")
    flow.add(flows.act, after=middle, allow_failed=True, name="farther down")
    handle = run(flow)
    assert statuses(handle) == {"bad": "FAILED", "middle": "SKIPPED", "farther down": "COMPLETED"}
    assert (handle.status(), handle.get(0).err_value.data["node"]) == ("FAILED", "bad")


@pytest.mark.parametrize(
    ("handler", "status", "node"),
    [
        ("act", "COMPLETED", None),
        ("broken", "FAILED", "handler"),
        ("skips", "FAILED", "bad"),
        ("by hand", "FAILED", "bad"),
    ],
)
def test_a_handler_takes_a_failure_by_running_whatever_becomes_of_it_but_a_skip(
    handler: str, status: str, node: str | None
) -> None:
    flow = Workflow("handled")
    bad = flow.add(flows.broken, name="bad")
    flow.add(getattr(flows, handler, flows.act), after=bad, allow_failed=True, name="handler")
    handle = flow.send()
    if handler == "by hand":
        handle.skip("handler")
    drain(raise_errors=False)
    assert handle.status() == status
    if node is not None:
        assert handle.get(0).err_value.data["node"] == node


def test_with_failures_allowed_a_quorum_counts_nodes_that_ended_in_any_way(hand: Hand) -> None:
    flow = Workflow("any end")
    members = [flow.add(flows.act, name=name) for name in "abc"]
    flow.add(flows.act, after=members, join=quorum(2), allow_failed=True, name="node")
    handle = flow.send()
    hand.take()
    hand.end("a", code="BROKEN")
    assert statuses(handle)["node"] == "PENDING"
    hand.end("b", code="TASK_SKIPPED")
    assert statuses(handle)["node"] == "ENQUEUED"
    hand.finish()
    assert handle.status() == "COMPLETED"


# growth


def test_what_a_task_added_before_an_outage_stays_and_its_next_attempt_adds_the_rest(
    connect: Callable[[], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outage() -> None:
        with connection.cursor() as cursor:
            pid = cursor.execute("SELECT pg_backend_pid()").fetchone()[0]
        connect().execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    monkeypatch.setattr(flows, "outage", outage)
    flow = Workflow("outage")
    flow.add(flows.grows_through_an_outage, 3, name="grows")
    handle = run(flow)
    assert handle.status() == "COMPLETED"
    assert Task.objects.get(task_name=flows.grows_through_an_outage.name).retry_count == 1
    results = handle.results()
    assert {name: one.ok_value for name, one in results.items()} == {
        "grows": 3, "number": 0, "number-2": 1, "number-3": 2
    }  # fmt: skip


def test_what_a_task_added_runs_although_the_task_failed_for_good() -> None:
    flow = Workflow("grows")
    flow.add(flows.grows_and_fails_for_good, name="grows")
    handle = run(flow)
    assert statuses(handle) == {"grows": "FAILED", "number": "COMPLETED"}
    assert handle.status() == "FAILED"
