"""The engine: one thread that waits for news, runs the pass, and hands the claims to the pool.

News are a finished task, a dead process, a NOTIFY, a due task, the poll. Whatever it was, the answer is the same single round
trip: settle what is finished and claim for the slots that are free. While one pass runs, further outcomes gather for the next,
so batches form exactly when there is load.
"""

from __future__ import annotations

import logging
import math
import random
import selectors
import time
from collections.abc import Callable
from typing import Any

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.errors import HorsiesError
from horsies_django.store.notify import Listener
from horsies_django.worker.backoff import Backoff
from horsies_django.worker.gathering import MOMENT, Gathering, give_way
from horsies_django.worker.ledger import Ledger
from horsies_django.worker.pool import Pool
from horsies_django.worker.process import LANES

logger = logging.getLogger("horsies.worker")

RECONCILE_SECONDS = 10.0
RETRYABLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)


class DatabaseGaveUp(HorsiesError):  # noqa: N818 - named for what happened
    """The database stayed away longer than RESILIENCE allows."""


class Engine:
    """Drives one worker until ``stopping`` is set and its tasks are done."""

    def __init__(
        self, pool: Pool, ledger: Ledger, listener: Listener, resilience: Resilience, selector: selectors.BaseSelector
    ) -> None:
        self.pool = pool
        self.ledger = ledger
        self.listener = listener
        self.poll_seconds = resilience.notify_poll_interval_ms / 1000
        self.selector = selector
        self.backoff = Backoff(resilience)
        self.listener_backoff = Backoff(resilience)
        self.gathering = Gathering()
        self.stopping = False
        self.until_empty = False
        self.announced: set[str] = set()
        self.wet = set(LANES)  # lanes that may have due tasks: a lane runs dry when it gave less than there were slots
        self.poll_at = 0.0  # when all lanes count as wet again without news, by the monotonic clock
        self.due_at = math.inf  # when a task becomes due
        self.retry_at = 0.0  # while cut off: when to try again
        self.listen_at = 0.0  # while not listening: when to try again
        self.reconcile_at = 0.0
        self.busy_since: float | None = None  # the heart stops when this lies far back

    def run(self, deadline: Callable[[], float | None]) -> bool:
        """Work until stopped (or, with ``until_empty``, until nothing is due). Returns False when ``deadline`` came first.

        Raises WorkerStartError when processes cannot run tasks, DatabaseGaveUp when the database stays away.
        """
        self._listen()
        while not self._done():
            limit = deadline()
            now = time.monotonic()
            if limit is not None and now >= limit:
                return False
            self.turn(self._patience(now, limit))
        return True

    def turn(self, patience: float) -> None:
        """Wait for news, at most ``patience`` seconds, and act on them: one turn of the loop."""
        self.busy_since = None
        events = self.selector.select(patience)
        self.busy_since = time.monotonic()
        self._act(events)
        self._gather()
        self._collect()
        if self.pool.ready:
            self._announce("Worker started")
        if self.stopping:
            self._announce("Stopping: nothing more is claimed, running tasks finish; a second signal ends them")
        now = self.busy_since
        if self.ledger.connection is None and now >= self.retry_at:
            self._reconnect()
        if self.listener.connection is None and now >= self.listen_at:
            self._listen()
        if self.ledger.connection is not None and self._wants_pass(now):
            self._pass(now)

    def _act(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _mask in events:
            action, *arguments = key.data
            action(*arguments)

    def _gather(self) -> None:
        """Give running sync tasks a moment to finish too, while there is more to claim and the moment pays off."""
        while self.pool.outcomes and "sync" in self.wet and self.pool.running("sync") and self.gathering.worthwhile():
            before = len(self.pool.outcomes)
            for _ in range(MOMENT):
                give_way()
                if events := self.selector.select(0):
                    self._act(events)
                    break
            paid_off = len(self.pool.outcomes) > before
            self.gathering.learn(paid_off)
            if not paid_off:
                return

    def _announce(self, line: str) -> None:
        """Log a line the first time it is true; a signal handler cannot log."""
        if line not in self.announced:
            self.announced.add(line)
            logger.info(line)

    def _done(self) -> bool:
        if self.stopping or (self.until_empty and not self.wet and self.pool.ready):
            return self.pool.idle and not self.ledger.owes
        return False

    def _patience(self, now: float, limit: float | None) -> float:
        """Return how long nothing can happen that would not wake the selector."""
        moments = [self.listen_at] if self.listener.connection is None else []
        if self.ledger.connection is None:
            moments.append(self.retry_at)
        else:
            moments += [self.poll_at, self.due_at]
            if self.ledger.outcomes or self.ledger.releases or any(self._slots().values()):
                moments.append(now)
            elif self.ledger.locked:
                moments.append(self.ledger.locked_until)
        if limit is not None:
            moments.append(limit)
        return max(0.0, min(min(moments) - now, self.poll_seconds))

    def _wants_pass(self, now: float) -> bool:
        if now >= self.poll_at or now >= self.due_at:
            self._wake()
        return self.ledger.due(now) or now >= self.reconcile_at or any(self._slots().values())

    def _slots(self) -> dict[str, int]:
        """Return how many tasks of each lane the next pass shall claim."""
        return {lane: self.pool.free(lane) if lane in self.wet and not self.stopping else 0 for lane in LANES}

    def _wake(self) -> None:
        """Something may be due in any lane."""
        self.wet = set(LANES)
        self.poll_at = time.monotonic() + self.poll_seconds * random.uniform(0.9, 1.1)
        self.due_at = math.inf

    def _collect(self) -> None:
        self.ledger.outcomes += self.pool.outcomes
        self.ledger.releases += self.pool.releases
        self.pool.outcomes, self.pool.releases = [], []

    def _pass(self, now: float) -> None:
        slots = self._slots()
        try:
            if now >= self.reconcile_at:
                self._reconcile(now)
            passed = self.ledger.run_pass(slots["sync"], slots["async"])
        except RETRYABLE as error:
            self._cut_off(error)
            return
        self.backoff.succeeded()
        self.pool.dispatch(passed.claims)
        for lane, asked in slots.items():
            if asked and not passed.expired and sum(claim.lane == lane for claim in passed.claims) < asked:
                self.wet.discard(lane)
        if passed.due_in is not None:
            self.due_at = min(self.due_at, time.monotonic() + passed.due_in + 0.001)

    def _reconcile(self, now: float) -> None:
        if lost := self.ledger.forgotten(self.pool.held()):
            logger.warning("%s task(s) were claimed and never arrived here: they are given back", lost)
        self.reconcile_at = now + RECONCILE_SECONDS

    def _cut_off(self, error: Exception) -> None:
        self.ledger.disconnect()
        if self.backoff.exhausted:
            raise DatabaseGaveUp(f"the database is gone and RESILIENCE allows no further try: {error}") from error
        wait = self.backoff.failed()
        self.retry_at = time.monotonic() + wait
        logger.warning("the database cannot be reached, next try in %.1f s: %s", wait, str(error).strip())

    def _reconnect(self) -> None:
        try:
            self.ledger.connect()
        except RETRYABLE as error:
            self._cut_off(error)
            return
        logger.info("the database is back")
        self.reconcile_at = 0.0
        self._wake()

    def _listen(self) -> None:
        try:
            self.listener.open()
        except RETRYABLE as error:
            wait = self.listener_backoff.failed()
            self.listen_at = time.monotonic() + wait
            logger.warning("LISTEN failed, polling until it works, next try in %.1f s: %s", wait, str(error).strip())
            return
        self.listener_backoff.succeeded()
        self.selector.register(self.listener.fileno(), selectors.EVENT_READ, (self._hear,))
        self._wake()  # what was sent before the LISTEN made no noise here

    def _hear(self) -> None:
        descriptor = self.listener.fileno()
        try:
            payloads = self.listener.payloads()
        except RETRYABLE as error:
            logger.warning("the LISTEN connection broke, polling until it is back: %s", str(error).strip())
            self.selector.unregister(descriptor)
            self.listener.close()
            self.listen_at = 0.0
            return
        served = set(self.ledger.served.queues)
        if any(payload.partition(" ")[2] in served for payload in payloads):
            self._wake()

    def stop(self, *arguments: Any) -> None:
        """Claim nothing more; the loop ends when the running tasks are settled."""
        self.stopping = True
