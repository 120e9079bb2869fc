"""Partitions whose next task is locked when the first one ends, or which have more tasks to cancel
than one statement may.

The end of the first task skips locked tasks, and a notification makes workers try again with
``horsies_unpark_stalled``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from horsies_django import Workflow
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.notifications import Stalled, read_notification
from horsies_django.models import Task, WorkflowRun
from horsies_django.store.base import sql_text
from horsies_django.store.notify import channel_prefix
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks import operations
from horsies_django.tasks.redaction import redact
from tests.apps.project import flows
from tests.conftest import sql
from tests.db.conftest import Claimers, Connect, heard, impatient, sweep
from tests.db.test_caps_partitions import by, of, parked, started
from tests.db.test_order import cancel, claim, coalescing, end, equal, ordered
from tests.db.test_pass import done, failed

BROKEN = {"err": {"error_code": "BROKEN", "message": "it broke", "data": None, "exception": None}}
KEY = '{"customer_id": "a"}'
Listening = Callable[[], list[Stalled]]


@pytest.fixture
def told(connect: Connect) -> Listening:
    """Give a function that returns the partitions in notifications since its last call."""
    listener = connect()
    listener.execute(f'LISTEN "{channel_prefix(listener)}_new"'.encode(), prepare=False)
    return lambda: [
        one.stalled for one in map(read_notification, heard(listener)) if one and one.stalled
    ]


def lock(session: psycopg.Connection[Any], *ids: uuid.UUID) -> None:
    session.execute("SELECT FROM horsies_tasks WHERE id = ANY (%s) FOR UPDATE", [list(ids)])


def try_again(*partitions: Stalled) -> None:
    """Act like a worker that gets notifications about partitions."""
    tasks = [partition.task for partition in partitions]
    TaskStore(connection).unpark_stalled(tasks, ["default"], channel_prefix(connection))


@pytest.mark.parametrize("how", ["stop", "continue", "cancel", "cap"])
def test_a_locked_next_task_is_announced_and_tried_again(
    claimer: Claimers, connect: Connect, told: Listening, how: str
) -> None:
    """Fails if: the pass waits for the lock, or the partition stands still until the sweep."""
    by("customer_id") if how == "cap" else ordered(how)
    worker = impatient(claimer())
    other = connect()
    _first, second, third = of(*"aaa")

    (one,) = claim(worker, 1)
    claim(worker)
    assert parked() == 2

    with other.transaction():
        lock(other, second, third)
        assert end(worker, done(one)) == []
        (stalled,) = told()
        assert stalled == Stalled(second, at_once=False)
        try_again(stalled)
        assert told() == [stalled], "it is still locked"
    try_again(stalled)

    assert told() == []
    assert started(worker) == [second]


@pytest.mark.parametrize("how", ["stop", "continue", "cancel", "cap", "first"])
def test_no_notification_contains_a_partition_key(
    claimer: Claimers, connect: Connect, how: str
) -> None:
    """Fails if: a role without any grant can read values of arguments by LISTEN."""
    if how == "cap":
        by("customer_id")
    else:
        ordered("stop" if how == "first" else how)

    worker = impatient(claimer())
    other = connect()
    listener = connect()
    for kind in ("new", "done", worker.id):
        listener.execute(f'LISTEN "{channel_prefix(listener)}_{kind}"'.encode(), prepare=False)
    first, *rest = of(*["ann@example.com"] * 3)

    with other.transaction():
        if how == "first":
            lock(other, first)
            claim(worker)
        else:
            (one,) = claim(worker, 1)
            claim(worker)
            lock(other, *rest)
            end(worker, failed(one) if how == "cancel" else done(one))
    cancel(*rest)
    payloads = "\n".join(heard(listener))

    assert "stalled soon" in payloads
    assert "ann" not in payloads


def test_stalled_partitions_of_other_queues_are_left(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    ordered()
    worker = impatient(claimer())
    other = connect()
    _first, second = of(*"aa")
    (one,) = claim(worker, 1)
    claim(worker)

    with other.transaction():
        lock(other, second)
        end(worker, done(one))

    store = TaskStore(connection)
    channel = channel_prefix(connection)

    store.unpark_stalled([second], ["mail"], channel)
    store.unpark_stalled([uuid.uuid4()], ["default"], channel)
    assert parked() == 1
    store.unpark_stalled([second, second, uuid.uuid4()], ["mail", "default"], channel)

    assert parked() == 0


def test_a_notified_task_that_has_ended_names_its_partition(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    """Fails if: the other tasks of the partition wait for the sweep, because the reaper unparks
    none.
    """
    by("customer_id")
    worker = claimer()
    other = connect()
    _first, second, third = of(*"aaa")
    (one,) = claim(worker, 1)
    claim(worker)

    with other.transaction():
        lock(other, second, third)
        assert end(worker, done(one)) == []

    (stalled,) = told()
    assert stalled.task == second
    Task.objects.filter(pk=second).update(good_until=Now())

    WorkerStore(worker.conn).reap(timedelta(0), declare_dead=True, many=100)
    assert Task.objects.get(pk=second).status == "EXPIRED"
    try_again(stalled)

    assert started(worker) == [third]


def test_a_locked_task_that_waits_to_be_merged_is_tried_again(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    coalescing()
    worker = impatient(claimer())
    other = connect()
    equal()

    (one,) = claim(worker)
    (later,) = equal()
    claim(worker)
    assert parked() == 1

    with other.transaction():
        lock(other, later)
        assert end(worker, done(one)) == []
        (stalled,) = told()
    try_again(stalled)

    assert started(worker) == [later]


def test_another_task_of_a_cap_starts_though_one_is_locked(
    claimer: Claimers, connect: Connect
) -> None:
    by("customer_id")
    worker = claimer()
    other = connect()
    _first, second, third = of(*"aaa")
    (one,) = claim(worker, 1)
    claim(worker)

    with other.transaction():
        lock(other, second)
        assert end(worker, done(one)) == [third]


def test_the_parked_task_of_a_paused_run_is_not_announced(
    claimer: Claimers, told: Listening
) -> None:
    """Fails if: workers try again and again, for as long as the pause lasts."""
    by("customer_id")
    worker = claimer()
    of(*"aa")
    (one,) = claim(worker, 1)
    claim(worker)

    run = Workflow("a run")
    run.add(flows.act)
    handle = run.send()
    WorkflowRun.objects.update(status="PAUSED")
    Task.objects.filter(workflow_id=handle.workflow_id).delete()
    Task.objects.filter(parked=True).update(workflow_id=handle.workflow_id, node=1)

    assert end(worker, done(one)) == []

    assert told() == []


def test_a_locked_task_behind_a_failed_one_is_cancelled_soon(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    ordered("cancel")
    worker = claimer()
    other = connect()
    _bad, behind = of(*"aa")
    (one,) = claim(worker, 1)

    with other.transaction():
        lock(other, behind)
        assert end(worker, failed(one)) == []
        (later,) = of("a")
        (stalled,) = told()
        assert not stalled.at_once
    try_again(stalled)

    assert Task.objects.get(pk=behind).error_code == "ORDER_CANCELLED"
    assert started(worker) == [later]


def test_a_locked_failed_task_cancels_soon(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    """Fails if: the first try treats the locked task as one that has cancelled all others."""
    ordered("cancel")
    worker = claimer()
    other = connect()
    bad, _behind = of(*"aa")
    (one,) = claim(worker, 1)
    Task.objects.filter(pk=bad).update(
        order_stop="cancel", status="FAILED", error_code="BROKEN", finished_at=Now(), result=BROKEN
    )

    with other.transaction():
        lock(other, bad)
        try_again(Stalled(bad, at_once=True))
        (stalled,) = told()
    try_again(stalled)

    assert one.id == bad
    assert set(Task.objects.values_list("error_code", flat=True)) == {"BROKEN", "ORDER_CANCELLED"}


@pytest.fixture
def few_cancels() -> Iterator[None]:
    """Limit a statement to 1,000 cancelled tasks."""
    text = sql_text("functions/partitions/horsies_unpark")
    assert "c_cancels CONSTANT int := 10000;" in text
    sql(text.replace("int := 10000;", "int := 1000;"))
    yield
    sql(text)


@pytest.mark.usefixtures("few_cancels")
@pytest.mark.parametrize("sweeps", [False, True])
def test_many_behind_a_failed_task_are_cancelled_at_once(
    claimer: Claimers, told: Listening, sweeps: bool
) -> None:
    """Fails if: the tasks that one statement does not cancel wait for the next sweep, half a minute
    later.
    """
    ordered("cancel")
    worker = claimer()
    (bad,) = of("a")
    (one,) = claim(worker)
    of(*["a"] * 2_500)

    assert end(worker, failed(one)) == []
    (later,) = of("a")

    rounds = 1
    if sweeps:
        QueueStore(connection).request_sweep()
        sweep()
    else:
        while stalled := told():
            assert stalled == [Stalled(bad, at_once=True)]
            try_again(*stalled)
            rounds += 1
        assert rounds == 3, "a statement is bounded"

    assert Task.objects.filter(error_code="ORDER_CANCELLED").count() == 2_500
    assert started(worker) == [later]


def test_a_failed_task_is_not_retried_before_it_has_cancelled(
    claimer: Claimers, connect: Connect
) -> None:
    """Fails if: a task that was locked then is never cancelled, and runs after the retry."""
    ordered("cancel")
    worker = claimer()
    other = connect()
    bad, locked = of(*"aa")
    (one,) = claim(worker, 1)

    with other.transaction():
        lock(other, locked)
        end(worker, failed(one))
        with pytest.raises(TaskNotRetryable, match="an open transaction has locked it or"):
            operations.retry(bad)
        assert Task.objects.get(pk=bad).order_stop == "cancel"
    operations.retry(bad)

    assert Task.objects.get(pk=locked).error_code == "ORDER_CANCELLED"
    assert started(worker) == [bad]


def test_a_failed_task_that_cancels_others_is_not_skipped(
    claimer: Claimers, connect: Connect
) -> None:
    """Fails if: the tasks that it has to cancel run."""
    ordered("cancel")
    worker = claimer()
    other = connect()
    bad, locked = of(*"aa")
    (one,) = claim(worker, 1)

    with other.transaction():
        lock(other, locked)
        end(worker, failed(one))
        assert not operations.skip(bad, actor="ann", reason="broken data")
    sweep_all()

    assert Task.objects.get(pk=locked).error_code == "ORDER_CANCELLED"


def sweep_all() -> None:
    QueueStore(connection).request_sweep()
    sweep()


def test_a_redacted_task_loses_its_key_when_it_has_cancelled(
    claimer: Claimers, connect: Connect
) -> None:
    ordered("cancel")
    worker = claimer()
    other = connect()
    bad, locked = of(*"aa")
    (one,) = claim(worker, 1)

    with other.transaction():
        lock(other, locked)
        end(worker, failed(one))
        redact(bad, actor="ann", reason="asked for")
    assert Task.objects.get(pk=bad).partition_key == KEY
    sweep_all()

    assert Task.objects.get(pk=bad).partition_key is None
    assert Task.objects.get(pk=locked).error_code == "ORDER_CANCELLED"


@pytest.mark.parametrize("how", ["cancel", "skip"])
def test_a_cancel_or_a_skip_announces_a_locked_next_task(
    claimer: Claimers, connect: Connect, told: Listening, how: str
) -> None:
    ordered()
    worker = claimer()
    other = connect()
    first, second = of(*"aa")
    (one,) = claim(worker, 1)
    claim(worker)

    if how == "skip":
        end(worker, failed(one))
    else:
        worker.run_pass(releases=[one])

    with other.transaction():
        lock(other, second)
        if how == "cancel":
            cancel(first)
        else:
            operations.skip(first, actor="ann", reason="broken data")
        (stalled,) = told()
    try_again(stalled)

    assert started(worker) == [second]


def test_a_locked_first_task_is_announced_and_tried_again(
    claimer: Claimers, connect: Connect, told: Listening
) -> None:
    """Fails if: a pass finds another task behind the locked one, leaves both, and no worker tries
    again before the next poll.
    """
    ordered()
    worker = claimer()
    other = connect()
    first, _second = of(*"aa")

    with other.transaction():
        lock(other, first)
        assert claim(worker) == []
        assert told() == [Stalled(first, at_once=False)]

    assert started(worker) == [first]
