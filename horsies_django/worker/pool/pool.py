"""The pool, which starts the processes that run tasks, sends them tasks, and handles their deaths.

Every process has its own channels and memory, so the death of one does not affect the others. The
engine empties two lists: ``outcomes`` to settle, and ``releases``, which are claims to return to
the queue.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horsies_django.core.errors import WorkerStartError
from horsies_django.core.queues import LANES
from horsies_django.core.records import Claim, Outcome
from horsies_django.core.repeats import Repeats
from horsies_django.worker.logs.task_log import about_first, in_parentheses
from horsies_django.worker.pool.launch import Forker
from horsies_django.worker.pool.messages import OddMessage, checked_message
from horsies_django.worker.pool.process import END_REASONS, Child, InProcess, PoolProcess, RunAhead
from horsies_django.worker.pool.recycling import Recycling
from horsies_django.worker.pool.starts import RETRY_SECONDS, Starts
from horsies_django.worker.pool.timeouts import NO_LIMITS, TimeLimits, Timeouts
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import STOP_SECONDS

logger = logging.getLogger("horsies.worker")

# If so many children in a row fail while the worker starts, the project is the likely cause, and
# the worker ends.
FAILED_STARTS = 3


@dataclass(eq=False)
class Pool:
    """The ``options.processes`` children of a worker, or its own process if there are none."""

    options: WorkerOptions
    selector: selectors.BaseSelector
    forker: Forker | None = None
    limits: TimeLimits = NO_LIMITS
    prefetch: int = 0
    owner: str = ""

    def __post_init__(self) -> None:
        self.forker = self.forker or Forker(self.options)
        self.members: list[PoolProcess] = []
        self.run_ahead = RunAhead(self.prefetch, self.options.sync_slots)
        self.outcomes: list[Outcome] = []
        self.releases: list[Claim] = []

        self.stopping = False  # no more tasks are claimed, so children that end are not replaced
        self.ending = False
        self.ready = False  # whether all processes were ready once

        self.recycling = Recycling(self.options)
        self.starts = Starts(self.limits.ready)
        self.repeats = Repeats()
        self.timeouts = Timeouts(self.members, self.limits)
        self.ended = dict.fromkeys(END_REASONS, 0)  # how many children ended, by reason

    def start(self) -> None:
        """Start all processes; each takes tasks once it is ready.

        Raises WorkerStartError.
        """
        if self.options.processes == 0:
            self._add(InProcess(self.options))
        self._fill()

    @property
    def missing(self) -> int:
        """The number of children to start.

        There is one for each child that has ended, or that will end after its present tasks.
        """
        if self.stopping or self.ending:
            return 0
        return self.options.processes - sum(not member.retired_for for member in self.members)

    def _fill(self) -> None:
        """Start the missing children.

        If the system has no room for all of them, the others are started a moment later, but
        WorkerStartError is raised while the worker starts.
        """
        self.starts.retry_at = math.inf
        while self.missing > 0:
            try:
                self._add_child()
            except OSError as error:
                reason = error.strerror or str(error)
                if not self.ready:
                    raise WorkerStartError(
                        f"a child process cannot be started: {reason}"
                    ) from error

                now = time.monotonic()
                self.starts.postpone(RETRY_SECONDS, now)
                if (more := self.repeats.due("start", now)) is not None:
                    logger.error(
                        "a child cannot be started now: %s; trying again each second, the other "
                        "children continue%s",
                        reason,
                        more,
                    )
                break

        for member in self.starts.take_relieved(self.missing):
            member.end_lanes()

    def _add_child(self) -> None:
        self._add(
            Child(
                self.options, self.forker if self.options.forks else None, self.recycling.lifetime()
            )
        )

    def _add(self, member: PoolProcess) -> None:
        member.run_ahead = self.run_ahead
        member.owner = self.owner

        try:
            for lane in LANES:
                data = (self._exchange_messages, member, lane)
                self.selector.register(member.channels[lane].fileno(), selectors.EVENT_READ, data)
            if isinstance(member, Child):
                self.selector.register(member.death, selectors.EVENT_READ, (self._reap, member))
        except BaseException:
            self._unregister(member)
            member.end(0.0)
            member.close()
            raise

        self.members.append(member)
        self.starts.begin(member, time.monotonic())

    def _unregister(self, member: PoolProcess) -> None:
        descriptors = [member.channels[lane].fileno() for lane in LANES]
        if isinstance(member, Child):
            descriptors.append(member.death)

        for descriptor in descriptors:
            with suppress(KeyError):  # not registered
                self.selector.unregister(descriptor)

    def tend(self, now: float) -> None:
        """Handle children that are not ready in time, and start missing ones.

        It is called at ``starts.next_at``, by the monotonic clock. Raises WorkerStartError.
        """
        for member in self.starts.take_stalled(now):
            self._end_stalled(member)

        for member in self.starts.take_waiting(now):
            logger.warning("child %s continues, because its successor is not ready yet", member.pid)
            member.dismissed = False
            member.retired_for = ""
            self.recycling.extend(member)

        if now >= self.starts.retry_at:
            self._fill()

    def _end_stalled(self, member: PoolProcess) -> None:
        """Kill a child that did not become ready in time.

        Another one is started after its end.
        """
        seconds = self.limits.ready
        hint = "HORSIES['RECOVERY']['CHILD_READY_TIMEOUT_MS']"
        obstacle = "an import, middleware or a receiver of child_started takes long or hangs"

        if isinstance(member, Child):
            logger.error(
                "child %s is not ready after %.0f s (%s): %s; killing it",
                member.pid,
                seconds,
                hint,
                obstacle,
            )
            member.stalled = True
            member.kill()
        else:
            line = (
                "the worker is not ready after %.0f s (%s): %s. It cannot be killed, because it "
                "runs in the worker's own process"
            )
            logger.error(line, seconds, hint, obstacle)

    # Called by the engine

    @property
    def idle(self) -> bool:
        """True if no process holds a task and both lists for the engine are empty."""
        return (
            not self.outcomes
            and not self.releases
            and not any(self.running(lane) for lane in LANES)
        )

    def free(self, lane: str) -> int:
        """Return how many more tasks of ``lane`` the pool can take now.

        The tasks of replaced children occupy slots, too.
        """
        most = self.options.slots(lane) + (self.ahead if lane == "sync" else 0)
        left = most - self.running(lane)
        return min(left, sum(member.free(lane) for member in self.members)) if left > 0 else 0

    @property
    def ahead(self) -> int:
        """The number of sync tasks that may be dispatched ahead, in all processes together."""
        return self.run_ahead.depth * self.options.sync_slots

    def running(self, lane: str) -> int:
        """Return how many tasks of ``lane`` the processes hold."""
        return sum(len(member.held[lane]) for member in self.members)

    def held(self) -> set[Any]:
        """Return the ids of all tasks of the pool, including those in the lists for the engine."""
        ids = {
            claim.id
            for member in self.members
            for lane in LANES
            for claim in member.held[lane].values()
        }
        return (
            ids | {outcome.id for outcome in self.outcomes} | {claim.id for claim in self.releases}
        )

    def dispatch(self, claims: Iterable[Claim]) -> None:
        """Send each claim to the process with the most room in its lane.

        There is one message per process and lane.
        """
        batches: dict[tuple[int, str], list[Claim]] = defaultdict(list)
        room = {lane: [member.free(lane) for member in self.members] for lane in LANES}

        for claim in claims:
            lane_room = room[claim.lane]
            index = lane_room.index(max(lane_room))
            lane_room[index] -= 1
            batches[index, claim.lane].append(claim)

        for (index, lane), batch in batches.items():
            member = self.members[index]
            first = member.numbers[lane] + 1
            if not member.dispatch(lane, batch):
                self._watch(member, lane, selectors.EVENT_READ | selectors.EVENT_WRITE)
            self.timeouts.watch(member, lane, first, batch)

        self._recycle()  # after the last batch, because this ends lanes

    @property
    def stuck_at(self) -> float:
        """When the next run-ahead counts as stuck, by the monotonic clock.

        It is infinite if there is no run-ahead, as in hard mode.
        """
        return (
            min((member.stuck_at for member in self.members), default=math.inf)
            if self.run_ahead.most
            else math.inf
        )

    def call_back(self, now: float) -> None:
        """Call back each run-ahead that is stuck behind a long task.

        Other processes may have free slots.
        """
        if now >= self.stuck_at:
            for member in self.members:
                if now >= member.stuck_at:
                    member.call_back()

    def _recycle(self) -> None:
        now = time.monotonic()
        self.recycling.late = self.starts.late(now)

        for member in self.recycling.due(self.members, now):
            if member.full_mb is not None:
                logger.info(
                    "child %s has reached %.0f MB; replacing it", member.pid, member.full_mb
                )
            self._retire(member, "tasks" if member.full_mb is None else "memory")

    def _retire(self, member: PoolProcess, why: str) -> None:
        """Send a child no more tasks, and start its successor at once.

        ``why`` is one of ``END_REASONS``. The child ends after its present tasks, when a successor
        is ready. A child that has reached its memory limit does not wait for the successor.
        """
        if not self._stays(member):
            return

        member.dismissed = True
        member.retired_for = why
        if why == "memory":
            member.end_lanes()
        else:
            self.starts.leaving[member] = time.monotonic()

        self._fill()

    def _stays(self, member: PoolProcess) -> bool:
        """Return whether a process is a child that would continue to take tasks."""
        return isinstance(member, Child) and not member.dismissed and not self.stopping

    # Messages from the processes

    def _watch(self, member: PoolProcess, lane: str, events: int) -> None:
        self.selector.modify(
            member.channels[lane].fileno(), events, (self._exchange_messages, member, lane)
        )

    def _exchange_messages(self, member: PoolProcess, lane: str) -> None:
        if member not in self.members:
            return

        if member.channels[lane].flush():
            self._watch(member, lane, selectors.EVENT_READ)

        try:
            messages = member.channels[lane].receive()
        except EOFError:
            # ``_reap`` handles the death of the process, which follows
            self.selector.unregister(member.channels[lane].fileno())
            return

        for message in () if member.distrusted else messages:
            try:
                self._handle_message(member, lane, *checked_message(message))
            except OddMessage as error:
                self._end_distrusted(member, error)
                break

    def _handle_message(self, member: PoolProcess, lane: str, kind: str, payload: Any) -> None:
        """Handle a message from a process.

        Raises OddMessage if it names a task that the process does not hold, and WorkerStartError.
        """
        if kind == "ran":
            self.outcomes.append(member.ran(*payload))
        elif kind == "done":
            for done in payload:
                self.outcomes.append(member.outcome(lane, *done))
        elif kind == "back":
            for number in payload:
                self.releases.append(member.take_off(lane, number))
        elif kind == "full":
            member.full_mb = payload
            self._recycle()
        elif kind == "altered":
            if self._stays(member) and self.recycling.replaces_altered(
                self.members, time.monotonic()
            ):
                logger.info("a task changed the state of child %s; replacing it", member.pid)
                self._retire(member, "state")
        elif kind == "ready":
            self._note_ready(member, float(payload or 0))
        elif kind == "failed":
            if not (self.ready and isinstance(member, Child)):
                raise WorkerStartError(
                    f"a process of the pool cannot run tasks:\n{payload.rstrip()}"
                )

            logger.error("child %s cannot run tasks:\n%s", member.pid, payload.rstrip())

    def _end_distrusted(self, member: PoolProcess, error: OddMessage) -> None:
        """Kill a child that has sent an odd message.

        Raises WorkerStartError if the process is the worker itself.
        """
        if not isinstance(member, Child):
            raise WorkerStartError(
                f"the worker's own process has sent itself an invalid message: {error}"
            )

        logger.error(
            "child %s has sent an invalid message, which a task must have written: %s; killing "
            "the child",
            member.pid,
            error,
        )

        member.distrusted = True
        member.kill()

    def _note_ready(self, member: PoolProcess, memory_mb: float) -> None:
        """Record that a process is ready for tasks, and how much memory it takes, in MB.

        Raises WorkerStartError if that is more than the memory limit.
        """
        member.ready = True
        member.ready_at = time.monotonic()
        self.starts.ready(member)

        for relieved in self.starts.take_relieved(self.missing):
            relieved.end_lanes()

        self.recycling.compare(memory_mb, refuse=not self.ready)
        self.ready = self.ready or all(one.ready for one in self.members)

    def _reap(self, member: Child) -> None:
        if member not in self.members:
            return

        end_text = member.describe_end()
        self.ended[member.end_reason] += 1
        outcomes, releases = self._remove_ended(member, end_text)
        if self.ending:
            return

        if outcomes or releases or not member.dismissed:
            self._report(member, end_text, outcomes, releases)
        if self.starts.retry_at == math.inf:
            self._fill()

    def _report(
        self, member: Child, end_text: str, outcomes: list[Outcome], released: list[Claim]
    ) -> None:
        crashed = [each for each in outcomes if each.crashed]
        then = "" if self.stopping else "; starting another"
        what = (
            f"{len(crashed)} task(s) crashed{in_parentheses(crashed)}, {len(released)} given "
            f"back{in_parentheses(released)}"
        )
        logger.error(
            "child %s %s: %s%s", member.pid, end_text, what, then, extra=about_first(outcomes)
        )

        if not member.taken and not self.stopping:
            self._fail_start(member, end_text)

    def _fail_start(self, member: Child, end_text: str) -> None:
        """Start the successor of a child a moment later, because it ended before its first task.

        Raises WorkerStartError if several such children end by themselves while the worker starts.
        """
        now = time.monotonic()
        if not member.was_killed(self.ready):
            self.starts.fail(now)
        elif not member.ready:
            self.starts.postpone(RETRY_SECONDS, now)

        if not self.ready and self.starts.failed == FAILED_STARTS:
            raise WorkerStartError(
                f"{FAILED_STARTS} children in a row ended before they were ready; the last one "
                f"{end_text}"
            )

    def _remove_ended(
        self, member: PoolProcess, end_text: str
    ) -> tuple[list[Outcome], list[Claim]]:
        """Remove a process that has ended, and return the outcomes and releases of its tasks.

        Its last messages are read first.
        """
        if isinstance(member, Child):
            for lane in LANES:
                # the channel may be closed and no longer registered
                with suppress(KeyError, ValueError):
                    self._exchange_messages(member, lane)
            self._unregister(member)

        self.members.remove(member)
        self.starts.forget(member)

        outcomes, releases = member.leftovers(end_text)
        self.outcomes += outcomes
        self.releases += releases
        member.close()
        return outcomes, releases

    # Stopping

    def stop(self) -> None:
        """End all processes, which hold no tasks any more.

        Processes that do not end within ``STOP_SECONDS`` are killed.
        """
        self.ending = True
        for member in self.members:
            member.end_lanes()
            if not member.ready:
                member.kill()  # it still imports the project and reads no messages

        deadline = time.monotonic() + STOP_SECONDS
        for member in list(self.members):
            member.end(max(0.0, deadline - time.monotonic()))
            member.close()

        self.members.clear()

    def kill(self, reason: str) -> None:
        """Kill all processes now; the tasks that they run count as crashed."""
        self.ending = True
        for member in self.members:
            member.kill()

        for member in list(self.members):
            member.end(0.0)
            self._remove_ended(member, reason)
