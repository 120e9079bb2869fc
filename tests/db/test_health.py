"""The data of the status: waiting tasks, living workers, the database's own statistics, and
problems that need action.

An audit entry or a snapshot that cannot be written is reported, and never stops the change that it
records.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection, transaction

from example_project.postgres import private_postgres
from horsies_django import Workflow, queues, schedules
from horsies_django.models import (
    AuditEntry,
    Heartbeat,
    LostRecord,
    Queue,
    Schedule,
    Task,
    Worker,
    WorkflowRun,
)
from horsies_django.monitoring.health import Health, QueueHealth, XminHolder, examine, problems
from horsies_django.store import audit
from horsies_django.store.base import sql_text
from horsies_django.store.health import HealthStore
from horsies_django.store.schedules import ScheduleStore
from horsies_django.store.workers import Load
from horsies_django.tasks import operations
from horsies_django.tasks.redaction import redact
from horsies_django.worker.maintenance.heartbeat import Snapshots
from tests.apps.project.tasks import noop
from tests.conftest import limit, put, wait_until
from tests.db.conftest import Aside, Connect
from tests.support.factories import HeartbeatFactory, TaskFactory, WorkerFactory, now, serving
from tests.support.refusing import refused

THRESHOLD = dt.timedelta(seconds=10)
AGO = dt.timedelta(minutes=5)
READ = "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"


def queue(name: str) -> QueueHealth:
    return next(found for found in examine(connection).queues if found.name == name)


def codes(health: Health, **options: Any) -> list[str]:
    return [problem.code for problem in problems(health, **options)]


def test_the_oldest_due_task_of_a_queue_is_found_by_probes(
    connect: Connect,
) -> None:
    """The age of the oldest due task of a queue is found by one probe per lane and priority."""
    TaskFactory(status="RUNNING", sent_at=now() - 2 * AGO)
    TaskFactory(status="COMPLETED", sent_at=now() - 2 * AGO)
    TaskFactory(parked=True, partition_key="[1]", sent_at=now() - 2 * AGO)
    put(300, priority=1, delay=dt.timedelta(days=1))

    assert HealthStore(connection).waits(["default"]) == {}, (
        "what is held, over, parked or not due does not wait"
    )

    put(300)
    put(2, lane="async", priority=7)
    TaskFactory(lane="async", priority=50, sent_at=now() - AGO)

    conn = connect()
    with conn.transaction():
        waits = HealthStore(conn).waits(["default", "mail", "unheard-of"])
        assert 0 < conn.execute(READ, ["horsies_tasks_claim"]).fetchall()[0][0] < 20, (
            "however many wait"
        )
        assert conn.execute(READ, ["horsies_tasks"]).fetchall() == [(0,)], (
            "nothing is read past the index"
        )

    assert set(waits) == {"default"}
    assert 300 <= waits["default"] < 400


def test_unfinished_runs_are_counted_by_index_to_a_bound(
    connect: Connect,
) -> None:
    """Unfinished runs are counted through their index up to a bound, however many have ended."""
    conn = connect()
    run = (
        "INSERT INTO horsies_workflows (id, name, status, on_error, finished_at) SELECT "
        "gen_random_uuid(), 'a run', "
    )

    conn.execute(run + "'RUNNING', 'fail', NULL FROM generate_series(1, 500)")
    # Nearly all rows are to be counted, so a scan of the whole table looks cheap.
    conn.execute("ANALYZE horsies_workflows")
    conn.execute(run + "'COMPLETED', 'fail', now() FROM generate_series(1, 1000)")
    conn.execute("SET random_page_cost = 1000")

    with conn.transaction():
        found = HealthStore(conn).runs()
        assert conn.execute(READ, ["horsies_workflows"]).fetchall() == [(0,)], (
            "nothing is read past the index"
        )

    assert found == {"RUNNING": 500}

    conn = connect()
    with conn.transaction():
        (row,) = conn.execute("SELECT sum(many) FROM horsies_count_runs(30)").fetchall()
        assert row == (30,)
        assert conn.execute(READ, ["horsies_workflows_unfinished"]).fetchall()[0][0] <= 30


def test_a_worker_long_gone_is_listed_only_if_it_holds_a_task() -> None:
    """A worker that is long gone is listed first if it holds a task, and otherwise not at all."""
    living = serving("default", hostname="a")
    stale = serving("default", silent=AGO, hostname="b")
    judged = serving("default", silent=AGO, hostname="c")
    Heartbeat.objects.filter(pk=judged.id).update(died_at=now())

    stopped = WorkerFactory(hostname="d", stopped_at=now() - AGO)
    WorkerFactory(stopped_at=now() - dt.timedelta(hours=1))
    WorkerFactory(seen_at=now() - dt.timedelta(days=2))
    gone = WorkerFactory(seen_at=now() - dt.timedelta(days=2))

    TaskFactory(status="CLAIMED", claimed_by=gone.id)
    TaskFactory.create_batch(3, status="RUNNING", claimed_by=living.id)
    TaskFactory(status="COMPLETED", claimed_by=living.id)

    found = {one.id: one for one in HealthStore(connection).workers(THRESHOLD)}

    assert list(found) == [worker.id for worker in (gone, living, stale, judged, stopped)]
    assert [one.state for one in found.values()] == ["dead", "living", "stale", "dead", "stopped"]
    assert [one.holds for one in found.values()] == [1, 3, 0, 0, 0]

    assert 300 <= found[stale.id].silent_seconds < 400
    assert found[living.id].queues == ["default"]
    assert found[living.id].silent_seconds < 60
    assert codes(examine(connection)) == ["STALE_WORKER"], "one that holds nothing is none"

    Worker.objects.exclude(pk__in=[gone.id, living.id]).delete()
    assert codes(examine(connection)) == ["STALE_WORKER"]


def test_due_tasks_of_a_silent_worker_have_no_living_worker() -> None:
    """Due tasks whose only worker is silent have no living worker, even before its death is
    declared.
    """
    put(2)
    serving("default", silent=AGO)

    assert (queue("default").pending, queue("default").workers) == (2, 0)
    (problem,) = problems(examine(connection))
    assert (problem.code, "2 tasks due" in problem.text) == ("NO_LIVING_WORKER", True)

    serving("mail")
    assert codes(examine(connection)) == ["NO_LIVING_WORKER"], (
        "one that serves another queue is none"
    )

    serving("default", "mail")
    assert codes(examine(connection)) == []


def test_a_worker_that_stops_does_not_serve_its_queue() -> None:
    """Fails if: the worker counts as living until its last task has ended."""
    put(2)
    stopping = serving("default", stopping_at=now())
    TaskFactory(status="RUNNING", claimed_by=stopping.id)

    health = examine(connection)

    assert [one.state for one in health.workers] == ["stopping"]
    assert queue("default").workers == 0
    assert codes(health) == ["NO_LIVING_WORKER"]


def test_a_worker_without_a_ready_process_is_a_problem() -> None:
    """Fails if: a worker whose children hang at their start looks healthy, or a worker that has
    just started does not.
    """
    worker = serving("default", processes=2, started_at=now() - AGO, children_memory_mb=80.0)
    child = HeartbeatFactory(worker_id=worker.pk, holding=None)

    (problem,) = problems(examine(connection))
    assert problem.code == "WORKER_NOT_READY"
    assert "has no process that is ready" in problem.text

    Worker.objects.filter(pk=worker.pk).update(started_at=now())
    assert codes(examine(connection)) == []

    Worker.objects.filter(pk=worker.pk).update(started_at=now() - AGO)
    Heartbeat.objects.filter(pk=child.pk).update(holding=[])
    health = examine(connection)
    assert codes(health) == []
    assert [one.ready for one in health.workers] == [1]


def test_a_queue_counts_workers_beyond_the_listed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue counts all its workers, also those that the list of workers leaves out.

    Fails if: with more than 500 workers, a queue seems to have none because the names of its
    workers' hosts come last.
    """
    for module in ("store.health", "monitoring.health.state"):
        monkeypatch.setattr(f"horsies_django.{module}.MOST_WORKERS", 2)
    for host in ("a", "b"):
        serving("mail", hostname=host)
    put(1)

    assert codes(examine(connection)) == ["NO_LIVING_WORKER"]

    serving("default", hostname="c")
    health = examine(connection)

    assert [one.hostname for one in health.workers] == ["a", "b"]
    assert {one.name: one.workers for one in health.queues} == {
        "mail": 2,
        "bulk": 0,
        "twin": 0,
        "default": 1,
    }
    assert codes(health) == []


