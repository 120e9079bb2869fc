"""Retention: old finished rows are deleted, in batches that never wait for locks and never read
history again; everything else stays.

Runs of workflows are deleted whole, in small batches, and never while one of their tasks runs. A
purge leaves tasks alone that workers hold or are about to take. Redaction removes for good what a
finished task contains about people.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import F

from horsies_django import Workflow, get_handle, schedules
from horsies_django.core.options import KEEP_STEPS
from horsies_django.models import (
    AuditEntry,
    Heartbeat,
    Pruning,
    ScheduleTick,
    Task,
    TaskAttempt,
    TaskStep,
    Worker,
    WorkflowEdge,
    WorkflowNode,
    WorkflowRun,
    WorkflowSignal,
)
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import Kept, OwnRetention, RetentionStore, kept_by
from horsies_django.store.selections import Selection, SelectionStore
from horsies_django.tasks.handle import TaskHandle
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.conftest import Connect, put, sql
from tests.db.test_statements import entries_read, explained, plans
from tests.support.commands import command
from tests.support.factories import (
    FINISHED,
    AuditEntryFactory,
    HeartbeatFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    WorkerStateFactory,
    error,
    living_worker,
    now,
)

HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)
EVERYTHING = Kept((), others=True, age=DAY)


def finished(age: dt.timedelta = 2 * DAY, count: int = 1, **columns: Any) -> list[uuid.UUID]:
    """Put tasks into the table that all finished at one moment, and return their ids."""
    moment = now() - age
    columns = {"status": "COMPLETED", "sent_at": moment, "finished_at": moment, **columns}
    return [task.pk for task in TaskFactory.create_batch(count, **columns)]


def prune(conn: Any, kept: Kept | OwnRetention = EVERYTHING, many: int = 50) -> int:
    """Prune tasks until none is left to prune, and return how many were deleted."""
    store = RetentionStore(conn)
    count = 0
    while True:
        pruned = store.prune_tasks(kept, many)
        assert pruned.tasks <= many
        count += pruned.tasks
        if not pruned.more:
            return count


def left() -> set[uuid.UUID]:
    return set(Task.objects.values_list("pk", flat=True))


def test_old_finished_tasks_are_deleted_with_their_attempts(
    connect: Connect,
) -> None:
    """Old finished tasks are deleted together with their attempts, and all other tasks stay."""
    old = [id_ for status in FINISHED for id_ in finished(status=status)]
    young = finished(DAY - HOUR)
    ago = now() - 9 * DAY
    unfinished = [
        TaskFactory(status=status, sent_at=ago).pk for status in ("PENDING", "CLAIMED", "RUNNING")
    ]

    for id_ in (*old, *young):
        TaskAttemptFactory(task_id=id_)
        TaskAttemptFactory(task_id=id_, attempt=2)
        step(id_)

    assert prune(connect()) == len(old)
    assert left() == {*young, *unfinished}
    for model in (TaskAttempt, TaskStep):
        assert set(model.objects.values_list("task_id", flat=True)) == set(young)
    assert get_handle(old[0]).get(0).err_value.error_code == "TASK_NOT_FOUND"


def test_each_queue_is_kept_as_long_as_was_set_for_it(connect: Connect) -> None:
    ids = {
        (queue, hours): finished(hours * HOUR, queue_name=queue)[0]
        for queue in ("default", "mail", "bulk", "payments", "undeclared")
        for hours in (2, 30)
    }

    kept = kept_by(DAY, {"mail": HOUR, "bulk": HOUR, "payments": None, "default": DAY})
    assert len(kept) == 2
    assert kept_by(None, {"mail": None}) == [], "all of them for ever"
    assert kept_by(None, {"mail": HOUR}) == [Kept(("mail",), others=False, age=HOUR)]

    for one in kept:
        prune(connect(), one)

    gone = {name for name, id_ in ids.items() if id_ not in left()}
    assert gone == {
        ("mail", 2),
        ("mail", 30),
        ("bulk", 2),
        ("bulk", 30),
        ("default", 30),
        ("undeclared", 30),
    }


def entries(conn: psycopg.Connection[Any], kept: Kept, many: int = 500) -> int:
    """Prune, and return how many entries of the index of finished tasks were read."""
    return entries_read(conn, "horsies_tasks_finished", lambda: prune(conn, kept, many))


def test_tasks_that_are_kept_for_ever_are_read_once(connect: Connect) -> None:
    """A round reads tasks that are kept for ever once, and later rounds do not read them again."""
    conn = connect()
    kept = Kept(("payments",), others=True, age=DAY)

    for batch in range(20):
        finished(9 * DAY - batch * HOUR, 100, queue_name="payments")
    finished(3 * DAY, 5)

    assert entries(conn, kept) > 2_000
    assert entries(conn, kept) < 5

    finished(2 * DAY, 5)
    assert entries(conn, kept) < 30
    assert Task.objects.exclude(queue_name="payments").count() == 0


def test_a_full_batch_reads_no_deleted_rows_again(
    connect: Connect,
) -> None:
    """A full batch does not read the rows again that earlier batches deleted.

    This holds also for tasks that finished at the same moment.
    """
    for batch in range(40):
        finished(9 * DAY - batch * HOUR, 5)

    assert entries(connect(), EVERYTHING, many=10) < 1_000

    kept = finished(3 * DAY, 130, queue_name="payments")
    finished(3 * DAY, 130)

    assert prune(connect(), Kept(("payments",), others=True, age=DAY)) == 130
    assert left() == set(kept)


def test_a_round_goes_on_where_the_last_one_ended(
    connect: Connect,
) -> None:
    """A round begins where the last one ended, whatever its age, and anew after a week."""
    conn = connect()
    finished(9 * DAY)
    finished(5 * DAY)
    finished(2 * DAY)

    assert prune(conn, EVERYTHING._replace(age=7 * DAY)) == 1
    assert prune(conn, EVERYTHING._replace(age=DAY)) == 2

    finished(DAY / 2)
    assert prune(conn, EVERYTHING._replace(age=7 * DAY)) == 0
    assert prune(conn, EVERYTHING._replace(age=HOUR)) == 1

    finished(9 * DAY)
    assert prune(conn) == 0, "it came in behind the round"

    Pruning.objects.update(began_at=F("began_at") - 8 * DAY)
    assert prune(conn) == 1


@pytest.mark.parametrize("many", [50, 2], ids=["in the last batch", "in a full batch"])
def test_a_locked_task_is_pruned_later_if_it_is_still_finished(connect: Connect, many: int) -> None:
    """Pruning does not wait for a locked task, and deletes it later if it is still finished."""
    conn = connect()
    other = connect()
    finished(9 * DAY)
    (held,) = finished(8 * DAY)
    (again,) = finished(8 * DAY)
    finished(7 * DAY, 3)
    conn.execute("SET lock_timeout = '1ms'")

    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        change = (
            "UPDATE horsies_tasks SET status = 'PENDING', finished_at = NULL, claimed_by = NULL "
            "WHERE id = %s"
        )
        other.execute(change, [again])

        assert prune(conn, many=many) == 4
        assert left() == {held, again}
        assert prune(conn, many=many) == 0

    assert prune(conn, many=many) == 1
    assert left() == {again}


def test_only_one_worker_prunes_at_a_time(connect: Connect) -> None:
    """Only one worker prunes at a time; a second one returns without deleting anything."""
    conn = connect()
    other = connect()
    finished(count=3)

    with other.transaction():
        assert RetentionStore(other).prune_tasks(EVERYTHING, 1).tasks == 1
        assert RetentionStore(conn).prune_tasks(EVERYTHING, 1) == (0, 0, False)

    assert prune(conn) == 2


def test_another_set_of_queues_is_pruned_from_the_beginning(
    connect: Connect,
) -> None:
    """A new set of queues is pruned from the beginning; rows of long unused sets are deleted."""
    conn = connect()
    finished(queue_name="payments")

    assert prune(conn, Kept(("payments",), others=True, age=DAY)) == 0
    assert prune(conn, EVERYTHING) == 1
    assert Pruning.objects.count() == 2

    Pruning.objects.update(pruned_at=F("pruned_at") - 31 * DAY)
    prune(conn, Kept(("mail",), others=True, age=DAY))

    (row,) = Pruning.objects.all()
    assert "mail" in row.key


def test_pruning_reads_tasks_through_their_indexes(claimer: Any, connect: Connect) -> None:
    admin = connect()
    for state in ("empty", "stale", "large"):
        if state == "stale":
            finished(3 * DAY, 2_000, queue_name="payments")
            finished(DAY / 2, 2_000)
        else:
            admin.execute("ANALYZE horsies_tasks")

        (id_,) = finished(2 * DAY)
        TaskAttemptFactory(task_id=id_)
        Pruning.objects.all().delete()

        worker = claimer()
        notices = explained(worker)
        assert prune(worker.conn, Kept(("payments",), others=True, age=DAY), many=100) == 1, state

        shown = "\n".join(plans(notices, ""))
        assert "horsies_tasks_finished" in shown, state
        assert not re.search(r"Seq Scan on horsies_task_attempts\b|Sort ", shown), state


def test_stopped_and_dead_workers_go_with_their_heartbeats(
    connect: Connect,
) -> None:
    """Stopped and dead workers are deleted with their heartbeats; those that may be alive stay."""
    ago = now() - 9 * DAY
    WorkerFactory(started_at=ago, seen_at=ago, stopped_at=ago)
    dead, silent, alive = (
        living_worker(started_at=ago, seen_at=at, beat={"sent_at": at}) for at in (ago, ago, now())
    )
    young = WorkerFactory(stopped_at=now())
    Heartbeat.objects.filter(pk=dead.pk).update(died_at=ago)

    for worker in (dead, silent, alive):
        HeartbeatFactory(worker_id=worker.pk)

    assert RetentionStore(connect()).prune_workers(7 * DAY, 50) == 2
    assert set(Worker.objects.values_list("pk", flat=True)) == {silent.pk, alive.pk, young.pk}
    assert set(Heartbeat.objects.values_list("worker_id", flat=True)) == {silent.pk, alive.pk}


@pytest.mark.parametrize(
    ("make", "moment", "prune"),
    [
        (WorkerStateFactory, "snapshot_at", RetentionStore.prune_states),
        (AuditEntryFactory, "at", RetentionStore.prune_audit),
        (ScheduleTickFactory, "sent_at", RetentionStore.prune_ticks),
    ],
    ids=["snapshots", "audit", "fire times"],
)
def test_old_snapshots_and_audit_entries_go_in_batches(
    connect: Connect, make: Any, moment: str, prune: Callable[..., int]
) -> None:
    """Old snapshots, audit entries and fire times are deleted in batches, and young ones stay."""
    model = make._meta.model
    model.objects.all().delete()
    for age in (9, 8, 7, 1):
        make(**{moment: now() - age * DAY})

    store = RetentionStore(connect())
    assert [prune(store, 2 * DAY, 2) for _ in range(3)] == [2, 1, 0]
    assert model.objects.count() == 1


def test_the_last_fire_time_stays_as_long_as_its_schedule(
    connect: Connect,
) -> None:
    """The last fire time of a schedule stays as long as the schedule exists.

    Fails if: the last fire time is deleted, too, so that the next one cannot find the task that may
    still run.
    """
    schedules.create(
        "nightly", {"task": "tests.apps.project.tasks.noop", "pattern": "every day"}, actor="a test"
    )

    last = now() - 8 * DAY
    for name in ("nightly", "deleted"):
        for fire_at in (last - DAY, last):
            ScheduleTickFactory(schedule_name=name, fire_at=fire_at, sent_at=fire_at)

    assert RetentionStore(connect()).prune_ticks(2 * DAY, 50) == 3
    (left,) = ScheduleTick.objects.values_list("schedule_name", "fire_at")
    assert left == ("nightly", last)


def keeping(keep: Any, age: dt.timedelta, **columns: Any) -> uuid.UUID:
    """Put a finished task with a ``keep_result`` into the table."""
    return finished(age, options={"wire": 1, "keep_result": keep}, **columns)[0]


def test_completed_tasks_with_a_retention_of_their_own_go_by_it(
    connect: Connect,
) -> None:
    """Completed tasks with a ``keep_result`` are deleted by it, and all others stay.

    Fails if: the option is read in the ordinary round, so that no task is deleted earlier than that
    round deletes all tasks.
    """
    conn = connect()
    minute = dt.timedelta(minutes=1)
    old = [keeping(False, 2 * minute), keeping(3_600_000, 2 * HOUR)]
    stay = [
        keeping(False, minute / 4),
        keeping(3_600_000, HOUR / 2),
        keeping(7_200_000, HOUR),
        keeping(False, 2 * HOUR, status="FAILED"),
        keeping(False, 2 * HOUR, workflow_id=uuid.uuid4()),
        *finished(2 * HOUR),
        *finished(2 * HOUR, options={"wire": 1, "timeout_ms": 300}),
    ]
    TaskAttemptFactory(task_id=old[0])

    assert prune(conn, OwnRetention(False)) == 1
    assert prune(conn, OwnRetention(3_600_000)) == 1
    assert left() == set(stay)
    assert not TaskAttempt.objects.exists()

    own = {OwnRetention(False), OwnRetention(3_600_000)}
    assert RetentionStore(conn).own_retentions() == own

    Pruning.objects.update(pruned_at=now() - 40 * DAY)
    prune(conn)
    assert RetentionStore(conn).own_retentions() == own, "they outlive a month without workers"


@pytest.mark.parametrize(
    ("keep", "step"),
    [
        (60_000, 60_000),
        (60_001, 120_000),
        (3_600_000, 3_600_000),
        (5_000_000, 7_200_000),
        (86_399_999, 86_400_000),
    ],
)
def test_a_duration_is_rounded_up_to_a_step(connect: Connect, keep: int, step: int) -> None:
    conn = connect()
    due = OwnRetention(step)
    old = keeping(keep, due.age + HOUR)
    young = keeping(keep, due.age - dt.timedelta(seconds=30))

    found = [one for one in map(OwnRetention, KEEP_STEPS) if prune(conn, one)]

    assert found == [due]
    assert left() == {young}
    assert old != young


def test_durations_that_the_last_release_recorded_are_rounded_up(connect: Connect) -> None:
    for key in ("own: 60001", "own: 100000", "own: false", "keep: 3600000", "own: nothing"):
        Pruning.objects.create(key=key)

    found = RetentionStore(connect()).own_retentions()

    assert found == {OwnRetention(120_000), OwnRetention(False), OwnRetention(3_600_000)}


def test_a_round_that_left_nothing_is_recorded(connect: Connect) -> None:
    conn = connect()
    finished(2 * DAY, 3)
    long_ago = now() - 9 * DAY
    Pruning.objects.create(key=EVERYTHING.key, done_at=long_ago)
    store = RetentionStore(conn)

    store.prune_tasks(EVERYTHING, 2)
    assert Pruning.objects.get().done_at == long_ago

    prune(conn)
    assert now() - Pruning.objects.get().done_at < HOUR


WEEK = 7 * 86_400_000


@pytest.mark.parametrize(
    "keep", [None, True, "1h", {"a": 1}, [False], -5, 1.5, 10**30, WEEK, False, 3_600_000]
)
def test_a_retention_option_of_any_kind_stops_no_round(connect: Connect, keep: Any) -> None:
    """No ``keep_result`` stops a round, and only a long one keeps a task."""
    id_ = keeping(keep, 2 * DAY)
    conn = connect()
    keeping(keep, 2 * DAY, status="FAILED")

    if keep not in (False, 3_600_000):
        for kept in (OwnRetention(False), OwnRetention(60_000), OwnRetention(WEEK)):
            assert prune(conn, kept) == 0

    stays = keep in (10**30, WEEK)
    assert prune(conn) == (1 if stays else 2)
    assert left() == ({id_} if stays else set())


def act(
    conn: Any, verb: str, ids: list[uuid.UUID], statuses: list[str] | None = None
) -> dict[str, int]:
    how: dict[str, Any] = {"statuses": statuses, "spread": None, "actor": "ada", "reason": None}
    return SelectionStore(conn).act(verb, ids, channel_prefix(conn), **how)


def test_a_bulk_act_skips_locked_and_unfinished_tasks(connect: Connect, claimer: Any) -> None:
    """A bulk act skips claimed, locked and unfinished tasks, without waiting for them.

    Fails if: the ids are passed to the cancel of single tasks, which requests that running ones
    stop.
    """
    conn = connect()
    other = connect()
    worker = claimer()
    conn.execute("SET lock_timeout = '1s'")

    put(4)
    done = [TaskFactory(status=status).pk for status in FINISHED]
    page = SelectionStore(conn).page(Selection("PENDING", now() + DAY), many=10, read=10)
    found = [task.id for task in page[0]]

    (claim,) = worker.run_pass(sync=1).claims
    locked = next(id_ for id_ in found if id_ != claim.id)

    with other.transaction():
        other.execute(
            "SELECT FROM horsies_tasks WHERE id = ANY(%s) FOR UPDATE", [[locked, done[0]]]
        )
        assert act(conn, "cancel", found, ["PENDING"]) == {"CANCELLED": 2, "LOCKED": 2}
        assert act(conn, "purge", done, [*FINISHED]) == {"DELETED": 3, "LOCKED": 1}

    row = Task.objects.get(pk=claim.id)
    assert (row.status, row.cancel_requested_at, row.claimed_by) == ("RUNNING", None, worker.id)

    ids = [TaskFactory(status=status).pk for status in ("PENDING", "CLAIMED", "RUNNING")]
    TaskAttemptFactory(task_id=ids[0])

    assert act(conn, "purge", [*ids, done[0]]) == {"DELETED": 1, "KEPT": 3}
    assert set(Task.objects.filter(finished_at=None).values_list("pk", flat=True)) == {
        locked,
        claim.id,
        *ids,
    }
    assert TaskAttempt.objects.count() == 1


def test_a_batch_is_deleted_by_ids_under_any_plan(claimer: Any, connect: Connect) -> None:
    """A batch is deleted by ids even if its plan is from a time when no task had finished.

    Fails if: the index of finished tasks looks empty to the planner, so that each batch reads all
    finished tasks.
    """
    worker = claimer()
    admin = connect()
    admin.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = off)")
    put(100)
    admin.execute("VACUUM ANALYZE horsies_tasks")

    done = TaskFactory.create_batch(20, status="COMPLETED")
    notices = explained(worker)

    assert act(worker.conn, "purge", [task.pk for task in done]) == {"DELETED": 20}

    found = plans(notices, "FROM horsies_tasks t")
    assert len(found) == 3
    for plan in found:
        assert "using horsies_tasks_pkey" in plan, plan


def ended_run(width: int = 5) -> Any:
    """Run a workflow with a map and a child run to its end."""
    child = Workflow("child")
    child.add(flows.number, 1)

    flow = Workflow("run")
    flow.add(flows.total, flow.map(flows.plus, a=list(range(width))))
    flow.add(child)
    flow.signal("go")

    handle = flow.send()
    handle.signal("go")
    drain()

    return handle


def age(days: int) -> None:
    """Move the end of all tasks and runs so many days into the past."""
    for table in ("horsies_tasks", "horsies_workflows"):
        sql(f"UPDATE {table} SET finished_at = finished_at - make_interval(days => %s)", [days])


def rows() -> list[int]:
    return [
        model.objects.count()
        for model in (WorkflowRun, WorkflowNode, WorkflowEdge, Task, TaskAttempt)
    ]


def test_a_pruned_run_is_deleted_with_all_its_rows() -> None:
    """A run is deleted with all rows that belong to it, and younger runs stay."""
    ended_run()
    age(2)
    old = set(Task.objects.values_list("pk", flat=True))
    young = ended_run()
    tasks = set(Task.objects.values_list("pk", flat=True))

    for task in tasks:
        step(task)
    both = rows()

    store = RetentionStore(connection)
    assert store.prune_runs(DAY, 1_000) == (1, 7, 7, False)
    assert rows() == [count // 2 for count in both]

    assert set(WorkflowSignal.objects.values_list("workflow_id", flat=True)) == {young.workflow_id}
    assert set(TaskStep.objects.values_list("task_id", flat=True)) == tasks - old
    assert (young.status(), young.get(0).is_ok()) == ("COMPLETED", True)

    assert store.prune_runs(DAY, 1_000) == (0, 0, 0, False)


def test_a_call_does_not_read_again_the_runs_that_it_deleted(connect: Connect) -> None:
    old = {"name": "run", "on_error": "fail", "status": "COMPLETED"}
    for number in range(60):
        WorkflowRun(id=uuid.uuid4(), finished_at=now() - 9 * DAY + number * HOUR, **old).save_base(
            raw=True
        )

    conn = connect()
    read = entries_read(
        conn, "horsies_workflows_finished", lambda: RetentionStore(conn).prune_runs(DAY, 1_000)
    )

    assert read < 400
    assert not WorkflowRun.objects.exists()


def test_the_row_of_a_large_run_is_the_last_to_go() -> None:
    handle = ended_run(width=40)
    age(2)
    batches = 0

    while RetentionStore(connection).prune_runs(DAY, 10)[3]:
        batches += 1
        if sum(rows()[1:]):
            assert handle.status() == "COMPLETED", "what is left can be found"

    assert batches >= 4
    assert rows() == [0, 0, 0, 0, 0]


def test_retention_of_tasks_keeps_the_tasks_of_runs() -> None:
    handle = ended_run()
    flows.number.send(1)
    drain()
    age(2)

    assert RetentionStore(connection).prune_tasks(Kept((), others=True, age=DAY), 1_000).tasks == 1
    assert handle.results()["plus"].ok_value == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_whose_task_still_runs_stays(inside: bool) -> None:
    flow = Workflow("cancelled")
    flow.add(flows.number, 1)
    if inside:
        child = flow
        flow = Workflow("parent")
        flow.add(child)

    handle = flow.send()
    Task.objects.update(status="RUNNING", claimed_by=handle.workflow_id, claimed_at=now())
    handle.cancel()
    age(2)

    store = RetentionStore(connection)
    assert store.prune_runs(DAY, 1_000) == (0, 0, 0, False)
    assert handle.status() == "CANCELLED"

    Task.objects.update(
        status="CANCELLED", claimed_by=None, finished_at=now(), error_code="TASK_CANCELLED"
    )
    drain()  # the run takes the end of the task into account
    age(2)

    assert store.prune_runs(DAY, 1_000)[0] == 1
    assert sum(rows()) == 0


SECRET = "ann@example.org"  # noqa: S105 - a text that redaction has to remove
WHY = {"actor": "ada", "reason": "request 17"}


def told(**columns: Any) -> Task:
    """Return a task that has the secret wherever a task can have one.

    Its two attempts and its step contain it, too.
    """
    secret = {"to": SECRET}
    values = {
        "kwargs": secret,
        "result": {"ok": secret},
        "partition_key": json.dumps(secret),
        **columns,
    }

    if columns.get("status") == "FAILED":
        exception = {"type": "ValueError", "message": SECRET, "repr": SECRET, "traceback": SECRET}
        values |= {
            "result": error("CARD_DECLINED", SECRET, data=[SECRET], exception=exception),
            "error_code": "CARD_DECLINED",
        }

    task = TaskFactory(**values)
    raised = {
        "error_message": SECRET,
        "exception_class": SECRET,
        "traceback": SECRET,
        "site": SECRET,
        "site_line": 7,
    }

    for attempt in (1, 2):
        TaskAttemptFactory(task_id=task.pk, attempt=attempt, error_code="CARD_DECLINED", **raised)
    step(task.pk, secret)

    return task


def step(task: uuid.UUID, result: Any = None) -> None:
    TaskStep.objects.bulk_create([TaskStep(task_id=task, name="a", digest="d", result=result)])


def everything() -> str:
    """Return all rows of all tables of the app, as text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'horsies%%' AND relkind = 'r'"
        )
        rows = [f"SELECT row::text FROM {table} row" for (table,) in cursor.fetchall()]
        cursor.execute(" UNION ALL ".join(rows))
        return "\n".join(row for (row,) in cursor.fetchall())


