"""Order per partition: which task may start, what a failed task does to the others, and what lets
the next one start.

Coalescing: equal tasks that wait when one of them starts are merged into it, so one run begins
after the last commit.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction

from horsies_django import Workflow
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task, WorkflowRun
from horsies_django.store.notify import channel_prefix
from horsies_django.store.queues import QueueStore
from horsies_django.store.retention import Kept, OwnRetention, RetentionStore
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WaiterStore
from horsies_django.tasks import operations, selection
from horsies_django.tasks.handle import get_handle
from horsies_django.tasks.redaction import redact
from tests.apps.project import flows
from tests.conftest import Claimer, limit, put, sql
from tests.db.conftest import Claimers, Connect, heard, sweep
from tests.db.test_caps_partitions import of, parked, started
from tests.db.test_pass import done, failed
from tests.db.test_workflow_controls import settle
from tests.support.factories import now
from tests.support.sizes import examples


def ordered(policy: str = "stop", **columns: Any) -> None:
    limit("default", partition_by_args=["customer_id"], partition_policy=policy, **columns)


def claim(worker: Claimer, slots: int = 9, async_: int = 9, **owed: Any) -> list[Claim]:
    return list(worker.run_pass(sync=slots, async_=async_, **owed).claims)


def end(worker: Claimer, *outcomes: Outcome) -> list[uuid.UUID]:
    """Settle outcomes, and return the tasks that the same pass starts."""
    return [one.id for one in claim(worker, outcomes=list(outcomes))]


def insert(conn: Any, kwargs: str, lane: str = "sync") -> uuid.UUID:
    """Insert a task as a client that knows neither the rules nor the ids of the package."""
    query = (
        "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs) VALUES (%s, "
        "'tests.nothing', 'default', %s, %s)"
    )
    conn.execute(query, [id_ := uuid.uuid4(), lane, kwargs])
    return id_


def cancel(*tasks: uuid.UUID) -> None:
    TaskStore(connection).cancel(tasks, channel_prefix(connection), terminate=False)


@pytest.mark.parametrize(
    ("most", "status", "stops"), [(0, "FAILED", "stop"), (9, "CANCELLED", None)]
)
def test_a_snooze_stops_the_key_only_if_its_task_has_failed(
    claimer: Claimers, most: int, status: str, stops: str | None
) -> None:
    """A snooze that ends its task stops the key only if the task has failed."""
    ordered()
    worker = claimer()
    first, later = of(*"aa")
    (one,) = claim(worker)

    Task.objects.filter(pk=first).update(snooze_count=0)
    if status == "CANCELLED":
        cancel(first)

    snoozes = Outcome(
        one.id, one.generation, "SNOOZED", "null", "SNOOZED", retry={"seconds": 1, "most": most}
    )

    assert end(worker, snoozes) == ([] if stops else [later])

    ended = Task.objects.get(pk=first)
    assert (ended.status, ended.order_stop) == (status, stops)


def test_a_late_cancel_spares_tasks_sent_after_the_failure(
    claimer: Claimers, connect: Connect
) -> None:
    """A task sent after the failure is not cancelled, even if an earlier one is cancelled
    only now.
    """
    ordered("cancel")
    worker = claimer()
    other = connect()
    _bad, held = of(*"aa")
    (one,) = claim(worker)

    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        assert end(worker, failed(one)) == []
        (new,) = of("a")

    sweep()

    assert Task.objects.get(pk=held).error_code == "ORDER_CANCELLED"
    assert started(worker) == [new]


def test_a_failure_cancels_no_task_that_became_visible_later(
    claimer: Claimers, connect: Connect
) -> None:
    """A task sent before the failed task, but visible only after its start, is not cancelled."""
    ordered("cancel")
    worker = claimer()
    sender = connect()

    with sender.transaction():
        early = insert(sender, '{"customer_id": "a"}')
        (later,) = of("a")
        (one,) = claim(worker)
    assert one.id == later

    end(worker, failed(one))
    started(worker)

    assert Task.objects.get(pk=early).status == "RUNNING"


@pytest.mark.parametrize("how", ["cancel", "expire", "delete"])
def test_the_next_task_starts_after_a_cancel_expiry_or_delete(claimer: Claimers, how: str) -> None:
    """Fails if: only a settle starts the next task; keys then stand still for up to half a
    minute.
    """
    ordered()
    worker = claimer()
    (first,) = of("a", max_retries=1, good_until=now() + dt.timedelta(hours=1))
    (second,) = of("a")
    (one,) = claim(worker)

    assert end(worker, failed(one, retry=1_800)) == []
    assert parked() == 1

    if how == "cancel":
        cancel(first)
    elif how == "expire":
        Task.objects.filter(pk=first).update(good_until=now())
        worker.conn.execute("SELECT * FROM horsies_reap('1 hour', false, 100, 5, 'c')")
    else:
        Task.objects.filter(pk=first).delete()
        sweep()

    assert started(worker) == [second]


def test_a_stopped_key_with_many_tasks_does_not_starve_another(claimer: Claimers) -> None:
    """Fails if: the oldest candidates are taken before their keys are checked, as in pg-boss, and
    no other key is reached.
    """
    ordered()
    worker = claimer()
    of("a")
    (one,) = claim(worker)
    worker.run_pass(outcomes=[failed(one)])

    of(*["a"] * 3_000)
    (other,) = of("b")

    passed = [worker.run_pass(sync=2) for _ in range(2)]

    assert [[claim.id for claim in each.claims] for each in passed] == [[], [other]]
    assert passed[0].again, "the engine runs another pass at once"
    assert parked() == 3_000


def test_the_task_that_stops_a_key_is_neither_pruned_nor_purged(claimer: Claimers) -> None:
    """Fails if: the pruner deletes the task, and the key continues as if this had been decided."""
    ordered()
    worker = claimer()
    bad, later, gone = of("a", "a", "b")
    worker.run_pass(outcomes=[failed(one) if one.id == bad else done(one) for one in claim(worker)])
    Task.objects.filter(finished_at__isnull=False).update(finished_at=now() - dt.timedelta(days=90))

    store = RetentionStore(worker.conn)
    assert store.prune_tasks(Kept((), True, dt.timedelta(days=1)), 100).tasks == 1
    assert worker.conn.execute("SELECT horsies_delete_finished(%s)", [[bad]]).fetchone() == (0,)

    step, *_more = selection.act_on_all(selection.matching("FAILED"), "purge", actor="ada")
    assert step.verdicts == {"KEPT": 1}

    assert started(worker) == []
    assert set(Task.objects.values_list("pk", flat=True)) == {bad, later}


@pytest.mark.parametrize("columns", [{"delay": dt.timedelta(hours=1)}, {"priority": 1}])
def test_an_ordered_queue_refuses_a_delay_or_a_priority(columns: dict[str, Any]) -> None:
    ordered()

    with pytest.raises(Exception, match='queue "default" is ordered'), transaction.atomic():
        of("a", **columns)

    assert not Task.objects.exists()


def test_a_newly_ordered_queue_places_all_tasks_before_a_start(
    claimer: Claimers, connect: Connect
) -> None:
    """A queue that becomes ordered starts no task before all of them have a place.

    Fails if: a task sent after the change comes before older rows that no pass has met yet.
    """
    limit("default")
    worker = claimer()
    other = connect()
    first, second = of(*"aa")

    ordered()
    (third,) = of("a")
    assert claim(worker) == []

    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [first])
        sweep()
        assert claim(worker) == []

    sweep()
    found = []
    while claims := claim(worker):
        found += [one.id for one in claims]
        worker.run_pass(outcomes=[done(one) for one in claims])

    assert found == [first, second, third]


@pytest.mark.parametrize("redacted", [False, True])
def test_a_key_stays_stopped_under_a_new_rule(claimer: Claimers, redacted: bool) -> None:
    """A key stays stopped under a new rule, unless the key is unknown or the rule has no order.

    Fails if: the failed task stops for ever a key that no task has any more; or, redacted, it gets
    a key from its removed arguments, and stops all tasks without such arguments.
    """
    ordered()
    worker = claimer()
    (bad,) = of("a")
    (one,) = claim(worker)
    worker.run_pass(outcomes=[failed(one)])

    if redacted:
        assert redact(bad, actor="me", reason="asked")

    (later,) = of("a")
    assert claim(worker) == []

    limit("default", partition_by_args=["customer_id", "region"])
    if not redacted:
        assert claim(worker) == []
        limit("default", partition_policy=None)

    sweep()

    assert Task.objects.get(pk=bad).order_stop is None
    assert started(worker) == [later]


def test_a_run_whose_task_stops_a_key_is_not_pruned(claimer: Claimers) -> None:
    limit("default", partition_by_args=["n"], partition_policy="stop")
    worker = claimer()
    flow = Workflow("booking")
    flow.add(flows.number, 1)
    handle = flow.send()

    settle(worker, claim(worker), [None], "BROKEN")
    assert handle.status() == "FAILED"

    WorkflowRun.objects.update(finished_at=now() - dt.timedelta(days=90))
    store = RetentionStore(worker.conn)
    assert store.prune_runs(dt.timedelta(days=1), 100)[0] == 0

    Task.objects.update(order_stop=None)
    assert store.prune_runs(dt.timedelta(days=1), 100)[0] == 1


def test_a_locked_head_parks_no_task_behind_it(claimer: Claimers, connect: Connect) -> None:
    """A head that another session has locked parks no task behind it.

    Fails if: a pass parks the second task while the first is being cancelled; it then stays parked
    for half a minute.
    """
    ordered()
    worker = claimer()
    other = connect()

    (first,) = of("a", max_retries=1)
    (one,) = claim(worker)
    assert end(worker, failed(one, retry=1_800)) == []
    (second,) = of("a")

    with other.transaction():
        other.execute("SELECT * FROM horsies_cancel(%s, false, 'c')", [[first]])
        assert claim(worker) == []
        assert parked() == 0

    assert started(worker) == [second]


def test_a_pause_or_a_retry_of_a_run_starts_the_next_task(
    claimer: Claimers,
) -> None:
    """A run that is paused or retried lets the next task of its key start.

    Fails if: the tasks of the run are deleted or replaced, and the tasks parked behind them wait
    for the periodic sweep.
    """
    limit("default", partition_by_args=["n"], partition_policy="stop")
    worker = claimer()
    flow = Workflow("booking", on_error="fail")
    flow.add(flows.number, 1)

    paused = flow.send()
    failing = flow.send()
    (later,) = put(kwargs=['{"n": 1}'])

    (first,) = claim(worker)
    worker.run_pass(releases=[first])
    assert parked() == 2

    assert paused.pause()
    (second,) = claim(worker)
    assert end(worker, failed(second)) == []

    failing.retry()
    assert started(worker) == [later]


def test_a_retry_of_an_undo_starts_the_next_task_of_its_key(claimer: Claimers) -> None:
    limit("default", partition_by_args=["amount"], partition_policy="stop")
    worker = claimer()
    flow = Workflow("booking")
    flow.add(flows.act, after=flow.add(flows.charge, 1, undo=flows.refund))
    handle = flow.send()

    settle(worker, claim(worker), [1001])
    settle(worker, claim(worker), [None], "BROKEN")
    (undo,) = claim(worker)

    (later,) = put(kwargs=['{"amount": 1}'])
    settle(worker, [undo], [None], "BROKEN")
    assert started(worker) == []

    handle.retry()

    assert started(worker) == [later]


def test_a_cancel_in_a_long_transaction_blocks_no_limit_change(connect: Connect) -> None:
    """A cancel in a long transaction holds up no change of limits.

    Fails if: the cancel reads the limits in force; a pause then waits for its transaction, and all
    passes wait for the pause.
    """
    ordered()
    (first, _) = of(*"aa")
    other = connect()

    with other.transaction():
        other.execute("SELECT * FROM horsies_cancel(%s, false, 'c')", [[first]])
        limit("default", paused_at="now", paused_by="ann")

    assert Task.objects.get(pk=first).status == "CANCELLED"


def coalescing() -> None:
    limit("default", partition_by_args=[], partition_by_task=True, partition_policy="coalesce")


def equal(many: int = 1, key: str = "a", **columns: Any) -> list[uuid.UUID]:
    return put(many, kwargs=[json.dumps({"index": key})] * many, **columns)


def merged() -> dict[uuid.UUID, uuid.UUID]:
    return dict(Task.objects.filter(error_code="MERGED").values_list("pk", "merged_into"))


def test_tasks_sent_during_a_run_are_merged_into_one(claimer: Claimers, connect: Connect) -> None:
    """The tasks sent while one runs are merged into one run after the last commit.

    Fails if: a send finds the running task and is left out, or waits for another sender's
    transaction.
    """
    coalescing()
    worker = claimer()
    sender = connect()
    equal()
    (one,) = claim(worker)

    with sender.transaction():
        late = insert(sender, '{"index": "a"}')
        second, third = equal(2)
        (two,) = claim(worker, outcomes=[done(one)])
        assert len(merged()) == 1

    (three,) = claim(worker, outcomes=[done(two)])
    assert three.id == late


def test_a_cancelled_survivor_given_back_reopens_one_task(claimer: Claimers) -> None:
    """A survivor that was cancelled and is given back reopens one of the merged tasks.

    Fails if: the survivor is cancelled afterwards, and the work of the other senders is never done.
    """
    coalescing()
    worker = claimer()
    ids = equal(4)
    (one,) = claim(worker)

    cancel(one.id)
    assert claim(worker, 0, 0, releases=[one]) == []
    assert len(merged()) == 2

    (again,) = claim(worker)
    assert end(worker, done(again)) == []

    results = {id_: get_handle(id_).get(0) for id_ in ids}
    assert results.pop(one.id).err_value.error_code == "TASK_CANCELLED"
    assert [result.ok_value for result in results.values()] == [1] * 3


def fold_all(worker: Claimer) -> Claim:
    """Run passes until one starts a task; return its claim."""
    while True:
        passed = worker.run_pass(sync=9, async_=9)
        if passed.claims:
            (one,) = passed.claims
            return one
        assert passed.again, "the engine runs another pass at once"


def test_a_thousand_are_merged_in_a_pass_and_then_one_starts(claimer: Claimers) -> None:
    """Fails if: the task starts before all others are merged into it; they then need a run for each
    thousand.
    """
    coalescing()
    worker = claimer()
    equal(2_500)

    assert claim(worker) == []
    assert len(merged()) == 1_000
    one = fold_all(worker)

    assert len(merged()) == 2_499
    assert claim(worker, outcomes=[done(one)]) == []
    results = TaskStore(connection).find(merged())
    assert {found.status for found in results.values()} == {"COMPLETED"}


@pytest.mark.parametrize("how", ["cancel", "expire", "claim late"])
def test_a_survivor_that_ends_unstarted_gives_back_merged_tasks(
    claimer: Claimers, how: str
) -> None:
    """A survivor that ends without a start gives back the tasks merged into it.

    Fails if: the tasks that were merged before its start never run.
    """
    coalescing()
    worker = claimer()
    ids = equal(1_500, good_until=now() + dt.timedelta(hours=1))

    assert claim(worker) == []
    (survivor,) = set(merged().values())
    Task.objects.exclude(pk=survivor).update(good_until=None)
    if how != "cancel":
        Task.objects.filter(pk=survivor).update(good_until=now())

    if how == "cancel":
        cancel(survivor)
    elif how == "expire":
        worker.conn.execute("SELECT * FROM horsies_reap('1 hour', false, 100, 5, 'c')")
    one = fold_all(worker)

    assert one.id != survivor
    assert Task.objects.get(pk=survivor).status in ("CANCELLED", "EXPIRED")

    # A task that the pass reopened after it had merged others.
    later = claim(worker, outcomes=[done(one)])
    assert len(later) == (how == "claim late")
    worker.run_pass(outcomes=[done(each) for each in later])
    results = TaskStore(connection).find(set(ids) - {survivor})
    assert [found.status for found in results.values()] == ["COMPLETED"] * 1_499


@pytest.mark.parametrize("own", [False, True])
def test_the_result_of_a_merged_task_stays_as_long_as_its_row(claimer: Claimers, own: bool) -> None:
    """Fails if: retention deletes the other row first, and the sender gets the answer that there is
    no such task.
    """
    coalescing()
    worker = claimer()
    ids = equal(3, options='{"wire": 1, "keep_result": 60000}')

    (one,) = claim(worker)
    worker.run_pass(outcomes=[done(one)])
    Task.objects.filter(pk=one.id).update(finished_at=now() - dt.timedelta(days=3))
    store = RetentionStore(connection)
    kept = OwnRetention(60_000) if own else Kept((), True, dt.timedelta(days=1))

    assert store.prune_tasks(kept, 10).tasks == 0
    assert {found.status for found in TaskStore(connection).find(ids).values()} == {"COMPLETED"}

    Task.objects.exclude(pk=one.id).delete()
    sql("DELETE FROM horsies_prunings")
    assert store.prune_tasks(kept, 10).tasks == 1


def test_a_merged_task_reports_merged_if_the_survivor_is_gone(claimer: Claimers) -> None:
    coalescing()
    worker = claimer()
    equal(2)
    (one,) = claim(worker)
    ((merged_one, _),) = merged().items()
    worker.run_pass(outcomes=[done(one)])
    sql("SELECT horsies_delete_finished(%s)", [[one.id]])

    answer = get_handle(merged_one).get(0)

    assert (answer.err_value.error_code, str(one.id) in answer.err_value.message) == (
        "MERGED",
        True,
    )


def test_a_task_that_waits_for_its_retry_merges_no_others(claimer: Claimers) -> None:
    """A task that waits for its retry merges no others before its start.

    Fails if: it is cancelled then, and with it the runs of the tasks sent after its first attempt.
    """
    coalescing()
    worker = claimer()
    (first,) = equal(max_retries=1)
    worker.run_pass(outcomes=[failed(one, retry=0) for one in claim(worker)])

    equal(1_500)
    assert claim(worker) == []
    assert merged()
    assert first not in merged().values()

    cancel(first)
    one = fold_all(worker)

    assert one.id != first
    assert Task.objects.filter(status="PENDING").count() == 0


def test_what_is_not_due_is_late_or_is_a_node_is_not_merged(claimer: Claimers) -> None:
    coalescing()
    worker = claimer()
    (late,) = equal(good_until=now() + dt.timedelta(hours=1))
    (future,) = equal(delay=dt.timedelta(hours=1))
    (due,) = equal()

    ago = now() - dt.timedelta(minutes=1)
    run = uuid.uuid4()
    Task.objects.filter(pk=due).update(sent_at=ago, enqueued_at=ago)
    Task.objects.filter(pk=late).update(good_until=now())

    (node,) = equal()
    Task.objects.filter(pk=node).update(workflow_id=run, node=1, node_index=0)

    (one,) = claim(worker)
    assert (one.id, merged()) == (due, {})
    assert Task.objects.get(pk=late).status in ("PENDING", "EXPIRED")

    (two,) = claim(worker, outcomes=[done(one)])
    assert two.id == node

    assert claim(worker, outcomes=[done(two)]) == []
    assert Task.objects.get(pk=future).status == "PENDING"


def test_a_merged_task_cannot_be_retried_but_can_be_redacted(
    claimer: Claimers,
) -> None:
    """A merged task cannot be retried apart from the task that ran for it, but can be redacted."""
    coalescing()
    worker = claimer()
    equal(3)
    (one,) = claim(worker)
    first, second = merged()

    with pytest.raises(TaskNotRetryable, match=f"merged into task {one.id}"):
        operations.retry(first)
    assert all(redact(id_, actor="me", reason="asked") for id_ in (first, second))

    worker.run_pass(releases=[one])

    assert set(Task.objects.filter(status="CANCELLED").values_list("pk", flat=True)) == {
        first,
        second,
    }


def test_a_redaction_includes_the_tasks_merged_into_the_task(claimer: Claimers) -> None:
    """Fails if: equal arguments stay in the rows of the tasks for which it ran."""
    coalescing()
    worker = claimer()
    equal(3)
    (one,) = claim(worker)

    (chained,) = equal(1, key="b")
    first, second = merged()
    ended = {"status": "CANCELLED", "error_code": "MERGED", "finished_at": dt.datetime.now(dt.UTC)}
    Task.objects.filter(pk=chained).update(**ended, merged_into=first)
    end(worker, done(one))

    assert redact(one.id, actor="me", reason="asked")

    rows = Task.objects.filter(pk__in=[one.id, first, second, chained])
    assert {str(row.kwargs) for row in rows} == {"{}"}
    assert not rows.filter(redacted_at=None).exists()
    assert not rows.exclude(partition_key=None).exists()


def test_a_locked_task_is_not_merged_until_the_next_run(
    claimer: Claimers, connect: Connect
) -> None:
    """A task that another session has locked is left for the next run."""
    coalescing()
    worker = claimer()
    other = connect()
    ids = equal(3)

    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [ids[2]])
        (one,) = claim(worker)

    assert len(merged()) == 1
    (two,) = claim(worker, outcomes=[done(one)])
    assert two.id == ids[2]


def test_waiters_of_merged_tasks_are_notified_of_the_run(
    claimer: Claimers, connect: Connect
) -> None:
    """Waiters of merged tasks are notified of the run that answers them.

    Fails if: only the task that ran is announced, and the others are found by the next poll.
    """
    coalescing()
    worker = claimer()
    listener = connect()
    ids = equal(3)
    WaiterStore(worker.conn).register(uuid.uuid4(), dt.timedelta(minutes=1))
    listener.execute(f'LISTEN "{worker.channel}_done"')

    (one,) = claim(worker)
    heard(listener)

    assert end(worker, done(one)) == []
    assert sorted(" ".join(heard(listener)).split()) == sorted(map(str, ids))


# The pass and a model of partitions with a policy agree after each of many random events in the
# lives of a few keys.

KEYS = "abc"


@dataclass
class Life:
    """A task as the model sees it; ``at``: when it was sent, according to the table."""

    id: uuid.UUID
    key: str
    lane: str
    at: dt.datetime
    status: str = "PENDING"
    begun: bool = False
    due: bool = True
    stops: str = ""
    into: uuid.UUID | None = None

    @property
    def finished(self) -> bool:
        return self.status not in ("PENDING", "RUNNING")


class World:
    """Random events, each applied to the database and to the model."""

    def __init__(self, worker: Claimer, seed: int, coalesce: bool) -> None:
        self.worker = worker
        self.random = random.Random(seed)
        self.policy = "coalesce" if coalesce else "stop"
        self.lives: dict[uuid.UUID, Life] = {}
        self.claims: dict[uuid.UUID, Claim] = {}
        self.declare()

    def declare(self) -> None:
        if self.policy == "coalesce":
            limit(
                "default",
                partition_policy=self.policy,
                partition_by_args=[],
                partition_by_task=True,
            )
        else:
            limit("default", partition_policy=self.policy, partition_by_args=["customer_id"])

    def some(self, *statuses: str) -> Life | None:
        found = [life for life in self.lives.values() if life.status in statuses]
        return self.random.choice(found) if found else None

    def order(self, key: str) -> list[Life]:
        """Return the tasks with a place in the order of a key, the first one first."""
        there = [
            life
            for life in self.lives.values()
            if life.key == key and (not life.finished or life.stops)
        ]
        return sorted(there, key=lambda life: (not life.begun, life.at, life.id))

    def send(self) -> None:
        key = self.random.choice(KEYS)
        lane = self.random.choice(["sync", "async"])
        back = dt.timedelta(seconds=self.random.choice([0, 0, 600]))  # a clock that was set back
        id_ = uuid.UUID(int=self.random.getrandbits(128))
        kwargs = json.dumps({"customer_id": key})

        if self.random.random() < 0.2:  # by a client that does not know the rule
            id_ = insert(connection.cursor(), kwargs, lane)
            Task.objects.filter(pk=id_).update(max_retries=2)
        else:
            put(kwargs=[kwargs], lane=lane, max_retries=2, now=now() - back, ids=[id_])

        at = Task.objects.get(pk=id_).sent_at
        assert self.policy == "coalesce" or all(other.at < at for other in self.order(key))
        self.lives[id_] = Life(id_, key, lane, at)

    def settle(self) -> dict[str, Any]:
        """Choose ends for some running tasks, apply them to the model, and return them for the next
        pass.
        """
        outcomes = []
        releases = []

        for life in [
            one
            for one in self.lives.values()
            if one.status == "RUNNING" and self.random.random() < 0.6
        ]:
            one = self.claims[life.id]
            how = self.random.choice(["done", "done", "failed", "retry", "retry now", "release"])
            life.status = {"done": "COMPLETED", "failed": "FAILED"}.get(how, "PENDING")

            if how.startswith("retry") and Task.objects.get(pk=life.id).retry_count >= 2:
                how = "failed"
                life.status = "FAILED"
            life.due = how != "retry"

            if how == "release":
                releases.append(one)
                self.reopened.append(life)
            elif how == "done":
                outcomes.append(done(one))
            elif how == "failed":
                outcomes.append(failed(one))
                life.stops = self.policy if self.policy in ("stop", "cancel") else ""
            else:
                outcomes.append(failed(one, retry=3_600 if how == "retry" else 0))

        return {"outcomes": outcomes, "releases": releases}

    def cancel_behind(self, key: str) -> list[Life]:
        """Cancel the tasks behind a failed task that has become the first; return the remaining
        order.
        """
        order = self.order(key)
        while order and order[0].stops == "cancel":
            self.cancel_others(order[0])
            order = self.order(key)
        return order

    def cancel_others(self, bad: Life) -> None:
        """Cancel the tasks sent after a failed one and before its failure, except running ones."""
        ended = Task.objects.get(pk=bad.id).finished_at
        assert ended is not None

        for other in self.order(bad.key):
            if (
                other.status == "PENDING"
                and (bad.at, bad.id) < (other.at, other.id)
                and other.at <= ended
            ):
                other.status = "CANCELLED"

        bad.stops = ""

    def run_pass(self) -> None:
        self.reopened: list[Life] = []
        owed = self.settle()

        slots = self.random.choice(
            [{"sync": 99, "async": 99}, {"sync": 99, "async": 99}, {"sync": 99}, {"async": 99}]
        )
        claims = claim(self.worker, slots.get("sync", 0), slots.get("async", 0), **owed)

        for survivor in self.reopened:
            self.take_reopened(survivor)
        for life in self.lives.values():  # a clock that was set back makes no task wait
            life.due = life.due or Task.objects.filter(pk=life.id, enqueued_at__lte=now()).exists()

        expected: set[uuid.UUID] = set()
        for key in KEYS:
            expected |= self.start(key, {one.id for one in claims}, slots)

        assert {one.id for one in claims} == expected
        self.claims |= {one.id: one for one in claims}

    def take_reopened(self, survivor: Life) -> None:
        """Take from the database which of the tasks merged into a released one was reopened; the
        model allows any.
        """
        folded = [life for life in self.lives.values() if life.into == survivor.id]
        into = set(
            Task.objects.filter(pk__in=[life.id for life in folded]).values_list(
                "merged_into", flat=True
            )
        )

        again = [life for life in folded if life.id in into or len(folded) == 1]
        assert len(again) == bool(folded)

        for life in folded:
            life.into = None if life in again else again[0].id
            if life in again:
                life.status = "PENDING"

    def start(self, key: str, claimed: set[uuid.UUID], lanes: Container[str]) -> set[uuid.UUID]:
        """Start in the model the task of a key that may start in lanes with slots; return
        its id.
        """
        order = self.cancel_behind(key)
        if not order or any(life.status == "RUNNING" for life in order):
            return set()

        head = order[0]
        if self.policy == "coalesce" and not head.begun:
            due = [life for life in order if life.due and life.lane in lanes]
            head = next((life for life in due if life.id in claimed), due[0]) if due else head

        if head.stops or not head.due or head.lane not in lanes:
            return set()

        head.status = "RUNNING"
        head.begun = True
        for other in order if self.policy == "coalesce" else ():
            if other is not head and other.due:
                other.status = "CANCELLED"
                other.into = head.id

        return {head.id}

    def cancel(self) -> None:
        if life := self.some("PENDING"):
            cancel(life.id)
            life.status = "CANCELLED"
            self.cancel_behind(life.key)

    def retry(self) -> None:
        life = self.some("FAILED", "CANCELLED")
        if life is not None and life.into is None:
            if life.stops == "cancel":
                self.cancel_others(life)
            operations.retry(life.id)
            life.status = "PENDING"
            life.stops = ""
            life.due = True

    def skip(self) -> None:
        key = self.random.choice(KEYS)
        if self.policy != "coalesce":
            stopped = next((life for life in self.order(key)[:1] if life.stops == "stop"), None)
            arguments = json.dumps({"customer_id": key})
            why = {"actor": "me", "reason": "broken data"}
            found = QueueStore(connection).skip(None, "default", arguments, task=None, **why)
            assert found.id == (stopped and stopped.id)

            if stopped:
                stopped.stops = ""
                self.cancel_behind(key)

    def hasten(self) -> None:
        if (life := self.some("PENDING")) and not life.due:
            Task.objects.filter(pk=life.id).update(
                enqueued_at=now() - dt.timedelta(hours=1), parked=False
            )
            life.due = True

    def change(self) -> None:
        if self.policy != "coalesce":
            self.policy = self.random.choice(["stop", "continue", "cancel"])
            self.declare()
            sweep()

    def compare(self) -> None:
        rows = {row.pk: row for row in Task.objects.all()}
        assert {id_: row.status for id_, row in rows.items()} == {
            id_: life.status for id_, life in self.lives.items()
        }
        assert {row.pk: row.merged_into for row in rows.values()} == {
            life.id: life.into for life in self.lives.values()
        }

        stops = {row.pk: row.order_stop for row in rows.values() if row.order_stop}
        assert stops == {life.id: life.stops for life in self.lives.values() if life.stops}


@pytest.mark.thorough
@pytest.mark.promise("S4.24")
@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("seed", range(examples(12, 400)))
def test_starts_merges_stops_and_cancels_follow_the_model(
    claimer: Claimers, seed: int, coalesce: bool
) -> None:
    """Tasks start, are merged, stop their keys and are cancelled as in the model."""
    world = World(claimer(), seed, coalesce)
    events = [world.send] * 3 + [world.run_pass] * 2
    events += [world.cancel, world.retry, world.skip, world.hasten, world.change]

    for _ in range(60):
        world.random.choice(events)()
        world.compare()

    for _ in range(300):  # whatever stands still is released, and everything ends
        if all(life.finished for life in world.lives.values()):
            break
        world.hasten()
        world.skip()
        world.run_pass()
        world.compare()

    assert not Task.objects.filter(finished_at__isnull=True).exists()
