"""Why a node of a workflow does not run: each reason with its cause."""

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
from horsies_django.store.overviews import ExplanationStore
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.support.factories import HeartbeatFactory, WorkerFactory

pytestmark = pytest.mark.django_db


def alive() -> None:
    """Put a living worker into the tables."""
    worker = WorkerFactory(queues=["default"])
    HeartbeatFactory(id=worker.pk, worker_id=worker.pk, role="claimer")


def told(handle: Any, node: str | int) -> NodeExplanation:
    found = explain_node(handle.workflow_id, node)
    json.dumps([reason.details for reason in found.reasons])
    return found


def codes(handle: Any, node: str | int) -> list[str]:
    return [reason.code.value for reason in told(handle, node).reasons]


def only(handle: Any, node: str | int) -> tuple[str, str]:
    """Return the code and the text of the one reason."""
    (found,) = told(handle, node).reasons
    return found.code.value, found.text


def run(flow: Workflow) -> Any:
    handle = flow.send()
    drain(raise_errors=False)
    return handle


def test_a_node_waits_for_the_upstream_nodes_that_are_open() -> None:
    flow = Workflow("waits")
    first = flow.add(flows.number, 1)
    second = flow.add(flows.plus, first)
    flow.add(flows.number, 7, name="free")
    flow.add(flows.number, 1, after=[first, second], name="end")
    handle = flow.send()
    found = told(handle, "end")
    (reason,) = found.reasons
    assert reason.code == "WAITING_FOR_NODES"
    assert reason.text == "It waits for 2 of its 2 upstream nodes: 'number' is ENQUEUED, 'plus' is PENDING."
    assert [one["number"] for one in reason.details["upstream"]] == [0, 1]
    assert str(found).splitlines()[0] == f"Node 'end' (3) of run {handle.workflow_id} is PENDING."
    assert explain_node(str(handle.workflow_id), 3) == found


def test_many_upstream_nodes_are_counted_and_a_few_named() -> None:
    flow = Workflow("many")
    flow.add(flows.total, [flow.add(flows.number, n) for n in range(1_200)], name="end")
    _code, text = only(flow.send(), "end")
    assert text.startswith("It waits for 1,200 of its 1,200 upstream nodes: 'number' is ENQUEUED, ")
    assert text.endswith("'number-5' is ENQUEUED, and 1,195 more.")


def test_a_quorum_says_how_many_it_needs() -> None:
    flow = Workflow("quorum")
    nodes = [flow.add(flows.number, n) for n in range(3)]
    flow.add(flows.number, 1, after=nodes, join=quorum(2), name="two")
    flow.add(flows.number, 1, after=nodes, join="any", allow_failed=True, name="any")
    handle = flow.send()
    assert "2 of its 3 branches to complete: 0 did, 3 open" in only(handle, "two")[1]
    assert "1 of its 3 branches to finish" in only(handle, "any")[1]


def test_the_task_of_a_node_is_explained_as_any_task() -> None:
    flow = Workflow("task")
    flow.add(flows.number, 1)
    handle = flow.send()
    queues.pause("default", actor="ada", reason="the disk is full")
    found = told(handle, "number")
    assert [reason.code.value for reason in found.reasons] == ["TASK", "QUEUE_PAUSED", "NO_LIVE_WORKER"]
    assert found.task_id == Task.objects.get().pk
    assert "the disk is full" in str(found)


def test_a_paused_run_says_who_paused_it_and_why() -> None:
    flow = Workflow("paused")
    flow.add(flows.plus, flow.add(flows.number, 1))
    handle = flow.send()
    handle.pause(actor="ada", reason="wrong book")
    assert codes(handle, "plus") == ["RUN_PAUSED", "WAITING_FOR_NODES"]
    assert "by ada: wrong book. No other node starts until it is resumed." in str(told(handle, "number"))
    assert codes(handle, "number") == ["RUN_PAUSED"]


def test_a_run_that_a_failure_paused_names_the_failure() -> None:
    flow = Workflow("pauses", on_error="pause", max_in_flight=1)
    flow.add(flows.broken)
    flow.add(flows.number, 1)
    code, text = only(run(flow), "number")
    assert code == "RUN_PAUSED"
    assert "since node 'broken' failed with UNHANDLED_ERROR" in text


def test_a_full_run_says_its_limit() -> None:
    alive()
    flow = Workflow("full", max_in_flight=2)
    for n in range(3):
        flow.add(flows.number, n)
    handle = flow.send()
    assert codes(handle, "number-2")[0] == "TASK"
    code, text = only(handle, "number-3")
    assert code == "MAX_IN_FLIGHT"
    assert "may have 2 tasks" in text
    assert "it has 2" in text