@pytest.mark.parametrize("status", FINISHED)
def test_a_redaction_removes_the_data_of_a_task_from_all_tables(
    status: str,
) -> None:
    """After a redaction no table contains the data of the task.

    The audit has an entry with its actor and reason.
    """
    task = told(status=status)
    other = uuid.uuid4()
    step(other)
    before = everything()
    assert SECRET in before

    with transaction.atomic():
        redact(task.pk, **WHY)
        transaction.set_rollback(True)
    assert everything() == before, "it belongs to the transaction around it"

    assert redact(task.pk, **WHY) is True
    after = Task.objects.get(pk=task.pk)
    rows = everything()

    assert SECRET not in rows
    assert after.redacted_at is not None

    for name in (
        "status",
        "error_code",
        "task_name",
        "queue_name",
        "sent_at",
        "finished_at",
        "claimed_by",
    ):
        assert getattr(after, name) == getattr(task, name), name

    attempts = TaskAttempt.objects.values_list("error_code", "error_message", "site_line")
    assert list(attempts) == [("CARD_DECLINED", "redacted", None)] * 2
    assert [one.task_id for one in TaskStep.objects.all()] == [other]

    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.subject) == ("task.redact", str(task.pk))
    assert (entry.actor, entry.reason) == ("ada", "request 17")
    assert (entry.before, entry.after) == (None, {"task_name": task.task_name, "status": status})

    assert redact(task.pk, **WHY) is False
    assert everything() == rows


