"""Recycling: the replacement of children, which frees leaked memory.

Children are replaced after a number of tasks, or when they reach a memory limit. A child costs only
a fork, so even one task per child is possible. A configured number of tasks is exact; the first
children get different lifetimes, so that not all are replaced at once. The default must not slow
down queues of short tasks: a child is replaced at the earliest when it is a minute old, and
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

# the minimum age of a replaced child, unless a number of tasks is configured; replacing all
# children takes at least as long
LEAST_SECONDS = 60.0


class Recycling:
    """The rules by which children are replaced."""

    def __init__(self, options: WorkerOptions) -> None:
        chosen = options.max_tasks_per_child
        self.exact = chosen is not None
        self.most = MAX_TASKS_PER_CHILD if chosen is None else chosen
        self.processes = options.processes
        self.max_memory_mb = options.max_memory_per_child_mb

        self.born = 0
        # when another child may be replaced, unless a number of tasks is configured
        self.next_at = -math.inf
        self.warned = False
        # whether a child cannot be started or takes long, so that others are not replaced because
        # of their tasks
        self.late = False
        # when a child may be replaced again because a task changed its state
        self.altered_next_at = -math.inf

    def lifetime(self) -> float:
        """Return how many tasks the next child may take.

        Some of the first children may take fewer, so that not all end at once.
        """
        self.born += 1
        if not self.most or not self.exact:
            return math.inf

        if self.born <= self.processes:
            return math.ceil(self.most * self.born / self.processes)
        return self.most

    def due(self, members: Sequence[PoolProcess], now: float) -> list[PoolProcess]:
        """Return the children to replace at ``now``, by the monotonic clock.

        They end after their present tasks. While too many replaced children still run their last
        tasks, the lifetime of the others is extended, and children that have reached their memory
        limit go on. Otherwise long async tasks would make children pile up.
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
        """Extend the lifetime of a child that has taken its number of tasks by the same number."""
        if member.taken >= member.lifetime:
            member.lifetime += self.most

    def _crowded(self, members: Sequence[PoolProcess], more: int = 0) -> bool:
        """Return whether too many replaced children still run their last tasks.

        Then no other child is replaced.
        """
        return sum(bool(one.retired_for) for one in members) + more >= self.processes + 4

    def _has_had_its_tasks(self, member: PoolProcess, now: float) -> bool:
        if self.exact or not self.most or not self.processes:
            return member.taken >= member.lifetime
        return member.taken >= self.most and now >= max(
            member.ready_at + LEAST_SECONDS, self.next_at
        )

    def replaces_altered(self, members: Sequence[PoolProcess], now: float) -> bool:
        """Return whether to replace a child whose state a task has changed.

        One such child a minute is replaced at most. ``now`` is by the monotonic clock.
        """
        if now < self.altered_next_at or self.late or self._crowded(members):
            return False
        self.altered_next_at = now + LEAST_SECONDS
        return True

    def compare(self, memory_mb: float, *, refuse: bool = True) -> None:
        """Compare the memory limit with the memory of a child before its first task, in MB.

        A warning is logged if the memory is near the limit. Raises WorkerStartError if the limit is
        not higher and ``refuse`` is True.
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

        if memory_mb >= 0.8 * limit and not self.warned:
            self.warned = True
            logger.warning(
                "--max-memory-per-child-mb=%g is near the %.0f MB that a child takes before its "
                "first task: children will be "
                "replaced often",
                limit,
                memory_mb,
            )