def test_a_long_wait_is_a_problem_only_on_request() -> None:
    """A long wait is a problem only if a longest wait is given, and not during a pause."""
    serving("default")
    TaskFactory(sent_at=now() - AGO)
    health = examine(connection)

    assert codes(health) == []
    assert codes(health, max_wait_seconds=1_000) == []
    assert codes(health, max_wait_seconds=200) == ["WAITS_TOO_LONG"]

    queues.pause("default", actor="a test")
    Worker.objects.all().delete()

    assert queue("default").paused
    assert codes(examine(connection), max_wait_seconds=200) == [], "somebody wanted it so"


def test_stopped_keys_are_a_problem_of_each_ordered_queue() -> None:
    """Keys that failed tasks stop are a problem of each ordered queue until they are skipped.

    Fails if: such keys are not reported, because tasks behind a failed one are parked and do not
    count as waiting.
    """
    for name in ("default", "mail", "bulk"):
        limit(
            name, partition_by_args=["tenant"], partition_policy=None if name == "bulk" else "stop"
        )
    serving("default", "mail", "bulk")

    def stop(name: str, tenant: str, ago: dt.timedelta, how: str = "stop") -> None:
        TaskFactory(
            queue_name=name,
            status="FAILED",
            sent_at=now() - ago,
            finished_at=now() - ago,
            ordered=True,
            order_stop=how,
            claim_generation=1,
            partition_key=f'{{"tenant": "{tenant}"}}',
        )

    stop("default", "c", AGO, "cancel")
    stop("bulk", "a", AGO)
    assert codes(examine(connection)) == []

    stop("default", "a", AGO)
    stop("default", "b", 2 * AGO)
    stop("default", "b", AGO)
    stop("mail", "a", AGO)

    health = examine(connection)
    assert {one.name: one.stopped for one in health.queues} == {
        "mail": 1,
        "bulk": 0,
        "twin": 0,
        "default": 2,
    }
    assert codes(health) == ["ORDER_STOPPED"] * 2

    texts = sorted(one.text for one in problems(health))
    said = r"failed tasks stop 1 key of queue mail, the first for 5 min( \d+ s)?"
    assert re.fullmatch(said, texts[0])
    assert "stop 2 keys of queue default, the first for 10 min" in texts[1]

    queues.pause("mail", actor="a test")
    assert len(codes(examine(connection))) == 1, "somebody wanted it so"

    queues.skip("default", {"tenant": "a"}, actor="a test", reason="broken")
    assert queue("default").stopped == 1


