"""The engine: one thread that waits for wakeups, runs the pass, and hands the claims to the pool.

A finished task, a dead process, a NOTIFY, a due task or the poll wakes it. Then it makes one round
trip to the database, always the same: it settles finished tasks and claims tasks for the free
slots. While a pass runs, further outcomes collect for the next one, so batches form under load.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.notifications import Stalled
from horsies_django.core.queues import LANES
from horsies_django.core.records import Claim
from horsies_django.store.notify import Listener
from horsies_django.worker.engine.capacity import Capacity, Prefetched
from horsies_django.worker.engine.comparison import Comparison
from horsies_django.worker.engine.listener import NotificationListener
from horsies_django.worker.engine.outage import Outage, WorkerDisowned
from horsies_django.worker.engine.outbox import LOCKED_RETRY_SECONDS, Outbox
from horsies_django.worker.engine.pass_runner import PassRunner
from horsies_django.worker.engine.scan_cursors import spacing
from horsies_django.worker.engine.stalled_partitions import StalledPartitions
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.process import PoolProcess
from horsies_django.workflows.advancer import Advancer, Handed

logger = logging.getLogger("horsies.worker")

STARTED_MESSAGE = "Worker started"  # logged once all processes were ready


class EngineStatus(NamedTuple):
    """The state of the engine for other threads.

    The engine publishes it once a turn and when the connection changes. ``busy_since`` is the time
    when the current turn began, by the monotonic clock, or None while the engine waits.
    ``connection`` is None while the database is not available. ``failing`` is True if the last
    statement failed, ``started`` if all processes were ready once. ``prefetched`` tasks are claimed
    and wait for a slot. ``listens`` is True if notifications arrive, so that the worker may be
    elected to be notified of new tasks.
    """

    busy_since: float | None = None
    connection: Any = None
    failing: bool = False
    started: bool = False
    stopping: bool = False
    members: tuple[PoolProcess, ...] = ()
    running_sync: int = 0
    running_async: int = 0
    prefetched: tuple[Claim, ...] = ()
    listens: bool = False


@dataclass(eq=False)
class Engine:
    """The main loop of a worker, which runs until ``stopping`` is set and its tasks are done."""

    pool: Pool
    outbox: Outbox
    listener: InitVar[Listener]
    resilience: InitVar[Resilience]
    selector: selectors.BaseSelector
    capacity: Capacity
    advancer: Advancer
    unknown_tasks: InitVar[UnknownTasks]

    def __post_init__(
        self, listener: Listener, resilience: Resilience, unknown_tasks: UnknownTasks
    ) -> None:
        self.prefetched = Prefetched()
        self.poll_seconds = resilience.notify_poll_interval_ms / 1000

        self.passes = PassRunner(
            self.outbox, self.outbox.served.queues, self.poll_seconds, unknown_tasks
        )
        self.comparison = Comparison(
            self.outbox, self.pool, self.prefetched, self.advancer.note_finished
        )
        self.wakeups = self.passes.wakeups
        self.cursors = self.passes.cursors
        self.stalled = StalledPartitions()

        handlers = {
            **self.cursors.handlers(),
            **self.wakeups.handlers(),
            "cancel": self.comparison.soon,
        }
        self.notifications = NotificationListener(
            listener,
            self.selector,
            resilience,
            handlers,
            self.passes.start_over,
            self.advancer.note_signal,
            self._add_stalled,
        )

        self.outage = Outage(resilience)
        self.stopping = False
        self.disowned = False
        # no task is claimed after this time, because others may have declared this worker dead
        self.trusted_until = math.inf
        self.until_empty = False

        # other threads wake the selector through it
        self.waker, self.woken = socket.socketpair()
        self.woken.setblocking(False)
        self.selector.register(self.woken, selectors.EVENT_READ, (self.woken.recv, 100))

        self.announced: set[str] = set()
        self.start_at = 0.0  # when to try again to start tasks whose rows were locked
        self.leases_at = 0.0  # when to check for claims of any worker whose lease ended
        self.status = EngineStatus()  # what other threads may read

    def run(self, deadline: Callable[[], float | None]) -> bool:
        """Work until the worker is stopped, or with ``until_empty``, until no task is due.

        Return False if the time that ``deadline`` returns, by the monotonic clock, is over before
        that. Raises WorkerStartError if processes cannot run tasks, DatabaseGaveUp if the database
        stays unavailable, WorkerDisowned if another worker declared this one dead, and ClaimsLost
        if the database has lost claims of this worker.
        """
        self.notifications.listen()

        while not self._done():
            if self.disowned:
                raise WorkerDisowned(
                    f"worker {self.outbox.worker} was declared dead: no heartbeat for too long"
                )

            now = time.monotonic()
            limit = deadline()
            if limit is not None and now >= limit:
                return False
            self.turn(self._longest_wait(now, limit))

        self.outbox.task_log.close()
        return True

    def turn(self, longest_wait: float) -> None:
        """Run one turn of the loop: wait for a wakeup and handle it.

        It waits at most ``longest_wait`` seconds.
        """
        self.publish()
        events = self.selector.select(longest_wait)
        now = time.monotonic()
        self.status = self.status._replace(busy_since=now)

        for key, _mask in events:
            action, *arguments = key.data
            action(*arguments)

        self.pool.timeouts.enforce(now)
        self.pool.call_back(now)
        if now >= self.pool.starts.next_at:
            self.pool.tend(now)
        self._collect()

        if self.pool.ready:
            self._announce(STARTED_MESSAGE)
        if self.stopping:
            self._announce(
                "Stopping: no more tasks are claimed, running tasks finish; a second signal ends "
                "them"
            )
        self.outbox.task_log.tick(now)

        if now >= self.outage.kill_at(self.trusted_until):
            self.outage.end_tasks(self.pool)
        if self.outbox.connection is None and now >= self.outage.retry_at:
            self._reconnect()

        self.notifications.listen_to_all(self.wakeups.place is not None or self.cursors.worthwhile)
        self.notifications.tick(now, self.outbox.connection, self.outbox.channel)

        if (
            self.outbox.connection is not None
            and self._wants_pass(now)
            and now >= self.passes.not_before
        ):
            self._pass(now)

        if self.outbox.connection is not None:
            try:
                self._after_pass(time.monotonic())
            except psycopg.Error as error:
                self._cut_off(error)

    def publish(self) -> None:
        """Publish the state of the engine for other threads, before the engine waits."""
        self.status = EngineStatus(
            None,
            self.outbox.connection,
            bool(self.outage.backoff.failures),
            STARTED_MESSAGE in self.announced,
            self.stopping,
            tuple(self.pool.members),
            self.pool.running("sync"),
            self.pool.running("async"),
            tuple(self.prefetched.values()),
            self.notifications.healthy and not self.stopping and not self.until_empty,
        )

    def _announce(self, line: str) -> None:
        """Log a line once.

        Signal handlers cannot log, so the loop logs for them.
        """
        if line not in self.announced:
            self.announced.add(line)
            logger.info(line)

    def _done(self) -> bool:
        if self.stopping or (
            self.until_empty
            and not self.wakeups.lanes_with_work
            and not self.wakeups.limited
            and not self.stalled.left
            and self.pool.ready
        ):
            return not self.has_unfinished_work
        return False

    @property
    def has_unfinished_work(self) -> bool:
        """True if this worker holds running or unwritten tasks, or has workflows to advance."""
        # other workers advance the workflows of a worker that stops
        advancing = bool(self.advancer.pending_runs) and not self.stopping
        return (
            not self.pool.idle
            or self.outbox.has_unwritten_entries
            or bool(self.prefetched)
            or advancing
        )

    def _longest_wait(self, now: float, limit: float | None) -> float:
        """Return for how many seconds the selector may wait."""
        connected = self.outbox.connection is not None
        moments = [
            self.notifications.next_try(connected=connected),
            self.pool.timeouts.next,
            self.pool.stuck_at,
        ]
        moments.append(self.pool.starts.next_at)
        moments += [self.outbox.task_log.summary_at, math.inf if limit is None else limit]

        if not connected:
            # another thread may set ``retry_at`` to an earlier time
            moments += [self.outage.retry_at, now + 1.0]
        else:
            moments += [self.wakeups.next_at, self.advancer.next_at, self.stalled.at]
            if self.prefetched and self.start_at > now:
                moments.append(self.start_at)
            if (
                self.outbox.outcomes
                or self.outbox.releases
                or self.comparison.at <= now
                or self.can_claim()
            ):
                moments.append(self.passes.not_before)
            elif self.outbox.locked:
                moments.append(self.outbox.locked_until)

        if not self.pool.idle:
            moments.append(max(now + 0.1, self.outage.kill_at(self.trusted_until)))

        return max(0.0, min(min(moments) - now, self.poll_seconds))

    def _wants_pass(self, now: float) -> bool:
        self.wakeups.tick(now)
        return self.outbox.due(now) or now >= self.comparison.at or self.can_claim()

    def can_claim(self) -> bool:
        """Return whether a pass could start or claim something."""
        return bool(self._starts()) or any(self._slots().values())

    def _starts(self) -> list[Claim]:
        """Return the prefetched claims that the free slots could take."""
        now = time.monotonic()
        if self.stopping or not self.prefetched or now < self.start_at or not self._may_take(now):
            return []
        return self.prefetched.first({lane: self.pool.free(lane) for lane in LANES})

    def _slots(self) -> dict[str, int]:
        """Return how many slots of each lane the next pass should fill.

        These are all free slots of the lanes that may have tasks, and none of the other lanes.
        """
        if self.stopping or not self._may_take(time.monotonic()):
            return dict.fromkeys(LANES, 0)

        lanes = (
            set(LANES)
            if self.wakeups.limited and self.outbox.outcomes
            else self.wakeups.lanes_with_work
        )
        return {lane: self.pool.free(lane) if lane in lanes else 0 for lane in LANES}

    def _may_take(self, now: float) -> bool:
        return now <= self.trusted_until and not self.outbox.overfull

    def _collect(self) -> None:
        self.outbox.outcomes += self.pool.outcomes
        if queues := {outcome.queue_name for outcome in self.pool.outcomes if outcome.in_run}:
            # the pass that settles these tasks may send the next tasks of their workflows
            self.wakeups.follow(queues)

        self.outbox.releases += self.pool.releases
        self.pool.outcomes = []
        self.pool.releases = []
        self.outbox.check_bound()

        if self.stopping:
            self.outbox.releases += self.prefetched.take(list(self.prefetched))

    def _pass(self, now: float) -> None:
        starts = self._starts()
        slots = self._slots()
        free = dict(slots)
        for claim in starts:
            free[claim.lane] = max(0, free[claim.lane] - 1)

        standing = max(0, self.pool.running("sync") - self.pool.options.sync_slots)
        wanted = self.capacity.wanted(
            free,
            standing=standing,
            ahead=self.pool.ahead,
            prefetched=len(self.prefetched),
            starting=len(starts),
            full=self.prefetched.full,
        )

        leases = now >= self.leases_at
        # whether all outcomes of workflow tasks are those of completed elements of maps
        elements = not any(outcome.in_run or outcome.error_code for outcome in self.outbox.outcomes)

        try:
            if now >= self.comparison.at:
                self.comparison.run(now)
            passed = self.passes.run(
                wanted,
                slots,
                starts,
                expired_leases=leases,
                notified=self.notifications.receives_all,
            )
        except psycopg.Error as error:
            self._cut_off(error)
            return

        self.outage.over()
        if leases:
            # in soft mode, each second
            self.leases_at = now + spacing(
                1.0 if self.capacity.lease else self.poll_seconds, time.monotonic() - now
            )

        if passed.dead:
            self.disown()

        self.prefetched.take(passed.returned)
        self.outbox.expired(self.prefetched.take(passed.expired))
        self.pool.dispatch(
            self.outbox.started(self.prefetched.take(passed.started) + passed.claims)
        )

        if any(claim.id in self.prefetched for claim in starts):
            self.start_at = now + LOCKED_RETRY_SECONDS
        self.prefetched.update((claim.id, claim) for claim in passed.prefetched)

        self.pool.run_ahead.limited = self.wakeups.limited
        self.advancer.note_finished(passed.in_runs, gather=elements and not self.pool.idle)

    def _after_pass(self, now: float) -> None:
        """Advance workflows whose tasks were settled, and wake workers for tasks without a slot.

        It also checks queues again after notifications, and tries again to unpark the partitions
        that a lock stalled. Raises psycopg.Error.
        """
        if now >= self.advancer.next_at:
            sent = self.advancer.turn(
                self.advancer.store(self.outbox.connection_or_raise(), self.outbox.channel)
            )
            if sent and (
                self.until_empty or self.wakeups.place != 0 or not self.notifications.healthy
            ):
                self.wakeups.check_everywhere()

        taking = not self.stopping and self._may_take(now)
        self.passes.follow_up(now, lambda lane: self.pool.free(lane) if taking else 0)

        if stalled := self.stalled.take():
            self.outbox.store.unpark_stalled(
                stalled, self.outbox.served.queues, self.outbox.channel
            )

    def _add_stalled(self, partition: Stalled) -> None:
        """Unpark a stalled partition later, if this worker is the first of the elected."""
        if self.wakeups.place == 0 and not self.stopping:
            self.stalled.add(partition)

    def _cut_off(self, error: psycopg.Error) -> None:
        self.outbox.disconnect()
        self.status = self.status._replace(connection=None)
        self.outage.begin(error, self.outbox.unwritten)

    def _reconnect(self) -> None:
        try:
            self.outbox.connect()
        except psycopg.Error as error:
            self._cut_off(error)
            return

        # the watchdog reads it from the status
        self.status = self.status._replace(connection=self.outbox.connection)
        logger.info("the database is available again")
        self.notifications.next_at = 0.0
        self.comparison.reconnected()
        self.passes.start_over()

    def trust(self, until: float) -> None:
        """Claim no task after ``until``, by the monotonic clock; may be called from any thread.

        Others may declare this worker dead after that time.
        """
        self.trusted_until = until

    def elect(self, place: int | None) -> None:
        """Set the place among the elected, None for none; may be called from any thread."""
        if place != self.wakeups.place:
            self.wakeups.place = place
            self.waker.send(b".")

    def take_over(self, run: Handed) -> None:
        """Advance a run that another thread hands over; may be called from any thread.

        It takes too long for the connection of that thread.
        """
        self.advancer.handed.append(run)
        self.waker.send(b".")

    def disown(self) -> None:
        """Record that another worker declared this one dead; may be called from any thread."""
        self.disowned = True
        self.waker.send(b".")

    def close(self) -> None:
        """Close what the engine opened, and log the last counts if it did not run to its end."""
        self.outbox.task_log.close()
        self.notifications.close()
        self.waker.close()
        self.woken.close()

    def stop(self, *arguments: Any) -> None:
        """Stop claiming tasks; the loop ends when the running tasks are settled."""
        self.stopping = self.pool.stopping = True
