"""Rows of the project refer to rows of the queue: referenced rows stay, named in a notice, and all
others are deleted.

Foreign keys of Django are deferred: the deletion of a row succeeds, and the commit fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from horsies_django import Workflow
from horsies_django.models import (
    AuditEntry,
    Task,
    TaskAttempt,
    Worker,
    WorkerState,
    WorkflowNode,
    WorkflowRun,
)
from horsies_django.store.retention import OwnRetention, RetentionStore
from horsies_django.tasks.operations import purge
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import Connect, sql
from tests.db.test_retention import DAY, finished, left, prune
from tests.support.factories import (
    AuditEntryFactory,
    TaskAttemptFactory,
    WorkerFactory,
    WorkerStateFactory,
    now,
)

Refer = Callable[..., None]

KINDS = {
    "Django's": "DEFERRABLE INITIALLY DEFERRED",
    "at once": "",
    "restrict": "ON DELETE RESTRICT",
}


@pytest.fixture
def refer(transactional_db: None) -> Iterator[Refer]:
    """Return a function that inserts rows that refer to rows of a table of the queue."""
    made = []

    def insert(table: str, *ids: uuid.UUID, how: str = KINDS["Django's"]) -> None:
        name = f"shop_of_{table}"
        if name not in made:
            made.append(name)
            sql(f"CREATE TABLE {name} (about_id uuid REFERENCES {table} (id) {how})")
        for id_ in ids:
            sql(f"INSERT INTO {name} VALUES (%s)", [id_])

    yield insert

    for name in made:
        sql(f"DROP TABLE {name}")


def finished_run(age: Any = 2 * DAY) -> uuid.UUID:
    """Return a run of one task that finished ``age`` ago."""
    flow = Workflow("one")
    flow.add(flows.number, 1)
    handle = flow.send()
    drain()

    WorkflowRun.objects.filter(pk=handle.workflow_id).update(finished_at=now() - age)
    return handle.workflow_id


def prune_runs(conn: Any, many: int = 50) -> int:
    """Prune runs until none is left to prune, and return how many were deleted."""
    count = 0
    for _ in range(200):
        runs, _, _, more = RetentionStore(conn).prune_runs(DAY, many)
        count += runs
        if not more:
            return count

    raise AssertionError("a round does not end")


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("many", [1, 2, 50])
def test_referenced_tasks_stay_and_all_others_go(
    connect: Connect, refer: Refer, how: str, many: int
) -> None:
    """Fails if: a row of the project keeps all tasks that finished at the same time or later."""
    conn = connect()
    notices = []
    conn.add_notice_handler(
        lambda notice: notices.append((notice.sqlstate, notice.message_primary))
    )

    old = [
        *finished(3 * DAY, 5),
        *finished(2 * DAY, 5),
        *finished(2 * DAY, options={"keep_result": False}),
    ]
    kept = {old[0], old[7], old[10]}

    for id_ in old:
        TaskAttemptFactory(task_id=id_)
    refer("horsies_tasks", *kept, how=how)

    count = prune(conn, many=many)
    count += prune(conn, OwnRetention(False), many)

    assert left() == kept
    assert count == len(old) - len(kept)
    assert set(TaskAttempt.objects.values_list("task_id", flat=True)) == kept
    assert {state for state, _ in notices} == {"HK001"}
    named = " ".join(message for _, message in notices)
    assert all(str(id_) in named for id_ in kept)
    assert "rows of shop_of_horsies_tasks (about_id) refer to them" in named


def test_a_task_goes_once_no_row_refers_to_it(connect: Connect, refer: Refer) -> None:
    conn = connect()
    (old,) = finished(3 * DAY)
    refer("horsies_tasks", old)
    assert prune(conn) == 0

    sql("DELETE FROM shop_of_horsies_tasks")

    assert prune(conn) == 1


def test_keys_that_cascade_in_the_database_keep_no_task(connect: Connect, refer: Refer) -> None:
    (old,) = finished(3 * DAY)
    refer("horsies_tasks", old, how="ON DELETE CASCADE")

    assert prune(connect()) == 1

    assert sql("SELECT count(*) FROM shop_of_horsies_tasks") == [(0,)]


@pytest.mark.parametrize("table", ["horsies_workflows", "horsies_tasks"])
@pytest.mark.parametrize("many", [1, 3, 50])
def test_referenced_runs_stay_whole_and_all_others_go(
    connect: Connect, refer: Refer, table: str, many: int
) -> None:
    runs = [finished_run((9 - day) * DAY) for day in range(6)]
    WorkflowRun.objects.filter(pk__in=runs[:2]).update(finished_at=now() - 9 * DAY)

    kept = set(runs[:3])
    about = kept
    if table == "horsies_tasks":
        about = {task.pk for task in Task.objects.filter(workflow_id__in=kept)}
    refer(table, *about)

    count = prune_runs(connect(), many)

    assert count == 3
    for model, column in (
        (WorkflowRun, "pk"),
        (WorkflowNode, "workflow_id"),
        (Task, "workflow_id"),
    ):
        assert set(model.objects.values_list(column, flat=True)) == kept

    sql(f"DELETE FROM shop_of_{table}")
    assert prune_runs(connect(), many) == 3


def test_referenced_rows_of_other_tables_stay(connect: Connect, refer: Refer) -> None:
    ago = WorkerFactory().started_at - 400 * DAY
    Worker.objects.all().delete()
    AuditEntry.objects.all().delete()

    workers = [WorkerFactory(started_at=ago, seen_at=ago, stopped_at=ago).pk for _ in range(3)]
    states = [WorkerStateFactory(snapshot_at=ago).pk for _ in range(3)]
    entries = [AuditEntryFactory(at=ago).pk for _ in range(3)]

    refer("horsies_workers", workers[1])
    refer("horsies_worker_states", states[1])
    refer("horsies_audit", entries[1])
    store = RetentionStore(connect())

    store.prune_workers(DAY, 10)
    store.prune_states(DAY, 10)
    store.prune_audit(DAY, 10)

    assert [worker.pk for worker in Worker.objects.all()] == [workers[1]]
    assert [state.pk for state in WorkerState.objects.all()] == [states[1]]
    assert [entry.pk for entry in AuditEntry.objects.all()] == [entries[1]]


def test_a_purge_keeps_referenced_tasks(refer: Refer) -> None:
    old = finished(3 * DAY, 3)
    refer("horsies_tasks", old[0])

    counts = purge(until=now(), actor="ada")

    assert left() == {old[0]}
    assert counts == {"DELETED": 2, "KEPT": 1}


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
def test_a_pause_keeps_referenced_tasks_and_a_resume_runs_them(refer: Refer, how: str) -> None:
    """Fails if: the pause raises, at the latest at the commit, or the task starts during it."""
    flow = Workflow("two")
    flow.add(flows.number, 1, name="referenced")
    flow.add(flows.number, 2, name="other")
    handle = flow.send()

    task = Task.objects.get(node=0)
    refer("horsies_tasks", task.pk, how=how)

    assert handle.pause()
    drain()

    assert list(Task.objects.values_list("pk", "status")) == [(task.pk, "PENDING")]

    handle.resume()
    drain()

    assert handle.status() == "COMPLETED"
    assert Task.objects.count() == 2
    assert Task.objects.get(node=0).pk == task.pk


def test_the_sessions_own_deferred_keys_are_not_checked_early(refer: Refer) -> None:
    """Fails if: a statement of the package sets all constraints of its caller's transaction to
    IMMEDIATE.
    """
    old = finished(3 * DAY, 2)
    later = uuid.uuid4()

    with transaction.atomic():
        refer("horsies_tasks", old[0])
        sql("INSERT INTO shop_of_horsies_tasks VALUES (%s)", [later])
        purge(until=now(), actor="ada")
        sql("DELETE FROM shop_of_horsies_tasks WHERE about_id = %s", [later])

    assert left() == {old[0]}
