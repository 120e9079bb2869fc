"""Unique tasks and keys of sends: a duplicate is not sent, even if several are sent at the same
time.

A key gives the first task, whatever became of it; a unique task counts until it has finished.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now

from horsies_django import (
    TaskDefinitionError,
    TaskHandle,
    TaskSendError,
    Unique,
    Workflow,
    WorkflowDefinitionError,
    task,
)
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.records import Wanted
from horsies_django.models import SendKey, Task
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.tasks import redaction, selection
from horsies_django.testing import drain, fail_next
from tests.apps.project import tasks
from tests.conftest import Claimers, Connect, put, sql, wait_until
from tests.db.conftest import Aside, wait_for_anybody

once = tasks.add.with_options(key="evt_1")


@task(name="tests.whole", unique=True)
def whole(a: int, b: float = 0) -> float:
    return a + b


UNSENDABLE: Any = object()


@task(name="tests.by_key")
def by_key(a: int, b: float = 0) -> float:
    return a + b


@task(name="tests.of_order", unique="order")
def of_order(order: int, note: str = "") -> str:
    return note


@task(name="tests.waiting", unique=Unique("order", until="start"))
def waiting(order: int) -> int:
    return order


@task(name="tests.refusing", unique=Unique(on_duplicate="refuse"))
def refusing(a: int, b: int) -> int:
    return a + b


def same(first: TaskHandle[Any], second: TaskHandle[Any]) -> bool:
    assert (second.task_id == first.task_id) is not second.is_new
    return not second.is_new


def test_a_duplicate_is_not_sent_while_the_first_is_unfinished(claimer: Claimers) -> None:
    """A duplicate is not sent while the first task has not finished."""
    first = whole.send(1, 2)
    assert first.is_new
    assert same(first, whole.send(1, b=2))
    assert same(first, whole.send(1, 2.0)), "PostgreSQL and JSON do not tell 2 from 2.0 apart"
    assert not same(first, whole.send(1, 3))

    assert len(claimer().run_pass(sync=2).claims) == 2
    assert same(first, whole.schedule(60, 1, 2)), "it runs"

    Task.objects.update(status="PENDING", claimed_by=None, claimed_at=None, started_at=None)
    drain()
    assert not same(first, whole.send(1, 2))
    assert Task.objects.count() == 3

    first = of_order.send(7, "one")
    assert same(first, of_order.send(7, "two")), "only the named argument counts"
    assert not same(first, of_order.send(8, "one"))


def test_until_its_start_it_counts_while_it_was_never_claimed(claimer: Claimers) -> None:
    first = waiting.send(1)
    assert same(first, waiting.send(1))

    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    second = waiting.send(1)
    assert not same(first, second)

    worker.run_pass(releases=[claim])
    assert same(second, waiting.send(1)), "the first one was given back, and the second one waits"


@pytest.mark.parametrize("how", ["cancelled", "failed", "deleted"])
def test_what_has_ended_or_is_gone_holds_nothing(how: str) -> None:
    first = whole.send(1, 2)

    if how == "cancelled":
        first.cancel()
    elif how == "failed":
        with fail_next(whole, "BROKEN"):
            drain(raise_errors=False)
    else:
        Task.objects.all().delete()

    assert not same(first, whole.send(1, 2))


def test_a_retry_is_refused_beside_the_same_work() -> None:
    """A retry is refused while a task with the same work is unfinished.

    A retried task counts as unfinished again, and with ``on_duplicate="refuse"`` a duplicate is an
    error.
    """
    first = whole.send(1, 2)
    first.cancel()
    second = whole.send(1, 2)

    with pytest.raises(
        TaskNotRetryable, match=f"is unique, and task {second.task_id} is a duplicate"
    ):
        first.retry()

    second.cancel()
    first.retry()
    assert same(first, whole.send(1, 2))
    with pytest.raises(TaskNotRetryable, match="is unique"):
        second.retry()

    first = refusing.send(1, 2)
    with pytest.raises(TaskSendError, match=f"DUPLICATE.*task {first.task_id} is a duplicate"):
        refusing.send(1, 2)
    assert refusing.send(2, 2).is_new


@pytest.mark.parametrize("commits", [True, False])
def test_a_retry_waits_for_an_open_send_of_the_same_work(
    aside: Aside, connect: Connect, commits: bool
) -> None:
    """Fails if: the retry reads with the snapshot from before its wait, and both tasks run."""
    first = whole.send(1, 2)
    first.cancel()

    with transaction.atomic():
        second = whole.send(1, 2)
        retried = aside(first.retry)
        wait_for_anybody(connect())
        transaction.set_rollback(not commits)

    if commits:
        with pytest.raises(TaskNotRetryable, match=f"task {second.task_id} is a duplicate"):
            retried.result(30)
    else:
        retried.result(30)

    assert Task.objects.filter(status="PENDING").count() == 1


def test_a_retry_waits_for_an_open_send_no_longer_than_a_send(aside: Aside, settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "UNIQUE_LOCK_TIMEOUT_MS": 50}
    first = whole.send(1, 2)
    first.cancel()

    with transaction.atomic():
        second = whole.send(1, 2)
        with pytest.raises(TaskNotRetryable, match="an open transaction has locked it or"):
            aside(first.retry).result(30)

    assert set(Task.objects.filter(status="PENDING").values_list("pk", flat=True)) == {
        second.task_id
    }
    assert sql("SHOW lock_timeout") == [("0",)]


def test_a_retry_waits_for_the_row_of_its_task_no_longer(aside: Aside, settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "UNIQUE_LOCK_TIMEOUT_MS": 50}
    first = whole.send(1, 2)
    first.cancel()

    with transaction.atomic():
        first.retry()
        with pytest.raises(TaskNotRetryable, match="an open transaction has locked it or"):
            aside(first.retry).result(30)


def test_a_retry_of_many_skips_tasks_of_an_open_send(aside: Aside) -> None:
    """A retry of many tasks skips those whose work an open transaction sends.

    Fails if: the act waits for each, or one that is locked undoes the retries of the others.
    """
    handles = [whole.send(number) for number in range(3)]
    for handle in handles:
        handle.cancel()
    ids = [handle.task_id for handle in handles]

    with transaction.atomic():
        whole.send(1)
        verdicts = aside(selection.act_on, ids, "retry", actor="ada").result(30)

    assert verdicts == {"RETRIED": 2, "LOCKED": 1}
    assert Task.objects.filter(status="PENDING").count() == 3


@pytest.mark.parametrize("first_is", ["send", "retry"])
def test_of_a_send_and_a_retry_in_repeatable_read_one_remains(
    aside: Aside, connect: Connect, first_is: str
) -> None:
    """Fails if: the second transaction uses the state from its beginning."""
    failed = whole.send(1, 2)
    failed.cancel()

    def second() -> None:
        with transaction.atomic():
            sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            sql("SELECT FROM horsies_tasks")
            began.set()
            assert go.wait(30)
            assert (
                failed.retry() is None if first_is == "send" else whole.send(1, 2).is_new is False
            )

    began = threading.Event()
    go = threading.Event()
    waiting_for = aside(second)
    assert began.wait(30)

    if first_is == "send":
        whole.send(1, 2)
    else:
        failed.retry()
    go.set()

    with pytest.raises(
        (OperationalError, TaskSendError, TaskNotRetryable), match="could not serialize"
    ):
        waiting_for.result(30)
    assert Task.objects.filter(status="PENDING").count() == 1


late = [
    pytest.param("PENDING", id="it waits"),
    pytest.param("CLAIMED", id="a worker has prefetched it"),
    pytest.param("RETRY", id="it waits for its next attempt"),
]


@pytest.mark.parametrize("how", late)
def test_what_is_past_its_good_until_holds_nothing(how: str, claimer: Claimers) -> None:
    """Fails if: a late task holds its work until a worker finds it, and the second send is silently
    lost.
    """
    first = whole.send(1, 2)
    if how == "CLAIMED":
        claimer().run_pass(wanted=Wanted(prefetch=1, lease=timedelta(minutes=5)))
    elif how == "RETRY":
        Task.objects.update(claim_generation=1, retry_count=1, max_retries=3)
    Task.objects.update(good_until=Now() - timedelta(seconds=1))

    second = whole.send(1, 2)

    assert not same(first, second)
    assert first.info().status == "EXPIRED", "so no pass that began before can start it"
    assert same(second, whole.send(1, 2))
    drain()
    assert (first.get(0).err_value.error_code, second.get(0).ok_value) == ("TASK_EXPIRED", 3)


def test_a_running_task_past_its_good_until_stays_unique(claimer: Claimers) -> None:
    first = whole.send(1, 2)
    claimer().run_pass(sync=1)
    Task.objects.update(good_until=Now() - timedelta(seconds=1))

    assert same(first, whole.send(1, 2))


def test_what_is_past_its_good_until_may_have_an_odd_status() -> None:
    """Fails if: the send loops for ever at a row with a status that only a session with the setting
    of a pass can write.
    """
    first = whole.send(1, 2)
    Task.objects.update(good_until=Now() - timedelta(seconds=1))
    with transaction.atomic():
        sql("SET LOCAL horsies.pass = 'on'")
        sql("UPDATE horsies_tasks SET status = 'FAILED'")

    with transaction.atomic():
        sql("SET LOCAL statement_timeout = '5s'")
        again = whole.send(1, 2)

    assert same(first, again)


def test_what_is_past_its_good_until_does_not_refuse_a_retry() -> None:
    first = whole.send(1, 2)
    first.cancel()
    second = whole.send(1, 2)
    Task.objects.filter(pk=second.task_id).update(good_until=Now() - timedelta(seconds=1))

    first.retry()

    assert (first.info().status, second.info().status) == ("PENDING", "EXPIRED")
    with pytest.raises(TaskNotRetryable, match="is unique"):
        second.retry()


def test_a_send_waits_for_the_pass_that_holds_a_late_task(
    aside: Aside, claimer: Claimers, connect: Connect
) -> None:
    """Fails if: a pass has claimed the task in time, but has not committed, and the same work is
    sent beside it.
    """
    first = whole.send(1, 2)
    worker = claimer()
    Task.objects.update(good_until=Now() + timedelta(milliseconds=300))

    with worker.conn.transaction():
        (one,) = worker.run_pass(sync=1).claims
        wait_until(
            lambda: sql("SELECT 1 FROM horsies_tasks WHERE good_until < clock_timestamp()"),
            "it is late",
        )
        second = aside(whole.send, 1, 2)
        wait_for_anybody(connect())

    assert one.id == first.task_id
    assert same(first, second.result(30))


def test_a_role_that_only_inserts_sends_beside_a_late_task(connect: Connect) -> None:
    """Fails if: the send has to lock or change the late task, for which the role has no grant."""
    first = whole.send(1, 2)
    Task.objects.update(good_until=Now() - timedelta(seconds=1))
    sql("DROP ROLE IF EXISTS inserts_only")
    sql("CREATE ROLE inserts_only")
    try:
        sql("GRANT SELECT ON horsies_tasks, horsies_queues TO inserts_only")
        sql("GRANT INSERT ON horsies_tasks TO inserts_only")
        sql("GRANT SELECT, INSERT, UPDATE ON horsies_send_keys TO inserts_only")
        with transaction.atomic():
            sql("SET LOCAL ROLE inserts_only")
            second = whole.send(1, 2)
    finally:
        sql("DROP OWNED BY inserts_only")
        sql("DROP ROLE inserts_only")

    assert not same(first, second)
    drain()
    assert (first.info().status, second.info().status) == ("EXPIRED", "COMPLETED")


def test_two_senders_of_the_same_tasks_do_not_deadlock(aside: Aside) -> None:
    """Two calls of ``send_many`` with the same tasks send each task once, without a deadlock.

    Fails if: they take the same digests in opposite orders, and PostgreSQL ends one of them.
    """
    calls = [{"a": number % 50} for number in range(100)]

    there = aside(whole.send_many, calls)
    back = aside(whole.send_many, calls[::-1])
    found = [*there.result(60), *back.result(60)]

    assert sum(handle.is_new for handle in found) == Task.objects.count() == 50


def test_digests_go_with_their_tasks_and_with_redaction() -> None:
    """Fails if: an invalid digest is decoded unchecked, and no task of the batch is deleted."""
    first = whole.send(1)
    second = whole.send(2)
    drain()
    redaction.redact(first.task_id, actor="ada", reason="asked for")

    assert [key.task_id for key in SendKey.objects.all()] == [second.task_id]
    assert "unique" not in (Task.objects.get(pk=first.task_id).options or {})

    ids = [
        put(options=json.dumps({"unique": {"digest": digest}}))[0]
        for digest in ("0", "no digest", 7, None)
    ]
    Task.objects.filter(pk__in=ids).update(
        status="CANCELLED", error_code="TASK_CANCELLED", finished_at=Now()
    )

    assert prune() == 6
    assert not SendKey.objects.exists()


def prune() -> int:
    """Delete the finished tasks, and return how many were deleted."""
    sql("UPDATE horsies_tasks SET finished_at = finished_at - interval '2 days'")
    return (
        RetentionStore(connection)
        .prune_tasks(Kept((), others=True, age=timedelta(days=1)), 10)
        .tasks
    )


@pytest.mark.parametrize("pruned", [True, False])
def test_a_digest_taken_over_by_a_newer_task_outlives_the_older(
    pruned: bool,
) -> None:
    """A digest of a newer task stays when the task that had it before is deleted or redacted."""
    first = whole.send(1)
    first.cancel()
    second = whole.send(1)

    if pruned:
        assert prune() == 1
    else:
        redaction.redact(first.task_id, actor="ada", reason="asked for")

    assert same(second, whole.send(1))


@pytest.mark.parametrize(
    ("unique", "said"),
    [
        (
            "orders",
            "unique refers to 'orders', which is not a parameter of the task; its parameters: o",
        ),
        (Unique("order", until="commit"), "until of Unique must be 'start' or 'end', not 'commit'"),  # type: ignore[arg-type]
        (Unique(on_duplicate="raise"), "on_duplicate of Unique must be"),  # type: ignore[arg-type]
        (3, "unique must be True, the name of an argument"),
    ],
)
def test_what_cannot_be_unique_is_refused_where_it_is_written(unique: Any, said: str) -> None:
    with pytest.raises(TaskDefinitionError, match=said):

        @task(unique=unique)
        def wrong(order: int) -> None: ...

    with pytest.raises(TaskSendError, match="a key cannot be combined with it"):
        whole.with_options(key="evt_1").send(1)


@task(name="tests.optional", unique=True)
def optional(
    order: int, lang: str = "en", day: dt.date = dt.date(2026, 1, 1), mark: int = UNSENDABLE
) -> None: ...


def test_an_argument_that_is_left_out_is_its_default() -> None:
    """Fails if: two sends count as different work, because only one of them names an argument that
    equals its default.
    """
    first = optional.send(1)

    assert same(first, optional.send(1, "en"))
    assert same(first, optional.send(1, day=dt.date(2026, 1, 1)))
    assert not same(first, optional.send(1, "de"))
    assert Task.objects.get(pk=first.task_id).kwargs == {"order": 1}, (
        "the default of the code that runs it counts"
    )

    many = optional.send_many([{"order": 1}, {"order": 1, "lang": "en"}])
    assert [handle.is_new for handle in many] == [False] * 2


def test_an_argument_that_is_left_out_is_no_conflict_of_a_key() -> None:
    keyed = by_key.with_options(key="evt_9")
    first = keyed.send(1)

    assert same(first, keyed.send(1, 0))
    assert same(first, keyed.send(1, 0.0))
    with pytest.raises(TaskSendError, match="KEY_CONFLICT"):
        keyed.send(1, 2)


def test_the_same_key_returns_the_first_task_even_if_deleted() -> None:
    first = once.send(1, 2)
    assert first.is_new
    assert same(first, once.send(1, b=2)), "the same arguments, given in another way"

    drain()
    assert once.send(1, 2).get(0).ok_value == 3
    assert Task.objects.count() == 1

    Task.objects.all().delete()  # as the pruner does
    gone = once.schedule(60, 1, 2)
    assert same(first, gone)
    assert gone.get(0).err_value.error_code == "TASK_NOT_FOUND"


def test_other_arguments_conflict_until_the_task_is_redacted() -> None:
    """The same key with other arguments is a conflict.

    A redaction of the task deletes its key.

    Fails if: the second request is lost, although its caller believes that it was taken.
    """
    first = once.send(1, 2)
    said = f"KEY_CONFLICT.*'evt_1' was used for task {first.task_id} with other arguments"

    with pytest.raises(TaskSendError, match=said):
        once.send(1, 3)
    assert Task.objects.count() == 1

    for other in (
        tasks.add.with_options(key="evt_2").send(1, 2),
        tasks.noop.with_options(key="evt_1").send(),
    ):
        assert other.is_new, "a key is of one task, and another key is other work"

    drain()
    redaction.redact(first.task_id, actor="ada", reason="asked for")
    assert not SendKey.objects.filter(task_id=first.task_id).exists()


def test_an_old_key_is_taken_over_and_pruned(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "RETENTION": {"KEY_HOURS": 2}}
    first = once.send(1, 2)
    two_hours = dt.timedelta(hours=2)
    SendKey.objects.update(sent_at=SendKey.objects.get().sent_at - two_hours)

    assert not same(first, once.send(1, 3))
    assert not once.send(1, 3).is_new

    store = RetentionStore(connection)
    assert store.prune_keys(two_hours, 10) == 0
    SendKey.objects.update(sent_at=SendKey.objects.get().sent_at - two_hours)
    assert store.prune_keys(two_hours, 10) == 1

    settings.HORSIES = {**settings.HORSIES, "RETENTION": {"KEY_HOURS": None}}
    once.send(1, 3)
    SendKey.objects.update(sent_at="2000-01-01 00:00Z")
    assert not once.send(1, 3).is_new, "it is kept for ever"


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("sender", ["once", "whole"])
def test_a_second_sender_waits_for_the_outcome_of_the_first(
    aside: Aside, connect: Connect, sender: str, commits: bool
) -> None:
    """A second sender waits for the first, and gets its task or, after a rollback, sends a new one.

    This holds also if both take over the digest of a task that ended.
    """
    send = {"once": once, "whole": whole}[sender]
    if sender == "whole":
        whole.send(1, 2).cancel()

    with transaction.atomic():
        first = send.send(1, 2)
        second = aside(send.send, 1, 2)
        wait_for_anybody(connect())
        transaction.set_rollback(not commits)

    assert same(first, second.result(30)) is commits
    assert Task.objects.filter(status="PENDING").count() == 1


def test_only_one_of_two_that_take_over_a_digest_sends(aside: Aside, connect: Connect) -> None:
    """If two senders take over a digest at the same moment, one of them sends.

    Fails if: both read that the old task has ended, and both write their own task into the digest.
    """
    whole.send(1, 2).cancel()
    holder = connect()
    watcher = connect()

    with holder.transaction():
        holder.execute("SELECT FROM horsies_send_keys FOR UPDATE")
        both = [aside(whole.send, 1, 2) for _ in range(2)]
        waiting_for = (
            "SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) <> '{}' AND datname "
            "= current_database()"
        )
        wait_until(lambda: watcher.execute(waiting_for).fetchone() == (2,), "both wait to write")

    assert sorted(one.result(30).is_new for one in both) == [False, True]
    assert Task.objects.filter(status="PENDING").count() == 1


def test_a_sender_that_waits_for_too_long_gets_enqueue_failed(aside: Aside, settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "UNIQUE_LOCK_TIMEOUT_MS": 50}

    with transaction.atomic():
        once.send(1, 2)
        with pytest.raises(TaskSendError, match="ENQUEUE_FAILED"):
            aside(once.send, 1, 2).result(30)

    assert sql("SHOW lock_timeout") == [("0",)], "the session has its own again"


def test_a_key_is_refused_where_it_has_no_meaning() -> None:
    for wrong in ("", 7, "x" * 256, "a\0b"):
        with pytest.raises(TaskSendError, match="key"):
            tasks.add.with_options(key=wrong).send(1, 2)  # type: ignore[arg-type]

    with pytest.raises(TaskSendError, match="send_many"):
        once.send_many([{"a": 1, "b": 2}])

    flow = Workflow("keyed")
    flow.add(once, 1, 2)
    with pytest.raises(WorkflowDefinitionError, match="a node takes no key"):
        flow.send()
