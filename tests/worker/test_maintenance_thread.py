"""Heart and reaper, one tick at a time, on the real database."""

from __future__ import annotations

import datetime as dt
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.conf import Recovery, config
from horsies_django.core.records import Wanted
from horsies_django.models import AuditEntry, Heartbeat, Queue, QueueLimits, Task, TaskAttempt
from horsies_django.store.workers import Load, WorkerStore
from horsies_django.tasks.ids import uuid7s
from horsies_django.worker.engine.status import EngineStatus
from horsies_django.worker.process.kill_timer import DEADLINE
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.conftest import wait_for_waiting

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
LONG_AGO = timedelta(hours=1)
THRESHOLD_MS = 2_000


@pytest.fixture
def parts(transactional_db: None) -> Iterator[Supervisor]:
    """The parts of a worker, put together and not started."""
    recovery = Recovery(claimer_heartbeat_interval_ms=1_000, running_stale_threshold_ms=THRESHOLD_MS)
    wait_until(lambda: up_for(timedelta(seconds=2)), "the server is up for longer than the threshold")
    made = Supervisor(replace(config(), recovery=recovery), WorkerOptions(queues=("default", "mail"), processes=1))
    yield made
    made.kill_timer.disarm()
    made.engine.close()
    made.selector.close()


def up_for(span: timedelta) -> bool:
    """Whether the server started longer ago than ``span``."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_postmaster_start_time() < clock_timestamp() - %s", [span])
        return bool(cursor.fetchone()[0])


def register(worker: uuid.UUID, conn: Any) -> None:
    WorkerStore(conn).register(
        worker, hostname="here", pid=1, version="1", queues=["default"], processes=1, threads=1, async_concurrency=1
    )  # fmt: skip


def silence(worker: uuid.UUID) -> None:
    """Let a worker's last beat lie long ago."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_heartbeats SET sent_at = sent_at - %s WHERE id = %s", [LONG_AGO, worker])


def test_a_worker_has_its_first_beat_before_it_claims_anything(parts: Supervisor, connect: Connect) -> None:
    register(parts.worker, connect())
    (beat,) = Heartbeat.objects.all()
    assert (beat.id, beat.role, beat.died_at) == (parts.worker, "claimer", None)


def test_a_beat_renews_the_row_and_the_trust_in_it(parts: Supervisor, connect: Connect) -> None:
    conn, heartbeat = connect(), parts.maintenance.heartbeat
    register(parts.worker, conn)
    silence(parts.worker)
    parts.engine.trusted_until = 0.0
    before = Heartbeat.objects.get().sent_at
    assert heartbeat.tick(conn)
    assert Heartbeat.objects.get().sent_at > before + LONG_AGO / 2
    assert parts.engine.trusted_until > time.monotonic()
    assert not parts.engine.disowned


def test_the_kill_timer_counts_from_before_the_beat_and_ends_before_others_may_judge(
    parts: Supervisor, connect: Connect
) -> None:
    """A beat may wait long for its answer: what counts from the answer ends after others took the tasks over."""
    conn, other, kill_timer = connect(), connect(), parts.kill_timer
    register(parts.worker, conn)
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
    if kill_timer.path is not None:  # what the process reads that has the timer
        assert DEADLINE.unpack(os.pread(kill_timer.descriptor, DEADLINE.size, 0)) == (kill_timer.deadline,)


def test_a_worker_that_was_declared_dead_hears_of_it_at_its_next_beat_and_stays_dead(
    parts: Supervisor, connect: Connect
) -> None:
    conn = connect()
    register(parts.worker, conn)
    silence(parts.worker)
    WorkerStore(conn).reap(timedelta(seconds=2), judge=True, many=10)
    assert not parts.maintenance.heartbeat.tick(conn)
    assert parts.engine.disowned
    assert Heartbeat.objects.get().died_at is not None


def test_a_heart_is_silent_while_its_engine_is_stuck(parts: Supervisor, connect: Connect) -> None:
    conn = connect()
    register(parts.worker, conn)
    before = Heartbeat.objects.get().sent_at
    parts.engine.status = EngineStatus(busy_since=time.monotonic() - 60)
    assert not parts.maintenance.heartbeat.tick(conn)
    assert Heartbeat.objects.get().sent_at == before


