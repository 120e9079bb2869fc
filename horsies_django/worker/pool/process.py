"""The worker's side of a process of the pool: its channels, its slots and the tasks that it holds.

In soft mode, a process also has a run-ahead: sync tasks that are dispatched ahead of a free slot,
so that short tasks need no round trip each.

A slot that runs a task for thirty microseconds and then waits a millisecond for the next one is
idle most of the time. So a worker with a prefetch buffer dispatches more tasks to a child than the
child has threads. These tasks are RUNNING already. Their number follows from the average duration
of recent tasks: they should finish within ``STANDING_SECONDS``. So longer tasks are never
dispatched ahead, and a worker that dies loses only a few milliseconds of work.

Three rules limit the disadvantages. A run-ahead that does not move for
``RUN_AHEAD_STUCK_SECONDS`` is called back, and its tasks go to any free slot. If tasks wait because
of a cap, no task is dispatched ahead, because each of them holds a permit. If only the child dies,
the tasks of its run-ahead are returned, because they have not begun.
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
from horsies_django.core.records import Claim, Outcome, Reply, packed_claim
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
RUN_AHEAD_STUCK_SECONDS = 0.05
LARGE = 65_536  # the worker does not keep arguments of so many characters once they are sent
# Why a child ended. It was replaced after a number of tasks, because of its memory, or because a
# task changed its state; it was killed because a task did not stop after its timeout or a cancel;
# it was killed for another reason; or it ended by itself.
END_REASONS = ("tasks", "memory", "state", TIMEOUT, CANCEL, "killed", "exited")


class RunAhead:
    """The number of tasks that may be dispatched ahead per slot.

    ``prefetch`` limits their total; 0 allows none.
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
        """The number of tasks that may be dispatched ahead per slot now."""
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
        self.dismissed = False  # takes no more tasks, and its end is expected
        self.full_mb: float | None = None  # its memory when it reached the limit
        self.distrusted = False  # it has sent an odd message
        self.retired_for = ""  # why it is replaced, if its successor was started already

        self.slots = {"sync": options.threads, "async": options.async_concurrency}
        self.held: dict[str, dict[int, Claim]] = {lane: {} for lane in LANES}
        # when each task was dispatched, by the monotonic clock
        self.since: dict[str, dict[int, float]] = {lane: {} for lane in LANES}
        self.numbers = dict.fromkeys(LANES, 0)

        self.run_ahead = RunAhead()
        self.channels: dict[str, Channel] = {}  # to its lanes
        self.owner = ""  # the id of the worker that holds the claims
        self.moved_at = 0.0  # when a sync task last finished, or was dispatched to an idle lane
        # whether the run-ahead was called back since then, so that no task is dispatched ahead
        self.stuck = False

        self.lifetime = math.inf  # how many tasks it may take in all
        self.taken = 0
        # the tasks that are the cause of its kill -> the reason
        self.condemned: dict[tuple[str, int], str] = {}

    def connect(self) -> list[socket.socket]:
        """Open the channels to the process, and return its ends: of each lane, and of control."""
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
        """True if there is a run-ahead, so if the process holds more sync tasks than slots."""
        return len(self.held["sync"]) > self.slots["sync"]

    @property
    def stuck_at(self) -> float:
        """When the run-ahead counts as stuck, by the monotonic clock; infinite if there is none."""
        return (
            self.moved_at + RUN_AHEAD_STUCK_SECONDS
            if self.has_run_ahead and not self.stuck
            else math.inf
        )

    def is_ahead(self, lane: str, number: int) -> bool:
        """Return whether a task is in the run-ahead: dispatched, but not begun."""
        return lane == "sync" and self.has_run_ahead and not self.begun(lane, number)

    def begun(self, lane: str, number: int) -> bool:
        return number <= self.started[LANES.index(lane)]

    def call_back(self) -> None:
        """Send the process the request to return its run-ahead."""
        self.stuck = True
        self.control.send((CALL_BACK, "sync", 0))

    def claims(self) -> list[Claim]:
        """Return the claims that this process holds; may be called from any thread."""
        return [claim for lane in LANES for claim in self.held[lane].copy().values()]

    def dispatch(self, lane: str, claims: Iterable[Claim]) -> bool:
        """Send claims to the process; return whether they were sent completely."""
        jobs = []
        now = time.monotonic()
        if not self.held["sync"]:
            self.moved_at = now

        held = self.held[lane]
        since = self.since[lane]
        for number, claim in enumerate(claims, self.numbers[lane] + 1):
            held[number] = claim if len(claim.kwargs) < LARGE else claim._replace(kwargs="")
            since[number] = now
            jobs.append((number, packed_claim(claim), self.owner))

        self.numbers[lane] += len(jobs)
        self.taken += len(jobs)
        self.channels[lane].send(jobs)
        return self.channels[lane].flush()

    def outcome(
        self, lane: str, number: int, sent: str | tuple[Any, ...], seconds: float
    ) -> Outcome:
        """Remove a finished task and return its outcome.

        ``sent`` is the packed reply, ``seconds`` the duration of the task. Raises OddMessage if the
        process holds no such task.
        """
        return Outcome.of(
            self.take_off(lane, number), Reply.unpacked(sent), self.pid, seconds=seconds
        )

    def ran(self, number: int, sent: str | tuple[Any, ...], seconds: float) -> Outcome:
        """Remove a finished task of the sync lane and return its outcome; the run-ahead moves on.

        Raises OddMessage if the process holds no such task.
        """
        self.run_ahead.learn(seconds)
        self.moved_at = time.monotonic()
        self.stuck = False
        return self.outcome("sync", number, sent, seconds)

    def take_off(self, lane: str, number: int) -> Claim:
        """Remove and return a task of the process.

        Raises OddMessage if the process holds no such task.
        """
        if number not in self.held[lane]:
            raise OddMessage(f"the process does not hold task number {number}")
        del self.since[lane][number]
        return self.held[lane].pop(number)

    def leftovers(self, end_text: str) -> tuple[list[Outcome], list[Claim]]:
        """Remove all tasks of a process that has ended, and return their outcomes and releases.

        Tasks whose code may have begun have crashed; the others are released. ``end_text``
        completes a sentence about the process, as in "was killed by SIGKILL".
        """
        outcomes = []
        releases = []
        now = time.monotonic()

        crash = failed(
            OperationalErrorCode.WORKER_CRASHED,
            f"the process that ran the task {end_text}; the task may or may not have done its work",
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
        """Send the process the message to end once its running tasks are done."""
        for lane in LANES:
            self.channels[lane].send(None)

    def end(self, seconds: float) -> None:
        """Wait until the process has ended, at most ``seconds``."""

    def kill(self) -> None:
        """End the process at once, unless it is the worker itself."""

    def request_stop(self, reason: str, lane: str, number: int) -> None:
        """Send a running task the request to stop, with the reason."""
        self.control.send((reason, lane, number))

    def close(self) -> None:
        for channel in (*self.channels.values(), self.control):
            channel.close()


class Child(PoolProcess):
    """A child process, forked by the fork server or started as a fresh interpreter.

    ``lifetime`` is the number of tasks that it may take. Raises OSError if the system has no room
    for another process.
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
        """Return a descriptor that becomes readable when the child dies.

        A pidfd does so even if another process holds the pipes of the child open.
        """
        self.pidfd: int | None = None
        # some systems and sandboxes have no pidfd; or the child has ended already, so that the
        # sentinel is readable
        with suppress(AttributeError, OSError):
            self.pidfd = os.pidfd_open(self.pid)
        return self.process.sentinel if self.pidfd is None else self.pidfd

    def describe_end(self) -> str:
        """Return how the dead child ended: "exited with code 3", "was killed by SIGKILL"."""
        self.process.join()
        code = self.exit_code = self.process.exitcode

        if self.stalled:
            return "was killed, because it did not become ready"
        if self.distrusted:
            return "was killed, because it sent an invalid message"

        if code is None:
            return (
                "ended with its fork server, which was killed (by the kill timer, if the worker "
                "had been suspended)"
            )

        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    @property
    def end_reason(self) -> str:
        """The reason of ``END_REASONS`` why the child ended; call ``describe_end`` first."""
        if self.condemned:
            return next(iter(self.condemned.values()))
        if self.exit_code == 0 and self.retired_for:
            return self.retired_for
        return "exited" if self.exit_code is not None and self.exit_code >= 0 else "killed"

    def was_killed(self, worker_started: bool) -> bool:
        """Return whether the child or its fork server was killed for no fault of the project.

        A child that is killed while the worker starts may have run out of memory. So the project
        may be the cause, and the result is False.
        """
        return self.exit_code is None or (worker_started and self.exit_code == -signal.SIGKILL)

    def end(self, seconds: float) -> None:
        """Wait until the child has ended; kill it if it has not ended after ``seconds``."""
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
    """The worker's own process, which runs tasks in threads, so without isolation."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        from horsies_django.worker.child import lifecycle, middleware
        from horsies_django.worker.child.executor import Executor

        self.pid = os.getpid()
        self.started = [0] * len(LANES)
        self.closed = False

        sync, async_, control = map(Channel, self.connect())
        self.sync_channel = sync
        executor = Executor(sync, async_, control, options.threads, self.started, self._broke)

        def serve() -> None:
            try:
                middleware.load()
            except BaseException as error:
                self._broke(error)
                return

            lifecycle.send_child_started(self.pid)
            sync.send(("ready", ""))
            executor.run()
            lifecycle.send_child_stopping(self.pid)

        self.thread = threading.Thread(target=serve, name="horsies-executor", daemon=True)
        self.thread.start()

    def end(self, seconds: float) -> None:
        self.thread.join(seconds)

    def close(self) -> None:
        self.closed = True
        super().close()

    def _broke(self, error: BaseException) -> None:
        """Send the engine a failure, and end this process if that has no effect.

        A task may have closed the sockets.
        """
        if not self.closed:
            self.sync_channel.send(("failed", repr(error)))
            timer = threading.Timer(
                LAST_RESORT_SECONDS, lambda: None if self.closed else end_hanging()
            )
            timer.daemon = True
            timer.start()


def killed_for(reason: str) -> Reply:
    """Return the reply for a task that is the cause why its process was killed."""
    cause = "the task did not end when it was interrupted, so its process was killed"
    if reason == TIMEOUT:
        return failed(OutcomeCode.TASK_TIMEOUT, f"{TIMED_OUT}; {cause}")
    return cancelled(f"{STOPPED_ITSELF}; {cause}")
