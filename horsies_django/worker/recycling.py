"""Recycling: children are replaced after some number of tasks, or once they have grown beyond a limit, so that what they leak
goes back.

A forked child costs a fork, so even one task per child is a choice. The first generation ends staggered; the later ones
follow it.
"""

from __future__ import annotations

import logging
import math

from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.options import WorkerOptions

logger = logging.getLogger("horsies.worker")

NEAR = 0.8  # of the memory limit: a child that takes more before its first task will be replaced often


class Recycling:
    """What the options say about the lives of children."""

    def __init__(self, options: WorkerOptions) -> None:
        self.most = options.max_tasks_per_child
        self.processes = options.processes
        self.max_memory_mb = options.max_memory_per_child_mb
        self.born = 0
        self.warned = False

    def lifetime(self) -> float:
        """Return how many tasks the next child may take: fewer in the first generation, so that not all end at once (S1.13)."""
        self.born += 1
        if not self.most:
            return math.inf
        if self.born <= self.processes:
            return math.ceil(self.most * self.born / self.processes)
        return self.most

    def compare(self, memory_mb: float) -> None:
        """Compare the limit with what a child takes before its first task; warn when it is near (S1.24, S1.26).

        Raises WorkerStartError, naming both, when it is not above that (S1.25).
        """
        limit = self.max_memory_mb
        if limit is None:
            return
        if memory_mb >= limit:
            raise WorkerStartError(
                f"--max-memory-per-child-mb={limit:g} is not above the {memory_mb:.0f} MB that a child takes before its first "
                "task: it would be replaced after each one"
            )
        if memory_mb >= NEAR * limit and not self.warned:
            self.warned = True
            logger.warning(
                "--max-memory-per-child-mb=%g is near the %.0f MB that a child takes before its first task: children will be "
                "replaced often", limit, memory_mb,
            )  # fmt: skip
