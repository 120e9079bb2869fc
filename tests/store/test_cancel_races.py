"""A cancel and a pass at the same moment: exactly one of them takes effect, whoever comes first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies_django.core.records import Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from tests.conftest import Claimer, put
from tests.store.conftest import Aside, wait_for_waiting
from tests.store.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
Connect = Callable[[], psycopg.Connection[Any]]


def cancel(conn: psycopg.Connection[Any], *ids: Any) -> dict[Any, str]:
    return TaskStore(conn).cancel(ids, channel_prefix(conn), terminate=False)


def test_a_task_that_is_being_cancelled_is_not_claimed(claimer: Claimers, connect: Connect) -> None:
    worker, somebody = claimer(), connect()
    first, second = put(2)
    with somebody.transaction():
        assert cancel(somebody, first) == {first: "CANCELLED"}
        assert [claim.id for claim in worker.run_pass(sync=5).claims] == [second]
    assert worker.run_pass(sync=5).claims == []
    assert Task.objects.get(pk=first).status == "CANCELLED"


def test_a_cancel_that_meets_a_claim_waits_for_its_commit_and_asks_what_runs_to_end(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    worker, somebody = claimer(), connect()
    (id_,) = put(1)
    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        verdict = aside(cancel, somebody, id_)
        wait_for_waiting(connect(), somebody)
    assert verdict.result() == {id_: "REQUESTED"}
    worker.run_pass(outcomes=[done(claim)])
    task = Task.objects.get(pk=id_)
    assert (task.status, task.cancel_requested_at is None) == ("COMPLETED", False)


def test_a_task_that_is_cancelled_in_a_buffer_never_starts(claimer: Claimers, connect: Connect) -> None:
    worker, somebody = claimer(), connect()
    (id_,) = put(1)
    (claim,) = worker.run_pass(wanted=Wanted(0, 0, buffer=1, lease=timedelta(seconds=30))).buffered
    assert cancel(somebody, id_) == {id_: "CANCELLED"}
    passed = worker.run_pass(starts=[claim])
    assert passed.started == []
    assert Task.objects.get(pk=id_).status == "CANCELLED"
    assert not TaskAttempt.objects.exists()


def test_settles_and_cancels_in_opposite_orders_do_not_deadlock(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: both wait for rows in their own order. A settle waits for none, a cancel goes in the order of the ids."""
    worker, somebody = claimer(), connect()
    ids = put(2)
    claims = worker.run_pass(sync=2).claims
    with somebody.transaction():
        cancel(somebody, ids[1])
        with worker.conn.transaction():
            worker.run_pass(outcomes=[done(claims[0]), done(claims[1])])
            other = aside(cancel, connect(), *reversed(ids))
    assert set(other.result().values()) <= {"FINISHED", "REQUESTED"}
    worker.run_pass(outcomes=[done(claims[1])])
    assert set(Task.objects.values_list("status", flat=True)) == {"COMPLETED"}


def test_a_task_whose_deadline_passes_while_it_runs_finishes_as_usual(claimer: Claimers) -> None:
    worker = claimer()
    (id_,) = put(1, good_until=datetime.now(UTC) + timedelta(days=1))
    (claim,) = worker.run_pass(sync=1).claims
    Task.objects.filter(pk=id_).update(good_until=datetime.now(UTC) - timedelta(days=1))
    worker.run_pass(outcomes=[done(claim)])
    assert Task.objects.get(pk=id_).status == "COMPLETED"
