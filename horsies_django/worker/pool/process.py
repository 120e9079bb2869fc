"""The worker's view of a process of the pool: its channels, its slots and the tasks that it holds.

The run-ahead in soft mode: sync tasks dispatched ahead of a free slot, so that short tasks need no
round trip each.

A slot that runs a task for thirty microseconds and then waits a millisecond for the next one is
idle most of the time. So a worker with a prefetch buffer dispatches more tasks to a child than it
has threads; they are RUNNING already. Their number follows from the average duration of recent
tasks: they should finish within ``STANDING_SECONDS``. So longer tasks are never dispatched ahead,
and a worker that dies loses only a few milliseconds of work.

Three rules limit the disadvantages. A run-ahead that does not move for ``STUCK_SECONDS`` is called
back, and its tasks go to any free slot. If a cap leaves tasks waiting, no task is dispatched ahead,
because each of them holds a permit. If only the child dies, the tasks of its run-ahead are
returned, because they have not begun.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, MutableSequence
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from typing import Any
from uuid import uuid4

from horsies_django.core.errors import OperationalErrorCode, OutcomeCode
from horsies_django.core.queues import LANES
from horsies_django.core.records import Claim, Outcome, Reply
from horsies_django.tasks import registry
from horsies_django.worker.child import main
from horsies_django.worker.child.interrupts import CALL_BACK, CANCEL, TIMEOUT
from horsies_django.worker.child.run_task import STOPPED_ITSELF, TIMED_OUT, cancelled, failed
from horsies_django.worker.ipc import Channel, wait_readable
from horsies_django.worker.pool.launch import ForkedProcess, Forker, start_interpreter
from horsies_django.worker.pool.messages import OddMessage
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import LAST_RESORT_SECONDS, end_hanging

STANDING_SECONDS = 0.01
STUCK_SECONDS = 0.05
LARGE = 65_536  # characters of arguments: the worker does not keep them once they are sent
# Why children end: replaced after a number of tasks, for its memory, or for what a task did to its
# state; killed because a task did not stop after its timeout or when it was cancelled; killed by
# anything else; or it ended by itself.
END_REASONS = ("tasks", "memory", "state", TIMEOUT, CANCEL, "killed", "exited")


class RunAhead:
    """Decides how many tasks may be dispatched ahead per slot; ``prefetch`` limits their total, 0
    allows none.
    """

    def __init__(self, prefetch: int = 0, slots: int = 1) -> None:
        self.most = prefetch // slots
        self.limited = False  # whether a cap left tasks waiting
        self.average: float | None = None  # seconds that recent tasks ran

    def learn(self, seconds: float) -> None:
        """Record how long a task ran, in seconds."""
        before = seconds if self.average is None else self.average
        self.average = before + 0.02 * (seconds - before)  # a moving average

    @property
    def depth(self) -> int:
        """How many tasks may be dispatched ahead per slot now."""
        if not self.most or self.limited or self.average is None:
            return 0
        return min(self.most, int(STANDING_SECONDS / max(self.average, 1e-6)))


class PoolProcess:
    """A process of the pool: a child, or the worker itself."""

    pid: int
    started: MutableSequence[int]

    def __init__(self, options: WorkerOptions) -> None:
        self.id = uuid4()
        self.ready = False
        self.ready_at = math.inf  # by the monotonic clock
        self.dismissed = False  # told to end, so its end is expected
        self.full_mb: float | None = None  # its memory when it reached the limit
        self.distrusted = False  # it has sent what children do not send
        self.retired_for = ""  # why it was replaced: a successor has been started already

        self.slots = {"sync": options.threads, "async": options.async_concurrency}
        self.held: dict[str, dict[int, Claim]] = {lane: {} for lane in LANES}
        # when each was dispatched
        self.since: dict[str, dict[int, float]] = {lane: {} for lane in LANES}
        self.numbers = dict.fromkeys(LANES, 0)

        self.run_ahead = RunAhead()
        self.channels: dict[str, Channel] = {}  # to its lanes
        self.owner = ""  # the worker that holds the claims, as its id
        self.moved_at = 0.0  # when a sync task last finished, or was dispatched to an idle lane
        # the run-ahead was called back since then: dispatch no more ahead until it moves
        self.stuck = False

        self.lifetime = math.inf  # how many tasks it may take in all
        self.taken = 0
        # the tasks because of which it is killed, and why
        self.condemned: dict[tuple[str, int], str] = {}

    def connect(self) -> list[socket.socket]:
        """Open the channels to the process, and return its ends: one for each lane, and that for
        control.
        """
        pairs: list[tuple[socket.socket, socket.socket]] = []
        with ExitStack() as failing:
            for _ in (*LANES, "control"):
                pairs.append(socket.socketpair())
                for end in pairs[-1]:
                    failing.enter_context(end)
            failing.pop_all()

        *lanes, self.control = (Channel(ours) for ours, _ in pairs)
        self.channels = dict(zip(LANES, lanes, strict=True))
        return [theirs for _, theirs in pairs]

    def free(self, lane: str) -> int:
        """Return how many more tasks of ``lane`` this process can take now."""
        if not self.ready or self.dismissed or (self.channels and self.channels[lane].congested):
            return 0

        room = self.slots[lane]
        if lane == "sync" and not self.stuck:
            room += self.run_ahead.depth * room
        return int(max(0, min(room - len(self.held[lane]), self.lifetime - self.taken)))

    @property
    def has_run_ahead(self) -> bool:
        """Whether there is a run-ahead: more sync tasks than slots."""
        return len(self.held["sync"]) > self.slots["sync"]

    @property
    def stuck_at(self) -> float:
        """When the run-ahead counts as stuck, by the monotonic clock; infinite if there is none."""
        return self.moved_at + STUCK_SECONDS if self.has_run_ahead and not self.stuck else math.inf

    def is_ahead(self, lane: str, number: int) -> bool:
        """Whether a task is in the run-ahead: dispatched, but not begun."""
        return lane == "sync" and self.has_run_ahead and not self.begun(lane, number)

    def begun(self, lane: str, number: int) -> bool:
        return number <= self.started[LANES.index(lane)]

    def call_back(self) -> None:
        """Ask the process to return its run-ahead."""
        self.stuck = True
        self.control.send((CALL_BACK, "sync", 0))

    def claims(self) -> list[Claim]:
        """Return the claims that this process holds. Thread-safe."""
        return [claim for lane in LANES for claim in self.held[lane].copy().values()]

    def dispatch(self, lane: str, claims: Iterable[Claim]) -> bool:
        """Send claims to the process; return whether they are sent completely."""
        jobs = []
        now = time.monotonic()
        if not self.held["sync"]:
            self.moved_at = now

        held = self.held[lane]
        since = self.since[lane]
        for number, claim in enumerate(claims, self.numbers[lane] + 1):
            held[number] = claim if len(claim.kwargs) < LARGE else claim._replace(kwargs="")
            since[number] = now
            jobs.append((number, claim.packed(), self.owner))

        self.numbers[lane] += len(jobs)
        self.taken += len(jobs)
        self.channels[lane].send(jobs)
        return self.channels[lane].flush()

    def outcome(
        self, lane: str, number: int, sent: str | tuple[Any, ...], seconds: float
    ) -> Outcome:
        """Remove a finished task and return its outcome, from the reply as it was sent."""
        return Outcome.of(
            self.take_off(lane, number), Reply.unpacked(sent), self.pid, seconds=seconds
        )

    def ran(self, number: int, sent: str | tuple[Any, ...], seconds: float) -> Outcome:
        """Do the same for a task of the sync lane, which moves the run-ahead."""
        self.run_ahead.learn(seconds)
        self.moved_at = time.monotonic()
        self.stuck = False
        return self.outcome("sync", number, sent, seconds)

    def take_off(self, lane: str, number: int) -> Claim:
        """Remove a task that the process holds, and return it.

        Raises OddMessage if it holds no such task.
        """
        if number not in self.held[lane]:
            raise OddMessage(f"it names the task number {number}, which it does not hold")
        del self.since[lane][number]
        return self.held[lane].pop(number)

    def leftovers(self, how: str) -> tuple[list[Outcome], list[Claim]]:
        """Remove all tasks of a process that ended: those whose code may have begun crashed, the
        others are returned.
        """
        outcomes = []
        releases = []
        now = time.monotonic()

        crash = failed(
            OperationalErrorCode.WORKER_CRASHED,
            f"the process that ran the task {how}; the task may or may not have done its work",
        )

        for lane in LANES:
            for number, claim in self.held[lane].items():
                ran = now - self.since[lane][number]
                if reason := self.condemned.get((lane, number)):
                    outcomes.append(Outcome.of(claim, killed_for(reason), self.pid, seconds=ran))
                elif self.begun(lane, number):
                    outcomes.append(Outcome.of(claim, crash, self.pid, crashed=True, seconds=ran))
                else:
                    releases.append(claim)

            self.held[lane].clear()
            self.since[lane].clear()

        return outcomes, releases

    def end_lanes(self) -> None:
        """Tell the process to end once its running tasks are done."""
        for lane in LANES:
            self.channels[lane].send(None)

    def end(self, seconds: float) -> None:
        """Wait some seconds until the process has ended, at most."""

    def kill(self) -> None:
        """End the process at once, if it is one of its own."""

    def tell(self, reason: str, lane: str, number: int) -> None:
        """Ask a running task to stop, with the reason."""
        self.control.send((reason, lane, number))

    def close(self) -> None:
        for channel in (*self.channels.values(), self.control):
            channel.close()


class Child(PoolProcess):
    """A child process, forked by the fork server or started as a fresh interpreter; ``lifetime``:
    how many tasks it may take.

    Raises OSError if the system has no room for it.
    """

    def __init__(
        self, options: WorkerOptions, forker: Forker | None, lifetime: float = math.inf
    ) -> None:
        super().__init__(options)
        self.lifetime = lifetime
        theirs = self.connect()

        try:
            self.process: Any = (
                spawned(options, theirs) if forker is None else ForkedProcess(forker, theirs)
            )
        except BaseException:
            super().close()
            raise
        finally:
            for end in theirs:
                end.close()

        self.pid = self.process.pid
        self.started = self.process.started
        self.death = self._watch()
        self.exit_code: int | None = None
        self.stalled = False  # killed because it did not become ready

    def _watch(self) -> int:
        """Return a descriptor that becomes readable when the child dies, even if another process
        holds its pipes open.
        """
        self.pidfd: int | None = None
        # not in every system or sandbox; or the child is dead already, so the sentinel is readable
        with suppress(AttributeError, OSError):
            self.pidfd = os.pidfd_open(self.pid)
        return self.process.sentinel if self.pidfd is None else self.pidfd

    def how_it_ended(self) -> str:
        """Return how the dead child ended: "exited with code 3", "was killed by SIGKILL"."""
        self.process.join()
        code = self.exit_code = self.process.exitcode

        if self.stalled:
            return "was killed, because it did not become ready"
        if self.distrusted:
            return "was killed, because it sent an odd message"

        if code is None:
            return (
                "ended with its fork server, which was killed (by the kernel, if the worker had "
                "been stopped)"
            )

        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    @property
    def end_reason(self) -> str:
        """Why the dead child ended, after ``how_it_ended``: one of ``END_REASONS``."""
        if self.condemned:
            return next(iter(self.condemned.values()))
        if self.exit_code == 0 and self.retired_for:
            return self.retired_for
        return "exited" if self.exit_code is not None and self.exit_code >= 0 else "killed"

    def was_killed(self, worker_started: bool) -> bool:
        """Whether the dead child or its fork server was killed from outside, so that the project is
        not the cause.

        A child killed while the worker starts may have run out of memory, so the project may be the
        cause.
        """
        return self.exit_code is None or (worker_started and self.exit_code == -signal.SIGKILL)

    def end(self, seconds: float) -> None:
        """Wait some seconds until the child has ended, then kill it."""
        if not wait_readable([self.death], seconds):
            self.kill()
            wait_readable([self.death], None)
        self.process.join()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        super().close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        self.process.close()


def spawned(options: WorkerOptions, sockets: list[socket.socket]) -> Any:
    """Start a fresh interpreter as a child."""
    context = get_context("spawn")
    started = context.RawArray("Q", len(LANES))
    arguments = (options, registry.other_modules(), *sockets, started, os.getpid())

    process: Any = context.Process(target=main.main, args=arguments, name="horsies-child")
    start_interpreter(process)
    process.started = started
    return process


class InProcess(PoolProcess):
    """The worker's own process, which runs tasks in threads: no isolation, no process to start."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        from horsies_django.worker.child import lifecycle, middleware
        from horsies_django.worker.child.executor import Executor

        self.pid = os.getpid()
        self.started = [0] * len(LANES)
        self.closed = False

        sync, async_, control = map(Channel, self.connect())
        self.answers = sync
        executor = Executor(sync, async_, control, options.threads, self.started, self._broke)

        def serve() -> None:
            try:
                middleware.load()
            except BaseException as error:
                self._broke(error)
                return

            lifecycle.started(self.pid)
            sync.send(("ready", ""))
            executor.run()
            lifecycle.stopping(self.pid)

        self.thread = threading.Thread(target=serve, name="horsies-executor", daemon=True)
        self.thread.start()

    def end(self, seconds: float) -> None:
        self.thread.join(seconds)

    def close(self) -> None:
        self.closed = True
        super().close()

    def _broke(self, error: BaseException) -> None:
        """Tell the engine, and end this process if that does not hear it: a task may have closed
        the sockets.
        """
        if not self.closed:
            self.answers.send(("failed", repr(error)))
            timer = threading.Timer(
                LAST_RESORT_SECONDS, lambda: None if self.closed else end_hanging()
            )
            timer.daemon = True
            timer.start()


def killed_for(reason: str) -> Reply:
    """Return the reply for a task because of which its process was killed."""
    how = "it did not end when told to, and was killed with its process"
    if reason == TIMEOUT:
        return failed(OutcomeCode.TASK_TIMEOUT, f"{TIMED_OUT}; {how}")
    return cancelled(f"{STOPPED_ITSELF}; {how}")
