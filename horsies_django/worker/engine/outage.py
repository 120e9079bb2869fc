"""The outage: what the engine does while the database is away, and when it gives up.

Every error of the database ends the engine's connection, so that the next try starts from a known state, and nothing that is
owed is forgotten over it. Nearly all of them pass: a restart, a failover, a full disk, a connection limit, a lock or a statement
that took too long, an administrator who ended the session. What does not pass by itself is a database that no longer knows the
tables and functions of this worker, or no longer lets it use them; that is given a few tries too, because a restore or a
migration may be under way.
"""

from __future__ import annotations

import logging
import math
import time

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.errors import HorsiesError
from horsies_django.core.lanes import LANES
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.process import Child
from horsies_django.worker.process.backoff import Backoff

logger = logging.getLogger("horsies.worker")

UNFIT = (
    "0A",
    "3F",
    "42",
)  # feature not supported, no such schema, undefined or forbidden: it answers, and cannot serve us
UNFIT_TRIES = 6
EARLY_SHARE = 0.2  # of the time that others take us for alive: so much earlier the tasks end, if they have to


class DatabaseGaveUp(HorsiesError):  # noqa: N818 - named for what happened
    """The database stayed away longer than RESILIENCE allows, or is not one that this worker can work with."""


class Outage:
    """Counts failures in a row and sets the next try; ``kill_after`` seconds without a heartbeat the tasks end (None: never)."""

    def __init__(self, resilience: Resilience) -> None:
        self.backoff = Backoff(resilience)
        self.kill_after: float | None = None
        self.retry_at = 0.0
        self.unfit = 0  # answers in a row that say that this database cannot serve us

    def begin(self, error: psycopg.Error, unwritten: int) -> None:
        """Set and log the next try. Raises DatabaseGaveUp when there shall be none."""
        message = str(error).strip()
        self.unfit = self.unfit + 1 if (error.sqlstate or "")[:2] in UNFIT else 0
        lost = f"; what became of {unwritten} task(s) is lost with this worker" if unwritten else ""
        if self.unfit == UNFIT_TRIES:
            raise DatabaseGaveUp(
                f"the database answers, but cannot serve this worker (SQLSTATE {error.sqlstate}, {UNFIT_TRIES} times in a "
                f"row){lost}. Are its migrations those of this version, and its grants complete? {message}"
            ) from error
        if self.backoff.exhausted:
            raise DatabaseGaveUp(
                f"the database is gone and RESILIENCE allows no further try{lost}: {message}"
            ) from error
        wait = self.backoff.failed()
        self.retry_at = time.monotonic() + wait
        logger.warning("the database is not available, next try in %.1f s: %s", wait, message)

    def over(self) -> None:
        """A statement went through: the next failure is a first one again."""
        self.backoff.succeeded()
        self.unfit = 0

    def kill_at(self, trusted_until: float) -> float:
        """Return when the tasks of a worker end that others may take for dead from ``trusted_until`` on."""
        return math.inf if self.kill_after is None else trusted_until - self.kill_after * EARLY_SHARE

    def end_tasks(self, pool: Pool) -> None:
        """End the children that run tasks: soon others may take the tasks over. New children take their place."""
        children = [member for member in pool.members if isinstance(member, Child) and not member.dismissed]
        busy = [child for child in children if any(child.held.values())]
        if busy:
            logger.error(
                "cut off from the database for so long that others may soon run these tasks: %s task(s) are ended "
                "(RECOVERY['ON_CUT_OFF'] is 'kill')",
                sum(pool.running(lane) for lane in LANES),
            )
        for child in busy:
            child.dismissed = True
            child.kill()