def test_a_ready_node_needs_a_worker_that_advances_the_run() -> None:
    flow = Workflow("ready")
    flow.add(flows.plus, flow.add(flows.number, 1))
    handle = flow.send()
    with connection.cursor() as cursor:  # as when the sender's share of promotions was used up
        cursor.execute("UPDATE horsies_workflow_nodes SET status = 'READY' WHERE name = 'plus'")
    assert only(handle, "plus")[0] == "NO_WORKER"
    alive()
    assert only(handle, "plus")[0] == "READY"


def test_a_map_says_how_much_of_it_was_sent() -> None:
    alive()
    flow = Workflow("map", max_in_flight=2)
    flow.map(flows.plus, a=[1, 2, 3, 4])
    handle = flow.send()
    found = told(handle, "plus")
    first = Task.objects.get(node_index=0)
    assert [reason.code.value for reason in found.reasons][:2] == ["MAP_RUNNING", "MAX_IN_FLIGHT"]
    assert (
        found.reasons[0].text
        == f"2 of its 4 tasks are sent; 0 of them have finished. The first that has not finished is {first.pk}."
    )
    assert found.task_id == first.pk
    flow = Workflow("sent")
    flow.map(flows.plus, a=[1, 2, 3])
    assert "3 of its 3 tasks are sent" in told(flow.send(), "plus").reasons[0].text


def test_a_map_that_is_retried_counts_what_it_kept() -> None:
    flow = Workflow("retried")
    flow.map(flows.odd_fails, n=[0, 1, 2, 3])
    handle = run(flow)
    handle.retry()
    assert "4 of its 4 tasks are sent; 2 of them have finished." in told(handle, "odd_fails").reasons[0].text
    handle.pause()
    assert "2 of its 4 tasks are sent; 2 of them have finished." in str(told(handle, "odd_fails"))


def test_a_workflow_in_a_workflow_names_its_run() -> None:
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("parent")
    flow.add(child)
    handle = flow.send()
    code, text = only(handle, "child")
    assert code == "CHILD_RUN"
    inner = WorkflowRun.objects.get(parent_id=handle.workflow_id)
    assert f"its run {inner.pk} is RUNNING." in text


def test_an_added_node_waits_until_it_is_admitted() -> None:
    alive()
    flow = Workflow("grows")
    flow.add(flows.grows, 1)
    handle = flow.send()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT horsies_add_nodes(%s, 0, %s, '{}', NULL)",
            [handle.workflow_id, '[{"number": 1000000, "name": "late", "kind": "task", "task": "x"}]'],
        )
    code, text = only(handle, "late")
    assert code == "NOT_ADMITTED"
    assert text.startswith("Node 'grows' added it.")


def test_the_end_of_a_node_has_its_code_and_no_message_of_the_task() -> None:
    flow = Workflow("ends")
    flow.add(flows.number, 1)
    flow.add(flows.broken, 4711)
    handle = run(flow)
    assert only(handle, "number")[1].startswith("It ended as COMPLETED at ")
    code, text = only(handle, "broken")
    assert code == "ENDED"
    assert text.startswith("It ended as FAILED with UNHANDLED_ERROR at ")
    assert "4711" not in str(told(handle, "broken"))


def test_a_skipped_node_says_which_of_the_many_causes_it_was() -> None:
    flow = Workflow("skips")
    page = flow.add(flows.page, "en", 3)
    bad = flow.add(flows.broken)
    none = flow.add(flows.skips)
    flow.add(flows.plus, bad, name="failed upstream")
    flow.add(flows.number, 1, when=page.matches("$.pages > 10"), name="condition")
    flow.add(flows.number, 1, after=[bad, none, page], join=quorum(2), name="quorum")
    flow.add(flows.number, 1, after=[bad, page], join="any", when=page.matches("$.pages > 10"), name="any condition")
    flow.add(flows.number, 1, after=page, name="by hand")
    handle = flow.send()
    handle.skip("by hand", actor="ada", reason="not needed")
    drain(raise_errors=False)
    assert only(handle, "skips")[0] == "SKIPPED_ITSELF"
    code, text = only(handle, "failed upstream")
    assert code == "UPSTREAM_NOT_COMPLETED"
    assert text == "It was skipped because an upstream node did not complete: 'broken' is FAILED (UNHANDLED_ERROR)."
    for name in ("condition", "any condition"):
        code, text = only(handle, name)
        assert code == "CONDITION_FALSE"
        assert text == "It was skipped because the value of 'page' does not match its condition $.pages > 10."
    code, text = only(handle, "quorum")
    assert code == "UPSTREAM_NOT_COMPLETED"
    assert "2 of its branches had to complete: " in text
    assert "'skips' is SKIPPED (TASK_SKIPPED)" in text
    code, text = only(handle, "by hand")
    assert code == "SKIPPED_BY_HAND"
    assert text.endswith(" by ada: not needed.")


