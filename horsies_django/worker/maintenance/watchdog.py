"""The watchdog: a thread that waits for nobody, and acts for those who wait for a database that does not answer.

Two things can only be done from outside. A link that went silent keeps a statement waiting for as long as TCP has hope, and a
pooler keeps it waiting for its server: the watchdog ends such a connection, whoever waits on it sees an error and connects anew.
And the timer that ends the children of a worker that stands still is wound with each heartbeat; a worker that is cut off from the
database sends none and does not stand still.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from horsies_django.store.notify import shut_down
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.maintenance.thread import MaintenanceThread
from horsies_django.worker.process.kill_timer import KillTimer

logger = logging.getLogger("horsies.worker")

# That an answer may take before its connection is given up. The services' statements are bounded to a second each; the engine is
# given up before it counts as stuck.
LONGEST_SECONDS = {"engine": 8.0, "services": 3.0}
LATE_SHARE = 1 / 4  # of the guard's time: so late the timer of a worker that is cut off is wound
LOOK_SHARE = 1 / 16  # of it: between two looks
LONGEST_LOOK_SECONDS = 1.0


class Watchdog(threading.Thread):
    """Looks after ``engine`` and ``services`` until ``stop``.

    It winds late: a worker that is stopped during an outage loses its children soon after. With ``kill`` it winds only once no
    task runs: the tasks shall end, not the worker.
    """

    def __init__(
        self,
        engine: Engine,
        services: MaintenanceThread,
        kill_timer: KillTimer,
        wind: Callable[[float], None],
        *,
        kill: bool,
    ) -> None:
        super().__init__(name="horsies-watchdog", daemon=True)
        self.engine = engine
        self.services = services
        self.kill_timer = kill_timer
        self.wind = wind
        self.kill = kill
        self.ended = threading.Event()
        self.given_up: Any = None  # the connection that was ended last

    def run(self) -> None:
        """Look often."""
        look = min(self.kill_timer.seconds * LOOK_SHARE, LONGEST_LOOK_SECONDS)
        while not self.ended.wait(look):
            now = time.monotonic()
            late = now > self.kill_timer.deadline - self.kill_timer.seconds * LATE_SHARE
            if late and self.services.heartbeat.cut_off_for(look) and not (self.kill and self.busy()):
                self.wind(now)
            self.end_silence(now)

    def busy(self) -> bool:
        """Whether any task runs."""
        status = self.engine.status
        return bool(status.running_sync or status.running_async)

    def end_silence(self, now: float) -> None:
        """End connections on which a statement has waited too long."""
        status = self.engine.status
        waits = {
            "engine": (status.busy_since, status.connection),
            "services": (self.services.asked_since, self.services.connection),
        }
        for name, (since, connection) in waits.items():
            if (
                since is None
                or connection is None
                or connection is self.given_up
                or now - since < LONGEST_SECONDS[name]
            ):
                continue
            if shut_down(connection):
                self.given_up = connection
                logger.warning(
                    "the %s got no answer for %.0f s: the connection to the database is ended", name, now - since
                )

    def stop(self) -> None:
        """End the thread."""
        self.ended.set()
        self.join(5)
