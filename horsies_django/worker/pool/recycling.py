"""Recycling: replaces children after a number of tasks, or when they exceed a memory limit, which
frees leaked memory.

A child costs a fork, so even one task per child is possible. A configured number is exact; the
first children get different lifetimes, so that not all are replaced at once. The default must not
slow down queues of short tasks: a child is replaced at the earliest when it is a minute old, and
children are replaced one after the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.pool.process import PoolProcess
from horsies_django.worker.process.options import MAX_TASKS_PER_CHILD, WorkerOptions

logger = logging.getLogger("horsies.worker")

# minimum age, unless a count is configured; replacing all children takes at least as long
LEAST_SECONDS = 60.0


class Recycling:
    """Decides when children are replaced."""

    def __init__(self, options: WorkerOptions) -> None:
        chosen = options.max_tasks_per_child
        self.exact = chosen is not None
        self.most = MAX_TASKS_PER_CHILD if chosen is None else chosen
        self.processes = options.processes
        self.max_memory_mb = options.max_memory_per_child_mb

        self.born = 0
        self.next_at = -math.inf  # when another may be replaced, unless a count is configured
        self.warned = False
        # whether a child cannot be started or takes long: then others are not replaced for their
        # tasks
        self.late = False
        # when a child may be replaced again because of what a task did to it
        self.altered_next_at = -math.inf

    def lifetime(self) -> float:
        """Return how many tasks the next child may take: fewer for some of the first, so that not
        all end at once.
        """
        self.born += 1
        if not self.most or not self.exact:
            return math.inf

        if self.born <= self.processes:
            return math.ceil(self.most * self.born / self.processes)
        return self.most

    def due(self, members: Sequence[PoolProcess], now: float) -> list[PoolProcess]:
        """Return the children to replace now, by the monotonic clock; they end after their present
        tasks.

        While too many replaced children still run their last tasks, the lifetime of the others is
        extended, and those that have reached their memory limit go on. Otherwise long async tasks
        would make children pile up.
        """
        found: list[PoolProcess] = []
        for member in members:
            if member.retired_for or not (
                member.full_mb is not None or self._has_had_its_tasks(member, now)
            ):
                continue

            if self._crowded(members, len(found)) or (self.late and member.full_mb is None):
                self.extend(member)
                continue

            found.append(member)
            self.next_at = now + LEAST_SECONDS / self.processes

        return found

    def extend(self, member: PoolProcess) -> None:
        """Let a child that has had its tasks take as many again."""
        if member.taken >= member.lifetime:
            member.lifetime += self.most

    def _crowded(self, members: Sequence[PoolProcess], more: int = 0) -> bool:
        """Whether so many replaced children still run their last tasks that no other child is
        replaced.
        """
        return sum(bool(one.retired_for) for one in members) + more >= self.processes + 4

    def _has_had_its_tasks(self, member: PoolProcess, now: float) -> bool:
        if self.exact or not self.most or not self.processes:
            return member.taken >= member.lifetime
        return member.taken >= self.most and now >= max(
            member.ready_at + LEAST_SECONDS, self.next_at
        )

    def replaces_altered(self, members: Sequence[PoolProcess], now: float) -> bool:
        """Whether a child of which a task changed the state is replaced, by the monotonic clock:
        one a minute at most.
        """
        if now < self.altered_next_at or self.late or self._crowded(members):
            return False
        self.altered_next_at = now + LEAST_SECONDS
        return True

    def compare(self, memory_mb: float, *, refuse: bool = True) -> None:
        """Compare the memory limit with the memory of a child before its first task, in MB; warn if
        it is near.

        Raises WorkerStartError if the limit is not higher, and ``refuse`` is set.
        """
        limit = self.max_memory_mb
        if limit is None:
            return

        if memory_mb >= limit and refuse:
            raise WorkerStartError(
                f"--max-memory-per-child-mb={limit:g} is not above the {memory_mb:.0f} MB that a "
                "child takes before its first "
                "task: it would be replaced after each one"
            )

        # a child that needs so much before its first task will be replaced often
        if memory_mb >= 0.8 * limit and not self.warned:
            self.warned = True
            logger.warning(
                "--max-memory-per-child-mb=%g is near the %.0f MB that a child takes before its "
                "first task: children will be "
                "replaced often",
                limit,
                memory_mb,
            )
