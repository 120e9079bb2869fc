"""PostgreSQL accepts every statement, and the frequent ones read through their indexes, whatever
the statistics contain.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies_django.core.records import Claim, Outcome
from horsies_django.store.base import discard, sql_text
from horsies_django.store.health import HealthStore
from horsies_django.store.queues import QueueStore
from horsies_django.store.workers import WorkerStore
from tests.conftest import Claimer, Connect, limit, put
from tests.support.factories import TaskFactory, serving
from tests.support.statements import FUNCTIONS, STATEMENTS

COMMANDS = {"sessions/discard", "sessions/forget_plans"}  # PostgreSQL does not prepare these
# Parameters have the types of the only function of that name.
CALLS = {"tasks/send", "tasks/send_once", "tasks/send_timed"}


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - COMMANDS))
def test_the_statement_can_be_prepared_with_its_parameters_typed(
    connect: Connect, name: str
) -> None:
    text = sql_text(name)
    numbers = {}
    for parameter in re.findall(r"%\((\w+)\)s", text):
        numbers.setdefault(parameter, f"${len(numbers) + 1}")
    assert name in CALLS or not re.findall(r"%\((\w+)\)s(?!::)", text), "every parameter is cast"

    prepared = re.sub(r"%\((\w+)\)s", lambda match: numbers[match[1]], text).replace("%%", "%")
    connect().execute(f"PREPARE checked AS {prepared}".encode())


def test_a_discarded_session_is_as_it_was_when_it_was_opened(connect: Connect) -> None:
    session = connect()
    session.execute("SET search_path = pg_catalog")
    session.execute("SELECT set_config('shop.tenant', 'acme', false), pg_advisory_lock(1)")

    discard(session)
    (found,) = session.execute(
        "SELECT current_setting('search_path'), current_setting('shop.tenant', true), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    ).fetchall()

    assert found == ('"$user", public', "", 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_installed_function_is_the_one_in_the_file(connect: Connect, name: str) -> None:
    (body,) = re.findall(r"\$\$(.*?)\$\$", FUNCTIONS[name].read_text(), re.DOTALL)
    (installed,) = (
        connect().execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [name]).fetchall()
    )

    assert installed[0] == body


def explained(worker: Claimer) -> list[str]:
    """Return a list to which the plan of every later statement of the worker is added."""
    notices: list[str] = []
    try:
        worker.conn.execute("LOAD 'auto_explain'", prepare=False)
    except psycopg.Error as error:
        pytest.skip(f"auto_explain cannot be loaded: {error}")

    worker.conn.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    for setting in ("log_min_duration = 0", "log_nested_statements = on"):
        worker.conn.execute(f"SET auto_explain.{setting}", prepare=False)
    worker.conn.execute("SET client_min_messages = log", prepare=False)

    return notices


def plans(notices: list[str], *marks: str) -> list[str]:
    """Return the plans of the statements that contain one of these words.

    No statement may read all tasks.
    """
    assert not [text for text in notices if re.search(r"Seq Scan on horsies_tasks\b", text)]
    return [text.partition("plan:")[2] for text in notices if any(mark in text for mark in marks)]


def complete(claims: list[Claim]) -> list[Outcome]:
    return [Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": 1}') for claim in claims]


def states(admin: Any, **columns: Any) -> Iterator[str]:
    """Fill the table once, and give its states one after the other: "empty", "stale" and "large".

    Each needs a session that has no plans yet.
    """
    admin.execute("ANALYZE horsies_tasks")
    yield "empty"

    put(20_000, **columns)
    yield "stale"

    put(20_000, lane="async", **columns)
    admin.execute("ANALYZE horsies_tasks")
    yield "large"


def test_a_pass_reads_tasks_through_their_indexes(claimer: Any, connect: Connect) -> None:
    """A pass reads tasks through their indexes and never sorts them."""
    for state in states(connect()):
        worker = claimer()
        notices = explained(worker)
        worker.run_pass(outcomes=complete(worker.run_pass(sync=4, async_=4).claims))

        claiming = plans(
            notices,
            "t.finished_at IS NULL AND NOT t.parked",
            "task.finished_at IS NULL AND NOT task.parked",
        )
        assert claiming, state
        for plan in claiming:
            assert "horsies_tasks_claim" in plan, state
            assert "Sort" not in plan.replace("Sort Key", ""), state


def test_a_short_pass_sorts_only_the_claimed_tasks(claimer: Any, connect: Connect) -> None:
    """A short pass reads tasks through indexes and sorts only the claimed ones."""
    for state in states(connect()):
        worker = claimer()
        notices = explained(worker)
        claims = worker.run_pass(sync=4, async_=4).claims or [
            Claim(uuid.uuid4(), 1, "sync", "gone", "{}")
        ]
        assert worker.run_pass(sync=4, async_=4, news="default", outcomes=complete(claims)).short

        settling, claiming = (
            plans(notices, f"{name} AS MATERIALIZED")[0] for name in ("ended", "found")
        )

        assert settling.count("using horsies_tasks_pkey") == 2, state
        assert "Nested Loop" not in settling, state  # no join of all outcomes with each other

        assert claiming.count("using horsies_tasks_claim") == 1, state
        assert claiming.count("using horsies_tasks_pkey") == 1, state
        # Runs are read by a join in this plan, not by a call for each row.
        assert claiming.count("using horsies_workflows_pkey") == 1, state

        for plan, sorts in ((settling, 0), (claiming, 1)):
            assert plan.count("Sort\n") + plan.count("Sort  (") <= sorts, state


def test_caps_count_by_the_index_of_tasks_in_flight(claimer: Any, connect: Connect) -> None:
    """Caps are counted by the index of tasks in flight, and parked tasks are found by theirs."""
    limit("mail", max_concurrency=3, partition_by_args=["tenant"], partition_max_concurrency=1)
    put(30, queue="mail", kwargs=['{"tenant": 2}', '{"tenant": 3}', '{"tenant": 4}'] * 10)
    other = claimer(mail=1)
    assert other.run_pass(sync=1).claims

    for state in states(connect(), queue="mail", kwargs=['{"tenant": 1}'] * 20_000):
        worker = claimer(mail=1)
        notices = explained(worker)
        claims = worker.run_pass(sync=2).claims
        assert claims, state

        worker.run_pass(sync=2, outcomes=complete(claims), expired_leases=True)
        QueueStore(worker.conn).request_sweep()
        QueueStore(worker.conn).sweep("mail", 100)
        WorkerStore(worker.conn).reap(timedelta(0), declare_dead=True, many=100)

        counting = plans(notices, "horsies_holds_permit")
        shown = "\n".join(notices)
        assert counting, state

        for plan in counting:
            assert not re.search(
                r"Scan using (?!horsies_tasks_holding)\w+ on horsies_tasks [a-z_]+\b", plan
            ), plan

        assert "horsies_tasks_parked" in shown, state
        assert "horsies_tasks_deadline" in shown, state

        worker.run_pass(outcomes=complete(worker.store.held(worker.id)))


def test_tasks_of_stalled_partitions_are_read_by_their_ids(claimer: Any, connect: Connect) -> None:
    ordered = {"queue": "mail", "kwargs": ['{"tenant": 1}'] * 20_000}
    limit("mail", partition_by_args=["tenant"], partition_max_concurrency=1)
    for state in states(connect(), **ordered):
        worker = claimer(mail=1)
        notices = explained(worker)
        worker.store.unpark_stalled([uuid.uuid4() for _ in range(1_000)], ["mail"], "channel")

        (plan,) = plans(notices, "AS stalled")
        assert "using horsies_tasks_pkey" in plan, state


def test_the_end_of_the_last_task_is_read_through_primary_keys(connect: Connect) -> None:
    """A fire time finds out through primary keys whether the last task has finished.

    Fails if: the last fire time with a task is searched among all that were skipped since, or the
    task among all of its name.
    """
    conn = connect()
    ids = put(5_000)
    conn.execute(
        "INSERT INTO horsies_schedule_ticks (schedule_name, fire_at, skipped_for) "
        "SELECT name, 'now'::timestamptz - number * interval '1 s', %s "
        "FROM unnest('{nightly,hourly}'::text[]) AS name, generate_series(1, 5000) AS number",
        [ids[0]],
    )
    conn.execute("ANALYZE horsies_tasks, horsies_schedule_ticks")

    params = {
        "name": "nightly",
        "fire_times": [datetime.now(UTC)],
        "task_ids": [uuid.uuid4()],
        "skip": True,
        "now": None,
    }

    plan = "\n".join(
        line for (line,) in conn.execute(f"EXPLAIN {sql_text('schedules/tick')}".encode(), params)
    )

    assert "Index Scan Backward using horsies_schedule_ticks_pkey" in plan
    assert "using horsies_tasks_pkey" in plan
    assert not re.search("Seq Scan on horsies_(tasks|schedule_ticks)|Sort", plan)


def test_the_problems_read_growing_tables_through_indexes(claimer: Any, connect: Connect) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = claimer()
    serving("default", id=worker.id, task_names=["tests.other"])

    admin = connect()
    columns = (
        "workflow_id, number, name, kind, status, task_name, queue_name, lane, priority, due_at"
    )

    for statement in (
        "INSERT INTO horsies_schedules (name) VALUES ('nightly')",
        "INSERT INTO horsies_schedule_ticks (schedule_name, fire_at, task_id) SELECT 'nightly', "
        "'now'::timestamptz - n * interval '1 s', gen_random_uuid() FROM generate_series(1, 5000) "
        "AS n",
        "INSERT INTO horsies_workflows (id, name, on_error) "
        "SELECT gen_random_uuid(), 'order', 'stop' FROM generate_series(1, 5000)",
        f"INSERT INTO horsies_workflow_nodes ({columns}) "
        "SELECT id, 1, 'one', 'gate', 'WAITING', '', '', '', 1, now() FROM horsies_workflows",
        "ANALYZE horsies_schedule_ticks, horsies_workflows, horsies_workflow_nodes",
    ):
        admin.execute(statement.encode())

    expected: dict[str, tuple[list[Any], list[str]]] = {
        "parked_waits": ([["default"]], ["tasks_parked"]),
        "unknown_tasks": ([["default"], timedelta(0), timedelta(days=1)], ["tasks_claim"]),
        "failing_schedules": ([], ["schedule_ticks_pkey", "tasks_pkey"]),
        "halted_runs": ([], ["workflows_halted", "workflow_nodes_due", "workflows_pkey"]),
    }

    for state in states(admin):
        for name, (given, indexes) in expected.items():
            reader = claimer()
            notices = explained(reader)
            getattr(HealthStore(reader.conn), name)(*given)

            shown = "\n".join(plans(notices, ""))
            assert [index for index in indexes if f"horsies_{index}" not in shown] == [], (
                state,
                name,
            )
            assert not re.search(
                r"Seq Scan on horsies_(schedule_ticks|workflows|workflow_nodes)\b", shown
            ), (
                state,
                name,
            )


def blocks(conn: psycopg.Connection[Any], query: str, params: Any) -> int:
    """Return how many blocks of tables and indexes a query touches; the query is rolled back."""
    found = []
    # a session reads some blocks only once, or again when an autovacuum makes it plan anew
    for _ in range(3):
        with conn.transaction(force_rollback=True):
            ((plan,),) = conn.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}".encode(), params
            ).fetchall()
            found.append(
                int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
            )

    return min(found)


def entries(worker: Claimer, index: str, **owed: Any) -> int:
    """Run a pass and return how many entries of an index it read."""
    return entries_read(worker.conn, index, lambda: worker.run_pass(**owed))


def entries_read(conn: psycopg.Connection[Any], index: str, act: Callable[[], object]) -> int:
    """Run an act in one transaction, and return how many entries of an index it read."""
    query = "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"
    with conn.transaction():
        ((before,),) = conn.execute(query, [index]).fetchall()  # reads that were not reported yet
        act()
        ((after,),) = conn.execute(query, [index]).fetchall()
    return int(after - before)


def test_tasks_of_the_other_lane_cost_a_claim_nothing(claimer: Any) -> None:
    """Fails if: the planner of PostgreSQL 16 uses "lane = ANY (...)" as a filter, so that all
    waiting tasks of the queue are read.
    """
    put(1_000, lane="async")
    assert entries(claimer(), "horsies_tasks_claim", sync=1) == 0


def test_future_tasks_and_full_partitions_cost_one_probe_each(
    claimer: Any,
) -> None:
    """Future tasks and full partitions cost a settle and a claim one probe each."""
    limit("default", max_concurrency=4)
    put(4)
    put(2_000, priority=1, delay=timedelta(days=1))
    worker = claimer()
    claims = worker.run_pass(sync=2).claims

    # A settle reads whether to wake other workers.
    assert entries(worker, "horsies_tasks_claim", outcomes=complete(claims)) < 20
    assert entries(worker, "horsies_tasks_claim", sync=2) < 20

    limit("mail", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(500, queue="mail", kwargs=[f'{{"tenant": {number}}}' for number in range(500)])
    assert len(claimer(mail=1).run_pass(sync=500).claims) == 500
    put(queue="mail", kwargs=['{"tenant": "another"}'])
    assert entries(claimer(mail=1), "horsies_tasks_holding", sync=1) < 5


def test_a_claim_reads_only_its_own_tasks_under_old_statistics(
    claimer: Any, connect: Connect
) -> None:
    """A claim reads only its own tasks, even if the statistics are from an empty table.

    Fails if: the claim joins tasks with the candidates.

    Statistics of pages without rows promise one row, so such a join would read all tasks.
    """
    admin = connect()
    admin.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = off)")
    TaskFactory.create_batch(2_000, status="COMPLETED")
    admin.execute("DELETE FROM horsies_tasks")
    admin.execute("ANALYZE horsies_tasks")

    TaskFactory.create_batch(2_000, status="COMPLETED")
    put(10)
    worker = claimer()

    assert entries(worker, "horsies_tasks_pkey", sync=5) < 100