def test_the_cluster_counts_all_workers_and_the_oldest_task() -> None:
    """The cluster counts all workers and the oldest task of all queues, and its pause covers them
    all.
    """
    limit("*", max_concurrency=5)
    TaskFactory(sent_at=now() - AGO)
    serving("mail")
    serving("bulk")

    whole = queue("*")
    assert (whole.pending, whole.workers, whole.paused) == (1, 2, False)
    assert 300 <= (whole.oldest_seconds or 0) < 400

    assert codes(examine(connection), max_wait_seconds=200) == [
        "NO_LIVING_WORKER",
        "WAITS_TOO_LONG",
    ], "not once more"

    limit("*", max_concurrency=0)
    assert codes(examine(connection), max_wait_seconds=200) == []


@pytest.mark.parametrize(
    ("name", "overridden"), [("partition_max_concurrency", True), ("partition_local_limit", False)]
)
def test_a_wait_at_either_limit_of_a_partition_is_reported(name: str, overridden: bool) -> None:
    """Fails if: only the limit of the cluster counts, or only the settings do, or a limit that was
    never set counts.
    """
    limit("default", partition_by_args=["tenant"])
    serving("default")
    TaskFactory(parked=True, partition_key='{"tenant": "a"}', sent_at=now() - AGO)
    assert codes(examine(connection), max_wait_seconds=200) == [], "it has no limit any more"

    if overridden:
        queues.override("default", {name: 1}, actor="a test", reason="slow")
    else:
        limit("default", **{name: 1})

    assert 300 <= (queue("default").partition_seconds or 0) < 400
    assert codes(examine(connection), max_wait_seconds=200) == ["PARTITION_WAITS"]
    assert codes(examine(connection), max_wait_seconds=1_000) == []
    assert codes(examine(connection), max_wait_seconds=None) == []


