"""What sleeps costs nothing: an idle look reads as much of the tables whether no run sleeps or ten thousand do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django import Workflow
from horsies_django.models import WorkflowNode
from horsies_django.store.base import text_of
from tests.apps.project import flows
from tests.conftest import Claimer
from tests.db.drives import MAX_BYTES, Engine
from tests.db.test_statements import explained
from tests.db.test_workflows_plans import full_scans

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
SLEEPING = """
INSERT INTO horsies_workflows (id, name, status, on_error, sent_at)
SELECT md5(run::text)::uuid, 'sleeps', 'RUNNING', 'fail', now() FROM generate_series(1, {many}) AS run;
INSERT INTO horsies_workflow_nodes (workflow_id, number, name, kind, status, task_name, queue_name, lane, priority, on_timeout,
                                    signal, due_at)
SELECT md5(run::text)::uuid, n, n::text, CASE n WHEN 0 THEN 'timer' ELSE 'signal' END, 'WAITING', '', '', '', 100, 'complete',
       CASE n WHEN 0 THEN NULL ELSE 'go' END, CASE WHEN n < 2 THEN now() + interval '1 hour' + run * interval '1 s' END
FROM generate_series(1, {many}) AS run, generate_series(0, 2) AS n;
INSERT INTO horsies_workflow_signals (id, workflow_id, name, data, actor, seen_at)
SELECT horsies_uuid7(run), md5(run::text)::uuid, 'other', '1', 'test', now() FROM generate_series(1, {many}) AS run
"""


def put_to_sleep(connect: Connect, many: int, *, analyze: bool = True) -> None:
    """Insert runs that wait for time and for signals, with signals that nobody takes."""
    admin = connect()
    for statement in SLEEPING.format(many=many).split(";"):
        admin.execute(statement)
    if analyze:
        admin.execute("ANALYZE horsies_workflows, horsies_workflow_nodes, horsies_workflow_signals")


def buffers(conn: psycopg.Connection[Any], name: str, params: dict[str, Any]) -> int:
    """Return how many buffers a statement reads when it runs for the third time."""
    for _ in range(3):
        query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text_of(name, params)
        ((found,),) = conn.execute(query.encode(), params).fetchall()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def idle(connect: Connect) -> list[int]:
    """Return the buffers that the two looks of an idle tick read."""
    conn = connect()
    shared = {"many": 1_000, "now": None}
    owed = buffers(conn, "horsies_owed", {"age": None, **shared})
    return [owed, buffers(conn, "horsies_wake", {"limit": 200, "max_bytes": MAX_BYTES, "channel": "x", **shared})]


def test_an_idle_tick_reads_as_little_with_ten_thousand_sleeping_runs_as_with_none(connect: Connect) -> None:
    empty = idle(connect)
    put_to_sleep(connect, 100)
    few = idle(connect)
    connect().execute("TRUNCATE horsies_workflows, horsies_workflow_nodes, horsies_workflow_signals")
    put_to_sleep(connect, 10_000)
    many = idle(connect)
    assert all(more - less <= 8 for more, less in zip(many, empty, strict=True)), (empty, few, many)


@pytest.mark.parametrize("analyze", [True, False], ids=["large", "stale"])
def test_waits_are_begun_found_and_ended_through_indexes(
    claimer: Callable[..., Claimer], connect: Connect, analyze: bool
) -> None:
    put_to_sleep(connect, 5_000, analyze=analyze)
    worker = claimer()
    engine = Engine(worker.conn)
    notices = explained(worker)
    flow = Workflow("waits")
    first = flow.add(flows.act)
    flow.sleep(0, after=first)
    flow.signal("go", after=first)
    flow.signal("go", key="k", after=first)
    flow.signal("go", key="late", name="late")
    flow.gate("approve", after=first)
    handle = flow.send()
    handle.signal("go", 1)
    handle.signal("go", 2, key="k")
    engine.run_all()
    handle.signal("go", 3, key="late")
    engine.run_all()
    handle.approve("approve", actor="ada")
    while engine.workflows.wake(50, 200) or engine.advancer.find(engine.workflows, None, 100):
        engine.advance()
    assert {node.status for node in WorkflowNode.objects.filter(workflow_id=handle.workflow_id)} == {"COMPLETED"}
    shown = "\n".join(notices)
    for index in ("nodes_due", "nodes_waits", "nodes_signal"):
        assert f"using horsies_workflow_{index}" in shown
    for index in ("unseen", "unused", "keyed"):
        assert f"using horsies_signals_{index}" in shown
    assert full_scans(notices) == set()