def test_the_callbacks_of_a_batch_say_why_they_did_not_run() -> None:
    batch = Batch("good")
    batch.add(flows.number, 1)
    batch.on_failure(flows.number, 0)
    assert "no node failed" in only(run(batch), "number-2")[1]
    batch = Batch("bad")
    batch.add(flows.broken)
    batch.on_success(flows.number, 0)
    assert only(run(batch), "number")[1].endswith("only if no node fails: 'broken' is FAILED (UNHANDLED_ERROR).")


def test_a_task_that_outlives_its_cancelled_run_is_found() -> None:
    flow = Workflow("outlives")
    flow.add(flows.number, 1)
    handle = flow.send()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_workflows SET status = 'CANCELLED', finished_at = now()")
    assert codes(handle, "number")[:2] == ["RUN_ENDED", "TASK"]


def test_what_does_not_exist_is_named() -> None:
    flow = Workflow("named")
    flow.add(flows.number, 1)
    handle = flow.send()
    for node in ("nothing", "7", 7, "a\x00b", 2**70):
        with pytest.raises(LookupError, match="no node"):
            explain_node(handle.workflow_id, node)
    with pytest.raises(LookupError, match="no workflow run"):
        explain_node(uuid.uuid4(), "number")
    with pytest.raises(ValueError, match="UUID"):
        explain_node("x", "number")
    WorkflowNode.objects.filter(name="number").update(added_by=5)
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO horsies_workflow_nodes SELECT (jsonb_populate_record(n, \'{"number": 9, "added_by": 6}\')).*'
            " FROM horsies_workflow_nodes n"
        )
    with pytest.raises(LookupError, match="several nodes named 'number'"):
        explain_node(handle.workflow_id, "number")
    assert explain_node(handle.workflow_id, "9").number == 9


SCANS = """
    SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_all_tables
    WHERE relname IN ('horsies_workflows', 'horsies_workflow_nodes', 'horsies_workflow_edges', 'horsies_tasks', 'horsies_audit')
"""


@pytest.mark.parametrize("analyzed", ["when empty", "when full"])
def test_it_reads_large_tables_through_their_indexes_whatever_the_statistics_say(analyzed: str) -> None:
    tables = "horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges, horsies_tasks, horsies_audit"
    with connection.cursor() as cursor:
        if analyzed == "when empty":
            cursor.execute(f"ANALYZE {tables}")
        flow = Workflow("large")
        nodes = [flow.add(flows.number, n) for n in range(300)]
        flow.add(flows.total, nodes, name="end")
        flow.map(flows.plus, a=[1, 2], name="map")
        handle = flow.send()
        if analyzed == "when full":
            cursor.execute(f"ANALYZE {tables}")
        store = ExplanationStore(connection)
        cursor.execute(SCANS)
        before = cursor.fetchone()
        for number in (0, 300, 301):
            assert store.node_facts(handle.workflow_id, number)
        cursor.execute(SCANS)
        assert cursor.fetchone() == before


def test_a_node_that_waits_says_for_what_and_until_when() -> None:
    alive()
    flow = Workflow("waits")
    flow.sleep(3_600)
    flow.signal("paid", key="7", timeout=3_600, on_timeout="skip", name="keyed")
    flow.signal("paid")
    flow.gate("approve", permission="shop.approve", timeout=3_600, on_timeout="complete")
    flow.gate("look")
    handle = run(flow)
    at = r"(tomorrow at )?\d\d:\d\d:\d\d"
    for name, code, text in (
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
            r"It waits for the decision of a person who has the permission shop\.approve "
            rf"until {at}; then it completes without a value\.",
        ),
        ("look", "WAITING_FOR_DECISION", r"It waits for the decision of a person\."),
    ):
        found, said = only(handle, name)
        assert found == code
        assert re.fullmatch(text, said), said
    handle.pause()
    assert codes(handle, "paid") == ["WAITING_FOR_SIGNAL", "RUN_PAUSED"]


def test_a_node_that_waits_says_that_there_is_no_worker() -> None:
    flow = Workflow("waits")
    flow.signal("paid")
    assert codes(run(flow), "paid") == ["WAITING_FOR_SIGNAL", "NO_WORKER"]


def test_a_wait_that_was_skipped_because_its_time_was_over_says_so() -> None:
    flow = Workflow("waits")
    flow.signal("paid", timeout=0, on_timeout="skip")
    code, text = only(run(flow), "paid")
    assert code == "TIMED_OUT"
    assert text.startswith("It was skipped because the signal 'paid' did not come until ")