def test_a_database_that_is_nearly_full_is_a_problem() -> None:
    """The database is described by its own statistics, and is a problem when it is nearly full."""
    health = examine(connection)
    database = health.database
    (version,) = connection.cursor().execute("SHOW server_version").fetchone()

    assert database.version.split()[0] == version.split()[0]
    assert (database.in_recovery, database.read_only) == (False, False)
    assert 1 <= database.connections <= database.max_connections
    assert 0 <= database.notify_queue < 0.5
    assert abs(health.clock_skew_seconds) < 60, "both clocks are this host's"

    full = database._replace(notify_queue=0.61, connections=95, max_connections=100)
    worse = health._replace(database=full, clock_skew_seconds=3_600.0)
    assert codes(worse) == ["NOTIFY_QUEUE", "CONNECTIONS"], "skewed clocks are no problem"
    assert "61% full" in problems(worse)[0].text

    replica = health._replace(database=database._replace(read_only=True, in_recovery=True))
    assert [one.code for one in problems(replica)] == ["READ_ONLY"]
    assert "a replica" in problems(replica)[0].text


def test_a_transaction_that_holds_back_xmin_is_named_to_its_end(connect: Connect) -> None:
    """A transaction that holds back xmin is named until it ends."""
    holder = connect()
    with holder.transaction():
        holder.execute("SET LOCAL application_name = 'a long report'")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")

        (found,) = [
            one
            for one in HealthStore(connection).database().xmin_holders
            if one.pid == holder.info.backend_pid
        ]

        assert (found.kind, found.name, found.state) == (
            "transaction",
            "a long report",
            "idle in transaction",
        )
        assert found.seconds is not None

    assert holder.info.backend_pid not in [
        one.pid for one in HealthStore(connection).database().xmin_holders
    ]


def test_a_prepared_transaction_holds_back_xmin(
    aside: Aside,
) -> None:
    """Prepared transactions hold back xmin and block others; a blocker that the role may not see is
    as old as the longest wait for it.

    Slots without an xmin hold back nothing, and blockers in another database are not listed.
    """
    with private_postgres(durable=False, max_prepared_transactions=2) as url, ExitStack() as opened:

        def join(name: str = "postgres") -> psycopg.Connection[Any]:
            joined = psycopg.connect(
                urlsplit(url)._replace(path=f"/{name}").geturl(), autocommit=True
            )
            return opened.enter_context(joined)

        def blockers(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
            return [tuple(one) for one in HealthStore(conn).blockers(None)]

        def lock(conn: psycopg.Connection[Any], *, prepare: bool) -> None:
            conn.execute("BEGIN")
            conn.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
            if prepare:
                conn.execute("SELECT txid_current()")
                conn.execute("PREPARE TRANSACTION 'forgotten'")

        first = join()
        first.execute("SELECT pg_create_physical_replication_slot('idle')")
        first.execute("CREATE DATABASE a")
        with psycopg.connect(urlsplit(url)._replace(path="/a").geturl(), autocommit=True) as conn:
            conn.execute("CREATE TABLE horsies_tasks (id int)")
        first.execute("CREATE DATABASE b TEMPLATE a")  # the table has the same number there

        conn = join("a")
        other = join("b")
        looker = join("a")
        waiting = join("a")

        lock(conn, prepare=True)
        (row,) = looker.execute(sql_text("monitoring/xmin").encode()).fetchall()
        found = XminHolder(*row)
        assert (found.kind, found.name, found.pid) == ("prepared transaction", "forgotten", None)
        assert found.transactions >= 1
        assert blockers(other) == []

        ((*prepared, seconds),) = blockers(looker)
        assert prepared == [None, "forgotten", "ShareLock", "horsies_tasks", True]
        assert seconds >= 0

        conn.execute("ROLLBACK PREPARED 'forgotten'")
        lock(conn, prepare=False)
        looker.execute("CREATE ROLE looker")
        looker.execute("SET ROLE looker")
        assert [one[-1] for one in blockers(looker)] == [None]

        ended = aside(waiting.execute, "INSERT INTO horsies_tasks VALUES (1)")
        wait_until(
            lambda: [one[-1] for one in blockers(looker)] != [None], "another one waits for it"
        )
        conn.execute("ROLLBACK")
        ended.result()


HELD = XminHolder(
    kind="transaction",
    pid=7,
    name="report",
    role=None,
    state=None,
    seconds=7_200.0,
    transactions=5_000,
)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (HELD, "transaction 'report' of process 7 has kept dead rows from being removed for 2 h,"),
        (HELD, "pg_terminate_backend(7)"),
        (HELD._replace(seconds=None, transactions=20_000_000), "for 20,000,000 transactions"),
        (HELD._replace(kind="prepared transaction", pid=None), "ROLLBACK PREPARED"),
        (HELD._replace(kind="replication slot", pid=None), "pg_drop_replication_slot"),
        (HELD._replace(kind="standby", name=""), "a standby without a name of process 7"),
        (HELD._replace(seconds=60.0), None),
        (HELD._replace(transactions=10), None),
        (HELD._replace(seconds=None, transactions=20_000), None),
    ],
)
def test_holding_back_xmin_for_an_hour_is_a_problem(holder: XminHolder, words: str | None) -> None:
    """A transaction, slot or standby that holds back xmin for an hour is a problem."""
    health = examine(connection)

    found = problems(health._replace(database=health.database._replace(xmin_holders=[holder])))

    assert [problem.code for problem in found] == (["XMIN_HELD"] if words else [])
    assert words is None or words in f"{found[0].text}: {found[0].advice}"


