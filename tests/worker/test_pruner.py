"""Pruner and snapshots, one tick at a time, on the real database."""

from __future__ import annotations

import datetime as dt
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django.conf import Retention
from horsies_django.models import AuditEntry, Task, WorkerState
from horsies_django.store.workers import Load, Process
from horsies_django.worker.maintenance import pruner as pruner_module
from horsies_django.worker.maintenance.heartbeat import Snapshots
from horsies_django.worker.maintenance.pruner import SMALLEST_BATCH, TICK_INTERVAL_SECONDS, Pruner
from tests.conftest import wait_until
from tests.db.test_retention import DAY, finished
from tests.support.factories import AuditEntryFactory, ScheduleTickFactory, WorkerFactory, WorkerStateFactory

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
HELD = Load(running_sync=2, running_async=30, memory_usage_mb=50.5, children_memory_mb=90.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="horsies.worker")
    return caplog


def over(pruner: Pruner, conn: Any) -> bool:
    """Tick once, and return whether a round is over."""
    return pruner.tick(conn) == pruner.interval_seconds


def test_a_round_deletes_every_kind_of_rows_and_says_how_many(connect: Connect, log: pytest.LogCaptureFixture) -> None:
    long_ago = WorkerFactory().started_at - 400 * DAY
    finished(40 * DAY, 120)
    WorkerFactory(started_at=long_ago, seen_at=long_ago, stopped_at=long_ago)
    WorkerStateFactory(snapshot_at=long_ago)
    ScheduleTickFactory(sent_at=long_ago)
    AuditEntryFactory(at=long_ago)
    AuditEntry.objects.exclude(at=long_ago).delete()
    conn, pruner = connect(), Pruner(Retention())
    wait_until(lambda: over(pruner, conn), "a round is over")
    assert [record.getMessage() for record in log.records] == [
        "retention deleted tasks: 120, fire times of schedules: 1, snapshots of workers: 1, workers: 1, entries of the audit: 1"
    ]
    assert not Task.objects.exists()
    log.clear()
    assert over(pruner, conn)
    assert log.records == []


def test_what_is_kept_for_ever_is_not_even_looked_for() -> None:
    for_ever = Retention(
        terminal_record_retention_hours=None,
        worker_state_retention_hours=None,
        worker_retention_hours=None,
        audit_retention_hours=None,
    )
    assert len(Pruner(for_ever).steps) == 1  # tasks with a retention of their own
    assert len(Pruner(Retention()).steps) == 7


def test_tasks_with_a_retention_of_their_own_are_deleted_by_workers_that_ran_some_and_by_those_that_did_not(
    connect: Connect,
) -> None:
    """Naive: only the worker that ran the task knows how long it is kept; once it has stopped, nobody deletes it."""
    conn = connect()
    hour = {"wire": 1, "keep_result": 3_600_000}
    finished(2 * dt.timedelta(hours=1), options=hour)
    finished(2 * dt.timedelta(minutes=1), options={"wire": 1, "keep_result": False})
    (young,) = finished(dt.timedelta(minutes=1), options=hour)
    ran, later = Pruner(Retention(), {False, 3_600_000}.copy), Pruner(Retention())
    assert ran.owes_note
    ran.note(conn)
    assert not ran.owes_note
    wait_until(lambda: over(ran, conn), "a round is over")
    assert Task.objects.get().pk == young
    finished(2 * dt.timedelta(hours=1), options=hour)
    wait_until(lambda: over(later, conn), "a round is over")
    assert Task.objects.get().pk == young


def test_a_tick_whose_moment_is_over_leaves_the_rest_to_the_next_one(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner_module, "TICK_SECONDS", 0.0)
    conn, pruner = connect(), Pruner(Retention())
    finished(40 * DAY, SMALLEST_BATCH + 10)
    assert pruner.tick(conn) == TICK_INTERVAL_SECONDS
    assert Task.objects.count() == 10
    wait_until(lambda: over(pruner, conn), "a round is over")
    assert not Task.objects.exists()


def test_a_batch_that_takes_too_long_is_given_up_and_the_next_one_is_smaller(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    conn, other, pruner = connect(), connect(), Pruner(Retention())
    finished(40 * DAY, 60)
    conn.execute("SET statement_timeout = '100ms'")
    with other.transaction():
        other.execute("LOCK TABLE horsies_task_attempts IN ACCESS EXCLUSIVE MODE")
        assert pruner.tick(conn) == TICK_INTERVAL_SECONDS
        assert pruner.batch < SMALLEST_BATCH
        assert "took too long" in log.text
    wait_until(lambda: over(pruner, conn), "a round is over")
    assert not Task.objects.exists()


def test_batches_grow_to_what_was_set_and_no_further(connect: Connect) -> None:
    conn, pruner = connect(), Pruner(Retention(retention_delete_batch_size=70))
    finished(40 * DAY, 400)
    wait_until(lambda: over(pruner, conn), "a round is over")
    assert pruner.batch <= 70


def test_a_right_that_is_missing_is_logged_and_stops_neither_the_rest_of_the_round_nor_the_heartbeat(
    connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    conn, owner, pruner = connect(), connect(), Pruner(Retention())
    WorkerStateFactory(snapshot_at=WorkerFactory().started_at - 400 * DAY)
    owner.execute("CREATE ROLE timid; GRANT SELECT, DELETE, UPDATE ON horsies_worker_states TO timid", prepare=False)
    try:
        conn.execute("SET ROLE timid")
        wait_until(lambda: over(pruner, conn), "a round is over")
        Snapshots(uuid.uuid4(), os.getpid(), 30.0).tick(conn, [], HELD, 0)
    finally:
        conn.execute("RESET ROLE")
        owner.execute("DROP OWNED BY timid; DROP ROLE timid", prepare=False)
    assert "permission denied for table horsies_workers" in log.text
    assert "permission denied for table horsies_worker_states" in log.text
    assert not WorkerState.objects.exists()


@pytest.mark.promise("S1.17")
def test_a_snapshot_tells_memory_and_cpu_of_the_parent_and_its_children_and_comes_only_when_due(
    connect: Connect,
) -> None:
    conn, worker, children = connect(), uuid.uuid4(), [Process(uuid.uuid4(), os.getppid())]
    snapshots = Snapshots(worker, os.getpid(), 30.0)
    for _ in range(3):
        snapshots.tick(conn, children, HELD, 4)
    (first,) = WorkerState.objects.all()
    assert (first.worker_id, first.children, first.buffered) == (worker, 1, 4)
    assert (first.running_sync, first.running_async) == (2, 30)
    assert (first.memory_usage_mb, first.children_memory_mb, first.cpu_percent) == (50.5, 90.0, None)
    snapshots.due_at = 0.0
    while sum(os.times()[:2]) <= snapshots.consumed[os.getpid()] + 0.02:
        pass  # this process uses its CPU
    snapshots.tick(conn, children, HELD, 0)
    assert WorkerState.objects.latest("pk").cpu_percent > 0
