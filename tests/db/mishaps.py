"""What happens to tasks that nobody meant to happen: time passes, and workers fall silent, die and vanish."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from horsies_django.core.records import Wanted
from horsies_django.core.status import Status
from horsies_django.store.workers import WorkerStore
from tests.db.following import Following
from tests.db.life import MAX_CRASHES
from tests.db.lives import THRESHOLD

SEATS, PICKS, FLAGS = st.sampled_from([0, 0, 1, 2]), st.integers(0, 30), st.booleans()
GOING = (Status.PENDING, Status.CLAIMED, Status.RUNNING)


class Mishaps(Following):
    """The rules of it."""

    # what time does

    @precondition(lambda self: self.has(*GOING))
    @rule(place=PICKS, moment=st.sampled_from(["due", "due", "lapsed", "lapsed", "late"]))
    def time_passes(self, place: int, moment: str) -> None:
        life = self.pick(place, *((Status.CLAIMED,) if moment == "lapsed" else GOING))
        if life is None:
            return
        self.lives.move(moment, life.id)
        if moment == "due" and life.status is Status.PENDING:
            life.due, life.pausing = True, False
        elif moment == "late":
            life.until = -1
        elif moment == "lapsed":
            life.lease = False

    @precondition(lambda self: self.has(Status.CLAIMED))
    @rule(seat=SEATS, place=PICKS)
    def lapse(self, seat: int, place: int) -> None:
        """A lease ends, and somebody's pass looks for such claims."""
        if life := self.pick(place, Status.CLAIMED):
            self.lives.move("lapsed", life.id)
            life.lease = False
        at = self.lives.seats[seat]
        self.round(at, at.worker, Wanted(), expired_leases=True)

    # what happens to workers

    @rule(seat=SEATS)
    def fall_silent(self, seat: int) -> None:
        worker = self.lives.seats[seat].worker
        self.lives.move("silent", worker)
        self.silent.add(worker)

    @precondition(lambda self: self.silent)
    @rule(seat=SEATS)
    def beat(self, seat: int) -> None:
        """A worker that was silent and has not been declared dead goes on; one that was stays dead."""
        at = self.lives.seats[seat]
        assert self.lives.beat(at) == (at.worker not in self.dead)
        self.silent.discard(at.worker)

    @rule(judge=st.sampled_from([True, True, False]))
    def reap(self, judge: bool) -> None:
        for seat in self.lives.seats:
            if seat.worker not in self.silent:
                self.lives.beat(seat)
        died = self.silent - self.dead if judge else set()
        told = WorkerStore(self.lives.looker).reap(THRESHOLD, judge=judge, many=1_000, max_crashes=MAX_CRASHES)
        self.dead |= died
        self.model.gone |= died
        assert sorted((kind, id_) for kind, id_, *_ in told) == sorted(
            {("died", worker) for worker in died} | self.model.reap()
        )

    @precondition(lambda self: self.dead)
    @rule(seat=SEATS)
    def replace(self, seat: int) -> None:
        """The dead one's successor starts; what it left behind is not its successor's."""
        at = self.lives.seats[seat]
        if at.worker in self.dead:
            self.lives.sit(at)

    @precondition(lambda self: self.has(Status.RUNNING, Status.CLAIMED))
    @rule(seat=SEATS)
    def vanish(self, seat: int) -> None:
        """A worker ends, against the rules with tasks in its hands, and its heartbeat with it."""
        at = self.lives.seats[seat]
        if not any(self.model.tasks[id_].owner == at.worker for id_ in self.model.locked):
            WorkerStore(at.conn).stop(at.worker)
            self.lives.move("missing", at.worker)
            self.model.gone.add(at.worker)
            self.silent.discard(at.worker)
            self.dead.discard(at.worker)
            self.lives.sit(at)