def test_a_schedule_that_is_not_sent_is_a_problem() -> None:
    """An overdue schedule is a problem, and so is one that cannot send its task."""
    for name in ("late", "later", "in time", "broken", "off"):
        schedules.create(name, {"task": noop.name, "pattern": "every hour"}, actor="a test")
    schedules.disable("off", actor="a test")

    Schedule.objects.filter(name="late").update(next_at=now() - dt.timedelta(seconds=70))
    Schedule.objects.filter(name="later").update(next_at=now() - dt.timedelta(hours=3))
    Schedule.objects.filter(name="broken").update(
        error="no such task", next_at=now() + dt.timedelta(hours=1)
    )

    assert [(one.code, one.text.partition("'")[2]) for one in problems(examine(connection))] == [
        ("SCHEDULE_LATE", "later' (and 1 more) is overdue by 3 h"),
        ("SCHEDULE_FAILS", "broken' could not send its task: no such task"),
    ]


def test_looking_takes_no_lock_that_others_wait_for(connect: Connect) -> None:
    put(3)
    conn = connect()

    with conn.transaction():
        examine(conn)
        held = conn.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IS NOT "
            "NULL"
        )

        assert {mode for (mode,) in held.fetchall()} == {"AccessShareLock"}


LOAD = Load(1, 0, 50.0, 0.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the errors of the audit; those of the last minute are forgotten first."""
    audit.repeats.kinds.clear()
    with caplog.at_level(logging.ERROR, "horsies"):
        yield caplog


def told() -> list[str]:
    """Return the texts of the status about lost records."""
    return [one.text for one in problems(examine(connection)) if one.code == "RECORD_LOST"]


def logged(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the actions whose entries were logged as lost."""
    return sorted(record.args[0] for record in log.records if isinstance(record.args, tuple))


def test_a_pause_without_its_audit_entry_is_logged_each_minute(
    log: pytest.LogCaptureFixture,
) -> None:
    """A pause whose audit entry is lost still happens; actor and reason are logged each minute."""
    with refused("horsies_audit", event="INSERT"):
        with refused("horsies_lost_records", event="INSERT"):
            # The pause happens even if the loss cannot be recorded either.
            queues.pause("bulk", actor="ann")
        assert told() == []

        audit.repeats.kinds.clear()
        assert queues.pause("mail", actor="ann", reason="full disk") == [
            "paused_at",
            "paused_by",
            "paused_reason",
        ]
        assert Queue.objects.get(pk="mail").paused_by == "ann"

        queues.resume("mail", actor="ann")
        queues.pause("mail", actor="ann")

    assert logged(log) == ["queue.pause", "queue.pause", "queue.resume"]

    record = log.records[1]
    assert (record.name, record.levelname) == ("horsies.audit", "ERROR")
    assert (
        "queue.pause 'mail' by 'ann', reason 'full disk'. It could not be written: refused"
        in record.getMessage()
    )

    assert told()[0].startswith("the audit entry 'queue.pause mail' could not be written ")
    assert "secret" not in told()[0] + log.text


def test_an_audited_change_is_made_although_its_entry_is_refused(
    log: pytest.LogCaptureFixture,
) -> None:
    """Every audited change is made, and logged, if its entry is refused."""
    for name in ("nightly", "weekly"):
        schedules.create(name, {"task": noop.name, "pattern": "daily at 00:00"}, actor="ann")
    Schedule.objects.filter(pk="nightly").update(
        declared_in="here", declared_at=dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
    )

    waiting = put(1)[0]
    (failed, again) = TaskFactory.create_batch(2, status="FAILED")
    run = Workflow("flow")
    run.add(noop)
    handle = run.send()

    with refused("horsies_audit", event="INSERT"):
        with transaction.atomic():
            operations.cancel([waiting], actor="ann")
            operations.retry(again.pk, actor="ann")
            new = operations.copy(failed.pk, actor="ann")
            assert redact(failed.pk, actor="ann", reason="asked")
            assert handle.pause(actor="ann")

        schedules.disable("nightly", actor="ann")
        schedules.delete("weekly", actor="ann")
        assert ScheduleStore(connection).gone(dt.timedelta(days=1), "scheduler") == ["nightly"]

    assert (
        not AuditEntry.objects.filter(actor__in=["ann", "scheduler"])
        .exclude(action="schedule.create")
        .exists()
    )

    assert Task.objects.get(pk=waiting).status == "CANCELLED"
    assert {Task.objects.get(pk=id_).status for id_ in (new, again.pk)} == {"PENDING"}
    assert Task.objects.get(pk=failed.pk).redacted_at is not None
    assert WorkflowRun.objects.get().status == "PAUSED"
    assert Schedule.objects.get().gone_at is not None

    assert logged(log) == [
        "schedule.delete",
        "schedule.disable",
        "schedule.gone",
        "task.cancel",
        "task.copy",
        "task.redact",
        "task.retry",
        "workflow.pause",
    ]


def test_a_pause_does_not_wait_for_a_locked_audit(connect: Connect) -> None:
    """A pause waits neither for a locked audit table nor for another loss."""
    other = connect()

    with other.transaction():
        other.execute("LOCK TABLE horsies_audit IN ACCESS EXCLUSIVE MODE")
        assert other.execute("SELECT horsies_lost('audit', 'another', 'why')").fetchone() == ("",)
        assert queues.pause("mail", actor="ann")

    assert Queue.objects.get(pk="mail").paused_at is not None
    assert LostRecord.objects.get().what == "another"


@pytest.mark.parametrize("how", ["refused", "locked"])
def test_a_lost_snapshot_is_logged_once_a_minute(
    connect: Connect, log: pytest.LogCaptureFixture, how: str
) -> None:
    conn = connect()
    other = connect()
    worker = uuid.uuid4()
    conn.execute("SET statement_timeout = 50")
    snapshots = Snapshots(worker, 1, 0.0)

    with other.transaction(), ExitStack() as stack:
        if how == "refused":
            stack.enter_context(refused("horsies_worker_states", event="INSERT"))
        else:
            other.execute("LOCK TABLE horsies_worker_states IN SHARE MODE")

        snapshots.tick(conn, [], [], LOAD, 0)
        snapshots.tick(conn, [], [], LOAD, 0)

    assert log.text.count("could not record the worker's state: ") == 1
    (text,) = told()
    assert text.startswith(f"a snapshot of worker {worker} could not be written ")

    LostRecord.objects.update(at=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=61))
    assert told() == [], "it is no longer told after an hour"
