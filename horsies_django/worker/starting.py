"""Starting: what needs the database before there is anything to lose is tried until it succeeds, or a signal comes.

A machine that boots starts its worker before its database as often as after it. So a worker that cannot reach the database is
patient at its start too, as RESILIENCE says. A database that answers, and has not what the worker needs, is refused at once.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable

import psycopg
from django.db import InterfaceError, OperationalError

from horsies_django.conf import Resilience
from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.backoff import Backoff
from horsies_django.worker.ledger import Ledger
from horsies_django.worker.outage import DatabaseGaveUp

logger = logging.getLogger("horsies.worker")

AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OperationalError, InterfaceError)


class StoppedEarly(BaseException):
    """A signal came while the worker was still starting: no task has been claimed, so it just ends.

    Raised by the signal's handler, so not an Exception: nothing on the way may take it for an error.
    """


class Start:
    """The patience of a worker that starts. ``interruptible`` says whether a signal's handler shall raise StoppedEarly."""

    def __init__(self, ledger: Ledger, resilience: Resilience) -> None:
        self.ledger = ledger
        self.resilience = resilience
        self.interruptible = False
        self.stopping = False

    def persist(self, action: Callable[[], None], *, connected: bool = True) -> None:
        """Do something that needs the database, as often as it takes; with the ledger ``connected``, if it needs that.

        Raises DatabaseGaveUp when RESILIENCE allows no further try, WorkerStartError when the database refuses it.
        """
        backoff = Backoff(self.resilience)
        self.interruptible = True
        try:
            while not self._done(action, connected, backoff):
                pass
        finally:
            self.interruptible = False

    def _done(self, action: Callable[[], None], connected: bool, backoff: Backoff) -> bool:
        try:
            if connected and self.ledger.connection is None:
                self.ledger.connect()
            action()
        except AWAY as error:
            self.ledger.disconnect()
            if self.stopping:
                raise StoppedEarly from error
            message = str(error).strip()
            if backoff.exhausted:
                raise DatabaseGaveUp(
                    f"the database {self.ledger.alias!r} cannot be reached and RESILIENCE allows no further try: {message}"
                ) from error
            wait = backoff.failed()
            logger.warning(
                "the database %r cannot be reached, next try in %.1f s: %s", self.ledger.alias, wait, message
            )
            select.select([], [], [], wait)
        except psycopg.Error as error:
            raise WorkerStartError(
                f"the database {self.ledger.alias!r} refuses this worker: {str(error).strip()}"
            ) from error
        else:
            return True
        return False
