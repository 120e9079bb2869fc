"""Marks: a pass begins where the last one found something, and yet nothing that appears behind that place is overlooked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies_django.core.records import NewTasks, Wanted
from horsies_django.models import Task
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.engine.scan_cursors import LAG_SECONDS
from tests.conftest import Claimer, Claimers, Connect, limit, put, wait_until
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.sighted import POLL_SECONDS, Sighted
from tests.db.test_pass import aware, done
from tests.db.test_statements import complete, entries

pytestmark = pytest.mark.django_db(transaction=True)

Sights = Callable[..., Sighted]
BATCH = 50
INDEXES = ("horsies_tasks_claim", "horsies_tasks_holding")
LEASE = timedelta(minutes=5)
EARLIER = timedelta(seconds=-1)  # tasks that are due since then: cursors stay a little behind the clock


@pytest.fixture
def sighted(connect: Connect) -> Iterator[Sights]:
    """Give a function that makes workers with cursors."""
    made: list[Sighted] = []

    def sighted_(**queues: int) -> Sighted:
        made.append(Sighted(connect(), **queues))
        return made[-1]

    yield sighted_
    for worker in made:
        worker.close()


@contextmanager
def pinned(holder: psycopg.Connection[Any]) -> Iterator[None]:
    """Have an old transaction with an id open, and idle, meanwhile."""
    with holder.transaction():
        holder.execute("SELECT txid_current()")
        yield


def claimed(worker: Claimer, sync: int = 10, **owed: Any) -> list[uuid.UUID]:
    """Run a pass, and return what it claimed."""
    return [claim.id for claim in worker.run_pass(sync=sync, **owed).claims]


def drain(worker: Claimer, count: int) -> dict[str, int]:
    """Let ``count`` tasks pass, in batches; return how many entries of which index a pass reads then."""
    claims = worker.run_pass(sync=BATCH).claims
    for _ in range(count // BATCH):
        claims = worker.run_pass(sync=BATCH, outcomes=complete(claims)).claims
        assert len(claims) == BATCH
    return {index: entries(worker, index, sync=1, outcomes=complete(worker.store.held(worker.id))) for index in INDEXES}


@pytest.mark.parametrize("cap", [None, 10 * BATCH])
def test_a_pass_reads_no_more_entries_the_more_tasks_have_passed_under_an_old_transaction(
    sighted: Sights, claimer: Claimers, connect: Connect, cap: int | None
) -> None:
    limit("default", max_concurrency=cap)
    worker, blind = sighted(), claimer()
    for _ in range(50):
        put(100, delay=EARLIER)
    with pinned(connect()):
        assert len(blind.run_pass(sync=2).claims) == 2  # they run all the time
        early, late = drain(worker, 1_000), drain(worker, 3_000)
        assert entries(blind, "horsies_tasks_claim", sync=1) > 4_000  # what is dead is still there
        if cap:
            assert entries(blind, "horsies_tasks_holding", sync=1) > 4_000
    assert max(*early.values(), *late.values()) < 10 * BATCH  # entries of the last batches


def test_a_queue_in_which_nothing_waits_costs_a_few_probes_however_much_passed(
    sighted: Sights, connect: Connect
) -> None:
    limit("default", max_concurrency=10)
    worker = sighted()
    with pinned(connect()):
        for _ in range(300):
            put(10, delay=EARLIER)
            worker.run_pass(outcomes=complete(worker.run_pass(sync=10).claims))
        worker.settle_in()
        worker.settle_in()
        assert entries(worker, "horsies_tasks_claim", sync=10, async_=10) < 50


def send_late(session: psycopg.Connection[Any], **columns: Any) -> uuid.UUID:
    """Send a task in the session's own transaction, which is to commit later."""
    id_ = uuid7()
    task = NewTasks("tests.nothing", "default", "sync", 100, [id_], ["{}"])
    TaskStore(session).send(task._replace(**columns))
    return id_


@contextmanager
def send_quietly(session: psycopg.Connection[Any], **columns: Any) -> Iterator[uuid.UUID]:
    """Send a task that is committed after the block, and of which nobody is told."""
    with session.transaction():
        session.execute("SET LOCAL horsies.quiet = 'on'")
        yield send_late(session, **columns)


def test_a_task_committed_late_or_due_in_the_past_is_claimed_with_the_next_pass(
    sighted: Sights, connect: Connect
) -> None:
    worker, sender = sighted(), connect()
    with sender.transaction():
        late = send_late(sender, delay=EARLIER)
        put()
        worker.run_pass(sync=10)
        worker.settle_in()
    assert claimed(worker) == []  # it lies behind the mark, and nobody has been told yet
    worker.hears()
    assert claimed(worker) == [late]
    worker.settle_in()
    past = put(due_at=aware(hours=-1))
    worker.hears()
    assert claimed(worker) == past


