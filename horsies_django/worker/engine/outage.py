"""The outage: what the engine does while the database is not available, and when it gives up.

After every error of the database the engine reconnects, so that the next try starts from a known
state; unwritten outcomes are kept. Nearly all errors are temporary: a restart, a failover, a full
disk, a connection limit, a timeout, a session ended by an administrator. A database without the
tables and functions of this worker, or without the privileges, is not; it gets a few tries, because
a restore or a migration may be in progress.
"""

from __future__ import annotations

import logging
import math
import time

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.errors import HorsiesError
from horsies_django.core.queues import LANES
from horsies_django.store.base import said
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
    """Another worker declared this one dead: its tasks are given to other workers, and it must not
    continue them.
    """


class ClaimsLost(HorsiesError):  # noqa: N818 - named for what happened
    """The database has lost claims of this worker: others may run these tasks, and it must not
    continue them.
    """


class Outage:
    """Counts failures in a row and sets the next try.

    Without a heartbeat for ``kill_after`` seconds tasks end (None: never).
    """

    def __init__(self, resilience: Resilience) -> None:
        self.backoff = Backoff(resilience)
        self.kill_after: float | None = None
        self.retry_at = 0.0
        self.unfit = 0  # how often in a row the database could not serve this worker

    def begin(self, error: psycopg.Error, unwritten: int) -> None:
        """Set and log the next try. Raises DatabaseGaveUp if there is none."""
        message = said(error)
        self.unfit = self.unfit + 1 if (error.sqlstate or "")[:2] in UNFIT else 0
        lost = (
            f"; the outcomes of {unwritten} task(s) are lost with this worker" if unwritten else ""
        )

        if self.unfit == UNFIT_TRIES:
            raise DatabaseGaveUp(
                f"the database answers, but cannot serve this worker (SQLSTATE {error.sqlstate}, "
                f"{UNFIT_TRIES} times in a "
                f"row){lost}. Are its migrations those of this version, and its grants complete? "
                f"{message}"
            ) from error

        if self.backoff.exhausted:
            raise DatabaseGaveUp(
                f"the database is gone and RESILIENCE allows no further try{lost}: {message}"
            ) from error

        wait = self.backoff.failed()
        self.retry_at = time.monotonic() + wait
        logger.warning("the database is not available, next try in %.1f s: %s", wait, message)

    def hasten(self) -> None:
        """Try again now: the database has answered a heartbeat, and these do not wait longer and
        longer. From any thread.

        A database that answers, but cannot serve this worker, gets the whole time of its few tries.
        """
        if not self.unfit:
            self.retry_at = 0.0

    def over(self) -> None:
        """A statement succeeded: count failures from zero again."""
        self.backoff.succeeded()
        self.unfit = 0

    def kill_at(self, trusted_until: float) -> float:
        """Return when to end the tasks of a worker that others may declare dead from
        ``trusted_until`` on.
        """
        # a fifth of the time until others may declare this worker dead remains
        return math.inf if self.kill_after is None else trusted_until - self.kill_after * 0.2

    def end_tasks(self, pool: Pool) -> None:
        """End the children that run tasks, because other workers may soon run these tasks.

        New children replace them.
        """
        children = [
            member for member in pool.members if isinstance(member, Child) and not member.dismissed
        ]
        busy = [child for child in children if any(child.held.values())]

        if busy:
            logger.error(
                "cut off from the database for so long that other workers may soon run its tasks: "
                "ending %s task(s) "
                "(RECOVERY['ON_CUT_OFF'] is 'kill')",
                sum(pool.running(lane) for lane in LANES),
            )

        for child in busy:
            child.dismissed = True
            child.kill()
