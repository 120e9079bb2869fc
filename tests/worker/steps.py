"""Schedulers that take one step at a time: each on a thread and a connection of its own, in an order that the test chooses."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg

from horsies_django.worker.scheduler.scheduler import Scheduler

PATIENCE_SECONDS = 30.0


class Killed(BaseException):
    """What ends a scheduler in the middle of a round."""


class Gate:
    """Where one thread waits before each of its steps."""

    def __init__(self) -> None:
        self.go, self.stands = threading.Semaphore(0), threading.Semaphore(0)
        self.killed = False

    def wait(self) -> None:
        """Stand still until the next step is allowed; of the thread itself."""
        self.stands.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def step(self) -> None:
        """Let the thread go on to where it waits next, or ends."""
        self.go.release()
        assert self.stands.acquire(timeout=PATIENCE_SECONDS), "a step waits for another scheduler"


class Gated:
    """A connection that waits at its gate before each statement, and before each COMMIT."""

    def __init__(self, connection: psycopg.Connection[Any], gate: Gate) -> None:
        self.connection = connection
        self.gate = gate

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        self.gate.wait()
        with self.connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.gate.wait()
        with self.connection.transaction():
            yield
            self.gate.wait()


class Stepper:
    """A scheduler whose rounds are taken step by step."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.scheduler = Scheduler(dt.timedelta(0))
        self.gate = Gate()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self.thread is not None

    def begin(self, now: dt.datetime) -> None:
        """Begin a round at a moment, and stand before its first step."""
        self.scheduler.now = now
        self.gate = Gate()
        self.thread = threading.Thread(target=self._round, args=(self.gate,), daemon=True)
        self.thread.start()
        assert self.gate.stands.acquire(timeout=PATIENCE_SECONDS)

    def _round(self, gate: Gate) -> None:
        try:
            self.scheduler.tick(cast(psycopg.Connection[Any], Gated(self.connection, gate)))
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.thread = None
        gate.stands.release()

    def step(self) -> None:
        """Take the next step. Raises what the scheduler raised."""
        self.gate.step()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End the round where it stands."""
        self.gate.killed = True
        self.step()
