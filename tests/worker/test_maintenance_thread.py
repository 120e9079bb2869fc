"""The heartbeat, reaper, pruner and snapshots, one tick at a time, on the real database."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psutil
import psycopg
import pytest
from django.db import OperationalError as DjangoError
from django.db import connections

from horsies_django.conf import Recovery, Retention, config
from horsies_django.core.options import own_retentions
from horsies_django.core.records import Wanted
from horsies_django.models import AuditEntry, Heartbeat, Task, TaskAttempt, Worker, WorkerState
from horsies_django.store.base import PLANS_SECONDS
from horsies_django.store.workers import Load, Process, WorkerStore
from horsies_django.tasks.ids import uuid7s
from horsies_django.worker.engine.engine import EngineStatus
from horsies_django.worker.maintenance import pruner as pruner_module
from horsies_django.worker.maintenance.heartbeat import Snapshots
from horsies_django.worker.maintenance.pruner import Pruner
from horsies_django.worker.maintenance.thread import PeriodicJob
from horsies_django.worker.supervisor import Supervisor
from tests.conftest import Claimers, Connect, limit, put, sql, wait_until
from tests.db.conftest import wait_for_waiting
from tests.db.test_retention import DAY, finished
from tests.db.test_statements import entries_read
from tests.support.factories import (
    AuditEntryFactory,
    ScheduleTickFactory,
    WorkerFactory,
    WorkerStateFactory,
)
from tests.worker.conftest import Build
from tests.worker.test_outbox import with_a_bad_plan

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = timedelta(hours=1)
THRESHOLD_MS = 2_000


@pytest.fixture
def parts(build: Build) -> Supervisor:
    """Return the parts of a worker, put together and not started."""
    recovery = Recovery(
        claimer_heartbeat_interval_ms=1_000, running_stale_threshold_ms=THRESHOLD_MS
    )
    up = "SELECT pg_postmaster_start_time() < clock_timestamp() - interval '2 s'"
    wait_until(lambda: sql(up)[0][0], "the server is up for longer than the threshold")
    return build(
        replace(config(), recovery=recovery), started=False, queues=("default", "mail"), processes=1
    )


@pytest.fixture
def conn(parts: Supervisor, connect: Connect) -> psycopg.Connection[Any]:
    """Return a session in which the worker has registered."""
    made = connect()
    register(parts.worker, made)
    return made


def register(worker: uuid.UUID, conn: Any) -> None:
    WorkerStore(conn).register(
        worker,
        hostname="here",
        pid=1,
        version="1",
        queues=["default"],
        processes=1,
        threads=1,
        async_concurrency=1,
    )


def registered(conn: Any, count: int) -> list[uuid.UUID]:
    """Register this number of workers, the oldest first."""
    workers = uuid7s(count)
    for worker in workers:
        register(worker, conn)
    return workers


def silence(worker: uuid.UUID, ago: timedelta = LONG_AGO) -> None:
    """Set the last heartbeat of a worker to long ago."""
    sql("UPDATE horsies_heartbeats SET sent_at = sent_at - %s WHERE id = %s", [ago, worker])


def test_a_beat_renews_row_and_trust_unless_the_engine_is_stuck(
    parts: Supervisor, conn: Any
) -> None:
    heartbeat = parts.maintenance.heartbeat
    beat = Heartbeat.objects.get()
    assert (beat.id, beat.role, beat.died_at) == (parts.worker, "claimer", None), (
        "the first one, before it claims"
    )

    silence(parts.worker)
    parts.engine.trusted_until = 0.0
    assert heartbeat.tick(conn)

    renewed = Heartbeat.objects.get().sent_at
    assert renewed > beat.sent_at - LONG_AGO / 2
    assert parts.engine.trusted_until > time.monotonic()
    assert not parts.engine.disowned

    parts.engine.status = EngineStatus(busy_since=time.monotonic() - 60)
    assert not heartbeat.tick(conn)
    assert Heartbeat.objects.get().sent_at == renewed


def test_the_kill_timer_counts_from_before_the_beat(
    parts: Supervisor, conn: Any, connect: Connect
) -> None:
    """The deadline counts from before the heartbeat, because its answer may take long.

    Fails if: a deadline that counts from the answer ends after others have rescued the tasks.
    """
    other = connect()
    kill_timer = parts.kill_timer

    with ThreadPoolExecutor(1) as thread:
        with other.transaction():
            other.execute("SELECT FROM horsies_heartbeats WHERE id = %s FOR UPDATE", [parts.worker])
            beat = thread.submit(parts.maintenance.heartbeat.tick, conn)
            wait_for_waiting(connect(), conn)
            before_the_answer = time.monotonic()
        assert beat.result(30)

    assert kill_timer.deadline < before_the_answer + kill_timer.seconds
    assert parts.engine.trusted_until < before_the_answer + kill_timer.seconds
    assert kill_timer.seconds < THRESHOLD_MS / 1000


def test_a_worker_declared_dead_stays_dead(parts: Supervisor, conn: Any) -> None:
    """A worker that was declared dead is notified and stays dead."""
    silence(parts.worker, timedelta(days=2_000))
    assert WorkerStore(conn).reap(timedelta(days=1_000), declare_dead=True, many=10) == [], (
        "the server started since"
    )

    WorkerStore(conn).reap(timedelta(seconds=2), declare_dead=True, many=10)
    assert not parts.maintenance.heartbeat.tick(conn)

    assert parts.engine.disowned
    assert Heartbeat.objects.get().died_at is not None


def test_a_stopping_worker_records_its_stop_once(parts: Supervisor, conn: Any) -> None:
    """Fails if: a stopped worker counts as living, and ``explain`` expects it to start tasks."""
    thread = parts.maintenance
    (job,) = [one for one in thread.jobs if one.name == "recording that the worker stops"]
    thread.attempt(job)
    assert Worker.objects.get().stopping_at is None

    parts.engine.stop()
    thread.attempt(job)

    assert Worker.objects.get().stopping_at is not None
    assert not job.wanted()
    thread.disconnect()


def test_an_answered_beat_ends_the_wait_for_the_next_try(parts: Supervisor, conn: Any) -> None:
    """Fails if: the engine waits out its delay after an outage that was shorter than the time
    between two heartbeats.
    """
    heartbeat = parts.maintenance.heartbeat
    outage = parts.engine.outage
    assert heartbeat.tick(conn)

    outage.begin(psycopg.OperationalError("the server ended"), 0)
    assert heartbeat.tick(conn)
    assert outage.retry_at == 0.0  # now

    outage.begin(psycopg.errors.UndefinedTable("it answers, but cannot serve"), 0)
    assert heartbeat.tick(conn)
    assert outage.retry_at > 0.0


def beaten_for_long(parts: Supervisor) -> None:
    """Set the state of a worker that has written heartbeats for a minute, up to now."""
    heartbeat = parts.maintenance.heartbeat
    heartbeat.unbroken_since = time.monotonic() - 60
    heartbeat.written_at = time.monotonic()


def cut_off(parts: Supervisor) -> None:
    """Give the next heartbeat no server to connect to.

    Another job has noticed the end of the server before.
    """
    thread = parts.maintenance
    thread.disconnect()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections["default"].settings_dict, "PORT", 1)
        thread.attempt(thread.jobs[0])

    assert thread.failing == {"the heartbeat"}


def fail_over(parts: Supervisor) -> None:
    """Simulate a server that is gone and back between two heartbeats."""
    parts.maintenance.disconnect()


def stall(parts: Supervisor) -> None:
    """Simulate a thread that has stood still."""
    parts.maintenance.heartbeat.unbroken_since -= 60
    parts.maintenance.heartbeat.written_at -= 60


def set_clock(parts: Supervisor, seconds: float) -> None:
    """Simulate a clock of the database that was set by this many seconds.

    A clock that is ahead stands for a machine that was suspended.
    """
    clock = parts.maintenance.heartbeat.clock
    if clock.last is not None:
        clock.last = (clock.last[0] - seconds, *clock.last[1:])
    silence(parts.worker, timedelta(seconds=seconds))


def set_ahead(parts: Supervisor) -> None:
    set_clock(parts, 20)


def set_back(parts: Supervisor) -> None:
    set_clock(parts, -3_600)


@pytest.mark.parametrize("what", [cut_off, fail_over, stall, set_ahead, set_back])
def test_a_reaper_declares_dead_only_after_enough_own_beats(
    what: Callable[[Supervisor], None], parts: Supervisor, conn: Any
) -> None:
    """A reaper declares workers dead only after its own heartbeats went on for the threshold.

    Fails if: only a heartbeat that was sent and failed counts as a gap, and the first worker that
    is back declares the others dead.
    """
    thread = parts.maintenance
    (beat, reap, *_) = parts.maintenance.jobs
    other = uuid.uuid4()
    register(other, conn)
    silence(other)

    def spared(*jobs: PeriodicJob) -> bool:
        for job in jobs:
            thread.attempt(job)
        return Heartbeat.objects.get(pk=other).died_at is None

    assert spared(beat, reap)

    beaten_for_long(parts)
    what(parts)
    assert spared(reap)
    assert spared(beat, reap)

    beaten_for_long(parts)
    assert not spared(reap)
    assert Heartbeat.objects.get(pk=parts.worker).died_at is None
    thread.disconnect()


def on_duty(conn: Any, workers: list[uuid.UUID]) -> list[int]:
    """Return the places of the workers whose heartbeat puts them on duty, as they beat in turn."""
    beaten = [
        WorkerStore(conn).beat(worker, [], Load(0, 0, 0, 0), timedelta(seconds=5))
        for worker in workers
    ]
    return [place for place, each in enumerate(beaten) if each.on_duty]


def test_the_three_oldest_living_workers_are_on_duty(connect: Connect) -> None:
    conn = connect()
    workers = registered(conn, 6)
    assert on_duty(conn, workers) == [0, 1, 2]

    silence(workers[1])
    # Without it, the fourth moves up.
    assert on_duty(conn, [*workers[:1], *workers[2:]]) == [0, 1, 2]
    assert on_duty(conn, workers) == [0, 1, 2]

    sql("UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [workers[0]])
    assert on_duty(conn, workers) == [1, 2, 3]

    for worker in workers[1:4]:
        WorkerStore(conn).stop(worker)
    assert on_duty(conn, workers) == [4, 5]


def test_the_beats_of_a_large_fleet_read_only_its_first_rows(connect: Connect) -> None:
    conn = connect()

    def read_with(count: int) -> int:
        workers = registered(conn, count)
        on_duty(conn, workers)
        return entries_read(conn, "horsies_heartbeats_parents", lambda: on_duty(conn, workers[-1:]))

    few = read_with(10)
    assert read_with(300) <= few + 2


def test_only_a_worker_on_duty_or_the_next_in_line_rescues(
    parts: Supervisor, connect: Connect
) -> None:
    """Only a worker on duty rescues tasks, or the next in line after a silent one."""
    conn = connect()
    thread = parts.maintenance
    older = registered(conn, 3)
    dead = uuid7s(1)[0]
    register(dead, conn)
    silence(dead)

    parts.worker = thread.heartbeat.worker = thread.reaper.worker = uuid7s(1)[0]
    register(parts.worker, conn)
    thread.attempt(thread.jobs[0])
    beaten_for_long(parts)

    for job in thread.jobs:
        thread.attempt(job)
    assert Heartbeat.objects.get(pk=dead).died_at is None

    silence(older[2])
    for job in thread.jobs:
        thread.attempt(job)
    assert Heartbeat.objects.get(pk=dead).died_at is not None
    thread.disconnect()


def test_tasks_of_a_dead_worker_are_rescued_once(
    parts: Supervisor, connect: Connect, claimer: Claimers, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks of a dead worker are rescued once, and its later writes have no effect."""
    dead = claimer()
    register(dead.id, dead.conn)
    register(parts.worker, dead.conn)
    put(3)

    lease = timedelta(minutes=1)
    passed = dead.run_pass(wanted=Wanted(sync=1, prefetch=2, lease=lease))
    (running,) = passed.claims
    buffered = passed.prefetched
    silence(dead.id)

    beaten_for_long(parts)
    parts.maintenance.reaper.rescue(connect())

    statuses = dict(Task.objects.values_list("id", "status"))
    assert statuses == {running.id: "FAILED", **{claim.id: "PENDING" for claim in buffered}}

    (attempt,) = TaskAttempt.objects.all()
    assert (attempt.outcome, attempt.error_code, attempt.worker_id) == (
        "WORKER_FAILURE",
        "WORKER_CRASHED",
        dead.id,
    )

    one, other = (
        f"tests.nothing {claim.id} (attempt 1)"
        for claim in sorted(buffered, key=lambda claim: claim.id)
    )
    assert (
        f"3 task(s) of dead workers rescued: 1 failed (tests.nothing {running.id} (attempt 1)), 0 "
        "are retried, "
        f"2 had not begun and are pending again ({one}, {other})"
    ) in caplog.messages

    late = dead.run_pass(wanted=Wanted(sync=2, lease=lease), starts=buffered)
    assert (late.dead, late.started, late.claims) == (True, [], [])

    parts.maintenance.reaper.rescue(connect())
    assert TaskAttempt.objects.count() == 1


