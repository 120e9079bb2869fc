"""Outages: when the engine tries again while the database is not available, and when it gives up.

After every error of the database the engine reconnects, so that the next try starts from a known
state. Unwritten outcomes are kept. Nearly all errors are temporary: a restart, a failover, a full
disk, a connection limit, a timeout, a session ended by an administrator. A database without the
tables, functions or privileges that this worker needs is a permanent error. The engine tries a few
times even then, because a restore or a migration may be in progress.
"""

from __future__ import annotations

import logging
import math
import time

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.errors import HorsiesError
from horsies_django.core.queues import LANES
from horsies_django.store.base import error_text
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.process import Child
from horsies_django.worker.process.backoff import Backoff

logger = logging.getLogger("horsies.worker")

# SQLSTATE classes: feature not supported, no such schema, undefined or forbidden
UNFIT = ("0A", "3F", "42")
UNFIT_TRIES = 6


class DatabaseGaveUp(HorsiesError):  # noqa: N818 - named for what happened
    """The database was away for longer than RESILIENCE allows, or cannot serve this worker."""


class WorkerDisowned(HorsiesError):  # noqa: N818 - named for what happened
    """Another worker declared this one dead.

    The tasks of this worker are given to other workers, and it must not continue them.
    """


class ClaimsLost(HorsiesError):  # noqa: N818 - named for what happened
    """The database has lost claims of this worker.

    Other workers may run these tasks, and this worker must not continue them.
    """


class Outage:
    """The failures in a row, and the time of the next try.

    Running tasks are ended if no heartbeat was stored for ``kill_after`` seconds, or never if it is
    None.
    """

    def __init__(self, resilience: Resilience) -> None:
        self.backoff = Backoff(resilience)
        self.kill_after: float | None = None
        self.retry_at = 0.0
        self.unfit = 0  # how often in a row the database could not serve this worker

    def begin(self, error: psycopg.Error, unwritten: int) -> None:
        """Set and log the time of the next try.

        Raises DatabaseGaveUp if no further try is allowed.
        """
        message = error_text(error)
        self.unfit = self.unfit + 1 if (error.sqlstate or "")[:2] in UNFIT else 0
        lost = (
            f"; the outcomes of {unwritten} task(s) are lost with this worker" if unwritten else ""
        )

        if self.unfit == UNFIT_TRIES:
            raise DatabaseGaveUp(
                f"the database responds, but cannot serve this worker (SQLSTATE {error.sqlstate}, "
                f"{UNFIT_TRIES} times in a row){lost}. Run the migrations of this version, and "
                f"check the grants: {message}"
            ) from error

        if self.backoff.exhausted:
            raise DatabaseGaveUp(
                f"the database is not available, and RESILIENCE allows no further try{lost}: "
                f"{message}"
            ) from error

        wait = self.backoff.failed()
        self.retry_at = time.monotonic() + wait
        logger.warning("the database is not available, next try in %.1f s: %s", wait, message)

    def hasten(self) -> None:
        """Try again now, because the database has stored a heartbeat.

        It may be called from any thread. Heartbeats are tried at a fixed interval, while the engine
        waits longer after each failure. A database that cannot serve this worker is not tried
        earlier, because it gets only a few tries.
        """
        if not self.unfit:
            self.retry_at = 0.0

    def over(self) -> None:
        """Record that a statement succeeded, so that failures are counted from zero again."""
        self.backoff.succeeded()
        self.unfit = 0

    def kill_at(self, trusted_until: float) -> float:
        """Return when to end the tasks of this worker, by the monotonic clock.

        Others may declare this worker dead from ``trusted_until`` on.
        """
        # a fifth of the time remains, so that the tasks have ended before
        return math.inf if self.kill_after is None else trusted_until - self.kill_after * 0.2

    def end_tasks(self, pool: Pool) -> None:
        """End the children that run tasks, because other workers may soon run the same tasks.

        New children replace them.
        """
        children = [
            member for member in pool.members if isinstance(member, Child) and not member.dismissed
        ]
        busy = [child for child in children if any(child.held.values())]

        if busy:
            logger.error(
                "this worker has been cut off from the database for so long that other workers may "
                "soon run its tasks: ending %s task(s) (RECOVERY['ON_CUT_OFF'] is 'kill')",
                sum(pool.running(lane) for lane in LANES),
            )

        for child in busy:
            child.dismissed = True
            child.kill()