def test_a_task_that_nobody_was_told_of_is_found_by_the_look_after_its_send(sighted: Sights, connect: Connect) -> None:
    """Naive: a cursor at the time of the pass lies behind a quiet send that was committing meanwhile, until the next poll."""
    worker, sender = sighted(), connect()
    put()
    claims = worker.run_pass(sync=10).claims
    with send_quietly(sender) as quiet:
        worker.settle_in()
    assert claimed(worker, outcomes=complete(claims)) == [quiet]


def test_a_task_sent_while_a_pass_waits_for_the_locks_of_caps_is_found_by_the_next(
    sighted: Sights, connect: Connect, aside: Aside
) -> None:
    """Naive: cursors of queues in which nothing waited are dated after the locks, and lie behind a quiet send."""
    worker, other, sender = sighted(mail=10, bulk=20), connect(), connect()
    for name in ("mail", "bulk"):
        limit(name, max_concurrency=5)
        put(queue=name)
    assert len(worker.run_pass(sync=10).claims) == 2
    worker.settle_in()
    put(queue="mail")
    with other.transaction():
        mail = "ARRAY(SELECT l FROM horsies_limits l WHERE l.queue_name = 'mail')"
        other.execute(f"SELECT horsies_lock_caps({mail}, NULL)")
        passing = aside(worker.run_pass, sync=10)
        wait_for_waiting(sender, worker.conn)
        with send_quietly(sender, queue_name="bulk") as quiet:
            pass
        longer = "SELECT clock_timestamp() > enqueued_at + %s * interval '2 s' FROM horsies_tasks WHERE id = %s"
        wait_until(lambda: sender.execute(longer, [LAG_SECONDS, quiet]).fetchone()[0], "the locks are held for long")
    assert len(passing.result().claims) == 1
    assert claimed(worker) == [quiet]


@pytest.mark.parametrize("priority", [1, 200])
def test_a_task_of_a_priority_never_met_is_found_whenever_it_was_due(sighted: Sights, priority: int) -> None:
    worker = sighted()
    put(3)
    worker.run_pass(sync=2)
    (id_,) = put(priority=priority, due_at=aware(hours=-1))
    claims = worker.run_pass(sync=10).claims  # before any notification is read
    assert claims[0 if priority < 100 else -1].id == id_
    assert len(claims) == 2


def test_what_is_given_back_or_due_again_is_claimed_in_its_place_by_the_same_pass_and_by_others(
    sighted: Sights,
) -> None:
    first, second, third = (put(max_retries=1)[0] for _ in range(3))
    worker, other = sighted(), sighted()
    (claim,) = worker.run_pass(sync=1).claims
    (again,) = worker.run_pass(sync=1, releases=[claim]).claims
    assert (claim.id, again.id) == (first, first)
    assert claimed(other, 1) + claimed(other, 1) == [second, third]
    other.settle_in()
    worker.run_pass(releases=[again])
    other.hears()
    (claim,) = other.run_pass(sync=1).claims
    assert (claim.id, claim.attempt) == (first, 1)
    worker.settle_in()
    other.run_pass(outcomes=[done(claim, "FAILED", error_code="X", error_message="no", retry=0.0)])
    worker.hears()
    assert [(claim.id, claim.attempt) for claim in worker.run_pass(sync=1).claims] == [(first, 2)]


def test_what_a_reaper_rescues_is_claimed_by_whoever_has_a_slot(sighted: Sights, connect: Connect) -> None:
    (id_,) = put()
    gone, worker = sighted(), sighted()
    gone.run_pass(wanted=Wanted(prefetch=1, lease=LEASE))
    put()
    worker.run_pass(sync=1)
    worker.settle_in()
    Task.objects.filter(claimed_by=worker.id).delete()
    WorkerStore(connect()).reap(timedelta(0), judge=True, many=100)
    worker.hears()
    assert claimed(worker, 1) == [id_]


def test_a_claim_whose_lease_ended_is_claimed_in_its_place_and_no_other_worker_wakes_for_it(sighted: Sights) -> None:
    (id_,), (after,) = put(), put()
    gone, worker, other = sighted(), sighted(), sighted()
    gone.run_pass(wanted=Wanted(prefetch=1, lease=LEASE))
    assert claimed(other, 1) == [after]
    for one in (worker, other):
        one.settle_in()
    woken = other.woken
    Task.objects.filter(pk=id_).update(claim_expires_at=aware(hours=-1))
    (claim,) = worker.run_pass(sync=1, expired_leases=True).claims
    other.hears()
    assert (claim.id, other.woken) == (id_, woken)
    worker.run_pass(outcomes=complete([claim]))


