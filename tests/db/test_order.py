"""Order per partition: which task of one may start, what a failed one does to the others, and who lets the next one start.

Coalescing: equal tasks that wait when one of them starts are merged into it, so one run begins after the last commit.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.db import connection, transaction

from horsies_django import Workflow
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task, WorkflowRun
from horsies_django.store.base import run
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WaiterStore
from horsies_django.tasks import operations, selection
from horsies_django.tasks.handle import get_handle
from horsies_django.tasks.redaction import redact
from tests.apps.project import flows
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Claimers, Connect, heard, sweep
from tests.db.test_caps_partitions import of, parked, started
from tests.db.test_pass import done, failed
from tests.db.test_workflows_limits import settle
from tests.support.factories import now


def ordered(policy: str = "stop", **columns: Any) -> None:
    limit("default", partition_by_args=["customer_id"], partition_policy=policy, **columns)


def claim(worker: Claimer, slots: int = 9, async_: int = 9, **owed: Any) -> list[Claim]:
    return list(worker.run_pass(sync=slots, async_=async_, **owed).claims)


def end(worker: Claimer, *outcomes: Outcome) -> list[uuid.UUID]:
    """Settle outcomes, and return what the same pass starts."""
    return [one.id for one in claim(worker, outcomes=list(outcomes))]


def insert(conn: Any, kwargs: str, lane: str = "sync") -> uuid.UUID:
    """Insert a task as a client does that knows no rule and no ids of ours."""
    query = "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs) VALUES (%s, 'tests.nothing', 'default', %s, %s)"
    conn.execute(query, [id_ := uuid.uuid4(), lane, kwargs])
    return id_


def retry(task: uuid.UUID) -> str:
    return str(run(connection, "horsies_retry", {"id": task, "channel": channel_prefix(connection)})[0][0])


def cancel(*tasks: uuid.UUID) -> None:
    TaskStore(connection).cancel(tasks, channel_prefix(connection), terminate=False)


def skip(customer: Any) -> uuid.UUID | None:
    params = {
        "queue": "default", "id": None, "arguments": json.dumps({"customer_id": customer}), "task": None, "actor": "me",
        "reason": "broken data", "channel": channel_prefix(connection),
    }  # fmt: skip
    return run(connection, "horsies_skip_stopped", params)[0][0]


@pytest.mark.parametrize(("most", "status", "stops"), [(0, "FAILED", "stop"), (9, "CANCELLED", None)])
def test_a_snooze_that_ends_its_task_stops_the_key_only_if_the_task_has_failed(
    claimer: Claimers, most: int, status: str, stops: str | None
) -> None:
    ordered()
    worker = claimer()
    first, later = of(*"aa")
    (one,) = claim(worker)
    Task.objects.filter(pk=first).update(snooze_count=0)
    if status == "CANCELLED":
        cancel(first)
    snoozes = Outcome(one.id, one.generation, "SNOOZED", "null", "SNOOZED", retry={"seconds": 1, "most": most})
    assert end(worker, snoozes) == ([] if stops else [later])
    ended = Task.objects.get(pk=first)
    assert (ended.status, ended.order_stop) == (status, stops)


def test_what_is_sent_after_the_failure_is_not_cancelled_though_what_was_sent_before_is_only_now(
    claimer: Claimers, connect: Connect
) -> None:
    ordered("cancel")
    worker, other = claimer(), connect()
    _bad, held = of(*"aa")
    (one,) = claim(worker)
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        assert end(worker, failed(one)) == []
        (new,) = of("a")
    sweep()
    assert Task.objects.get(pk=held).error_code == "ORDER_CANCELLED"
    assert started(worker) == [new]


def test_what_was_sent_before_the_failed_task_and_became_visible_after_its_start_is_not_cancelled(
    claimer: Claimers, connect: Connect
) -> None:
    ordered("cancel")
    worker, sender = claimer(), connect()
    with sender.transaction():
        early = insert(sender, '{"customer_id": "a"}')
        (later,) = of("a")
        (one,) = claim(worker)
    assert one.id == later
    end(worker, failed(one))
    started(worker)
    assert Task.objects.get(pk=early).status == "RUNNING"


@pytest.mark.parametrize("how", ["cancel", "expire", "delete"])
def test_what_is_not_run_lets_the_next_one_start(claimer: Claimers, how: str) -> None:
    """Naive: only who settles looks for the next one, so keys stand still for up to half a minute."""
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
    """Naive: the oldest candidates are taken before their keys are looked at, as in pg-boss, and no other key is reached."""
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
    """Naive: the pruner deletes it, and the key goes on as if somebody had decided so."""
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
def test_a_delay_or_a_priority_is_refused_whoever_inserts(columns: dict[str, Any]) -> None:
    ordered()
    with pytest.raises(Exception, match='queue "default" is ordered'), transaction.atomic():
        of("a", **columns)
    assert not Task.objects.exists()


def test_a_queue_that_becomes_ordered_starts_none_before_all_have_a_place(claimer: Claimers, connect: Connect) -> None:
    """Naive: what is sent after the change stands before older rows that no pass has met yet."""
    limit("default")
    worker, other = claimer(), connect()
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
def test_a_key_stays_stopped_under_a_new_rule_unless_it_is_unknown_or_none(claimer: Claimers, redacted: bool) -> None:
    """Naive: the failed task stops a key that no task has any more, for ever.

    Or, redacted, its key is made of the arguments that it has no more, and it stops all tasks without them.
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


