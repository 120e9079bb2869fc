"""Which workers are declared dead, and by which others; the traces of a clock that was set."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from horsies_django.models import Heartbeat, Task
from horsies_django.store.workers import Load, WorkerStore
from horsies_django.tasks.ids import uuid7s
from tests.conftest import Claimers, Connect, put, sql, wait_until
from tests.db.conftest import register
from tests.db.lives import enlist

THRESHOLD = timedelta(seconds=1)
FRESH = timedelta(seconds=30)


@pytest.fixture
def conn(connect: Connect) -> Any:
    """Return a session on a server that is up for longer than the threshold."""
    up = "SELECT pg_postmaster_start_time() < clock_timestamp() - interval '1 s'"
    wait_until(lambda: sql(up)[0][0], "the server is up for longer than the threshold")
    return connect()


def workers(conn: Any, *ages: float) -> list[uuid.UUID]:
    """Register workers whose last heartbeats are this many seconds old."""
    ids = uuid7s(len(ages))
    for id_, age in zip(ids, ages, strict=True):
        enlist(conn, id_, "default", slots=1, task_names=[])
        sql(
            "UPDATE horsies_heartbeats SET sent_at = clock_timestamp() - %s WHERE id = %s",
            [timedelta(seconds=age), id_],
        )
    return ids


def test_a_worker_that_beats_declares_a_silent_one_dead(conn: Any) -> None:
    own, _living, silent = workers(conn, 0, 0, 60)

    dead = WorkerStore(conn).declare_dead_workers(own, THRESHOLD, FRESH)

    assert dead == [silent]
    assert Heartbeat.objects.get(died_at__isnull=False).pk == silent


@pytest.mark.parametrize("age", [31, -31], ids=["forward", "back"])
def test_no_worker_dies_when_the_clock_has_jumped(conn: Any, age: float) -> None:
    """Fails if: others' heartbeats are compared with a clock that makes the own one old, too."""
    own, _other = workers(conn, age, age)

    assert WorkerStore(conn).declare_dead_workers(own, THRESHOLD, FRESH) == []


@pytest.mark.parametrize("gone", ["died", "deleted"])
def test_a_worker_without_a_living_heartbeat_declares_none_dead(conn: Any, gone: str) -> None:
    own, silent = workers(conn, 0, 60)
    if gone == "died":
        sql("UPDATE horsies_heartbeats SET died_at = clock_timestamp() WHERE id = %s", [own])
    else:
        sql("DELETE FROM horsies_heartbeats WHERE id = %s", [own])

    dead = WorkerStore(conn).declare_dead_workers(own, THRESHOLD, FRESH)

    assert dead == []
    assert Heartbeat.objects.get(pk=silent).died_at is None


def test_a_worker_that_died_before_the_clock_was_set_back_dies(conn: Any) -> None:
    """Fails if: its heartbeat counts as young until the clock has caught up."""
    own, silent = workers(conn, 0, -3_600)

    assert WorkerStore(conn).declare_dead_workers(own, THRESHOLD, FRESH) == [silent]


def test_heartbeats_of_the_future_hold_no_duty_and_no_place(conn: Any) -> None:
    """Fails if: dead workers are on duty until the clock has caught up."""
    *_dead, own = workers(conn, -3_600, -3_600, -3_600, 0)

    beaten = WorkerStore(conn).beat(
        own, [], Load(0, 0, 0.0, 0.0), timedelta(seconds=5), listens=True
    )

    assert beaten.on_duty
    assert beaten.place == 0


def test_claims_of_the_future_without_a_worker_are_rescued(claimer: Claimers) -> None:
    """Fails if: these claims are younger than the threshold until the clock has caught up."""
    lost = claimer()
    (id_,) = put()
    lost.run_pass(sync=1)
    sql("UPDATE horsies_tasks SET claimed_at = claimed_at + interval '1 hour'")

    WorkerStore(lost.conn).reap(timedelta(minutes=1), declare_dead=False, many=10)

    assert Task.objects.get(pk=id_).error_code == "WORKER_CRASHED"


def test_reapers_of_the_previous_release_declare_workers_dead(conn: Any, claimer: Claimers) -> None:
    silent = register(claimer()).id
    sql(
        "UPDATE horsies_heartbeats SET sent_at = clock_timestamp() - interval '1 minute' WHERE id "
        "= %s",
        [silent],
    )

    happened = WorkerStore(conn).reap(THRESHOLD, declare_dead=True, many=10)

    assert [(one.kind, one.id) for one in happened] == [("died", silent)]
