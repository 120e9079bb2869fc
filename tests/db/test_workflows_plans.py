"""Runs are advanced, found and deleted through indexes, whatever the statistics contain."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.store.retention import RetentionStore
from horsies_django.workflows import operations
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import Engines
from tests.db.drives import Engine, chain, ended
from tests.db.test_statements import explained
from tests.support.deadlines import wait_until
from tests.support.factories import now

KINDS = (
    "tasks",
    "task_attempts",
    "workflows",
    "workflow_nodes",
    "workflow_edges",
    "workflow_signals",
)
TABLES = [f"horsies_{kind}" for kind in KINDS]
POSTPONE = (
    "UPDATE horsies_tasks SET enqueued_at = now() + interval '1 year' WHERE finished_at IS NULL"
)


ANALYZE = f"ANALYZE {', '.join(TABLES)}"
FILL = [
    """INSERT INTO horsies_workflows (id, name, status, on_error, sent_at, finished_at)
    SELECT md5(run::text)::uuid, 'old', 'COMPLETED', 'fail', now(), now()
    FROM generate_series(1, 500) AS run""",
    """INSERT INTO horsies_workflow_nodes (workflow_id, number, name, kind, status, task_name,
                                          queue_name, lane, priority, task_id, finished_at)
    SELECT md5(run::text)::uuid, n, n::text, 'task', 'COMPLETED', 'x',
           'default', 'sync', 100, md5(run || ' ' || n)::uuid, now()
    FROM generate_series(1, 500) AS run, generate_series(0, 19) AS n""",
    """INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    SELECT md5(run::text)::uuid, n, n + 1
    FROM generate_series(1, 500) AS run, generate_series(0, 18) AS n""",
    """INSERT INTO horsies_tasks (
        id, task_name, queue_name, lane, priority, kwargs, status, sent_at, enqueued_at,
        finished_at, result, workflow_id, node, node_index, advanced_at
    )
    SELECT md5(run || ' ' || n)::uuid, 'x', 'default', 'sync', 100, '{}', 'COMPLETED', now(),
           now(), now(), '{"ok": 1}', md5(run::text)::uuid, n, 0,
           now()
    FROM generate_series(1, 500) AS run, generate_series(0, 19) AS n""",
]
EMPTY = [f"DELETE FROM {table}" for table in TABLES]
# "emptied" has statistics from after the deletion of all rows, but with their pages still there;
# these promise one row, however many come.
STATES = {
    "new": [],
    "one": [],
    "empty": [ANALYZE],
    "stale": [ANALYZE, *FILL],
    "large": [*FILL, ANALYZE],
    "emptied": [*FILL, *EMPTY, ANALYZE, *FILL],
}


def fill(state: str, admin: Any) -> None:
    """Fill the tables, or leave them empty, and make the statistics of the state."""
    for table in TABLES:
        admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

    admin.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
    admin.execute(
        "DELETE FROM pg_statistic WHERE starelid = ANY (%s::text[]::regclass[])", [list(TABLES)]
    )

    for statement in STATES[state]:
        admin.execute(statement)


def full_scans(notices: list[str]) -> set[str]:
    """Return the tables that statements inside functions read completely.

    The plans of these statements are pinned.
    """
    plans = "\n".join(
        notice.partition("plan:")[2] for notice in notices if "Query Text: -- " not in notice
    )
    return set(re.findall(r"Seq Scan on (horsies_(?:tasks|task_attempts|workflow\w+))", plans))


@pytest.mark.parametrize("state", ["empty", "stale", "emptied", "large"])
def test_a_run_is_advanced_and_deleted_through_indexes(
    engines: Engines, connect: Connect, state: str
) -> None:
    fill(state, connect())
    engine = engines()
    notices = explained(engine)

    child = Workflow("child")
    child.add(flows.number, 1)

    flow = Workflow("plans", max_in_flight=1_000)
    numbers = flow.add(flows.numbers, 9)
    mapped = flow.map(flows.plus, a=numbers)
    flow.add(flows.total_list, mapped, when=numbers.matches("$.size() == 3"))
    flow.add(child, after=mapped)
    flow.add(flows.number, 1, after=[mapped, flow.add(flows.number, 1)])
    handle = flow.send()

    for _ in range(4):
        for claim in engine.take():
            engine.settle(claim, value=[1, 2, 3] if claim.task_name.endswith(".numbers") else 1)
        engine.advance()

    assert handle.status() == "COMPLETED"
    for age in (None, timedelta(minutes=1)):
        assert engine.advancer.find(engine.workflows, age, 10) == 0

    again = flow.send()
    for verb in ("pause", "resume", "cancel"):
        engine.workflows.control(again.workflow_id, verb)
    assert engine.workflows.retry(again.workflow_id, nested=False) == "RETRIED"
    calls = engine.workflows.open_calls([again.workflow_id])
    assert sum(each.nodes for each in calls) == 6, "also of the child, not yet started"

    WorkflowRun.objects.filter(pk=handle.workflow_id).update(finished_at=now() - timedelta(days=2))
    before = Task.objects.count()
    assert RetentionStore(engine.conn).prune_runs(timedelta(days=1), 100)[0] == 1
    assert Task.objects.count() < before

    timed(engine)
    signalled(engine)

    shown = "\n".join(notices)
    nodes = {f"workflow_nodes_{index}" for index in ("open", "due", "waits", "signal")}
    others = {
        "tasks_unadvanced",
        "workflows_finished",
        "tasks_node",
        "signals_unseen",
        "signals_unused",
        "signals_keyed",
    }
    assert nodes | others <= set(re.findall(r"using horsies_(\w+)", shown))
    assert full_scans(notices) == set()


def entries(conn: Any, act: Callable[[], Any]) -> int:
    """Return how many index entries an act reads in a session."""
    query = """
    SELECT sum(pg_stat_get_tuples_returned(c.oid)) FROM pg_class c
    WHERE c.relkind = 'i' AND c.relname ~ '^horsies_(workflow|signal|task)'"""

    found = []
    for what in (lambda: None, act):
        what()
        conn.execute("SELECT pg_stat_force_next_flush()")
        found.append(int(conn.execute(query).fetchall()[0][0]))

    return found[1] - found[0]


def reads_at_most(bound: int, engine: Engine, act: Callable[[Engine], None]) -> bool:
    return entries(engine.conn, partial(act, engine)) <= bound


def read(engine: Engine, length: int) -> int:
    """Return how many entries the cheapest of five advances of a chain reads.

    The session keeps the plans of its first advance.
    """
    engine.goes_on = None
    run = chain(*map(str, range(length))).send().workflow_id

    found = []
    for _ in range(5):
        (claim,) = engine.take(1)
        engine.run_pass(outcomes=[ended(claim)])
        found.append(entries(engine.conn, partial(engine.advance_run, run, [claim.id])))

    engine.conn.execute(POSTPONE)
    return min(found)


@pytest.mark.parametrize("state", ["new", "stale", "emptied", "large"])
def test_an_advance_reads_no_more_in_a_large_run(
    engines: Engines, connect: Connect, state: str
) -> None:
    """Fails if: a join has a plan that reads all nodes of the run, or all unfinished nodes of all
    runs, for each finished task.
    """
    fill(state, connect())
    engine = engines()
    small = read(engine, 10)

    for _ in range(10):
        chain(*map(str, range(200))).send()
    engine.conn.execute(POSTPONE)

    assert read(engine, 2_000) < small + 50


def test_an_advance_reads_no_more_after_many_tasks_finished(
    engines: Engines, connect: Connect
) -> None:
    """An advance reads no more after many other tasks have finished.

    Fails if: the planner chooses the index of finished tasks while none has finished, and the plan
    stays when there are many.
    """
    admin = connect()
    engine = engines()
    fill("new", admin)

    for _ in range(100):
        chain(*map(str, range(2))).send()
    admin.execute(POSTPONE)
    admin.execute("VACUUM ANALYZE horsies_tasks")

    small = read(engine, 10)
    for statement in FILL:  # nothing here makes sessions plan again
        admin.execute(statement)
    assert read(engine, 10) < small + 50


def test_a_batch_that_prunes_reads_no_more_in_a_large_run(
    engines: Engines, connect: Connect
) -> None:
    """A batch that prunes reads no more in a run that is twice as large.

    Fails if: each batch reads all remaining tasks, to check that none of them runs.
    """
    admin = connect()
    engine = engines()
    fill("new", admin)
    found = []

    for many in (2_000, 4_000):
        flow = Workflow("map")
        flow.map(flows.number, n=list(range(many)))
        flow.send()

        ended = "status = 'COMPLETED', finished_at = now() - interval '9 days'"
        columns = {
            "tasks": ", advanced_at = now()",
            "workflow_nodes": "",
            "workflows": ", owed_at = NULL",
        }
        for table, more in columns.items():
            admin.execute(f"UPDATE horsies_{table} SET {ended}{more}")

        # the session plans anew both times
        admin.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = off)")

        before = Task.objects.count()
        found.append(
            entries(
                engine.conn, lambda: RetentionStore(engine.conn).prune_runs(timedelta(days=1), 100)
            )
        )
        assert Task.objects.count() == before - 100
        admin.execute("TRUNCATE horsies_tasks, horsies_workflows, horsies_workflow_nodes")

    assert found[1] < 1.5 * found[0]


def retry(engine: Engine, run: Any) -> int:
    """Return how many entries a retry reads."""
    return entries(engine.conn, partial(engine.workflows.retry, run.workflow_id, nested=False))


def retry_of_a_chain(engine: Engine, many: int) -> int:
    """Fails if: lists of numbers are compared with each row, and joins read all nodes of the run
    for each node.
    """
    run = chain(*map(str, range(many))).send()
    engine.end(*engine.take(1), code="BROKEN")
    assert run.status() == "FAILED"
    return retry(engine, run)


def failure_and_retry_of_a_fan(engine: Engine, many: int) -> int:
    """Fails if: for each edge all nodes of the run are read, to find out whether a node below runs
    or was skipped.
    """
    flow = Workflow(f"fan of {many}")
    first = flow.add(flows.number, 1)
    for _ in range(many):
        flow.add(flows.number, 1, after=first)
    run = flow.send()

    engine.settle(*engine.take(1), code="BROKEN")
    found = entries(engine.conn, engine.advance)
    assert run.status() == "FAILED"

    return max(found, retry(engine, run))


def cancel_with_undos(engine: Engine, many: int) -> int:
    """Fails if: the nodes that the task of a node added are searched among all nodes of the run,
    for each node; 10,000 took a minute.
    """
    flow = Workflow(f"{many} undos")
    for place in range(many):
        flow.add(flows.number, place, undo=flows.unact)
    flow.gate("open")

    run = flow.send()
    engine.run_all()
    assert run.status() == "RUNNING"

    found = entries(engine.conn, partial(engine.workflows.control, run.workflow_id, "cancel"))
    assert run.status() == "COMPENSATING"
    return found


def retry_of_undos(engine: Engine, many: int) -> int:
    flow = Workflow(f"{many // 2} undos")
    bad = flow.add(flows.number, 1)
    for place in range(many // 2):
        bad = flow.add(flows.number, place, undo=flows.unact, after=bad if place % 50 == 0 else ())

    run = flow.send()
    code = None
    while claims := engine.take(many):
        engine.end(*claims, code=code)
        code = "BROKEN"

    assert run.get(0).err_value.error_code == "COMPENSATION_FAILED"
    return retry(engine, run)


@pytest.mark.parametrize(
    ("act", "state"),
    [
        *product(
            (retry_of_a_chain, failure_and_retry_of_a_fan), ("new", "stale", "emptied", "large")
        ),
        *product((cancel_with_undos, retry_of_undos), ("new", "emptied", "large")),
    ],
)
def test_what_acts_on_many_nodes_reads_as_much_for_each_of_them(
    engines: Engines, connect: Connect, act: Callable[[Engine, int], int], state: str
) -> None:
    """Fails if: half a run, or all of it, is read for each node.

    Entries of dead rows count, too: 15 to 65 are read for a node.
    """
    fill(state, connect())
    engine = engines()

    for many in (100, 600):  # the session keeps the plans of the first run
        found = act(engine, many)
        engine.conn.execute(POSTPONE)

    assert found < 150 * many


def tail(flow: Workflow, node: Any) -> Workflow:
    """Add two tasks after a node, one after the other."""
    flow.add(flows.number, 1, after=flow.add(flows.number, 1, after=node))
    return flow


def timed(engine: Engine) -> None:
    flow = Workflow("timer")
    tail(flow, flow.sleep(0)).send()
    engine.workflows.wake(10, 200)
    engine.run_all()


def decided(engine: Engine) -> None:
    flow = Workflow("decided", max_in_flight=2)
    first = flow.add(flows.act, name="first")
    flow.add(flows.act, after=first, when=first.matches("$ == 1"))
    flow.map(flows.act, value=[1, 2, 3], after=first)

    inner = Workflow("inner")
    inner.add(flows.act)
    flow.add(inner, after=first)

    flow.add(flows.act, after=[first, flow.add(flows.act)], join="any")
    flow.send()
    engine.run_all()


def signalled(engine: Engine) -> None:
    flow = Workflow("signal")
    first = flow.add(flows.act)
    waits = [
        flow.signal("go", after=first),
        flow.signal("go", key="k", after=first),
        flow.gate("open"),
    ]
    handle = tail(flow, [*waits, flow.signal("go", key="late", name="late")]).send()

    handle.signal("go", 1, key="k")
    handle.signal("go", 2)
    engine.run_all()

    handle.signal("go", 3, key="late")
    handle.approve("open", actor="me")
    engine.run_all()


def controlled(engine: Engine) -> None:
    handle = chain(*map(str, range(3))).send()
    assert (handle.pause(), handle.resume()) == (True, True)

    engine.end(*engine.take(), code="BROKEN")
    assert handle.status() == "FAILED"
    handle.retry()

    number = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).latest("number").number
    operations.skip(handle.workflow_id, number)
    handle.cancel()
    engine.run_all()


def undone(engine: Engine) -> None:
    flow = Workflow("undone")
    tail(flow, flow.add(flows.number, 1, undo=flows.unact))
    handle = flow.send()

    engine.end(*engine.take())
    handle.cancel()
    engine.run_all()
    assert handle.status() == "CANCELLED"


@pytest.mark.parametrize("state", ["new", "empty", "one", "stale", "emptied"])
def test_an_act_on_a_run_reads_no_more_among_many_waiting_runs(
    connect: Connect, state: str
) -> None:
    """An act on a run reads no more if there are many waiting runs.

    Fails if: a plan of nearly empty tables joins a list with the nodes of all runs; 5,000 sleepers
    woke in 38 seconds.

    The session that sends is new, because it keeps its plans: those of an older one would be from
    the previous test.
    """
    fill(state, connect())
    connection.close()
    connection.ensure_connection()
    engine = Engine(connection.connection)
    acts = (timed, decided, signalled, controlled, undone)

    if state == "one":
        signalled(engine)
        engine.conn.execute("VACUUM ANALYZE")

    few = {act: min(entries(engine.conn, partial(act, engine)) for _ in range(3)) for act in acts}

    others = []
    for _ in range(400):
        flow = Workflow("other")
        late = flow.add(flows.number.with_options(delay=100_000), 1)
        others.append(tail(flow, [flow.sleep(100_000), flow.gate("open"), flow.signal("go"), late]))

    sent = [entries(engine.conn, flow.send) for flow in others]
    assert min(sent[-10:]) < min(sent[:10]) + 20
    assert max(few.values()) < 1_000, "of 500 runs with 10,000 nodes that have ended"

    for act, found in few.items():
        # dead rows are read again as long as an older transaction is open, even in another
        # database
        wait_until(
            partial(reads_at_most, 2 * found + 300, engine, act),
            f"{act.__name__} reads no more than alone",
        )
