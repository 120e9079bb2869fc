"""The life of a task as a small pure model: what each event does to it, and which writes count.

The model has no clock. The test sets whether a task is due, is late or has a live lease, here and
in the database alike. The database chooses the tasks of a claim; the model checks whether the
choice was legal. A row locked by an open transaction does not change for other sessions.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from horsies_django.core.records import SNOOZED, Claim, Outcome
from horsies_django.core.retry import RetryPolicy
from horsies_django.core.status import TERMINAL, Status
from tests.support.models.retry import Failure, decide
from tests.support.models.status import TRANSITIONS

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
MAX_CRASHES = 2
MAX_SNOOZES = 2
CAPS = {"plain": None, "capped": 2, "tenants": None}  # tasks that hold a permit at the same time
TENANT_CAP = 1
REFUSED = "refused"  # the answer to a retry by hand


class Attempt(NamedTuple):
    """One finished attempt; ``child``: whether it names the process that ran it."""

    number: int
    generation: int
    outcome: str
    will_retry: bool
    code: str | None
    child: bool
    worker: uuid.UUID | None


@dataclass
class Life:
    """One task. ``until``: its ``good_until`` in seconds from now; ``lease``: whether its lease is
    alive, None without a lease.
    """

    id: uuid.UUID
    queue: str = "plain"
    tenant: int = 0
    policy: RetryPolicy | None = None
    due: bool = True
    until: int | None = None
    status: Status = Status.PENDING
    owner: uuid.UUID | None = None
    generation: int = 0
    lease: bool | None = None
    attempts_before: int = 0
    retry_count: int = 0
    snoozes: int = 0
    pausing: bool = False
    cancelled: bool = False
    terminate: bool = False
    code: str | None = None
    redacted: bool = False
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def recent(self) -> list[Attempt]:
        """The attempts since the last retry by hand."""
        return self.used[self.attempts_before :]

    @property
    def used(self) -> list[Attempt]:
        """The attempts without the last snooze."""
        return [attempt for attempt in self.attempts if attempt.outcome != SNOOZED]

    @property
    def late(self) -> bool:
        return self.until is not None and self.until <= 0

    @property
    def final(self) -> bool:
        return self.status in TERMINAL

    @property
    def holds(self) -> bool:
        """Whether it holds a permit where claims hold permits, too."""
        return self.status is Status.RUNNING or (
            self.status is Status.CLAIMED and self.lease is True
        )

    def move(self, event: str, status: Status, code: str | None = None) -> None:
        sources, targets = TRANSITIONS[event]
        assert self.status in sources, f"{event} from {self.status}"
        assert status in targets, f"{event} to {status}"

        self.status = status
        self.code = code
        self.pausing = False

        if status is Status.PENDING:
            self.owner = self.lease = None

    def take(self, worker: uuid.UUID, *, ahead: bool) -> None:
        self.move("claim", Status.CLAIMED if ahead else Status.RUNNING)
        self.owner, self.generation, self.lease = (
            worker,
            self.generation + 1,
            True if ahead else None,
        )

    def release(self) -> None:
        """Go back before the start; a cancelled task ends as cancelled."""
        if self.cancelled:
            self.move("release", Status.CANCELLED, "TASK_CANCELLED")
            self.owner = None
        else:
            self.move("release", Status.PENDING)

    def settle(self, event: str, outcome: Outcome) -> None:
        """Write an outcome that landed, with its attempt; the pure rule of ``core/retry.py``
        decides about a retry.
        """
        if outcome.status == SNOOZED:
            self.snooze(event, outcome)
            return

        again = None
        if outcome.status == "FAILED":
            delay = outcome.retry if outcome.retry is not True else None
            again = decide(
                Failure(
                    outcome.error_code or "", (), outcome.retry is not None, delay, outcome.crashed
                ),
                self.policy,
                retry_count=self.retry_count,
                max_crashes=MAX_CRASHES,
                now=NOW,
                cancelled=self.cancelled,
                crashes=sum(attempt.outcome == "WORKER_FAILURE" for attempt in self.recent),
                good_until=None if self.until is None else NOW + dt.timedelta(seconds=self.until),
            )

        retried = isinstance(again, dt.datetime)
        ended = "WORKER_FAILURE" if outcome.crashed else outcome.status
        child = outcome.child_pid is not None
        number = self.attempts_before + self.retry_count + 1
        self.attempts.append(
            Attempt(number, self.generation, ended, retried, outcome.error_code, child, self.owner)
        )

        if isinstance(again, dt.datetime):
            self.move(event, Status.PENDING)
            self.retry_count, self.due, self.pausing = (
                self.retry_count + 1,
                again <= NOW,
                again > NOW,
            )
        else:
            self.move(
                event, Status(outcome.status), "POISON" if again == "POISON" else outcome.error_code
            )

    def snooze(self, event: str, outcome: Outcome) -> None:
        """Wait again without using an attempt; a task that is cancelled, or has snoozed too often,
        ends.
        """
        assert isinstance(outcome.retry, dict)
        number = self.attempts_before + self.retry_count + 1
        child = outcome.child_pid is not None

        code: str | None = None
        if self.cancelled:
            code = "TASK_CANCELLED"
        elif self.snoozes >= MAX_SNOOZES:
            code = "SNOOZED_TOO_OFTEN"

        if code is not None:
            status = Status.CANCELLED if self.cancelled else Status.FAILED
            self.attempts.append(
                Attempt(number, self.generation, status, False, code, child, self.owner)
            )
            self.move(event, status, code)
            return

        self.attempts = self.used
        self.attempts.append(
            Attempt(number, self.generation, SNOOZED, True, None, child, self.owner)
        )

        self.move(event, Status.PENDING)
        self.snoozes += 1
        self.due = outcome.retry["seconds"] == 0
        self.pausing = outcome.retry["seconds"] > 0

    def check(self) -> None:
        """Check what always holds for the history of a row: it ends only once, and each attempt
        counts once.
        """
        assert [attempt.number for attempt in self.used] == list(range(1, len(self.used) + 1))
        assert self.retry_count == sum(attempt.will_retry for attempt in self.recent)
        assert all(attempt.will_retry for attempt in self.recent[:-1])

        generations = [attempt.generation for attempt in self.attempts]
        assert generations == sorted(set(generations))
        assert not self.recent or self.recent[-1].will_retry or self.final


@dataclass
class Model:
    """All tasks; the workers that are ``gone`` (declared dead or stopped); the rows that a session
    has ``locked``.
    """

    tasks: dict[uuid.UUID, Life] = field(default_factory=dict)
    gone: set[uuid.UUID] = field(default_factory=set)
    locked: set[uuid.UUID] = field(default_factory=set)

    def free(self, *statuses: Status) -> list[Life]:
        """Return the unlocked tasks with one of the ``statuses``."""
        return [
            life
            for life in self.tasks.values()
            if life.status in statuses and life.id not in self.locked
        ]

    def mine(self, worker: uuid.UUID, claim: Claim | Outcome, *statuses: Status) -> Life | None:
        """Return the task of a write, if the write counts (the fence)."""
        life = self.tasks.get(claim.id)
        if life is None or life.id in self.locked or life.status not in statuses:
            return None

        return life if (life.owner, life.generation) == (worker, claim.generation) else None

    def settle(self, worker: uuid.UUID, outcomes: Iterable[Outcome]) -> set[uuid.UUID]:
        """Settle the worker's own tasks, and return them."""
        landed = set()
        for outcome in outcomes:
            if life := self.mine(worker, outcome, Status.RUNNING):
                life.settle("settle", outcome)
                landed.add(life.id)
        return landed

    def release(self, worker: uuid.UUID, claims: Iterable[Claim]) -> set[uuid.UUID]:
        """Give back the worker's own claims, and return them."""
        landed = set()
        for claim in claims:
            if life := self.mine(worker, claim, Status.CLAIMED, Status.RUNNING):
                life.release()
                landed.add(life.id)
        return landed

    def startable(self, worker: uuid.UUID, claims: Iterable[Claim]) -> dict[uuid.UUID, Life]:
        """Return the claims of a buffer that are still the worker's own; each of these gets an
        answer.
        """
        found = {claim.id: self.mine(worker, claim, Status.CLAIMED) for claim in claims}
        return {id_: life for id_, life in found.items() if life and life.lease}

    def why(self, worker: uuid.UUID, claim: Claim | Outcome) -> str:
        """Return why a write did not land."""
        life = self.tasks.get(claim.id)
        if life and (life.owner, life.generation, life.final) == (worker, claim.generation, False):
            return "held" if life.status is Status.RUNNING else "waiting"

        for attempt in life.attempts if life else ():
            mine = (attempt.worker, attempt.generation) == (worker, claim.generation)
            if mine and (attempt.outcome != "WORKER_FAILURE" or attempt.child):
                return "retried" if attempt.will_retry else "settled"

        return "lost"

    def lapse(self) -> None:
        """Return claims to the queue whose lease has ended."""
        for life in self.free(Status.CLAIMED):
            if not life.lease:
                life.move("lapse", Status.PENDING)

    def claimable(self) -> dict[uuid.UUID, Life]:
        """Return the tasks that a pass may claim if caps allow it."""
        return {life.id: life for life in self.free(Status.PENDING) if life.due and not life.late}

    def expire(self, id_: uuid.UUID) -> None:
        life = self.tasks[id_]
        assert life.late
        assert id_ not in self.locked
        life.move("expire", Status.EXPIRED, "TASK_EXPIRED")

    def verdict(self, id_: uuid.UUID) -> str:
        """Return the answer of a cancel."""
        life = self.tasks[id_]
        if life.final:
            return "FINISHED"
        return "REQUESTED" if life.status is Status.RUNNING else "CANCELLED"

    def cancel(self, ids: Iterable[uuid.UUID], *, terminate: bool) -> None:
        for id_ in ids:
            life = self.tasks[id_]
            verdict = self.verdict(id_)

            if verdict == "CANCELLED":
                life.move("cancel", Status.CANCELLED, "TASK_CANCELLED")
            if verdict != "FINISHED":
                life.cancelled = True
            if verdict == "REQUESTED":
                life.terminate |= terminate

    def reap(self) -> set[tuple[str, uuid.UUID]]:
        """Rescue the tasks of workers that are gone, expire late waiting tasks; return what
        happened.
        """
        told = set()
        for life in self.free(Status.RUNNING, Status.CLAIMED):
            if life.owner not in self.gone:
                continue

            if life.status is Status.CLAIMED:
                life.move("lapse", Status.PENDING)
                told.add(("returned", life.id))
            else:
                crash = Outcome(
                    life.id, life.generation, "FAILED", "", "WORKER_CRASHED", crashed=True
                )
                life.settle("rescue", crash)
                told.add(("failed" if life.final else "retried", life.id))

        for life in self.free(Status.PENDING):
            if life.late:
                self.expire(life.id)
                told.add(("expired", life.id))

        return told

    def retry(self, id_: uuid.UUID) -> str | None:
        """Retry a task by hand; return REFUSED if this is refused."""
        life = self.tasks[id_]

        if life.status is Status.PENDING and life.pausing:
            life.due = True
            life.pausing = False
        elif life.status not in (Status.FAILED, Status.EXPIRED, Status.CANCELLED) or life.redacted:
            return REFUSED
        else:
            life.move("retry", Status.PENDING)
            life.attempts_before = len(life.used)
            life.retry_count = 0
            life.snoozes = 0
            life.due = True
            life.until = None
            life.cancelled = False
            life.terminate = False

        return None

    def copy(self, id_: uuid.UUID, new: uuid.UUID) -> str | uuid.UUID:
        """Send a copy; return its id, or REFUSED."""
        life = self.tasks[id_]
        if not life.final or life.redacted:
            return REFUSED
        self.tasks[new] = Life(new, life.queue, life.tenant, life.policy)
        return new

    def overfull(self, *, claimed: bool) -> list[str]:
        """Return the exceeded caps; ``claimed``: claimed tasks count as well."""
        held = [
            life
            for life in self.tasks.values()
            if (life.holds if claimed else life.status is Status.RUNNING)
        ]
        full = [
            q
            for q, cap in CAPS.items()
            if cap is not None and sum(life.queue == q for life in held) > cap
        ]
        tenants = [life.tenant for life in held if life.queue == "tenants"]
        return full + [
            f"tenant {tenant}" for tenant in set(tenants) if tenants.count(tenant) > TENANT_CAP
        ]
