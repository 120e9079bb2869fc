"""The pool: starts the processes that run tasks, gives them tasks, and handles their deaths.

Every process has its own channels and memory, so the death of one does not affect the others. The engine empties two lists:
``outcomes`` to settle, and ``releases``, claims to return to the queue.
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
from horsies_django.worker.pool.launch import Forker
from horsies_django.worker.pool.process import END_REASONS, Child, InProcess, PoolProcess, RunAhead
from horsies_django.worker.pool.recycling import Recycling
from horsies_django.worker.pool.timeouts import NO_LIMITS, TimeLimits, Timeouts
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import STOP_SECONDS
from horsies_django.worker.process.task_log import about_first, named

logger = logging.getLogger("horsies.worker")

DEATHS_BEFORE_READY = 3  # children in a row: the project is the likely cause, and the worker ends


@dataclass(eq=False)
class Pool:
    """Keeps ``options.processes`` children alive and hands them tasks."""

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
        self.deaths_before_ready = 0
        self.stopping = False  # no more tasks are claimed, so children that end are not replaced
        self.ending = False
        self.ready = False  # whether all processes were ready once
        self.recycling = Recycling(self.options)
        self.timeouts = Timeouts(self.members, self.limits)
        self.ended = dict.fromkeys(END_REASONS, 0)  # children, by why they ended

    def start(self) -> None:
        """Start all processes; each takes tasks once it is ready. Raises WorkerStartError."""
        if self.options.processes == 0:
            self._add(InProcess(self.options))
        while len(self.members) < self.options.processes:
            self._add_child()

    def _add_child(self) -> None:
        self._add(Child(self.options, self.forker if self.options.forks else None, self.recycling.lifetime()))

    def _add(self, member: PoolProcess) -> None:
        member.run_ahead = self.run_ahead
        member.owner = self.owner
        self.members.append(member)
        for lane in LANES:
            self.selector.register(member.channels[lane].fileno(), selectors.EVENT_READ, (self._talk, member, lane))
        if isinstance(member, Child):
            self.selector.register(member.death, selectors.EVENT_READ, (self._reap, member))

    # Called by the engine

    @property
    def idle(self) -> bool:
        """Whether no process holds a task and both lists for the engine are empty."""
        return not self.outcomes and not self.releases and not any(self.running(lane) for lane in LANES)

    def free(self, lane: str) -> int:
        """Return how many more tasks of ``lane`` the pool can take now; tasks of replaced children occupy slots, too."""
        most = self.options.slots(lane) + (self.ahead if lane == "sync" else 0)
        left = most - self.running(lane)
        return min(left, sum(member.free(lane) for member in self.members)) if left > 0 else 0

    @property
    def ahead(self) -> int:
        """Return how many sync tasks may be dispatched ahead, in all processes together."""
        return self.run_ahead.depth * self.options.sync_slots

    def running(self, lane: str) -> int:
        """Return how many tasks of ``lane`` the processes hold."""
        return sum(len(member.held[lane]) for member in self.members)

    def held(self) -> set[Any]:
        """Return the ids of all tasks that the pool holds, including those in the lists for the engine."""
        ids = {claim.id for member in self.members for lane in LANES for claim in member.held[lane].values()}
        return ids | {outcome.id for outcome in self.outcomes} | {claim.id for claim in self.releases}

    def dispatch(self, claims: Iterable[Claim]) -> None:
        """Send each claim to the process with the most room in its lane, in one message per process and lane."""
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
        """When the next run-ahead counts as stuck, by the monotonic clock; infinite in hard mode, which has none."""
        return min((member.stuck_at for member in self.members), default=math.inf) if self.run_ahead.most else math.inf

    def call_back(self, now: float) -> None:
        """Call back each run-ahead that is stuck behind a long task: other processes may have free slots."""
        if now >= self.stuck_at:
            for member in self.members:
                if now >= member.stuck_at:
                    member.call_back()

    def _recycle(self) -> None:
        for member in self.recycling.due(self.members, time.monotonic()):
            if member.full_mb is not None:
                logger.info("child %s has reached %.0f MB; replacing it", member.pid, member.full_mb)
            self._retire(member, "tasks" if member.full_mb is None else "memory")

    def _retire(self, member: PoolProcess, why: str) -> None:
        """Let a child end after its present tasks, for a reason of ``END_REASONS``, and start its successor at once."""
        if not self._stays(member):
            return
        member.dismissed, member.retired_for = True, why
        member.end_lanes()
        self._add_child()

    def _stays(self, member: PoolProcess) -> bool:
        """Whether a process is a child that would go on taking tasks."""
        return isinstance(member, Child) and not member.dismissed and not self.stopping

    # Messages from the processes

    def _watch(self, member: PoolProcess, lane: str, events: int) -> None:
        self.selector.modify(member.channels[lane].fileno(), events, (self._talk, member, lane))

    def _talk(self, member: PoolProcess, lane: str) -> None:
        if member not in self.members:
            return
        if member.channels[lane].flush():
            self._watch(member, lane, selectors.EVENT_READ)
        try:
            messages = member.channels[lane].receive()
        except EOFError:
            self.selector.unregister(member.channels[lane].fileno())  # its death follows
            return
        for kind, payload in messages:
            if kind == "ran":
                self.outcomes.append(member.ran(*payload))
            elif kind == "done":
                self.outcomes += [member.outcome(lane, *done) for done in payload]
            elif kind == "back":
                self.releases += [member.take_off(lane, number) for number in payload]
            elif kind == "full":
                member.full_mb = payload
                self._recycle()
            elif kind == "altered":
                if self._stays(member) and self.recycling.replaces_altered(self.members, time.monotonic()):
                    logger.info("a task changed the state of child %s; replacing it", member.pid)
                    self._retire(member, "state")
            elif kind == "ready":
                member.ready, member.ready_at = True, time.monotonic()
                self.deaths_before_ready = 0
                self.ready = self.ready or all(one.ready for one in self.members)
                self.recycling.compare(float(payload or 0))
            elif kind == "failed":
                raise WorkerStartError(f"a process of the pool cannot run tasks:\n{payload.rstrip()}")

    def _reap(self, member: Child) -> None:
        if member not in self.members:
            return
        how = member.how_it_ended()
        self.ended[member.end_reason] += 1
        outcomes, releases = self._bury(member, how)
        if self.ending:
            return
        if outcomes or releases or not member.dismissed:
            self._report(member, how, outcomes, releases)
        if not member.retired_for and not self.stopping:
            self._add_child()

    def _report(self, member: Child, how: str, outcomes: list[Outcome], released: list[Claim]) -> None:
        crashed, then = [each for each in outcomes if each.crashed], "" if self.stopping else "; starting another"
        what = f"{len(crashed)} task(s) crashed{named(crashed)}, {len(released)} given back{named(released)}"
        logger.error("child %s %s: %s%s", member.pid, how, what, then, extra=about_first(outcomes))
        if not member.ready and not self.stopping and not member.was_killed(self.ready):
            self.deaths_before_ready += 1
            if self.deaths_before_ready == DEATHS_BEFORE_READY:
                raise WorkerStartError(
                    f"{DEATHS_BEFORE_READY} children in a row ended before they were ready; the last one {how}"
                )

    def _bury(self, member: PoolProcess, how: str) -> tuple[list[Outcome], list[Claim]]:
        """Read the last messages of a process that ended, forget it, and return what became of the tasks that it held."""
        if isinstance(member, Child):
            for lane in LANES:
                with suppress(KeyError, ValueError):  # the channel is closed and no longer registered
                    self._talk(member, lane)
            for descriptor in (*(member.channels[lane].fileno() for lane in LANES), member.death):
                with suppress(KeyError):  # no longer registered
                    self.selector.unregister(descriptor)
        self.members.remove(member)
        outcomes, releases = member.leftovers(how)
        self.outcomes += outcomes
        self.releases += releases
        member.close()
        return outcomes, releases

    # Stopping

    def stop(self) -> None:
        """End all processes, which hold no tasks any more; kill those that do not end within ``STOP_SECONDS``."""
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
            self._bury(member, reason)