def test_a_reaper_judges_only_after_its_own_beats_went_out_for_the_whole_threshold(
    parts: Supervisor, connect: Connect
) -> None:
    conn, heartbeat, reaper = connect(), parts.maintenance.heartbeat, parts.maintenance.reaper
    register(parts.worker, conn)
    other = uuid.uuid4()
    register(other, conn)
    silence(other)
    heartbeat.tick(conn)
    reaper.rescue(conn)
    assert Heartbeat.objects.get(pk=other).died_at is None
    heartbeat.unbroken_since = time.monotonic() - 60
    heartbeat.missed()
    heartbeat.tick(conn)
    reaper.rescue(conn)
    assert Heartbeat.objects.get(pk=other).died_at is None
    heartbeat.unbroken_since = time.monotonic() - 60
    reaper.rescue(conn)
    assert Heartbeat.objects.get(pk=other).died_at is not None
    assert Heartbeat.objects.get(pk=parts.worker).died_at is None


def fleet(conn: Any, count: int) -> list[uuid.UUID]:
    """Register so many workers, the oldest first."""
    workers = uuid7s(count)
    for worker in workers:
        register(worker, conn)
    return workers


def on_duty(conn: Any, workers: list[uuid.UUID]) -> list[int]:
    """Return the places of the workers that are told that they are on duty, as they beat in turn."""
    beaten = [WorkerStore(conn).beat(worker, [], Load(0, 0, 0, 0), timedelta(seconds=5)) for worker in workers]
    return [place for place, each in enumerate(beaten) if each.on_duty]


def test_the_three_oldest_workers_that_are_heard_are_on_duty(connect: Connect) -> None:
    conn = connect()
    workers = fleet(conn, 6)
    assert on_duty(conn, workers) == [0, 1, 2]
    silence(workers[1])
    assert on_duty(conn, [*workers[:1], *workers[2:]]) == [0, 1, 2]  # without it: the fourth moves up
    assert on_duty(conn, workers) == [0, 1, 2]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [workers[0]])
    assert on_duty(conn, workers) == [1, 2, 3]
    for worker in workers[1:4]:
        WorkerStore(conn).stop(worker)
    assert on_duty(conn, workers) == [4, 5]


def test_the_beats_of_a_large_fleet_read_only_its_first_rows(connect: Connect) -> None:
    conn, found = connect(), {}
    for count in (10, 300):
        workers = fleet(conn, count)
        on_duty(conn, workers)
        read = "SELECT pg_stat_get_xact_tuples_returned('horsies_heartbeats_parents'::regclass)"
        with conn.transaction():
            ((before,),) = conn.execute(read).fetchall()
            on_duty(conn, workers[-1:])
            ((after,),) = conn.execute(read).fetchall()
        found[count] = after - before
    assert found[300] <= found[10] + 2


def test_only_a_worker_on_duty_rescues_and_it_takes_over_from_those_that_fall_silent(
    parts: Supervisor, connect: Connect
) -> None:
    conn, thread = connect(), parts.maintenance
    older = fleet(conn, 3)
    dead = uuid7s(1)[0]
    register(dead, conn)
    silence(dead)
    parts.worker = thread.heartbeat.worker = uuid7s(1)[0]
    register(parts.worker, conn)
    thread.heartbeat.unbroken_since = time.monotonic() - 60
    assert thread.beat()
    assert thread.reap()
    assert Heartbeat.objects.get(pk=dead).died_at is None
    silence(older[2])
    assert thread.beat()
    assert thread.reap()
    assert Heartbeat.objects.get(pk=dead).died_at is not None
    thread.disconnect()


def test_a_server_that_has_just_started_has_heard_nobody_and_nobody_is_dead(connect: Connect) -> None:
    conn, other, span = connect(), uuid.uuid4(), timedelta(days=1_000)
    register(other, conn)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_heartbeats SET sent_at = sent_at - %s", [2 * span])
    assert WorkerStore(conn).reap(span, judge=True, many=10) == []


