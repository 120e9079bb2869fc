"""The reasons why a node of a workflow does not run, each with its cause."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from django.db import connection

from horsies_django import Batch, Workflow, queues, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.monitoring.explain import NodeExplanation, explain_node
from horsies_django.store.overviews import OverviewStore
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import sql
from tests.db.test_workflows import refuses, run
from tests.support.factories import now, serving

pytestmark = pytest.mark.django_db


def told(handle: Any, node: str | int) -> NodeExplanation:
    found = explain_node(handle.workflow_id, node)
    json.dumps([reason.details for reason in found.reasons])
    return found


def codes(handle: Any, node: str | int) -> list[str]:
    return [reason.code.value for reason in told(handle, node).reasons]


def only(handle: Any, node: str | int) -> tuple[str, str]:
    """Return the code and the text of the only reason."""
    (found,) = told(handle, node).reasons
    return found.code.value, found.text


def check(handle: Any, *expected: tuple[str, str, str]) -> None:
    """Check the code and, by a pattern, the text of the only reason of each of these nodes."""
    for name, code, text in expected:
        found, said = only(handle, name)
        assert found == code, name
        assert re.fullmatch(text, said), said


def test_a_node_waits_for_the_upstream_nodes_that_are_open() -> None:
    """The reason counts the open upstream nodes, names a few, and says how many a quorum needs."""
    flow = Workflow("waits")
    first = flow.add(flows.number, 1)
    second = flow.add(flows.plus, first)
    third = flow.add(flows.number, 7, name="free")

    flow.add(flows.number, 1, after=[first, second], name="end")
    flow.add(flows.number, 1, after=[first, second, third], join=quorum(2), name="two")
    flow.add(
        flows.number, 1, after=[first, second, third], join="any", allow_failed=True, name="any"
    )
    flow.add(flows.total, [flow.add(flows.number, n) for n in range(1_200)], name="many")
    handle = flow.send()

    waits = "It waits for 2 of its 2 upstream nodes: 'number' is ENQUEUED, 'plus' is PENDING."
    assert only(handle, "end") == ("WAITING_FOR_NODES", waits)

    found = told(handle, "end")
    assert [one["number"] for one in found.reasons[0].details["upstream"]] == [0, 1]
    assert str(found).splitlines()[0] == f"Node 'end' (3) of run {handle.workflow_id} is PENDING."
    assert explain_node(str(handle.workflow_id), 3) == found
    assert "2 of its 3 branches to complete: 0 did, 3 open" in only(handle, "two")[1]
    assert "1 of its 3 branches to finish" in only(handle, "any")[1]

    many = only(handle, "many")[1]
    assert many.startswith(
        "It waits for 1,200 of its 1,200 upstream nodes: 'number-2' is ENQUEUED, "
    )
    assert many.endswith("'number-6' is ENQUEUED, and 1,195 more.")


def test_the_task_of_a_node_is_explained_like_any_task() -> None:
    """The task of a node has the same reasons as any task, and those of its run.

    They include a pause and the end of the run.
    """
    flow = Workflow("paused")
    flow.add(flows.plus, flow.add(flows.number, 1))
    handle = flow.send()

    queues.pause("default", actor="ada", reason="the disk is full")
    found = told(handle, "number")
    assert [reason.code.value for reason in found.reasons] == [
        "TASK",
        "QUEUE_PAUSED",
        "NO_LIVE_WORKER",
    ]
    assert found.task_id == Task.objects.get().pk
    assert "the disk is full" in str(found)

    WorkflowRun.objects.update(status="CANCELLED", finished_at=now())
    assert codes(handle, "number")[:2] == ["RUN_ENDED", "TASK"]

    WorkflowRun.objects.update(status="RUNNING", finished_at=None)
    queues.resume("default", actor="ada")
    handle.pause(actor="ada", reason="wrong book.")
    assert codes(handle, "plus") == ["RUN_PAUSED", "WAITING_FOR_NODES"]
    assert codes(handle, "number") == ["RUN_PAUSED"]
    assert "by ada: wrong book. No other node starts until it is resumed." in str(
        told(handle, "number")
    )

    flow = Workflow("pauses", on_error="pause", max_in_flight=1)
    flow.add(flows.broken)
    flow.add(flows.number, 1)
    assert "because node 'broken' failed with UNHANDLED_ERROR" in only(run(flow), "number")[1]


def test_a_full_run_shows_its_limit() -> None:
    """The reason of a full run contains its limit, and that of a map how many tasks were sent."""
    serving("default")
    flow = Workflow("full", max_in_flight=2)
    flow.map(flows.plus, a=[1, 2, 3, 4])
    flow.add(flows.number, 1, after=flow.gate("opens later"))
    handle = flow.send()
    handle.approve("opens later", actor="ada")

    code, text = only(handle, "number")
    assert (code, "max_in_flight is 2" in text, "it has 2" in text) == ("MAX_IN_FLIGHT", True, True)

    found = told(handle, "plus")
    first = Task.objects.get(node_index=0)
    assert [reason.code.value for reason in found.reasons][:2] == ["MAP_RUNNING", "MAX_IN_FLIGHT"]
    sent = (
        "2 of its 4 tasks are sent; 0 of them have finished. The first task that has not finished "
        f"is {first.pk}."
    )
    assert (found.reasons[0].text, found.task_id) == (sent, first.pk)


def test_a_retried_map_counts_its_finished_tasks() -> None:
    flow = Workflow("retried")
    flow.map(flows.odd_fails, n=[0, 1, 2, 3])
    handle = run(flow)

    handle.retry()
    assert (
        "4 of its 4 tasks are sent; 2 of them have finished."
        in told(handle, "odd_fails").reasons[0].text
    )

    handle.pause()
    assert "2 of its 4 tasks are sent; 2 of them have finished." in str(told(handle, "odd_fails"))


def test_a_ready_node_names_its_missing_worker() -> None:
    """A ready node without a worker has the reason ``NO_WORKER``; with one it is ``READY``.

    An added node and a child run have reasons of their own.
    """
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("ready")
    flow.add(flows.plus, flow.add(flows.number, 1))
    flow.add(child)
    handle = flow.send()

    added = '[{"number": 1000000, "name": "late", "kind": "task", "task": "x"}]'
    sql("SELECT horsies_add_nodes(%s, 0, %s, '{}', NULL)", [handle.workflow_id, added])
    # as if more nodes were ready than a sender promotes
    WorkflowNode.objects.filter(name="plus").update(status="READY")

    assert only(handle, "plus")[0] == "NO_WORKER"
    serving("default")
    assert only(handle, "plus")[0] == "READY"

    code, text = only(handle, "late")
    assert (code, text.startswith("Node 'number' added it.")) == ("NOT_ADMITTED", True)

    code, text = only(handle, "child")
    assert code == "CHILD_RUN"
    assert f"its run {handle.children()['child'].workflow_id} is RUNNING." in text


def test_a_skipped_node_names_the_cause_of_its_skip() -> None:
    """The explanation of an ended node contains its end, and for a skip which cause it had."""
    flow = Workflow("ends")
    page = flow.add(flows.page, "en", 3)
    bad = flow.add(flows.broken, 4711)
    none = flow.add(flows.skips)

    flow.add(flows.plus, bad, name="failed upstream")
    flow.add(flows.number, 1, when=page.matches("$.pages > 10"), name="condition")
    flow.add(
        flows.number,
        1,
        after=[bad, none, page],
        join=quorum(2),
        when=page.matches("$.pages == 3"),
        name="quorum",
    )
    flow.add(
        flows.number,
        1,
        after=[bad, page],
        join="any",
        when=page.matches("$.pages > 10"),
        name="any condition",
    )
    flow.add(flows.number, 1, after=page, name="by hand")
    flow.signal("paid", timeout=0, on_timeout="skip")

    handle = flow.send()
    handle.skip("by hand", actor="ada", reason="not needed")
    drain(raise_errors=False)

    failed = r"an upstream node did not complete: 'broken' is FAILED \(UNHANDLED_ERROR\)\."
    unmatched = r"the value of 'page' does not match its condition \$\.pages > 10\."
    branches = r"fewer than 2 of its branches could complete: .*'skips' is SKIPPED \(.*"
    skipped = "It was skipped because"

    check(
        handle,
        ("page", "ENDED", r"It ended as COMPLETED at .*"),
        ("broken", "ENDED", r"It ended as FAILED with UNHANDLED_ERROR at .*"),
        ("skips", "SKIPPED_ITSELF", r"Its task skipped itself: it raised Skip\."),
        ("failed upstream", "UPSTREAM_NOT_COMPLETED", f"{skipped} {failed}"),
        ("condition", "CONDITION_FALSE", f"{skipped} {unmatched}"),
        ("any condition", "CONDITION_FALSE", f"{skipped} {unmatched}"),
        ("quorum", "UPSTREAM_NOT_COMPLETED", f"{skipped} {branches}"),
        ("by hand", "SKIPPED_BY_HAND", r".* by ada: not needed\."),
        ("paid", "TIMED_OUT", f"{skipped} the signal 'paid' did not arrive before .*"),
    )
    assert "4711" not in str(told(handle, "broken")), "no message of the task"


def test_a_skipped_callback_of_a_batch_shows_its_reason() -> None:
    for member, said in (
        (flows.number, "no node failed"),
        (flows.broken, "only if no node fails: 'member' is FAILED"),
    ):
        batch = Batch("batch")
        batch.add(member, 1, name="member")
        (batch.on_failure if member is flows.number else batch.on_success)(
            flows.number, 0, name="callback"
        )

        assert said in only(run(batch), "callback")[1]


def test_what_does_not_exist_is_named() -> None:
    flow = Workflow("named")
    flow.add(flows.number, 1)
    handle = flow.send()

    for node in ("nothing", "7", 7, "a\x00b", 2**70, "9" * 5_000, -1, True, None):
        refuses("no node", explain_node, handle.workflow_id, node, error=LookupError)
    refuses("no workflow run", explain_node, uuid.uuid4(), "number", error=LookupError)
    refuses("UUID", explain_node, "x", "number", error=ValueError)

    WorkflowNode.objects.filter(name="number").update(added_by=5)
    twin = """'{"number": 9, "added_by": 6}'"""
    sql(
        f"INSERT INTO horsies_workflow_nodes SELECT (jsonb_populate_record(n, {twin})).* FROM "
        "horsies_workflow_nodes n"
    )

    refuses(
        "several nodes named 'number'",
        explain_node,
        handle.workflow_id,
        "number",
        error=LookupError,
    )
    assert explain_node(handle.workflow_id, 9).number == 9


@pytest.mark.parametrize("analyzed", ["when empty", "when full"])
def test_an_explanation_reads_large_tables_through_indexes(
    analyzed: str,
) -> None:
    """An explanation reads large tables through their indexes, whatever the statistics contain."""
    tables = [
        "horsies_workflows",
        "horsies_workflow_nodes",
        "horsies_workflow_edges",
        "horsies_tasks",
        "horsies_audit",
    ]
    scans = "SELECT sum(seq_scan) FROM pg_stat_xact_all_tables WHERE relname = ANY(%s)"
    if analyzed == "when empty":
        sql(f"ANALYZE {', '.join(tables)}")

    flow = Workflow("large")
    nodes = [flow.add(flows.number, n) for n in range(300)]
    flow.add(flows.total, nodes, name="end")
    flow.map(flows.plus, a=[1, 2], name="map")
    handle = flow.send()

    if analyzed == "when full":
        sql(f"ANALYZE {', '.join(tables)}")

    before = sql(scans, [tables])
    for number in (0, 300, 301):
        assert OverviewStore(connection).node_facts(handle.workflow_id, number)

    assert sql(scans, [tables]) == before


def test_a_waiting_node_shows_its_reason_and_its_end_time() -> None:
    flow = Workflow("waits")
    flow.sleep(3_600)
    flow.signal("paid", key="7", timeout=3_600, on_timeout="skip", name="keyed")
    flow.signal("paid")
    flow.gate("approve", permission="shop.approve", timeout=3_600, on_timeout="complete")
    flow.gate("look")
    flow.add(flows.act, flow.nodes[2], after=flow.add(flows.number, 1), join="any", name="argument")
    handle = run(flow)

    assert "1 did, 0 open; and for 1 other upstream nodes" in only(handle, "argument")[1], (
        "though the quorum is met"
    )

    assert codes(handle, "paid") == ["WAITING_FOR_SIGNAL", "NO_WORKER"]
    serving("default")

    at = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"  # with the day if midnight comes before it
    person = "It waits for the decision of a person"
    check(
        handle,
        ("sleep", "WAITING_FOR_TIME", rf"It waits until {at}\."),
        (
            "keyed",
            "WAITING_FOR_SIGNAL",
            rf"It waits for the signal 'paid' with the key '7' until {at}; then it is skipped\.",
        ),
        ("paid", "WAITING_FOR_SIGNAL", r"It waits for the signal 'paid'\."),
        (
            "approve",
            "WAITING_FOR_DECISION",
            rf"{person} who has the permission shop\.approve until {at}; "
            r"then it completes without a value\.",
        ),
        ("look", "WAITING_FOR_DECISION", rf"{person}\."),
    )

    handle.pause()
    assert codes(handle, "paid") == ["WAITING_FOR_SIGNAL", "RUN_PAUSED"]
