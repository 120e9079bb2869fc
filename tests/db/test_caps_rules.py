"""Partition rules that change while tasks run and wait: whoever meets a task of an older rule keys it anew before it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.core.records import NewTasks
from horsies_django.models import Task
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
Connect = Callable[[], psycopg.Connection[Any]]


def by(*names: str, most: int = 1) -> None:
    limit("default", partition_by_args=list(names), partition_max_concurrency=most)


def args(a: int, b: int) -> str:
    return f'{{"a": {a}, "b": {b}}}'


def send(*pairs: tuple[int, int]) -> list[Any]:
    return put(len(pairs), kwargs=[args(*pair) for pair in pairs])


def keys() -> dict[Any, tuple[str | None, bool]]:
    """Return the partition of each task that has not finished, and whether it is parked."""
    found = Task.objects.filter(finished_at=None).values_list("id", "partition_key", "parked")
    return {id_: (key, parked) for id_, key, parked in found}


def started(worker: Claimer, slots: int = 9, **owed: Any) -> list[Any]:
    return [claim.id for claim in worker.run_pass(sync=slots, **owed).claims]


def test_what_runs_is_keyed_anew_by_the_change_itself(claimer: Claimers) -> None:
    by("a")
    one, two = send((1, 7), (2, 7))
    worker = claimer()
    assert started(worker) == [one, two]
    by("b")
    assert keys() == {one: ('{"b": 7}', False), two: ('{"b": 7}', False)}
    send((3, 7))
    assert started(worker) == []


def test_what_somebody_holds_during_the_change_is_counted_by_the_new_rule_all_the_same(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: a change that waits for every row in flight, or a count that trusts the key in the row."""
    by("a")
    (one,) = send((1, 7))
    worker, view = claimer(), connect()
    assert started(worker) == [one]
    with view.transaction():
        view.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", [one])
        by("b")
    assert keys() == {one: ('{"a": 1}', False)}
    send((2, 7))
    (free,) = send((1, 8))
    assert started(worker) == [free]


def test_what_waits_is_keyed_anew_when_a_pass_meets_it(claimer: Claimers) -> None:
    by("a")
    one, two, three = send((1, 7), (1, 8), (2, 8))
    by("b")
    assert started(claimer()) == [one, two]
    assert keys() == {one: ('{"b": 7}', False), two: ('{"b": 8}', False), three: ('{"b": 8}', True)}


@pytest.mark.parametrize("many", [2, 1_000])
def test_a_sweep_keys_all_that_waits_anew_and_unparks_what_the_old_rule_parked(claimer: Claimers, many: int) -> None:
    by("a")
    worker = claimer()
    sent = send(*((1, b) for b in range(5)))
    assert started(worker) == sent[:1]
    later = send(*((2, b) for b in range(5, 9)))
    by("b")
    assert started(worker, 0) == []
    while QueueStore(connection).sweep("default", many):
        pass
    assert keys() == {id_: (f'{{"b": {b}}}', False) for b, id_ in enumerate(sent + later)}
    assert started(worker, 20) == sent[1:] + later


def test_a_rule_that_goes_lets_all_start_that_it_kept(claimer: Claimers) -> None:
    by("a")
    worker = claimer()
    sent = send((1, 1), (1, 2), (1, 3))
    assert started(worker) == sent[:1]
    limit("default", partition_by_args=None, partition_max_concurrency=None)
    while QueueStore(connection).sweep("default", 2):
        pass
    assert started(worker) == sent[1:]
    assert set(keys().values()) == {(None, False)}


def test_a_task_that_was_committed_late_under_the_old_rule_counts_by_the_new_one(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: the key in the row counts. The late task starts beside the one that holds its new partition."""
    by("a")
    sender, worker = connect(), claimer()
    late = uuid7()
    with sender.transaction():
        TaskStore(sender).send(NewTasks("t", "default", "sync", 1, [late], [args(1, 7)]))
        by("b")
        while QueueStore(connection).sweep("default", 100):
            pass
        (held,) = send((2, 7))
        (claim,) = worker.run_pass(sync=1).claims
        assert claim.id == held
    assert started(worker) == []
    assert keys()[late] == ('{"b": 7}', True)
    assert started(worker, outcomes=[done(claim)]) == [late]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_task_that_is_being_parked_while_its_permit_comes_free_is_not_stranded(
    claimer: Claimers, connect: Connect, aside: Aside, slots: int
) -> None:
    """Naive: unpark without the lock. It does not see the task that the other pass has parked and not committed."""
    by("a")
    first, second = send((1, 1), (1, 2))
    holder, parking = claimer(), claimer()
    (claim,) = holder.run_pass(sync=1).claims
    with parking.conn.transaction():
        assert started(parking) == []
        settling = aside(holder.run_pass, slots, outcomes=[done(claim)])
        wait_for_waiting(connect(), holder.conn)
    got = [claim.id for claim in settling.result().claims]
    assert [*got, *started(parking)] == [second]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_task_that_is_sent_while_a_settle_is_about_to_commit_is_not_stranded(
    claimer: Claimers, connect: Connect, aside: Aside, slots: int
) -> None:
    """Naive: a settle that finds nothing waiting takes no lock. Another pass still counts its task, and parks what came since."""
    by("a")
    send((1, 1))
    holder, other = claimer(), claimer()
    (claim,) = holder.run_pass(sync=1).claims
    with holder.conn.transaction():
        assert started(holder, slots, outcomes=[done(claim)]) == []
        (sent,) = send((1, 2))
        looking = aside(other.run_pass, 1)
        wait_until_parked_or_waiting(connect(), other, sent)
    got = [claim.id for claim in looking.result().claims]
    assert [*got, *started(other)] == [sent]


def wait_until_parked_or_waiting(watcher: psycopg.Connection[Any], worker: Claimer, id_: Any) -> None:
    query = """SELECT cardinality(pg_blocking_pids(%s)) > 0 OR (SELECT t.parked FROM horsies_tasks t WHERE t.id = %s)"""
    pid = worker.conn.info.backend_pid
    wait_until(lambda: watcher.execute(query, [pid, id_]).fetchone()[0], "the pass parks the task or waits for a lock")
