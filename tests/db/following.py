"""Follows the database step by step: runs a pass, and has the model of a task's life go the same way, if it is a legal one."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from hypothesis.stateful import RuleBasedStateMachine

from horsies_django.core.records import SNOOZED, Claim, Outcome, Wanted
from horsies_django.core.status import Status
from horsies_django.store.tasks import TaskStore
from tests.db.life import Life, Model
from tests.db.lives import Lives, Seat


class Following(RuleBasedStateMachine):
    """Has the database and the model side by side."""

    lives: Lives

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.issued: list[tuple[uuid.UUID, Claim]] = []  # every claim ever made, with its worker
        self.silent: set[uuid.UUID] = set()
        self.dead: set[uuid.UUID] = set()
        self.open: list[Callable[[], None]] | None = None  # what somebody's transaction will have done once it commits
        self.told: set[uuid.UUID] = set()

    # what is there to pick from

    def pick(self, place: int, *statuses: Status) -> Life | None:
        found = self.model.free(*statuses)
        return found[place % len(found)] if found else None

    def picked(self, places: list[int], *statuses: Status) -> list[Life]:
        found = {life.id: life for place in places if (life := self.pick(place, *statuses))}
        return list(found.values())

    def has(self, *statuses: Status) -> bool:
        return any(life.status in statuses for life in self.model.tasks.values())

    def at(self, place: int, *statuses: Status) -> Seat:
        """Return a worker's seat, one that has a task in such a status if there is any."""
        having = [seat for seat in self.lives.seats if self.claims(seat, *statuses)]
        return (having or self.lives.seats)[place % len(having or self.lives.seats)]

    def claims(self, seat: Seat, *statuses: Status) -> list[Claim]:
        """Return the claims that the worker in a seat may have in its memory, also those of rows that somebody has locked."""
        mine = [life for life in self.model.tasks.values() if life.owner == seat.worker and life.status in statuses]
        return [Claim(life.id, life.generation, "sync", "t", "{}") for life in mine]

    def stale(self, places: list[int], issued: list[tuple[uuid.UUID, Claim]]) -> tuple[uuid.UUID, list[Claim]]:
        """Return some of the claims of one worker."""
        worker = issued[-1 - places[0] % len(issued)][0]
        made = [claim for owner, claim in issued if owner == worker]
        return worker, list({made[place % len(made)].id: made[place % len(made)] for place in places}.values())

    def holds_again(self, worker: uuid.UUID, claim: Claim) -> bool:
        life = self.model.tasks.get(claim.id)
        return life is not None and life.owner == worker and life.generation > claim.generation and not life.final

    # the pass

    def round(
        self, seat: Seat, worker: uuid.UUID, wanted: Wanted, *, outcomes: list[Outcome] | None = None,
        releases: list[Claim] | None = None, starts: list[Claim] | None = None, expired_leases: bool = False, short: bool = False,
    ) -> None:  # fmt: skip
        """Run a pass, a ``short`` one where that will do, and have the model follow it in the order of its parts."""
        outcomes, releases, starts = outcomes or [], releases or [], starts or []
        whole = releases or starts or expired_leases or wanted.prefetch
        short = short and not whole and all(map(self.simple, outcomes))
        owed = {"outcomes": outcomes, "releases": releases, "starts": starts, "expired_leases": expired_leases}
        passed = self.lives.run_pass(seat, worker, wanted, short=short, **owed)
        landed = self.model.settle(worker, outcomes) | self.model.release(worker, releases)
        assert passed.landed == landed
        written: list[Outcome | Claim] = [*outcomes, *releases]
        self.explain(seat, worker, [entry for entry in written if entry.id not in landed])
        if expired_leases:
            self.model.lapse()
        assert passed.dead == (worker in self.dead)
        if passed.dead:
            assert not any((passed.claims, passed.prefetched, passed.started, passed.returned, passed.expired))
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
        """Whether a short pass can write this: no failure, and no permit comes free."""
        life = self.model.tasks.get(outcome.id)
        return outcome.status not in ("FAILED", SNOOZED) and (life is None or life.queue == "plain")

    def explain(self, seat: Seat, worker: uuid.UUID, missed: list[Outcome | Claim]) -> None:
        """Ask why writes did not land."""
        if missed:
            found = TaskStore(seat.conn).unsettled(worker, missed)
            assert found == {entry.id: self.model.why(worker, entry) for entry in missed}

    def take(
        self, worker: uuid.UUID, wanted: Wanted, claims: list[Claim], buffered: list[Claim], *, again: bool
    ) -> None:
        """Follow what a pass claimed, if it was allowed to; what has no cap is never left behind while there is a slot."""
        assert len(claims) <= wanted.sync
        assert len(buffered) <= wanted.prefetch
        allowed = self.model.claimable()
        taken = []
        for ahead, claim in [*((False, claim) for claim in claims), *((True, claim) for claim in buffered)]:
            life = allowed.pop(claim.id)
            life.take(worker, ahead=ahead)
            taken.append(life)
            assert (claim.generation, claim.attempt) == (life.generation, life.attempts_before + life.retry_count + 1)
            self.issued.append((worker, claim))
        if wanted.lease is None:
            full = self.model.overfull(claimed=True)
            caps = {f"tenant {life.tenant}" if life.queue == "tenants" else life.queue for life in taken}
            assert not caps & {*full}
        if len(claims) < wanted.sync and not again:
            assert not [life for life in allowed.values() if life.queue == "plain"]
