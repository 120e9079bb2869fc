"""Drive tasks at random through the store's statements on several sessions, and compare their lives
with the pure model.

After every step each row is compared with tests/db/life.py: status, owner, generation, retries,
attempts, permits; and waiters were notified of exactly the tasks that have ended. At the end of an
example all remaining tasks are completed: nothing is ever stuck. A full ``make stress`` makes a
long run, which is random instead of the same each time.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.records import SNOOZED, Claim, Outcome, Wanted
from horsies_django.core.status import TERMINAL, Status
from horsies_django.store.queues import QueueStore
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks import operations
from horsies_django.tasks.ids import uuid7
from tests.db.conftest import Connect
from tests.db.life import MAX_CRASHES, REFUSED, Life, Model
from tests.db.lives import ENDS, LEASE, THRESHOLD, Lives, Seat, born, finals, outcome
from tests.support.sizes import STRESS, examples

EXAMPLES = examples(40, 2_000)
pytestmark = pytest.mark.timeout(max(420, 2 * EXAMPLES))
PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    database=None,
    derandomize=STRESS != "full",
    suppress_health_check=list(HealthCheck),
)

SEATS = st.sampled_from([0, 0, 1, 2])
PICKS = st.integers(0, 30)
FLAGS = st.booleans()
GOING = (Status.PENDING, Status.CLAIMED, Status.RUNNING)
ANY_END = st.sampled_from([*ENDS])
WRITES = st.sampled_from(["settle", "settle shortly", "release", "start", "renew"])
SOME_ENDS = st.lists(st.sampled_from([*ENDS, *["completed"] * 5]), min_size=3, max_size=3)
FAILURES = st.sampled_from(
    ["crashed", "listed", "asks", "asks for now", *["asks for later"] * 2, "not listed"]
)
MANY = st.lists(PICKS, min_size=1, max_size=3)
BIRTHS = st.builds(
    born,
    st.sampled_from(["plain", "plain", "capped", "tenants"]),
    st.integers(0, 1),
    st.sampled_from([1, 2, 1, 0]),
    due=st.sampled_from([True, True, True, False]),
    until=st.sampled_from([None, 7200, None, 7200, 7200, -1]),
)
SLOTS = st.tuples(st.sampled_from([2, 3, 4, 1, 0]), st.sampled_from([0, 0, 2, 3]))


class LifeOfATask(RuleBasedStateMachine):
    """All that may happen to tasks, in any order.

    After each pass the model follows the choice of the database, if it is a legal one.
    """

    lives: Lives

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.issued: list[tuple[uuid.UUID, Claim]] = []  # every claim ever made, with its worker
        self.silent: set[uuid.UUID] = set()
        self.dead: set[uuid.UUID] = set()
        # The effects of the open transaction once it commits.
        self.open: list[Callable[[], None]] | None = None
        self.told: set[uuid.UUID] = set()

    # choices

    def pick(self, place: int, *statuses: Status) -> Life | None:
        found = self.model.free(*statuses)
        return found[place % len(found)] if found else None

    def picked(self, places: list[int], *statuses: Status) -> list[Life]:
        found = {life.id: life for place in places if (life := self.pick(place, *statuses))}
        return list(found.values())

    def has(self, *statuses: Status) -> bool:
        return any(life.status in statuses for life in self.model.tasks.values())

    def at(self, place: int, *statuses: Status) -> Seat:
        """Return a worker's seat, one whose worker has a task in such a status if there is any."""
        having = [seat for seat in self.lives.seats if self.claims(seat, *statuses)]
        return (having or self.lives.seats)[place % len(having or self.lives.seats)]

    def claims(self, seat: Seat, *statuses: Status) -> list[Claim]:
        """Return the claims that the worker in a seat may have in its memory, also those of locked
        rows.
        """
        mine = [
            life
            for life in self.model.tasks.values()
            if life.owner == seat.worker and life.status in statuses
        ]
        return [Claim(life.id, life.generation, "sync", "t", "{}") for life in mine]

    def stale(
        self, places: list[int], issued: list[tuple[uuid.UUID, Claim]]
    ) -> tuple[uuid.UUID, list[Claim]]:
        """Return some of the claims of one worker."""
        worker = issued[-1 - places[0] % len(issued)][0]
        made = [claim for owner, claim in issued if owner == worker]
        return worker, list(
            {made[place % len(made)].id: made[place % len(made)] for place in places}.values()
        )

    def holds_again(self, worker: uuid.UUID, claim: Claim) -> bool:
        life = self.model.tasks.get(claim.id)
        return (
            life is not None
            and life.owner == worker
            and life.generation > claim.generation
            and not life.final
        )

    # the pass

    def round(
        self,
        seat: Seat,
        worker: uuid.UUID,
        wanted: Wanted,
        *,
        outcomes: list[Outcome] | None = None,
        releases: list[Claim] | None = None,
        starts: list[Claim] | None = None,
        expired_leases: bool = False,
        short: bool = False,
    ) -> None:
        """Run a pass, a ``short`` one if possible, and apply its parts to the model in
        their order.
        """
        outcomes, releases, starts = outcomes or [], releases or [], starts or []
        whole = releases or starts or expired_leases or wanted.prefetch
        short = short and not whole and all(map(self.simple, outcomes))

        owed = {
            "outcomes": outcomes,
            "releases": releases,
            "starts": starts,
            "expired_leases": expired_leases,
        }
        passed = self.lives.run_pass(seat, worker, wanted, short=short, **owed)

        landed = self.model.settle(worker, outcomes) | self.model.release(worker, releases)
        assert passed.landed == landed
        written: list[Outcome | Claim] = [*outcomes, *releases]
        self.explain(seat, worker, [entry for entry in written if entry.id not in landed])

        if expired_leases:
            self.model.lapse()

        assert passed.dead == (worker in self.dead)
        if passed.dead:
            assert not any(
                (passed.claims, passed.prefetched, passed.started, passed.returned, passed.expired)
            )
            return

        expired = [*passed.expired]
        startable = self.model.startable(worker, starts)
        assert {*passed.started, *passed.returned} <= startable.keys()

        for id_, life in startable.items():
            if id_ in passed.started:
                assert not life.late
                life.move("start", Status.RUNNING)
                life.lease = None
            elif id_ in passed.returned:
                assert life.queue != "plain"
                life.move("refuse", Status.PENDING)
            else:
                expired.remove(id_)
                self.model.expire(id_)

        self.take(worker, wanted, passed.claims, passed.prefetched, again=passed.again)
        for id_ in expired:
            assert self.model.tasks[id_].due
            self.model.expire(id_)

    def simple(self, outcome: Outcome) -> bool:
        """Return whether a short pass can write this: no failure, and no permit comes free."""
        life = self.model.tasks.get(outcome.id)
        return outcome.status not in ("FAILED", SNOOZED) and (life is None or life.queue == "plain")

    def explain(self, seat: Seat, worker: uuid.UUID, missed: list[Outcome | Claim]) -> None:
        """Check the reasons why writes did not land."""
        if missed:
            found = TaskStore(seat.conn).unsettled(worker, missed)
            assert found == {entry.id: self.model.why(worker, entry) for entry in missed}

    def take(
        self,
        worker: uuid.UUID,
        wanted: Wanted,
        claims: list[Claim],
        buffered: list[Claim],
        *,
        again: bool,
    ) -> None:
        """Apply the claims of a pass to the model, if they were allowed; a task without a cap is
        never left behind while a slot is free.
        """
        assert len(claims) <= wanted.sync
        assert len(buffered) <= wanted.prefetch

        allowed = self.model.claimable()
        taken = []

        for ahead, claim in [
            *((False, claim) for claim in claims),
            *((True, claim) for claim in buffered),
        ]:
            life = allowed.pop(claim.id)
            life.take(worker, ahead=ahead)
            taken.append(life)
            assert (claim.generation, claim.attempt) == (
                life.generation,
                life.attempts_before + life.retry_count + 1,
            )
            self.issued.append((worker, claim))

        if wanted.lease is None:
            full = self.model.overfull(claimed=True)
            caps = {
                f"tenant {life.tenant}" if life.queue == "tenants" else life.queue for life in taken
            }
            assert not caps & {*full}

        if len(claims) < wanted.sync and not again:
            assert not [life for life in allowed.values() if life.queue == "plain"]

    # time

    @precondition(lambda self: self.has(*GOING))
    @rule(place=PICKS, moment=st.sampled_from(["due", "due", "lapsed", "lapsed", "late"]))
    def time_passes(self, place: int, moment: str) -> None:
        life = self.pick(place, *((Status.CLAIMED,) if moment == "lapsed" else GOING))
        if life is None:
            return

        self.lives.move(moment, life.id)
        if moment == "due" and life.status is Status.PENDING:
            life.due = True
            life.pausing = False
        elif moment == "late":
            life.until = -1
        elif moment == "lapsed":
            life.lease = False

    @precondition(lambda self: self.has(Status.CLAIMED))
    @rule(seat=SEATS, place=PICKS)
    def lapse(self, seat: int, place: int) -> None:
        """A lease ends, and the pass of a worker searches for such claims."""
        if life := self.pick(place, Status.CLAIMED):
            self.lives.move("lapsed", life.id)
            life.lease = False

        at = self.lives.seats[seat]
        self.round(at, at.worker, Wanted(), expired_leases=True)

    # the fates of workers

    @rule(seat=SEATS)
    def fall_silent(self, seat: int) -> None:
        worker = self.lives.seats[seat].worker
        self.lives.move("silent", worker)
        self.silent.add(worker)

    @precondition(lambda self: self.silent)
    @rule(seat=SEATS)
    def beat(self, seat: int) -> None:
        """A silent worker that has not been declared dead continues; a dead one stays dead."""
        at = self.lives.seats[seat]
        assert self.lives.beat(at) == (at.worker not in self.dead)
        self.silent.discard(at.worker)

    @rule(declare_dead=st.sampled_from([True, True, False]))
    def reap(self, declare_dead: bool) -> None:
        for seat in self.lives.seats:
            if seat.worker not in self.silent:
                self.lives.beat(seat)

        died = self.silent - self.dead if declare_dead else set()
        told = WorkerStore(self.lives.looker).reap(
            THRESHOLD, declare_dead=declare_dead, many=1_000, max_crashes=MAX_CRASHES
        )

        self.dead |= died
        self.model.gone |= died
        assert sorted((kind, id_) for kind, id_, *_ in told) == sorted(
            {("died", worker) for worker in died} | self.model.reap()
        )

    @precondition(lambda self: self.dead)
    @rule(seat=SEATS)
    def replace(self, seat: int) -> None:
        """The successor of a dead worker starts; it does not own the tasks that the dead
        one left.
        """
        at = self.lives.seats[seat]
        if at.worker in self.dead:
            self.lives.sit(at)

    @precondition(lambda self: self.has(Status.RUNNING, Status.CLAIMED))
    @rule(seat=SEATS)
    def vanish(self, seat: int) -> None:
        """A worker ends and its heartbeat with it although it still holds tasks, against
        the rules.
        """
        at = self.lives.seats[seat]
        if not any(self.model.tasks[id_].owner == at.worker for id_ in self.model.locked):
            WorkerStore(at.conn).stop(at.worker)
            self.lives.move("missing", at.worker)
            self.model.gone.add(at.worker)
            self.silent.discard(at.worker)
            self.dead.discard(at.worker)
            self.lives.sit(at)

    # workers

    @initialize(births=st.lists(BIRTHS, min_size=4, max_size=8))
    def begin(self, births: list[Life]) -> None:
        self.lives.begin()
        self.send(births)

    @precondition(lambda self: len(self.model.claimable()) < 4)
    @rule(births=st.lists(BIRTHS, min_size=1, max_size=4))
    def send(self, births: list[Life]) -> None:
        for life in map(fresh, births):
            self.lives.send(self.lives.looker, life)
            self.model.tasks[life.id] = life

    @precondition(lambda self: self.model.claimable())
    @rule(seat=SEATS, buffer=st.integers(1, 3))
    def take_ahead(self, seat: int, buffer: int) -> None:
        at = self.lives.seats[seat]
        self.round(at, at.worker, wanted((0, buffer)))

    @rule(seat=SEATS, slots=SLOTS, expired_leases=FLAGS, short=FLAGS)
    def claim(self, seat: int, slots: tuple[int, int], expired_leases: bool, short: bool) -> None:
        at = self.lives.seats[seat]
        self.round(at, at.worker, wanted(slots), expired_leases=expired_leases, short=short)

    @precondition(lambda self: self.has(Status.RUNNING))
    @rule(seat=SEATS, places=MANY, ends=SOME_ENDS, slots=SLOTS, short=FLAGS)
    def settle_and_claim(
        self,
        seat: int,
        places: list[int],
        ends: list[str],
        slots: tuple[int, int],
        short: bool = False,
    ) -> None:
        at = self.at(seat, Status.RUNNING)
        running = self.claims(at, Status.RUNNING)

        chosen = {
            claim.id: claim
            for place in places
            if running and (claim := running[place % len(running)])
        }
        written = [
            outcome(c.id, c.generation, end) for c, end in zip(chosen.values(), ends, strict=False)
        ]

        starts = [] if short else self.claims(at, Status.CLAIMED)
        self.round(at, at.worker, wanted(slots), outcomes=written, starts=starts, short=short)

    @precondition(lambda self: self.has(Status.RUNNING))
    @rule(seat=SEATS, place=PICKS, end=FAILURES, slots=SLOTS)
    def fail(self, seat: int, place: int, end: str, slots: tuple[int, int]) -> None:
        self.settle_and_claim(seat, [place], [end], slots)

    @precondition(lambda self: self.has(Status.RUNNING, Status.CLAIMED))
    @rule(seat=SEATS, places=MANY, slots=SLOTS)
    def release(self, seat: int, places: list[int], slots: tuple[int, int]) -> None:
        at = self.at(seat, Status.RUNNING, Status.CLAIMED)
        held = self.claims(at, Status.RUNNING, Status.CLAIMED)
        self.round(
            at,
            at.worker,
            wanted(slots),
            releases=[held[p % len(held)] for p in {*places} if held][:1],
        )

    @precondition(lambda self: self.has(Status.CLAIMED))
    @rule(seat=SEATS)
    def start(self, seat: int) -> None:
        at = self.at(seat, Status.CLAIMED)
        self.round(at, at.worker, Wanted(), starts=self.claims(at, Status.CLAIMED))

    @precondition(lambda self: self.issued)
    @rule(seat=SEATS, places=MANY, end=ANY_END, how=WRITES)
    def write_late(self, seat: int, places: list[int], end: str, how: str) -> None:
        """Write under claims of any age, as the worker that made them; most of them are over."""
        self.write(self.lives.seats[seat], self.stale(places, self.issued), end, how)

    @precondition(lambda self: any(self.holds_again(*entry) for entry in self.issued))
    @rule(seat=SEATS, places=MANY, end=ANY_END, how=WRITES)
    def write_under_an_older_claim(self, seat: int, places: list[int], end: str, how: str) -> None:
        """Write under claims whose task the same worker holds again; only the generation
        differs.
        """
        older = [entry for entry in self.issued if self.holds_again(*entry)]
        state = Status.RUNNING if how.startswith("settle") else Status.CLAIMED
        fit = [entry for entry in older if self.model.tasks[entry[1].id].status is state]

        self.write(self.lives.seats[seat], self.stale(places, fit or older), end, how)

    def write(self, at: Seat, claimed: tuple[uuid.UUID, list[Claim]], end: str, how: str) -> None:
        worker, claims = claimed
        if how.startswith("settle"):
            late = [outcome(claim.id, claim.generation, end) for claim in claims]
            self.round(at, worker, Wanted(), outcomes=late, short=how == "settle shortly")
        elif how == "release":
            self.round(at, worker, Wanted(), releases=claims)
        elif how == "start":
            self.round(at, worker, Wanted(), starts=claims)
        else:
            self.renew(at, worker, claims)

    @precondition(lambda self: self.has(Status.CLAIMED))
    @rule(seat=SEATS)
    def keep_buffer(self, seat: int) -> None:
        at = self.at(seat, Status.CLAIMED)
        self.renew(at, at.worker, self.claims(at, Status.CLAIMED))

    def renew(self, seat: Seat, worker: uuid.UUID, claims: list[Claim]) -> None:
        lives = [
            life for claim in claims if (life := self.model.mine(worker, claim, Status.CLAIMED))
        ]

        assert TaskStore(seat.conn).renew(worker, claims, LEASE) == len(lives)
        for life in lives:
            life.lease = True

    @precondition(lambda self: self.has(Status.RUNNING, Status.CLAIMED))
    @rule(seat=SEATS)
    def compare_notes(self, seat: int) -> None:
        at = self.at(seat, Status.RUNNING, Status.CLAIMED)
        held = {
            (one.id, one.generation, one.running, one.cancelled, one.terminate)
            for one in TaskStore(at.conn).held(at.worker)
        }
        mine = [
            life for life in self.model.tasks.values() if life.owner == at.worker and not life.final
        ]

        assert held == {
            (
                life.id,
                life.generation,
                life.status is Status.RUNNING,
                life.cancelled,
                life.terminate,
            )
            for life in mine
        }

    # people

    @precondition(lambda self: self.has(*GOING))
    @rule(place=PICKS, terminate=FLAGS)
    def cancel(self, place: int, terminate: bool) -> None:
        ids = [life.id for life in self.picked([place], *Status)]
        assert operations.cancel(ids, terminate=terminate) == {
            id_: self.model.verdict(id_) for id_ in ids
        }
        self.model.cancel(ids, terminate=terminate)

    @precondition(lambda self: self.has(*Status))
    @rule(place=PICKS)
    def retry_by_hand(self, place: int) -> None:
        if life := self.pick(place, *Status):
            try:
                got = operations.retry(life.id, actor="a test")
            except TaskNotRetryable:
                got = REFUSED
            assert got == self.model.retry(life.id)
            self.told -= {life.id} - finals(self.model)

    @precondition(lambda self: self.has(*Status))
    @rule(place=PICKS)
    def copy(self, place: int) -> None:
        if life := self.pick(place, *Status):
            try:
                got: uuid.UUID | str = operations.copy(life.id, actor="a test")
            except TaskNotRetryable:
                got = REFUSED
            assert got == self.model.copy(life.id, got if isinstance(got, uuid.UUID) else life.id)

    @precondition(lambda self: self.has(*TERMINAL))
    @rule(place=PICKS)
    def redact(self, place: int) -> None:
        if life := self.pick(place, *Status):
            answer = RetentionStore(self.lives.looker).redact(
                life.id, actor="a test", reason="asked"
            )
            assert answer == (life.status, life.final and not life.redacted)
            life.redacted |= life.final

    @precondition(lambda self: len(finals(self.model)) >= 5)
    @rule()
    def prune(self) -> None:
        """All finished tasks are deleted, except locked ones."""
        store = RetentionStore(self.lives.looker)
        self.lives.looker.execute("DELETE FROM horsies_prunings")

        pruned = 0
        while (batch := store.prune_tasks(Kept((), others=True, age=timedelta(0)), 1_000)).more:
            pruned += batch.tasks

        gone = finals(self.model) - self.model.locked
        assert pruned == len(gone)

        for id_ in gone:
            del self.model.tasks[id_]
        self.told -= gone

    @precondition(lambda self: self.open is None)
    @rule(places=MANY, terminate=FLAGS, life=BIRTHS)
    def somebody_begins(self, places: list[int], terminate: bool, life: Life) -> None:
        """Another client cancels and sends, and leaves its transaction open: its changes do not
        count yet, and no other session can touch the rows.
        """
        ids = [one.id for one in self.picked(places, *Status)]
        life = fresh(life)

        somebody = self.lives.somebody
        somebody.execute("BEGIN")
        verdicts = TaskStore(somebody).cancel(ids, self.lives.channel, terminate=terminate)
        assert verdicts == {id_: self.model.verdict(id_) for id_ in ids}
        self.lives.send(somebody, life)

        self.model.locked = set(ids)
        self.open = [
            lambda: self.model.cancel(ids, terminate=terminate),
            lambda: self.model.tasks.update({life.id: life}),
        ]

    @precondition(lambda self: self.open is not None)
    @rule(commit=FLAGS)
    def somebody_ends(self, commit: bool) -> None:
        self.lives.somebody.execute("COMMIT" if commit else "ROLLBACK")
        for effect in (self.open or []) if commit else []:
            effect()
        self.model.locked = set()
        self.open = None

    # checks after each step

    @invariant()
    def the_rows_are_what_the_model_says(self) -> None:
        self.lives.compare(self.model)
        assert not self.model.overfull(claimed=False)
        for life in self.model.tasks.values():
            life.check()

    @invariant()
    def those_who_wait_hear_of_what_ended_and_of_nothing_else(self) -> None:
        over = finals(self.model)
        assert self.lives.heard == over - self.told
        self.told |= over
        self.lives.heard.clear()

    def teardown(self) -> None:
        """Check that nothing is lost: once time has passed and the locks are gone, a worker
        completes all tasks.
        """
        if sys.exc_info()[0]:  # a step failed: the report must show that failure
            return

        if self.open is not None:
            self.somebody_ends(commit=False)

        for place in range(3):
            self.fall_silent(place)
        self.reap(declare_dead=True)
        self.replace(0)

        at = self.lives.seats[0]
        store = QueueStore(self.lives.looker)

        for life in self.model.free(Status.PENDING):
            self.lives.move("due", life.id)
            life.due = True
            life.pausing = False

        while self.model.free(Status.PENDING, Status.RUNNING):
            before = len(finals(self.model))
            store.request_sweep()
            for name in store.sweeps():
                while store.sweep(name, 1_000):
                    pass

            running = self.claims(at, Status.RUNNING)
            self.round(
                at,
                at.worker,
                Wanted(sync=9),
                outcomes=[outcome(c.id, c.generation, "completed") for c in running],
            )

            assert running or len(finals(self.model)) > before or self.claims(at, Status.RUNNING), (
                "stuck"
            )

        self.lives.compare(self.model)


def fresh(life: Life) -> Life:
    """Return a task of the same kind with an id of its own."""
    return replace(life, id=uuid7(), attempts=[])


def wanted(slots: tuple[int, int]) -> Wanted:
    """Return the wishes of a worker with these slots and, in soft mode, these places in its
    buffer.
    """
    sync, buffer = slots
    return Wanted(sync, prefetch=buffer, lease=LEASE if buffer else None)


@pytest.mark.thorough
@pytest.mark.promise("S0.25", "S0.36", "S2.7")
def test_the_life_of_every_task_is_the_one_that_the_model_leads(connect: Connect) -> None:
    LifeOfATask.lives = Lives(connect)
    run_state_machine_as_test(LifeOfATask, settings=PROFILE)