def test_a_start_that_found_no_room_is_found_by_whoever_gives_a_permit_back(sighted: Sights) -> None:
    limit("default", max_concurrency=1)
    (early,) = put()
    ahead, worker = sighted(), sighted()
    soft = Wanted(prefetch=1, lease=LEASE)
    (buffered,) = ahead.run_pass(wanted=soft).prefetched
    Task.objects.filter(pk=early).update(claim_expires_at=aware(hours=-1))  # so that it holds no permit in hard mode
    (late,) = put()
    (claim,) = worker.run_pass(sync=1).claims
    assert claim.id == late
    Task.objects.filter(pk=early).update(claim_expires_at=aware(hours=1))
    assert ahead.run_pass(starts=[buffered]).returned == [early]
    worker.hears()
    assert [claim.id for claim in worker.run_pass(sync=1, outcomes=complete([claim])).claims] == [early]


def test_the_head_of_a_partition_is_found_when_a_permit_comes_free(sighted: Sights) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(2, kwargs=['{"tenant": 1}'] * 2)
    worker, other = sighted(), sighted()
    (claim,) = worker.run_pass(sync=5).claims
    put(kwargs=['{"tenant": 2}'])
    assert len(other.run_pass(sync=1).claims) == 1
    other.settle_in()
    worker.run_pass(outcomes=complete([claim]))
    assert len(other.run_pass(sync=1).claims) == 1  # nobody needs to tell it


def test_without_a_listener_there_are_no_marks_and_a_new_one_begins_without(sighted: Sights, connect: Connect) -> None:
    worker = sighted()
    put()
    worker.run_pass(sync=10)
    worker.settle_in()
    assert '"since": 1' in worker.cursors.text(0.0)
    assert worker.notifications.listener.connection is not None
    backend = worker.notifications.listener.connection.info.backend_pid
    connect().execute("SELECT pg_terminate_backend(%s)", [backend])
    worker.hears()
    assert not worker.notifications.healthy
    (id_,) = put(due_at=aware(hours=-1))
    assert claimed(worker) == [id_]
    worker.notifications.listen()
    assert worker.notifications.healthy
    assert '"since": 1' not in worker.cursors.text(0.0)


def test_the_net_is_a_pass_without_marks_once_per_poll(sighted: Sights) -> None:
    worker = sighted()
    (moved,) = put(delay=EARLIER)
    (seen,) = put(lane="async")
    assert len(worker.run_pass(sync=10, async_=10).claims) == 2
    worker.settle_in()
    Task.objects.filter(pk=moved).update(status="PENDING", claimed_by=None, claimed_at=None, started_at=None)  # by hand
    assert worker.run_pass(sync=10).claims == []
    assert claimed(worker, later=POLL_SECONDS) == [moved]
    assert Task.objects.get(pk=seen).status == "RUNNING"


def test_a_cap_counts_all_that_runs_however_many_moments_it_was_claimed_at_and_whatever_passed(sighted: Sights) -> None:
    put(120)
    worker, other = sighted(), sighted()
    running = worker.run_pass(sync=2).claims + other.run_pass(sync=1).claims  # before there was a cap
    limit("default", max_concurrency=30)
    running += [claim for one in (worker, other) * 12 for claim in one.run_pass(sync=1).claims]
    limit("default", max_concurrency=None)
    running += other.run_pass(sync=1).claims
    limit("default", max_concurrency=30)
    assert len(running) == 28
    for _ in range(10):
        passing = worker.run_pass(sync=5).claims
        assert len(passing) == 2
        worker.run_pass(outcomes=complete(passing))
    assert len(worker.run_pass(outcomes=complete(worker.store.held(worker.id)[1::2])).landed) == 7
    assert len(claimed(other, 20)) == 9
    assert claimed(worker, 20) == claimed(other, 20) == []
    worker.cursors.held["default"] = [aware(hours=1).isoformat()]  # the clock was set back meanwhile
    assert claimed(worker, 2) == []


def test_a_row_that_somebody_holds_keeps_the_mark_where_it_is(sighted: Sights, connect: Connect) -> None:
    (held,), (free,) = put(), put()
    worker, other = sighted(), connect()
    with other.transaction():
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        assert claimed(worker, 2) == [free]
        worker.settle_in()
    assert claimed(worker, 2) == [held]
