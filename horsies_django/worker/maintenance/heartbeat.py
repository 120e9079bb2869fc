"""The heartbeat, which records every few seconds that this worker and its processes are alive.

It also renews the leases of prefetched tasks. No heartbeat is sent while the engine's loop is
stuck, because then no task is settled. Each heartbeat rearms the kill timer, which ends the
children of a stopped worker when its last heartbeat becomes too old. A stopped child is noticed
here, too, because the parent sends its heartbeats.

The reply to a heartbeat contains whether the worker is on duty: the three oldest workers with
recent heartbeats rescue the tasks of dead workers and advance overdue workflows. With a thousand
workers, rounds of all of them would load the database more than their tasks.

A worker that is cut off from the database cannot send heartbeats, and cannot distinguish an outage,
in which no worker is declared dead, from a network partition, in which its tasks are given to other
workers. With ON_CUT_OFF "wait" its tasks continue and the watchdog rearms the kill timer; with
"kill" they end before other workers may run them.

Snapshots are a history of the state of a worker and its children, with one row every half minute or
so.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import psycopg

from horsies_django.core.repeats import Repeats
from horsies_django.store.base import error_text
from horsies_django.store.base import now as database_time
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import Load, Process, WorkerStore
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.limits.kill_timer import KillTimer
from horsies_django.worker.limits.memory import PROCESS_ERRORS, memory_mb
from horsies_django.worker.maintenance.clock import ClockComparison
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.pool.timeouts import StuckWatch

logger = logging.getLogger("horsies.worker")

ENGINE_STUCK_SECONDS = 10.0
QUIET_START_SECONDS = (
    10.0  # children that are not ready are not written for this time after the start
)


class Snapshots:
    """The snapshots of a worker; ``tick`` is called with every heartbeat and writes a due one."""

    def __init__(self, worker: uuid.UUID, pid: int, interval_seconds: float) -> None:
        self.worker = worker
        self.pid = pid
        self.interval_seconds = interval_seconds

        self.due_at = 0.0
        self.repeats = Repeats()
        self.measured_at: float | None = None
        self.consumed: dict[int, float] = {}  # CPU seconds by process, at the last snapshot

    def tick(
        self,
        connection: Any,
        children: Sequence[Process],
        memories: Sequence[float],
        load: Load,
        buffered: int,
    ) -> None:
        """Write a snapshot if one is due.

        ``memories`` are those of the children, in MB. A failure is only logged and recorded, but
        psycopg.Error is raised if the connection is lost.
        """
        now = time.monotonic()
        if now < self.due_at:
            return

        self.due_at = now + self.interval_seconds
        cpu_percent = self.cpu_percent(now, [self.pid, *(child.pid for child in children)])
        store = WorkerStore(connection)

        try:
            by_id = {child.id: memory for child, memory in zip(children, memories, strict=True)}
            store.snapshot(self.worker, load, by_id, buffered=buffered, cpu_percent=cpu_percent)
        except psycopg.Error as error:
            if connection.closed:
                raise

            if (more := self.repeats.due("snapshot", now)) is not None:
                logger.error("could not record the worker's state: %s%s", error_text(error), more)
            store.lose_snapshot(self.worker, error_text(error))

    def cpu_percent(self, now: float, pids: Iterable[int]) -> float | None:
        """Return the CPU usage of the processes since the last snapshot, in percent of one CPU.

        Return None for the first snapshot. A child that started in between counts in full; a child
        that ended does not count.
        """
        before = self.consumed
        since = self.measured_at
        self.consumed = {pid: cpu_seconds(pid) for pid in pids}
        self.measured_at = now

        if since is None or now <= since:
            return None

        used = sum(
            max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in self.consumed.items()
        )
        return round(100 * used / (now - since), 1)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in seconds that a process has used, or 0 if it cannot be read."""
    try:
        times = psutil.Process(pid).cpu_times()
    except PROCESS_ERRORS:
        return 0.0
    return float(times.user + times.system)


