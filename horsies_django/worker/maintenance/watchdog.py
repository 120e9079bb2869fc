"""The watchdog, a thread that never waits for the database.

It acts while the database does not answer other threads, in two ways:

- It closes silent connections. On a dead network link a statement waits until TCP gives up, and
  behind a pooler until the server is back. When the watchdog closes the connection, the waiting
  thread gets an error and reconnects.
- It rearms the kill timer, which ends the children of a stopped worker, while the worker is cut off
  from the database. Then no heartbeat rearms it, although the worker was not stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from horsies_django.core.repeats import Repeats
from horsies_django.store.notify import shut_down
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.limits.kill_timer import KillTimer
from horsies_django.worker.maintenance.thread import MaintenanceThread
from horsies_django.worker.process.shutdown import STOP_SECONDS

logger = logging.getLogger("horsies.worker")

# How long a statement may take before its connection is closed. Statements of the maintenance
# thread have a timeout of a second; the engine's connection is closed before the engine counts as
# stuck.
STATEMENT_SECONDS = {"engine": 8.0, "maintenance": 3.0}


class Watchdog(threading.Thread):
    """The thread that checks the connections of ``engine`` and ``maintenance`` until ``stop``.

    It rearms the timer late, so that the children of a worker that is stopped during an outage end
    soon after. With ``kill`` it rearms the timer only while no task runs, because the tasks should
    end, but not the worker.
    """

    def __init__(
        self, engine: Engine, maintenance: MaintenanceThread, kill_timer: KillTimer, *, kill: bool
    ) -> None:
        super().__init__(name="horsies-watchdog", daemon=True)
        self.engine = engine
        self.maintenance = maintenance
        self.kill_timer = kill_timer
        self.kill = kill

        self.ended = threading.Event()
        self.repeats = Repeats()
        self.given_up: Any = None  # the connection that was closed last

    def run(self) -> None:
        """Check repeatedly until stopped."""
        interval = min(self.kill_timer.seconds / 16, 1.0)
        while not self.ended.wait(interval):
            try:
                self.check(time.monotonic(), interval)
            except Exception:
                if (more := self.repeats.due("check", time.monotonic())) is not None:
                    logger.exception("the watchdog failed, and tries again%s", more)

    def check(self, now: float, interval: float) -> None:
        """Rearm the kill timer if necessary, and close silent connections.

        ``interval`` is the time between two checks in seconds.
        """
        # the timer of a worker that is cut off is rearmed when only a quarter of its time remains
        late = now > self.kill_timer.deadline - self.kill_timer.seconds / 4
        cut_off = now - (self.maintenance.unanswered_since or now) >= interval
        status = self.engine.status
        if late and cut_off and not (self.kill and (status.running_sync or status.running_async)):
            self.kill_timer.rearm(now)

        self.close_silent_connections(now)

    def close_silent_connections(self, now: float) -> None:
        """Close connections on which a statement has waited too long."""
        status = self.engine.status
        waits = {
            "engine": (status.busy_since, status.connection),
            "maintenance": (self.maintenance.job_since, self.maintenance.connection),
        }

        for name, (since, connection) in waits.items():
            if (
                since is None
                or now - since < STATEMENT_SECONDS[name]
                or connection in (None, self.given_up)
            ):
                continue

            if shut_down(connection):
                self.given_up = connection
                logger.warning(
                    "the %s thread got no answer for %.0f s; closing its connection to the "
                    "database",
                    name,
                    now - since,
                )

    def stop(self) -> None:
        self.ended.set()
        self.join(STOP_SECONDS)
