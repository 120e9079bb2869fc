"""The reaper: rescues what dead workers hold, and tidies queues: overrides that end, waiting tasks out of line with their limits.

One runs in every worker. The statement that rescues lets in one at a time; the others are safe side by side. A reaper judges
others only while its own heart is well: after an outage of the database every heartbeat is stale, and nobody has died.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from horsies_django.conf import Recovery
from horsies_django.store.queues import NO_OVERRIDE, QueueStore
from horsies_django.store.workers import WorkerStore

logger = logging.getLogger("horsies.worker")

MANY = 1_000  # rows of a kind per statement
NET_SECONDS = 30.0
SERVED_SECONDS = 60.0
SWEEP_SECONDS = 0.3  # of sweeping per tick


class Reaper:
    """``tick`` is one round."""

    def __init__(
        self,
        recovery: Recovery,
        forget_overrides_after: timedelta | None,
        queues: Sequence[str],
        may_judge: Callable[[float], bool],
    ) -> None:
        self.threshold = timedelta(milliseconds=recovery.running_stale_threshold_ms)
        self.max_crashes = recovery.max_crashes
        self.forget_overrides_after = forget_overrides_after
        self.queues = queues
        self.may_judge = may_judge
        self.net_at = time.monotonic() + NET_SECONDS
        self.served_at = 0.0
        self.refused: set[uuid.UUID] = set()  # what was said to be beyond rescue

    def tick(self, connection: Any) -> None:
        """Rescue and tidy once. Raises psycopg.Error."""
        self.rescue(connection)
        queues = QueueStore(connection)
        now = time.monotonic()
        if now >= self.served_at:
            queues.served(self.queues)
            self.served_at = now + SERVED_SECONDS
        self.end_overrides(queues)
        if now >= self.net_at:
            queues.cast_net()
            self.net_at = now + NET_SECONDS
        self.sweep(queues)

    def rescue(self, connection: Any) -> None:
        """Declare deaths and rescue tasks, until a round finds less than it may take."""
        workers = WorkerStore(connection)
        more = True
        while more:
            judge = self.may_judge(self.threshold.total_seconds())
            happened = workers.reap(self.threshold, judge=judge, many=MANY, max_crashes=self.max_crashes)
            for kind, id_ in happened:
                if kind == "died":
                    logger.error("worker %s has not beaten for %s: it counts as dead", id_, self.threshold)
                elif kind == "refused" and id_ not in self.refused:
                    self.refused.add(id_)
                    logger.error(
                        "task %s of a dead worker cannot be rescued: the database refuses to write that it failed. A trigger or "
                        "a constraint of the project on horsies_tasks may do so. It is tried again with every round", id_,
                    )  # fmt: skip
            counts = Counter(kind for kind, _ in happened)
            if rescued := counts["failed"] + counts["retried"] + counts["returned"]:
                logger.error(
                    "%s task(s) of dead workers rescued: %s failed, %s are retried, %s had not begun and are pending again",
                    rescued, counts["failed"], counts["retried"], counts["returned"],
                )  # fmt: skip
            more = max(rescued, counts["expired"]) >= MANY

    def end_overrides(self, queues: QueueStore) -> None:
        """End overrides whose time is over, and those of queues that nobody has served for long (S4.19)."""
        for name, over in queues.outlived(self.forget_overrides_after):
            reason = "its time was over" if over else f"no worker served the queue for {self.forget_overrides_after}"
            if queues.configure(name, NO_OVERRIDE, action="queue.expire", actor="reaper", reason=reason):
                logger.info("queue %s: the override ended, %s", name, reason)

    def sweep(self, queues: QueueStore) -> None:
        """Bring waiting tasks in line with changed limits, for a moment."""
        until = time.monotonic() + SWEEP_SECONDS
        for name in queues.sweeps():
            while queues.sweep(name, MANY) and time.monotonic() < until:
                pass