@dataclass(eq=False)
class HeartbeatSender:
    """The sender of heartbeats; ``tick`` sends one."""

    worker: uuid.UUID
    pid: int
    engine: Engine
    interval_seconds: float
    kill_timer: KillTimer
    watch: StuckWatch
    snapshot_seconds: float

    def __post_init__(self) -> None:
        self.fresh = timedelta(seconds=2 * self.interval_seconds)
        # the children and numbers of running tasks that were written last
        self.written: tuple[list[Process], int, int] | None = None
        # when the first heartbeat was sent, by the monotonic clock
        self.started_at: float | None = None
        # whether this worker rescues tasks and advances workflows, by its last heartbeat
        self.on_duty = False

        self.snapshots = Snapshots(self.worker, self.pid, self.snapshot_seconds)
        self.stopping_recorded = False

        self.clock = ClockComparison(self.interval_seconds / 2)
        # since when all heartbeats were written in time, by the monotonic clock
        self.unbroken_since = math.inf
        self.written_at = -math.inf  # when the last one was written, by the monotonic clock

    def tick(self, connection: Any) -> bool:
        """Send one heartbeat; return whether it was written.

        It is not sent while the engine is stuck, and not written if the worker was declared dead.
        Raises psycopg.Error.
        """
        now = time.monotonic()
        status = self.engine.status
        if status.busy_since is not None and now - status.busy_since > ENGINE_STUCK_SECONDS:
            logger.error(
                "the engine has been stuck for %.0f s; sending no heartbeat",
                now - status.busy_since,
            )
            return False

        self.watch.check(status.members, now)
        children = pool_children(status.members)
        memories = [memory_mb(child.pid) for child in children]
        load = Load(status.running_sync, status.running_async, memory_mb(self.pid), sum(memories))
        state = (children, load.running_sync, load.running_async)

        self.started_at = self.started_at or now
        starting = not status.started and now < self.started_at + QUIET_START_SECONDS
        changed = not starting and (state != self.written or now >= self.snapshots.due_at)

        beaten = WorkerStore(connection).beat(
            self.worker, children if changed else None, load, self.fresh, listens=status.listens
        )
        self.on_duty = beaten.on_duty
        if changed:
            self.written = state

        if not beaten.alive:
            self.engine.disown()
            return False

        self.engine.elect(beaten.place if status.listens else 0)
        if status.prefetched:
            TaskStore(connection).renew(
                self.worker, status.prefetched, self.engine.capacity.lease or timedelta()
            )

        self.kill_timer.rearm(now)
        # no other worker can declare this one dead until then
        self.engine.trust(now + self.kill_timer.seconds)
        self.note_written(connection, now)

        # after each heartbeat, because an outage may be shorter than the time between two of them
        self.engine.outage.hasten()
        self.snapshots.tick(connection, children, memories, load, len(status.prefetched))
        return True

    def note_written(self, connection: Any, now: float) -> None:
        """Record that a heartbeat was written now, and set ``unbroken_since`` after a gap.

        A jump of the database's clock counts as a gap, because it makes the heartbeats of all
        workers old. Raises psycopg.Error.
        """
        if now - self.written_at > self.fresh.total_seconds():
            self.unbroken_since = now
        self.written_at = now

        sent = time.monotonic()
        moment = database_time(connection).timestamp()
        received = time.monotonic()
        if jump := self.clock.jump(moment, sent, received):
            self.unbroken_since = received
            logger.warning(
                "the database's clock jumped by %+.1f s compared with the monotonic clock of this "
                "machine, which stops while the machine is suspended. This worker declares no "
                "other worker dead until all workers have had time to send heartbeats",
                jump,
            )

    @property
    def must_record_stopping(self) -> bool:
        """True if the worker is stopping, and that is not recorded yet."""
        return self.engine.stopping and not self.stopping_recorded

    def record_stopping(self, connection: Any) -> None:
        """Record that the worker takes no more tasks, so that it does not count as living.

        Raises psycopg.Error.
        """
        WorkerStore(connection).begin_stop(self.worker)
        self.stopping_recorded = True

    def reconnected(self) -> None:
        """Record a gap in the heartbeats, and discard the last reading of the database's clock.

        The server was away or is another one, so no worker could send heartbeats.
        """
        self.written_at = -math.inf
        self.clock.forget()

    def unbroken_for(self, seconds: float) -> bool:
        """Return whether heartbeats were written in time for the last ``seconds``.

        Only then may this worker declare others dead.
        """
        now = time.monotonic()
        return (
            now - self.written_at <= self.fresh.total_seconds()
            and now - self.unbroken_since >= seconds
        )


def pool_children(members: Iterable[PoolProcess]) -> list[Process]:
    """Return the children among the processes of a pool, with up to 100 of their tasks each."""
    return [
        Process(
            member.id,
            member.pid,
            [claim.id for claim in member.claims()[:100]] if member.ready else None,
        )
        for member in members
        if isinstance(member, Child)
    ]
