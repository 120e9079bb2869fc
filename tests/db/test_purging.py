"""A purge beside workers: what they hold or are about to take is left to them, nobody waits, and history is not read."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django.models import Task, TaskAttempt
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import PurgeStore, Selection
from tests.conftest import put
from tests.db.test_statements import explained, fill
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, now

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]


def waiting(**chosen: Any) -> Selection:
    return Selection(dt.datetime.now(dt.UTC), **chosen)


def test_a_task_that_was_taken_after_it_was_found_is_not_touched(connect: Connect, claimer: Any) -> None:
    """Naive: the ids are passed to the cancel of single tasks, which asks running ones to stop."""
    conn, worker = connect(), claimer()
    put(3)
    store = PurgeStore(conn)
    found = store.page(waiting(), 10)
    (claim,) = worker.run_pass(sync=1).claims
    assert store.cancel(found, channel_prefix(conn)) == 2
    row = Task.objects.get(pk=claim.id)
    assert (row.status, row.cancel_requested_at, row.claimed_by) == ("RUNNING", None, worker.id)


def test_rows_that_somebody_has_locked_are_left_without_waiting(connect: Connect) -> None:
    conn, other = connect(), connect()
    conn.execute("SET lock_timeout = '1s'")
    ids = put(3)
    done = [TaskFactory(status=status).pk for status in FINISHED]
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = ANY(%s) FOR UPDATE", [[ids[0], done[0]]])
        assert PurgeStore(conn).cancel(ids, channel_prefix(conn)) == 2
        assert PurgeStore(conn).delete(done) == 3
    assert Task.objects.get(status="PENDING").pk == ids[0]
    assert Task.objects.filter(pk__in=done).get().pk == done[0]


def test_only_finished_tasks_are_deleted_whatever_ids_are_given(connect: Connect) -> None:
    ids = [TaskFactory(status=status).pk for status in ("PENDING", "CLAIMED", "RUNNING")]
    TaskAttemptFactory(task_id=ids[0])
    assert PurgeStore(connect()).delete(ids) == 0
    assert Task.objects.count() == 3
    assert TaskAttempt.objects.count() == 1


def test_whoever_waits_for_a_purged_task_is_told(connect: Connect) -> None:
    conn, listener = connect(), connect()
    (id_,) = put()
    conn.execute(
        "INSERT INTO horsies_waiters (id, expires_at) VALUES (gen_random_uuid(), clock_timestamp() + interval '1 minute')"
    )
    listener.execute(f'LISTEN "{channel_prefix(conn)}_done"', prepare=False)
    assert PurgeStore(conn).cancel([id_], channel_prefix(conn)) == 1
    (told,) = [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)]
    assert told == str(id_)


@pytest.mark.parametrize("state", ["stale", "large"])
@pytest.mark.parametrize("queue", [None, "default"])
def test_a_purge_reads_no_more_than_the_tasks_that_wait_or_have_finished(
    claimer: Any, connect: Connect, state: str, queue: str | None
) -> None:
    """Naive: a sequential scan of all history for the few tasks that wait."""
    worker, moment = claimer(), now()
    TaskFactory.create_batch(500, status="COMPLETED", finished_at=moment)
    fill(state, connect())
    notices = explained(worker)
    store = PurgeStore(worker.conn)
    for chosen in (waiting(queue=queue), waiting(queue=queue, finished=True)):
        assert store.page(chosen, 10)
        store.count(chosen)
    plans = [text.partition("plan:")[2] for text in notices if "t.workflow_id IS NOT NULL" in text]
    assert len(plans) >= 4
    for plan in plans:
        assert not re.search(r"Seq Scan on horsies_tasks\b", plan), plan
        assert re.search(r"using horsies_tasks_(claim|finished|parked|node)\b", plan), plan


def test_a_batch_is_deleted_by_its_ids_also_where_it_is_planned_as_if_no_task_had_finished(
    claimer: Any, connect: Connect
) -> None:
    """Naive: the index of finished tasks looks empty, so each batch reads all finished tasks there are."""
    worker, admin = claimer(), connect()
    admin.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = off)")
    put(100)
    admin.execute("VACUUM ANALYZE horsies_tasks")
    done = TaskFactory.create_batch(20, status="COMPLETED")
    notices = explained(worker)
    assert PurgeStore(worker.conn).delete([task.pk for task in done]) == 20
    plans = [text.partition("plan:")[2] for text in notices if re.search(r"(FROM|DELETE FROM) horsies_tasks t", text)]
    assert len(plans) == 2
    for plan in plans:
        assert "using horsies_tasks_pkey" in plan, plan