def test_what_a_dead_worker_held_is_rescued_once_and_nothing_it_writes_lands(
    parts: Supervisor, connect: Connect, claimer: Callable[..., Claimer], caplog: pytest.LogCaptureFixture
) -> None:
    dead = claimer()
    register(dead.id, dead.conn)
    put(3)
    lease = timedelta(minutes=1)
    passed = dead.run_pass(wanted=Wanted(sync=1, prefetch=2, lease=lease))
    (running,), buffered = passed.claims, passed.prefetched
    silence(dead.id)
    parts.maintenance.heartbeat.unbroken_since = time.monotonic() - 60
    parts.maintenance.reaper.rescue(connect())
    statuses = dict(Task.objects.values_list("id", "status"))
    assert statuses == {running.id: "FAILED", **{claim.id: "PENDING" for claim in buffered}}
    (attempt,) = TaskAttempt.objects.all()
    assert (attempt.outcome, attempt.error_code, attempt.worker_id) == ("WORKER_FAILURE", "WORKER_CRASHED", dead.id)
    one, other = (f"tests.nothing {claim.id} (attempt 1)" for claim in sorted(buffered, key=lambda claim: claim.id))
    assert (
        f"3 task(s) of dead workers rescued: 1 failed (tests.nothing {running.id} (attempt 1)), 0 are retried, "
        f"2 had not begun and are pending again ({one}, {other})"
    ) in caplog.messages
    late = dead.run_pass(wanted=Wanted(sync=2, lease=lease), starts=buffered)
    assert (late.dead, late.started, late.claims) == (True, [], [])
    parts.maintenance.reaper.rescue(connect())
    assert TaskAttempt.objects.count() == 1


def test_tasks_that_the_reaper_finds_past_their_time_are_named(
    parts: Supervisor, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    (id_,) = put(good_until=dt.datetime.now(dt.UTC) - timedelta(seconds=1))
    parts.maintenance.reaper.rescue(connect())
    assert caplog.messages == [f"1 task(s) expired before they started (tests.nothing {id_} (attempt 1))"]


def test_tasks_of_a_worker_without_any_heartbeat_are_rescued_once_their_claim_is_old(
    parts: Supervisor, connect: Connect, claimer: Callable[..., Claimer]
) -> None:
    (id_,) = put()
    claimer().run_pass(sync=1)
    parts.maintenance.reaper.rescue(connect())
    assert Task.objects.get(pk=id_).status == "RUNNING"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_tasks SET claimed_at = claimed_at - %s", [LONG_AGO])
    parts.maintenance.reaper.rescue(connect())
    assert Task.objects.get(pk=id_).status == "FAILED"


def test_tasks_past_their_good_until_expire_though_no_claim_ever_meets_them(
    parts: Supervisor, connect: Connect
) -> None:
    limit("default", max_concurrency=0)
    (late,) = put()
    assert Task.objects.get(pk=late).status == "PENDING"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 second'")
    parts.maintenance.reaper.rescue(connect())
    assert Task.objects.get(pk=late).status == "EXPIRED"


@pytest.mark.promise("S4.19")
def test_an_override_ends_at_its_time_or_when_nobody_has_served_the_queue_for_long(
    parts: Supervisor, connect: Connect
) -> None:
    override = {
        "override": {"max_concurrency": 1},
        "override_reason": "a test",
        "override_by": "me",
        "override_at": "now",
    }
    limit("mail", max_concurrency=5, **override, override_until="2020-01-01T00:00:00Z")
    limit("bulk", max_concurrency=5, **override)
    limit("twin", max_concurrency=5, **override)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE horsies_queues SET override_at = now() - interval '30 days' WHERE name IN ('bulk', 'twin')"
        )
        cursor.execute("UPDATE horsies_queues SET served_at = now() - interval '1 day' WHERE name = 'twin'")
    parts.maintenance.reaper.tick(connect())
    in_force = dict(QueueLimits.objects.values_list("queue_name", "max_concurrency"))
    assert {name: in_force[name] for name in ("mail", "bulk", "twin")} == {"mail": 5, "bulk": 5, "twin": 1}
    assert set(AuditEntry.objects.filter(action="queue.expire").values_list("subject", flat=True)) == {"mail", "bulk"}
    parts.maintenance.reaper.note_served(connect())
    assert Queue.objects.get(pk="mail").served_at is not None
