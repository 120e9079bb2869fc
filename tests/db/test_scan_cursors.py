"""Scan cursors (marks): a pass begins where the last one found a task, and still overlooks no task
that appears behind that place.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.utils.timezone import now

from horsies_django.core.records import Claim, NewTasks, Wanted
from horsies_django.models import Task
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.engine.scan_cursors import LAG_SECONDS
from tests.conftest import Claimer, Claimers, Connect, limit, put, wait_until
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.sighted import Sighted
from tests.db.test_pass import aware, done, failed
from tests.db.test_statements import complete, entries
from tests.support.sizes import examples

Sights = Callable[..., Sighted]
Session = psycopg.Connection[Any]
IDLE = psycopg.pq.TransactionStatus.IDLE
BATCH = 50
INDEXES = ("horsies_tasks_claim", "horsies_tasks_holding")
LEASE = timedelta(minutes=5)

# The delay of tasks that are due one second ago: cursors stay a little behind the clock.
EARLIER = timedelta(seconds=-1)


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
def pinned(holder: Session) -> Iterator[None]:
    """Keep an old transaction with an id open, and idle, during the block."""
    with holder.transaction():
        holder.execute("SELECT txid_current()")
        yield


def claimed(worker: Claimer, sync: int = 10, **owed: Any) -> list[uuid.UUID]:
    """Run a pass, and return the ids that it claimed."""
    return [claim.id for claim in worker.run_pass(sync=sync, **owed).claims]


def drain(worker: Claimer, count: int) -> dict[str, int]:
    """Claim and complete ``count`` tasks in batches.

    Return how many entries of each index a pass reads then.
    """
    claims = worker.run_pass(sync=BATCH).claims
    for _ in range(count // BATCH):
        claims = worker.run_pass(sync=BATCH, outcomes=complete(claims)).claims
        assert len(claims) == BATCH

    return {
        index: entries(worker, index, sync=1, outcomes=complete(worker.store.held(worker.id)))
        for index in INDEXES
    }


@pytest.mark.parametrize("cap", [None, 10 * BATCH])
def test_a_pass_skips_dead_entries_under_an_old_transaction(
    sighted: Sights, claimer: Claimers, connect: Connect, cap: int | None
) -> None:
    """Under an old transaction, a pass reads no more entries the more tasks have ended."""
    limit("default", max_concurrency=cap)
    worker = sighted()
    blind = claimer()

    for _ in range(50):
        put(100, delay=EARLIER)

    with pinned(connect()):
        assert len(blind.run_pass(sync=2).claims) == 2  # these two run all the time
        early = drain(worker, 1_000)
        late = drain(worker, 3_000)
        # dead entries are still in the index
        assert entries(blind, "horsies_tasks_claim", sync=1) > 4_000
        if cap:
            assert entries(blind, "horsies_tasks_holding", sync=1) > 4_000

    # these are the entries of the last batches
    assert max(*early.values(), *late.values()) < 10 * BATCH


def test_a_pass_that_read_many_dead_entries_reports_it(claimer: Claimers, connect: Connect) -> None:
    """A pass reports ``far`` after many dead entries, and a short pass after many late tasks.

    Fails if: ``far`` depends on the time that a pass took, so that on a busy machine every pass
    reports it.
    """
    worker = claimer()
    put(3_001, delay=EARLIER)

    with pinned(connect()):
        claims = worker.run_pass(sync=500).claims
        passed = worker.run_pass(sync=2_500, outcomes=complete(claims))
        assert not passed.far, "it read 500, two or three times"
        assert not worker.run_pass(outcomes=complete(passed.claims)).far, "it scanned nothing"
        assert worker.run_pass(sync=1).far

    assert not worker.run_pass(sync=1, news="default").far, "3,000 entries are few pages"

    put(10_000, good_until=now() - timedelta(days=1))
    assert (passed := worker.run_pass(sync=1, news="default")).short
    assert passed.far
    assert worker.run_pass(sync=1, async_=1).late, "a whole pass ends them"


def test_an_idle_queue_costs_few_probes_after_many_tasks(sighted: Sights, connect: Connect) -> None:
    """A pass over a queue without waiting tasks costs few probes, however many tasks have ended."""
    limit("default", max_concurrency=10)
    worker = sighted()

    with pinned(connect()):
        for _ in range(300):
            put(10, delay=EARLIER)
            worker.run_pass(outcomes=complete(worker.run_pass(sync=10).claims))

        worker.settle_in()
        worker.settle_in()
        assert entries(worker, "horsies_tasks_claim", sync=10, async_=10) < 50


def send_late(session: Session, queue: str = "default", **columns: Any) -> uuid.UUID:
    """Send a task in a transaction of this session, which the caller commits later."""
    TaskStore(session).send(
        NewTasks("tests.nothing", queue, "sync", 100, [id_ := uuid7()], ["{}"], **columns)
    )
    return id_


@contextmanager
def send_quietly(session: Session, **columns: Any) -> Iterator[uuid.UUID]:
    """Send a task that is committed at the end of the block, without any notification."""
    with session.transaction():
        session.execute("SET LOCAL horsies.quiet = 'on'")
        yield send_late(session, **columns)


class Hours:
    """Random events beside a worker with cursors.

    ``compare`` checks that the worker claims what a pass without cursors would claim, in the same
    order.
    """

    def __init__(
        self, seed: int, worker: Sighted, others: list[Claimer], sender: Session, somebody: Session
    ) -> None:
        self.pick = random.Random(seed)
        self.partitioned = seed % 2 == 1
        self.worker = worker
        self.others = others
        self.sender = sender
        self.somebody = somebody
        self.ahead: list[Claim] = []

    def send(self) -> None:
        count = self.pick.randrange(1, 4)
        due: dict[str, Any] = self.pick.choice(
            ({}, {"delay": EARLIER}, {"due_at": aware(hours=-1)})
        )

        kwargs = [f'{{"tenant": {self.pick.randrange(3)}}}'] * count
        lane = self.pick.choice(("sync", "sync", "async"))
        priority = self.pick.choice((1, 100, 100, 200))

        put(count, kwargs=kwargs, lane=lane, priority=priority, max_retries=9, **due)

    def send_late(self) -> None:
        """Send in a transaction, or commit the one that is open."""
        if self.sender.info.transaction_status == IDLE:
            self.sender.execute("BEGIN")
            send_late(self.sender, delay=EARLIER)
        else:
            self.sender.execute("COMMIT")

    def hold(self) -> None:
        """Lock rows, or release the locks."""
        if self.somebody.info.transaction_status == IDLE:
            self.somebody.execute("BEGIN")
            waiting = (
                "SELECT FROM horsies_tasks WHERE status = 'PENDING' ORDER BY id LIMIT 2 FOR UPDATE "
                "SKIP LOCKED"
            )
            self.somebody.execute(waiting)
        else:
            self.somebody.execute("ROLLBACK")

    def end(self) -> None:
        """Settle or give back some of the tasks that a worker runs."""
        one = self.pick.choice([self.worker, *self.others])
        held = [
            claim for claim in one.store.held(one.id) if claim.running and self.pick.random() < 0.7
        ]

        back = [claim for claim in held if self.pick.random() < 0.3]
        outcomes = [
            self.pick.choice((done(claim), failed(claim, retry=0)))
            for claim in held
            if claim not in back
        ]

        one.run_pass(outcomes=outcomes, releases=back)

    def take(self) -> None:
        self.others[0].run_pass(sync=self.pick.randrange(3), async_=1)

    def take_ahead(self) -> None:
        """Prefetch tasks, or start the prefetched ones that still have a lease and a slot."""
        one = self.others[1]
        starts = self.ahead
        self.ahead = []

        if starts:
            one.run_pass(starts=starts)
        else:
            self.ahead = one.run_pass(wanted=Wanted(prefetch=2, lease=LEASE)).prefetched

    def lapse(self) -> None:
        Task.objects.filter(status="CLAIMED").update(claim_expires_at=aware(hours=-1))

    def reap(self) -> None:
        """Rescue what a dead worker had prefetched, once the marks have passed it."""
        self.others[1].run_pass(wanted=Wanted(prefetch=2, lease=LEASE))
        self.compare()
        WorkerStore(self.others[0].conn).reap(timedelta(0), declare_dead=True, many=100)

    def limit(self) -> None:
        limit("default", max_concurrency=self.pick.choice((None, 3, 12, 20)))
        if self.partitioned:
            each = self.pick.choice((None, 1, 2))
            limit("default", partition_by_args=["tenant"], partition_max_concurrency=each)

    def set_the_clock_back(self) -> None:
        self.worker.cursors.held["default"] = [aware(hours=1).isoformat()]

    def compare(self) -> None:
        self.worker.catch_up()
        asked: dict[str, Any] = {"sync": self.pick.randrange(5), "async_": self.pick.randrange(3)}
        back = self.worker.store.held(self.worker.id)[: int(self.pick.random() < 0.3)]
        asked |= {"releases": back, "expired_leases": self.pick.random() < 0.3}

        with self.worker.conn.transaction(force_rollback=True):
            expected = [claim.id for claim in Claimer.run_pass(self.worker, **asked).claims]

        assert claimed(self.worker, **asked) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(examples(12, 200)))
def test_a_pass_claims_the_same_tasks_as_one_without_marks(
    sighted: Sights, claimer: Claimers, connect: Connect, seed: int
) -> None:
    """After any events, a pass claims the same tasks as one without marks."""
    hours = Hours(seed, sighted(), [claimer(), claimer()], connect(), connect())
    events = [hours.send] * 4 + [hours.end] * 3 + [hours.send_late, hours.hold, hours.limit] * 2
    events += [hours.take, hours.take_ahead, hours.lapse, hours.reap, hours.set_the_clock_back]

    for _ in range(80):
        hours.pick.choice(events)()
        hours.compare()


def test_a_task_without_a_notification_is_found_by_the_next_pass(
    sighted: Sights, connect: Connect
) -> None:
    """A task that was sent without a notification is found by the pass after its send.

    Fails if: the cursor is set to the time of the pass, and a quiet send that was still uncommitted
    then lies behind it until the next poll.
    """
    worker = sighted()
    sender = connect()
    put()
    claims = worker.run_pass(sync=10).claims

    with send_quietly(sender) as quiet:
        worker.settle_in()

    assert claimed(worker, outcomes=complete(claims)) == [quiet]


def test_a_task_sent_while_a_pass_waits_for_caps_is_found(
    sighted: Sights, connect: Connect, aside: Aside
) -> None:
    """A task that is sent while a pass waits for the locks of caps is found by the next pass.

    Fails if: the cursors of empty queues get the time after the locks, so that a quiet send lies
    behind them.
    """
    worker = sighted(mail=10, bulk=20)
    other = connect()
    sender = connect()

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
        with send_quietly(sender, queue="bulk") as quiet:
            pass

        longer = (
            "SELECT clock_timestamp() > enqueued_at + %s * interval '2 s' FROM horsies_tasks WHERE "
            "id = %s"
        )
        wait_until(
            lambda: sender.execute(longer, [LAG_SECONDS, quiet]).fetchone()[0],
            "the locks are held for long",
        )

    assert len(passing.result().claims) == 1
    assert claimed(worker) == [quiet]


@pytest.mark.parametrize("priority", [1, 200])
def test_a_task_of_a_new_priority_is_found_at_any_due_time(sighted: Sights, priority: int) -> None:
    """A task of a priority that the worker has not seen before is found, whatever its due time."""
    worker = sighted()
    put(3)
    worker.run_pass(sync=2)
    (id_,) = put(priority=priority, due_at=aware(hours=-1))

    claims = worker.run_pass(sync=10).claims  # before the worker reads any notification

    assert claims[0 if priority < 100 else -1].id == id_
    assert len(claims) == 2


def test_a_claim_with_an_ended_lease_is_claimed_in_its_place(
    sighted: Sights,
) -> None:
    """A claim whose lease ended is claimed again in its order, and wakes no other worker."""
    (id_,) = put()
    (after,) = put()
    gone = sighted()
    worker = sighted()
    other = sighted()

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


def test_a_worker_without_a_listener_keeps_no_marks(sighted: Sights, connect: Connect) -> None:
    """A worker keeps no marks while it has no listener, and a new listener begins without marks."""
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