def test_tasks_past_their_good_until_expire_without_a_claim(
    parts: Supervisor, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A task past its ``good_until`` expires without a claim, and the log names it."""
    limit("default", max_concurrency=0)
    (late,) = put(good_until=dt.datetime.now(dt.UTC) - timedelta(seconds=1))
    assert Task.objects.get(pk=late).status == "PENDING"

    parts.maintenance.reaper.rescue(connect())

    assert Task.objects.get(pk=late).status == "EXPIRED"
    assert caplog.messages == [
        f"1 task(s) expired before they started (tests.nothing {late} (attempt 1))"
    ]


def test_the_maintenance_session_drops_plans_every_ten_seconds(parts: Supervisor) -> None:
    """The maintenance session drops its plans every ten seconds.

    Fails if: workflows that wait are woken by a plan that reads all nodes, because the worker began
    with empty tables.
    """
    thread = parts.maintenance
    plan = with_a_bad_plan(thread.connected())

    thread.attempt(thread.jobs[0])
    assert "Seq Scan" in plan()

    thread.planned_at -= PLANS_SECONDS
    thread.attempt(thread.jobs[0])
    assert "Index" in plan()
    thread.disconnect()


HELD = Load(running_sync=2, running_async=30, memory_usage_mb=50.5, children_memory_mb=90.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="horsies.worker")
    return caplog


def over(pruner: Pruner, conn: Any) -> bool:
    """Tick once, and return whether a round is over."""
    return pruner.tick(conn) == pruner.interval_seconds


def test_a_round_deletes_all_kinds_of_rows_and_logs_the_counts(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    long_ago = WorkerFactory().started_at - 400 * DAY
    finished(40 * DAY, 120)
    WorkerFactory(started_at=long_ago, seen_at=long_ago, stopped_at=long_ago)
    WorkerStateFactory(snapshot_at=long_ago)
    ScheduleTickFactory(sent_at=long_ago)
    AuditEntryFactory(at=long_ago)
    AuditEntry.objects.exclude(at=long_ago).delete()

    conn = connect()
    pruner = Pruner(Retention(retention_delete_batch_size=70))

    wait_until(lambda: over(pruner, conn), "a round is over")

    assert max(step.batch for step in pruner.steps) == 70
    assert [record.getMessage() for record in log.records] == [
        "retention deleted tasks: 120, fire times of schedules: 1, snapshots of workers: 1, "
        "workers: 1, entries of the audit: 1"
    ]
    assert not Task.objects.exists()

    log.clear()
    assert over(pruner, conn)
    assert log.records == []


def test_any_worker_deletes_tasks_with_their_own_retention(
    connect: Connect,
) -> None:
    """A task with its own retention is deleted by any worker, even one that ran no such task.

    Fails if: only the worker that ran the task deletes it, and it is kept for ever once that worker
    has stopped.
    """
    conn = connect()
    hour = {"wire": 1, "keep_result": 3_600_000}
    finished(2 * dt.timedelta(hours=1), options=hour)
    finished(2 * dt.timedelta(minutes=1), options={"wire": 1, "keep_result": False})
    (young,) = finished(dt.timedelta(minutes=1), options=hour)

    ran = Pruner(Retention(), {False, 3_600_000}.copy)
    later = Pruner(Retention())

    assert ran.has_new_retentions
    ran.note(conn)
    assert not ran.has_new_retentions

    wait_until(lambda: over(ran, conn), "a round is over")
    assert Task.objects.get().pk == young

    finished(2 * dt.timedelta(hours=1), options=hour)
    wait_until(lambda: over(later, conn), "a round is over")
    assert Task.objects.get().pk == young


def test_the_batch_after_one_that_timed_out_is_smaller(
    connect: Connect, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch after one that timed out is smaller, and a tick stays short."""
    conn = connect()
    other = connect()
    pruner = Pruner(Retention())
    finished(40 * DAY, 60)
    conn.execute("SET statement_timeout = '100ms'")

    with other.transaction():
        other.execute("LOCK TABLE horsies_task_attempts IN ACCESS EXCLUSIVE MODE")
        tasks = pruner.steps[0]
        tasks.batch = 50

        assert pruner.tick(conn) is None
        smaller = tasks.batch
        assert smaller < 50
        assert "took too long" in log.text

    monkeypatch.setattr(pruner_module, "TURN_SECONDS", 0.0)
    pruner.left.rotate(1)
    assert pruner.tick(conn) is None
    assert Task.objects.count() == 60 - smaller, "the rest is left to the next tick"

    wait_until(lambda: over(pruner, conn), "a round is over")
    assert not Task.objects.exists()


def old_entry() -> AuditEntry:
    """Replace all audit entries by one that is due to be deleted."""
    AuditEntry.objects.all().delete()
    entry: AuditEntry = AuditEntryFactory(at=WorkerFactory().started_at - 400 * DAY)
    return entry


def left_of(entry: AuditEntry) -> bool:
    return AuditEntry.objects.filter(pk=entry.pk).exists()


def turns(pruner: Pruner, conn: Any, count: int) -> None:
    """Delete with a pruner this number of batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruner_module, "TURN_SECONDS", 0.0)
        for _ in range(count):
            pruner.tick(conn)


def test_no_kind_of_row_holds_up_another(connect: Connect) -> None:
    """Fails if: a round goes on to the next kind of row only when nothing is left of the one
    before.
    """
    conn = connect()
    pruner = Pruner(Retention(retention_delete_batch_size=50))
    finished(40 * DAY, 2_000)
    entry = old_entry()

    turns(pruner, conn, len(pruner.steps))

    assert Task.objects.exists()
    assert not left_of(entry)


def test_the_next_round_begins_while_a_long_one_is_unfinished(connect: Connect) -> None:
    """Fails if: new rows of one kind wait until all of another kind are deleted, however long that
    takes.
    """
    conn = connect()
    pruner = Pruner(Retention(retention_delete_batch_size=50))
    finished(40 * DAY, 2_000)
    turns(pruner, conn, len(pruner.steps))
    entry = old_entry()
    pruner.began_at -= pruner.interval_seconds

    turns(pruner, conn, len(pruner.steps) + 1)

    assert Task.objects.exists()
    assert not left_of(entry)


def test_a_hundred_durations_take_few_steps(connect: Connect) -> None:
    """Fails if: the finished tasks are read once for each duration, for example if results are kept
    until midnight.
    """
    conn = connect()
    durations = [60_000 + 863_000 * n for n in range(100)]
    for keep in durations:
        finished(2 * DAY, options={"wire": 1, "keep_result": keep})
    pruner = Pruner(
        Retention(),
        lambda: own_retentions([f'{{"wire": 1, "keep_result": {keep}}}' for keep in durations]),
    )
    pruner.note(conn)

    wait_until(lambda: over(pruner, conn), "a round is over")

    assert not Task.objects.exists()
    assert len(pruner.own_steps) <= 11


def test_a_missing_right_stops_neither_round_nor_heartbeat(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    """A missing right is logged, and stops neither the rest of the round nor the heartbeat."""
    conn = connect()
    owner = connect()
    pruner = Pruner(Retention())
    WorkerStateFactory(snapshot_at=WorkerFactory().started_at - 400 * DAY)
    owner.execute(
        "CREATE ROLE timid; GRANT SELECT, DELETE, UPDATE ON horsies_worker_states TO timid",
        prepare=False,
    )

    try:
        conn.execute("SET ROLE timid")
        wait_until(lambda: over(pruner, conn), "a round is over")
        Snapshots(uuid.uuid4(), os.getpid(), 30.0).tick(conn, [], [], HELD, 0)
    finally:
        conn.execute("RESET ROLE")
        owner.execute("DROP OWNED BY timid; DROP ROLE timid", prepare=False)

    assert "permission denied for table horsies_workers" in log.text
    assert "permission denied for table horsies_worker_states" in log.text
    assert not WorkerState.objects.exists()


@pytest.mark.promise("S1.17")
def test_a_snapshot_has_memory_and_cpu_of_parent_and_children(
    connect: Connect,
) -> None:
    """A snapshot has the memory and CPU of the parent and its children, and comes only when due."""
    conn = connect()
    worker = uuid.uuid4()
    children = [Process(uuid.uuid4(), os.getppid())]
    register(worker, conn)
    WorkerStore(conn).beat(worker, [*children, Process(uuid.uuid4(), 7)], HELD, LONG_AGO)
    snapshots = Snapshots(worker, os.getpid(), 30.0)

    for _ in range(3):
        snapshots.tick(conn, children, [90.0], HELD, 4)

    (first,) = WorkerState.objects.all()
    assert (first.worker_id, first.children, first.buffered) == (worker, 1, 4)
    assert (first.running_sync, first.running_async) == (2, 30)
    assert (first.memory_usage_mb, first.children_memory_mb, first.cpu_percent) == (
        50.5,
        90.0,
        None,
    )

    snapshots.due_at = 0.0
    while sum(os.times()[:2]) <= snapshots.consumed[os.getpid()] + 0.02:
        pass  # this process uses its CPU
    snapshots.tick(conn, children, [91.0], HELD, 0)
    assert WorkerState.objects.latest("pk").cpu_percent > 0

    beats = Heartbeat.objects.values_list("pid", "memory_mb")
    assert set(beats) == {(1, None), (7, None), (os.getppid(), 91.0)}


def test_rows_that_the_project_refers_to_are_named_in_the_log(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    conn = connect()
    pruner = Pruner(Retention())
    old = finished(40 * DAY, 5)
    sql(
        "CREATE TABLE shop_export (task_id uuid REFERENCES horsies_tasks (id) DEFERRABLE INITIALLY "
        "DEFERRED)"
    )

    try:
        sql("INSERT INTO shop_export VALUES (%s)", [old[2]])
        wait_until(lambda: over(pruner, conn), "a round is over")
        wait_until(lambda: over(pruner, conn), "another round is over")
    finally:
        sql("DROP TABLE shop_export")

    assert [task.pk for task in Task.objects.all()] == [old[2]]
    said = [record.getMessage() for record in log.records if record.levelname == "WARNING"]
    assert said == [
        "retention: 1 row(s) of horsies_tasks stay, because rows of shop_export (task_id) refer "
        f"to them: {old[2]}"
    ]


def test_a_trigger_that_refuses_a_deletion_ends_one_step_only(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    """Fails if: an error of another class than a missing right ends the round or the thread."""
    conn = connect()
    pruner = Pruner(Retention())
    finished(40 * DAY, 5)
    long_ago = WorkerFactory().started_at - 400 * DAY
    WorkerStateFactory(snapshot_at=long_ago)
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the auditors want it'; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE DELETE ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION "
        "refuse()"
    )

    try:
        wait_until(lambda: over(pruner, conn), "a round is over")
    finally:
        sql("DROP FUNCTION refuse CASCADE")

    assert not WorkerState.objects.exists()
    assert "retention: rows cannot be deleted: the auditors want it" in log.text


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), DjangoError("gone"), ZeroDivisionError()]
)
def test_the_maintenance_thread_outlives_any_error(
    parts: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """Fails if: an error of another family than psycopg's ends the thread, and no more heartbeats
    are sent.
    """
    maintenance = parts.maintenance
    raised = [error] * 2

    def act(connection: Any) -> None:
        if raised:
            raise raised.pop()

    maintenance.jobs = [PeriodicJob("the heartbeat", 0.01, act)]
    maintenance.start()

    try:
        wait_until(lambda: "the heartbeat succeeds again" in log.text, "it succeeds")
    finally:
        maintenance.stop()

    assert log.text.count("the heartbeat failed; trying again until it succeeds") == 1


def test_a_process_without_descriptors_still_sends_heartbeats(
    parts: Supervisor, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: the heartbeat is not sent because the memory of processes, which is read from
    files, cannot be read.
    """
    before = Heartbeat.objects.get().sent_at

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "Process", refuse)

    assert parts.maintenance.heartbeat.tick(conn)
    assert Heartbeat.objects.get().sent_at > before


def test_the_watchdog_outlives_any_error(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    watchdog = parts.watchdog
    rearmed = list[float]()
    raised = [RuntimeError("odd")]

    def rearm(now: float) -> None:
        if raised:
            raise raised.pop()
        rearmed.append(now)

    monkeypatch.setattr(watchdog.kill_timer, "rearm", rearm)
    parts.maintenance.unanswered_since = time.monotonic() - 60
    watchdog.kill_timer.deadline = 0.0
    watchdog.start()

    try:
        wait_until(lambda: rearmed, "it rearms the timer")
    finally:
        watchdog.stop()

    assert "the watchdog failed, and tries again" in log.text
