"""The outbox, which runs the pass and keeps outcomes and releases until the database stores them.

The outcomes of finished tasks wait here during an outage and while their row is locked. If the
reply of a pass was lost, they wait until the state of the task is read from the database.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import psycopg

from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.options import own_retentions
from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.store.base import OneCursor, error_text, forget_plans
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.passes import Passed
from horsies_django.store.tasks import NOTHING_WANTED, Held, Served, TaskStore
from horsies_django.worker.child.run_task import failed
from horsies_django.worker.engine.receivers import Receivers
from horsies_django.worker.engine.unknown_tasks import unreadable_options_reply
from horsies_django.worker.logs.task_log import TaskLog, TaskRecord, in_parentheses, log_expired
from horsies_django.worker.process.backoff import Link
from horsies_django.worker.process.counts import Counts

logger = logging.getLogger("horsies.worker")

OUTCOMES_PER_PASS = 1_000
BATCH_CHARACTERS = 8 * 2**20  # of results per pass, unless a single one is larger
LOCKED_RETRY_SECONDS = 0.1
# SQLSTATE classes of a value that cannot be stored: data exception, constraint violation, refusal
# of a trigger or a view, program limit exceeded, exception raised in a trigger.
POISON = ("22", "23", "27", "44", "54", "P0")
# After a conflict, a lack of resources, a lock or a timeout, a smaller batch may succeed.
TOO_MUCH = ("40", "53", "55", "57014")


@dataclass(eq=False)
class Outbox(Link):
    """The outcomes and releases that are not written yet, and the connection of the passes."""

    alias: str
    worker: uuid.UUID
    served: Served
    _: KW_ONLY
    prepare: bool
    max_crashes: int = 0
    max_bytes: int | None = None
    bound: int = 10_000  # no task is claimed while so many outcomes are unwritten

    def __post_init__(self) -> None:
        self.cursor = OneCursor()
        self.planned_at = 0.0
        self.channel = ""

        self.outcomes: list[Outcome] = []
        self.releases: list[Claim] = []
        # entries whose rows were locked; they are tried again at ``locked_until``
        self.locked: list[Outcome | Claim] = []
        self.locked_until = 0.0
        # the most outcomes in the next pass; fewer after a pass that was too large
        self.most = OUTCOMES_PER_PASS

        self.task_log = TaskLog()
        self.receivers = Receivers(self.worker)
        self.counts = Counts()
        self.overfull = False
        # the retentions of the tasks that this worker has run, for the pruner
        self.own_retentions: set[int | bool] = set()

    @property
    def unwritten(self) -> int:
        """The number of outcomes that the database has not stored yet."""
        return len(self.outcomes) + sum(isinstance(entry, Outcome) for entry in self.locked)

    def check_bound(self) -> None:
        """Stop claiming while too many outcomes are unwritten, and log when that changes."""
        overfull, self.overfull = self.overfull, self.unwritten >= self.bound

        if self.overfull and not overfull:
            then = (
                "no task is claimed until they are written (RESILIENCE['MAX_UNWRITTEN_OUTCOMES'] "
                "is %s)"
            )
            logger.error(
                "%s outcomes could not be written yet: " + then, self.unwritten, self.bound
            )
        elif overfull and not self.overfull:
            logger.info("enough outcomes are written: tasks are claimed again")

    @property
    def has_unwritten_entries(self) -> bool:
        """True if outcomes or releases are unwritten."""
        return bool(self.outcomes or self.releases or self.locked)

    @property
    def unreleased(self) -> int:
        """The number of claims that the database has not released yet."""
        return len(self.releases) + sum(isinstance(entry, Claim) for entry in self.locked)

    def due(self, now: float) -> bool:
        return bool(self.outcomes or self.releases or (self.locked and now >= self.locked_until))

    def connect(self) -> psycopg.Connection[Any]:
        """Open and return the connection.

        Raises psycopg.OperationalError.
        """
        self.connection = direct_connection(
            self.alias, application_name="horsies engine", prepare=self.prepare
        )
        self.channel = channel_prefix(self.connection)
        self.planned_at = time.monotonic()
        return self.connection

    def run_pass(
        self, wanted: Wanted = NOTHING_WANTED, starts: Sequence[Claim] = (), **params: Any
    ) -> Passed:
        """Settle outcomes, release claims, start ``starts``, and claim the tasks that are wanted.

        See ``TaskStore.run_pass``. If the reply does not contain a start, its state is read from
        the database. Either an earlier pass has started it and the reply was lost, or its row is
        locked (then it is neither started nor returned), or it belongs to another worker now
        (returned). Raises psycopg.Error; then the outbox keeps everything.
        """
        began = time.monotonic()
        self.planned_at = forget_plans(self.connection_or_raise(), self.planned_at)
        self.retry_locked(began)
        outcomes = self._batch()
        releases = list(self.releases)

        try:
            passed = self._pass(
                wanted, starts=starts, outcomes=outcomes, releases=releases, **params
            )
        except psycopg.Error as error:
            self._settle_refused_batch(outcomes, error, began)
            outcomes = []
            releases = []
            passed = self._pass(wanted, starts=starts, **params)

        self.most = min(OUTCOMES_PER_PASS, self.most * 2)
        self._remove_written(outcomes, releases, passed)
        self._check_starts(starts, passed)
        return passed

    def started(self, claims: list[Claim]) -> list[Claim]:
        """Return the claims to dispatch, without those whose options this release cannot read.

        The latter fail.
        """
        if any(claim.options is not None for claim in claims):
            replies = [(claim, unreadable_options_reply(claim)) for claim in claims]
            self.outcomes += [
                Outcome.of(claim, reply) for claim, reply in replies if reply is not None
            ]
            self.own_retentions |= own_retentions(claim.options for claim in claims)
            claims = [claim for claim, reply in replies if reply is None]

        self.receivers.started(claims)
        return claims

    def _batch(self) -> list[Outcome]:
        size = 0
        for count, outcome in enumerate(self.outcomes[: self.most]):
            size += len(outcome.result)
            if size > BATCH_CHARACTERS and count:
                return self.outcomes[:count]

        return self.outcomes[: self.most]

    def _pass(self, wanted: Wanted = NOTHING_WANTED, **params: Any) -> Passed:
        fixed: dict[str, Any] = {"max_crashes": self.max_crashes, "max_bytes": self.max_bytes}
        return self.store.run_pass(
            self.worker, self.channel, self.served, wanted, **fixed, **params
        )

    def retry_locked(self, now: float) -> None:
        """Move entries whose rows were locked back to the outbox, if ``locked_until`` is over."""
        if self.locked and now >= self.locked_until:
            self.outcomes += [entry for entry in self.locked if isinstance(entry, Outcome)]
            self.releases += [entry for entry in self.locked if isinstance(entry, Claim)]
            self.locked = []

    def _settle_refused_batch(
        self, outcomes: list[Outcome], error: psycopg.Error, began: float
    ) -> None:
        """Settle the outcomes of a refused batch one by one.

        If the database refuses an outcome, a failure replaces it. If that is refused too, it is
        tried again later. Raises ``error`` if the outcomes are not its cause.
        """
        if not outcomes or (error.sqlstate or "")[:2] not in POISON:
            # a pass that failed after a long time may also have been too large
            if (error.sqlstate or "").startswith(TOO_MUCH) or time.monotonic() - began > 5.0:
                self.most = max(1, len(outcomes) // 2)
            raise error

        logger.error(
            "a batch of %s outcomes was refused; settling them one by one: %s",
            len(outcomes),
            error_text(error),
        )

        for outcome in outcomes:
            if refusal := self._refusal(outcome):
                logger.error(
                    "the outcome of task %s cannot be stored: %s", outcome.id, error_text(refusal)
                )

                message = f"the database refused the result (SQLSTATE {refusal.sqlstate})"
                reply = failed(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
                self.outcomes[0] = outcome._replace(**reply._asdict())

                if refusal := self._refusal(self.outcomes[0]):
                    line = "the failure of task %s cannot be stored either; trying again later: %s"
                    logger.error(line, outcome.id, error_text(refusal))
                    self.locked.append(self.outcomes.pop(0))
                    self.locked_until = time.monotonic() + 30.0

    def connection_or_raise(self) -> psycopg.Connection[Any]:
        """Return the connection.

        Raises psycopg.OperationalError if there is none.
        """
        if self.connection is None:
            raise psycopg.OperationalError("the engine is not connected")
        return self.connection

    @property
    def store(self) -> TaskStore:
        """The store of tasks on the connection.

        Raises psycopg.OperationalError if there is no connection.
        """
        return TaskStore(self.cursor.on(self.connection_or_raise()))

    def _remove_written(
        self, outcomes: list[Outcome], releases: list[Claim], passed: Passed
    ) -> None:
        """Remove and log the entries that a pass has written, and read the state of the others."""
        del self.outcomes[: len(outcomes)]
        del self.releases[: len(releases)]

        if len(passed.landed) == len(outcomes) + len(releases):
            self._record_settled(outcomes, passed.decided)
            return

        self._record_settled(
            [outcome for outcome in outcomes if outcome.id in passed.landed], passed.decided
        )
        entries: list[Outcome | Claim] = [*outcomes, *releases]
        missing = [entry for entry in entries if entry.id not in passed.landed]

        try:
            states = self.store.unsettled(self.worker, missing)
        except psycopg.Error:
            self.locked += missing  # tried again when the connection is back
            raise

        for entry in missing:
            state = states[entry.id]
            if state == "held" or (state == "waiting" and isinstance(entry, Claim)):
                self.locked.append(entry)
                self.locked_until = time.monotonic() + LOCKED_RETRY_SECONDS
            # "waiting" of an outcome: the database has lost the start of the task
            elif state in ("lost", "waiting"):
                self._drop(entry)
            # an earlier pass has settled the outcome, and its reply was lost
            elif isinstance(entry, Outcome):
                self._record_settled(
                    [entry], {str(entry.id): {"retry": None}} if state == "retried" else {}
                )

    def _record_settled(self, outcomes: list[Outcome], decided: Mapping[str, Any]) -> None:
        self.task_log.settled(outcomes, decided)
        self.counts.settled(outcomes, decided)
        self.receivers.settled(outcomes, decided)

    def expired(self, tasks: Sequence[TaskRecord]) -> None:
        """Log and count tasks that expired before they started."""
        self.counts.expired(tasks)
        log_expired(tasks)

    def _drop(self, entry: Outcome | Claim) -> None:
        line = "task %s no longer belongs to worker %s, generation %s; dropping its outcome%s"
        logger.warning(line, entry.id, self.worker, entry.generation, in_parentheses([entry]))

    def drop_all(self, more: Iterable[Outcome | Claim]) -> None:
        """Drop and log all entries of the outbox and ``more``.

        The worker was declared dead, and its tasks are given to other workers.
        """
        for entry in (*self.outcomes, *self.releases, *self.locked, *more):
            self._drop(entry)

        self.outcomes = []
        self.releases = []
        self.locked = []

    def _check_starts(self, starts: Sequence[Claim], passed: Passed) -> None:
        reported = {*passed.started, *passed.returned, *passed.expired}
        unreported = [claim for claim in starts if claim.id not in reported]
        if not unreported or passed.dead:
            return

        states = self.store.unsettled(self.worker, unreported)
        passed.started += [claim.id for claim in unreported if states[claim.id] == "held"]
        passed.returned += [
            claim.id for claim in unreported if states[claim.id] in ("lost", "settled", "retried")
        ]

    def _refusal(self, outcome: Outcome) -> psycopg.Error | None:
        """Settle one outcome; return the error if the database refuses it, or None if it does not.

        Raises psycopg.Error for other problems.
        """
        try:
            passed = self._pass(outcomes=[outcome])
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in POISON:
                raise
            return error

        self._remove_written([outcome], [], passed)
        return None

    def compare(self, held_here: set[uuid.UUID]) -> list[Held]:
        """Return the tasks that this worker has claimed in the database.

        Claims that are neither in ``held_here`` nor in the outbox are released, because the reply
        to them was lost.
        """
        held = self.store.held(self.worker)
        in_outbox = [*self.outcomes, *self.releases, *self.locked]
        kept = held_here | {entry.id for entry in in_outbox}
        unknown = [
            Claim(task.id, task.generation, "", "", "") for task in held if task.id not in kept
        ]

        if unknown:
            logger.warning(
                "releasing %s task(s) that were claimed and never received", len(unknown)
            )
            self.releases += unknown

        return held
