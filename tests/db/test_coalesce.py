"""Coalescing: equal tasks that wait when one of them starts are merged into it, so one run begins after the last commit."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.db import connection

from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.records import Outcome
from horsies_django.models import Task
from horsies_django.store.workers import WaiterStore
from horsies_django.tasks.handle import get_handle
from horsies_django.tasks.operations import retry
from horsies_django.tasks.redaction import redact
from tests.conftest import limit, put
from tests.db.conftest import Claimers, Connect, heard
from tests.db.test_order import cancel, claim, end, insert
from tests.db.test_pass import done
from tests.support.factories import now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def coalescing() -> None:
    limit("default", partition_by_args=[], partition_by_task=True, partition_policy="coalesce")


def equal(many: int = 1, key: str = "a", **columns: Any) -> list[uuid.UUID]:
    return put(many, kwargs=[json.dumps({"index": key})] * many, **columns)


def merged() -> dict[uuid.UUID, uuid.UUID]:
    return dict(Task.objects.filter(error_code="MERGED").values_list("pk", "merged_into"))


def test_what_is_sent_while_one_runs_is_one_run_that_begins_after_the_last_commit(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: a send finds the one that runs and is left out, or waits for another sender's transaction."""
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


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_survivor_that_is_given_back_before_its_code_began_reopens_one(claimer: Claimers, cancelled: bool) -> None:
    """Naive: it is cancelled afterwards, and the work that the others asked for is never done."""
    worker = claimer()
    ids = equal(4)
    (one,) = claim(worker)
    if cancelled:
        cancel(one.id)
    claims = claim(worker, 0, 0, releases=[one])
    assert claims == []
    assert len(merged()) == 2
    (again,) = claim(worker)
    waiting = [id_ for id_ in ids if Task.objects.get(pk=id_).status == "PENDING"]
    assert waiting == []
    assert end(worker, done(again)) == []
    expected = {"TASK_CANCELLED", "1"} if cancelled else {"1"}
    results = [get_handle(id_).get(0) for id_ in ids]
    assert {str(r.ok_value) if r.is_ok() else str(r.err_value.error_code) for r in results} == expected
    assert sum(r.is_ok() for r in results) == (3 if cancelled else 4)


def test_at_most_a_thousand_are_merged_in_a_pass_and_the_rest_by_the_next_run(claimer: Claimers) -> None:
    worker = claimer()
    equal(2_500)
    runs, most = 0, 0
    while claims := claim(worker):
        (one,) = claims
        before, runs = len(merged()), runs + 1
        worker.run_pass(outcomes=[done(one)])
        most = max(most, before)
    assert runs == 3
    assert len(merged()) == 2_497


def test_what_is_not_due_is_late_or_is_a_node_is_not_merged(claimer: Claimers) -> None:
    worker = claimer()
    (late,) = equal(good_until=now() + dt.timedelta(hours=1))
    (future,) = equal(delay=dt.timedelta(hours=1))
    (due,) = equal()
    Task.objects.filter(pk=due).update(
        sent_at=now() - dt.timedelta(minutes=1), enqueued_at=now() - dt.timedelta(minutes=1)
    )
    Task.objects.filter(pk=late).update(good_until=now())
    node = uuid.uuid4()
    Task.objects.filter(pk__in=equal()).update(workflow_id=node, node=1, node_index=0)
    (one,) = claim(worker)
    assert (one.id, merged()) == (due, {})
    statuses = dict(Task.objects.values_list("pk", "status"))
    assert statuses[future] == "PENDING"
    assert statuses[late] in ("PENDING", "EXPIRED")
    (two,) = claim(worker, outcomes=[done(one)])
    assert Task.objects.get(pk=two.id).workflow_id == node
    assert claim(worker, outcomes=[done(two)]) == []
    assert Task.objects.get(pk=future).status == "PENDING"


def test_a_merged_task_is_retried_with_the_one_that_ran_and_can_be_redacted(claimer: Claimers) -> None:
    worker = claimer()
    ids = equal(3)
    (one,) = claim(worker)
    first, second = merged()
    with pytest.raises(TaskNotRetryable, match=f"merged into task {one.id}"):
        retry(first)
    assert all(redact(id_, actor="me", reason="asked") for id_ in (first, second))
    worker.run_pass(releases=[one])
    assert (
        set(Task.objects.filter(status="CANCELLED").values_list("pk", flat=True))
        == {first, second}
        == {*ids} - {one.id}
    )


def test_rows_that_another_transaction_has_locked_are_left_for_the_next_run(
    claimer: Claimers, connect: Connect
) -> None:
    worker, other = claimer(), connect()
    ids = equal(3)
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [ids[2]])
        (one,) = claim(worker)
    assert len(merged()) == 1
    (two,) = claim(worker, outcomes=[done(one)])
    assert two.id == ids[2]
    assert end(worker, Outcome(two.id, two.generation, "COMPLETED", '{"ok": 1}')) == []
    assert connection.in_atomic_block is False


def test_who_waits_for_a_merged_task_is_notified_of_the_run_that_answers_it(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: only the task that ran is named, and the others are found by the next poll."""
    worker, listener = claimer(), connect()
    ids = equal(3)
    WaiterStore(worker.conn).register(uuid.uuid4(), dt.timedelta(minutes=1))
    listener.execute(f'LISTEN "{worker.channel}_done"')
    (one,) = claim(worker)
    heard(listener)
    assert end(worker, done(one)) == []
    assert sorted(" ".join(heard(listener)).split()) == sorted(map(str, ids))