def test_a_head_that_another_session_has_locked_parks_nothing_behind_it(claimer: Claimers, connect: Connect) -> None:
    """Naive: a pass parks the second one while the first is being cancelled; nobody unparks it for half a minute."""
    ordered()
    worker, other = claimer(), connect()
    (first,) = of("a", max_retries=1)
    (one,) = claim(worker)
    assert end(worker, failed(one, retry=1_800)) == []
    (second,) = of("a")
    with other.transaction():
        other.execute("SELECT * FROM horsies_cancel(%s, false, 'c')", [[first]])
        assert claim(worker) == []
        assert parked() == 0
    assert started(worker) == [second]


def test_a_run_that_is_paused_or_retried_lets_the_next_task_of_its_key_start(claimer: Claimers) -> None:
    """Naive: its tasks are deleted or replaced, and what is parked behind them waits for the periodic sweep."""
    limit("default", partition_by_args=["n"], partition_policy="stop")
    worker = claimer()
    flow = Workflow("booking", on_error="fail")
    flow.add(flows.number, 1)
    paused, failing = flow.send(), flow.send()
    (later,) = put(kwargs=['{"n": 1}'])
    (first,) = claim(worker)
    worker.run_pass(releases=[first])
    assert parked() == 2
    assert paused.pause()
    (second,) = claim(worker)
    assert end(worker, failed(second)) == []
    failing.retry()
    assert started(worker) == [later]


def test_a_retried_undo_lets_the_next_task_of_its_key_start(claimer: Claimers) -> None:
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


def test_a_cancel_in_a_long_transaction_holds_up_no_change_of_limits(connect: Connect) -> None:
    """Naive: it reads the limits in force, and a pause waits for its transaction, and all passes for the pause."""
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


def test_what_is_sent_while_one_runs_is_one_run_after_the_last_commit(claimer: Claimers, connect: Connect) -> None:
    """Naive: a send finds the one that runs and is left out, or waits for another sender's transaction."""
    coalescing()
    worker, sender = claimer(), connect()
    equal()
    (one,) = claim(worker)
    with sender.transaction():
        late = insert(sender, '{"index": "a"}')
        second, third = equal(2)
        (two,) = claim(worker, outcomes=[done(one)])
        assert len(merged()) == 1
    (three,) = claim(worker, outcomes=[done(two)])
    assert three.id == late


def test_a_survivor_that_was_cancelled_and_is_given_back_reopens_one(claimer: Claimers) -> None:
    """Naive: it is cancelled afterwards, and the work that the others asked for is never done."""
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


def test_at_most_a_thousand_are_merged_in_a_pass_and_the_rest_by_the_next_run(claimer: Claimers) -> None:
    coalescing()
    worker = claimer()
    equal(2_500)
    for many in (1_000, 2_000, 2_497):
        (one,) = claim(worker)
        assert len(merged()) == many
        worker.run_pass(outcomes=[done(one)])
    assert claim(worker) == []


def test_what_is_not_due_is_late_or_is_a_node_is_not_merged(claimer: Claimers) -> None:
    coalescing()
    worker = claimer()
    (late,) = equal(good_until=now() + dt.timedelta(hours=1))
    (future,) = equal(delay=dt.timedelta(hours=1))
    (due,) = equal()
    ago, run = now() - dt.timedelta(minutes=1), uuid.uuid4()
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


def test_a_merged_task_is_retried_with_the_one_that_ran_and_can_be_redacted(claimer: Claimers) -> None:
    coalescing()
    worker = claimer()
    equal(3)
    (one,) = claim(worker)
    first, second = merged()
    with pytest.raises(TaskNotRetryable, match=f"merged into task {one.id}"):
        operations.retry(first)
    assert all(redact(id_, actor="me", reason="asked") for id_ in (first, second))
    worker.run_pass(releases=[one])
    assert set(Task.objects.filter(status="CANCELLED").values_list("pk", flat=True)) == {first, second}


def test_rows_that_another_session_has_locked_are_left_for_the_next_run(claimer: Claimers, connect: Connect) -> None:
    coalescing()
    worker, other = claimer(), connect()
    ids = equal(3)
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [ids[2]])
        (one,) = claim(worker)
    assert len(merged()) == 1
    (two,) = claim(worker, outcomes=[done(one)])
    assert two.id == ids[2]


def test_who_waits_for_a_merged_task_hears_of_the_run_that_answers_it(claimer: Claimers, connect: Connect) -> None:
    """Naive: only the task that ran is named, and the others are found by the next poll."""
    coalescing()
    worker, listener = claimer(), connect()
    ids = equal(3)
    WaiterStore(worker.conn).register(uuid.uuid4(), dt.timedelta(minutes=1))
    listener.execute(f'LISTEN "{worker.channel}_done"')
    (one,) = claim(worker)
    heard(listener)
    assert end(worker, done(one)) == []
    assert sorted(" ".join(heard(listener)).split()) == sorted(map(str, ids))