def test_a_redacted_error_keeps_only_its_code() -> None:
    """The result of a redacted task is an error with the message "redacted".

    A failed task keeps its error code, and nothing else of its error.
    """
    task = told(status="COMPLETED", task_name="tests.apps.project.tasks.add")
    failed = told(status="FAILED")
    redact(task.pk, **WHY)
    redact(failed.pk, **WHY)

    for handle, code in (
        (get_handle(task.pk), "RESULT_REDACTED"),
        (TaskHandle(task.pk, tasks.add.definition.result), "RESULT_REDACTED"),
        (get_handle(failed.pk), "CARD_DECLINED"),
    ):
        found = handle.get(0).err_value
        assert (found.error_code, found.message, found.data, found.exception) == (
            code,
            "redacted",
            None,
            None,
        )


def test_a_redaction_keeps_the_key_of_a_partition_by_task_alone() -> None:
    """The partition key stays if the partition is by task alone, and so contains no arguments."""
    cut = '{"to": "' + "x" * 122 + "..." + "0" * 64
    for key, stays in (
        ('{"": "shop.pay"}', True),
        ('{"": "shop.pay", "to": 5}', False),
        (cut, False),
    ):
        task = told(status="COMPLETED", task_name="shop.pay", partition_key=key)
        redact(task.pk, **WHY)
        assert Task.objects.get(pk=task.pk).partition_key == (key if stays else None)


def test_the_command_redacts_or_names_the_cause_of_a_refusal() -> None:
    run, _, refusal = command("horsies_task")
    task = told(status="COMPLETED")
    waits = told(result=None)

    assert run("redact", task.pk, "--reason=request 17") == f"Task {task.pk} is redacted.\n"
    assert (
        run("redact", task.pk, "--reason=request 17")
        == "Nothing changed: the task is already redacted.\n"
    )

    assert AuditEntry.objects.latest("pk").actor.startswith("shell:")
    with pytest.raises(ValueError, match="needs a reason"):
        redact(task.pk, actor="ada", reason=" ")

    said = {
        waits.pk: "is PENDING.*cancel it first",
        uuid.uuid4(): "there is no task",
        "five": "is not a task id",
    }
    for id_, why in said.items():
        assert re.search(f"horsies_task: .*{why}", refusal("redact", id_, "--reason=request 17"))
    assert "--reason" in refusal("redact", waits.pk)
