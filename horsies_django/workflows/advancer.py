"""Advances runs whose tasks have finished: a worker does it between passes, ``drain()`` in a test.

What is owed is only a reminder: finished tasks that were not counted are found in the tables as well. A run that another
transaction holds is tried again soon, because that transaction may not see these tasks.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import DatabaseError
from psycopg import Connection, Pipeline

from horsies_django.store.workflows import Advanced, WorkflowStore

logger = logging.getLogger("horsies.worker")

LIMIT = 200  # tasks sent per turn and run
TURN_SECONDS = 0.02
TOGETHER = 8  # runs per round trip
FAILED_SECONDS = 5.0  # until a run that could not be advanced is tried again
BUSY_SECONDS = (0.005, 0.01, 0.02)  # until a busy run is tried again; the last one repeats


@dataclass
class Debt:
    """What one run is owed."""

    tasks: set[uuid.UUID] = field(default_factory=set)
    children: set[uuid.UUID] = field(default_factory=set)
    at: float = 0.0  # not before, by the monotonic clock
    tries: int = 0


class Advancer:
    """Keeps what is owed to runs, and advances them. ``max_bytes`` is the most that arguments may take."""

    def __init__(self, max_bytes: int, now: datetime | None = None) -> None:
        self.max_bytes = max_bytes
        self.now = now  # in tests, in place of the database's clock
        self.owed: dict[uuid.UUID, Debt] = {}

    def owe(self, tasks: Iterable[Sequence[uuid.UUID]]) -> None:
        """Note finished tasks, each after its run."""
        for run, task in tasks:
            self.debt(run).tasks.add(task)

    def find(self, store: WorkflowStore, age: timedelta | None, many: int) -> int:
        """Note what the tables say is owed, ``many`` of a kind at most, and return how much that is."""
        found = store.owed(age, many)
        for each in found:
            debt = self.debt(each.workflow)
            debt.tasks |= {each.task} if each.task else set()
            debt.children |= {each.child} if each.child else set()
        return len(found)

    def debt(self, run: uuid.UUID) -> Debt:
        """Return what a run is owed; it is advanced even if that is nothing."""
        return self.owed.setdefault(run, Debt())

    @property
    def next_at(self) -> float:
        """When to advance next, by the monotonic clock; infinite if nothing is owed."""
        return min((debt.at for debt in self.owed.values()), default=math.inf)

    def store(self, connection: Any, channel: str) -> WorkflowStore:
        """Return the statements on a connection."""
        return WorkflowStore(connection, channel, self.max_bytes, self.now)

    def turn(self, store: WorkflowStore, seconds: float = TURN_SECONDS) -> bool:
        """Advance the runs that are due, for a short time; return whether tasks were sent.

        A run that cannot be advanced is logged and tried again later. Raises psycopg.Error if the connection is lost.
        """
        now = time.monotonic()
        due = [run for run, debt in self.owed.items() if debt.at <= now]
        sent = False
        for start in range(0, len(due), TOGETHER):
            some = due[start : start + TOGETHER]
            try:
                sent = self.advance(store, some) or sent
            except (psycopg.Error, DatabaseError) as error:
                if getattr(store.connection, "closed", False):
                    raise
                sent = self.advance_singly(store, some, error) or sent
            if time.monotonic() - now > seconds:
                break
        return sent

    def advance(self, store: WorkflowStore, runs: Sequence[uuid.UUID]) -> bool:
        """Advance runs, each in a transaction of its own, in one round trip if the driver can; return whether tasks were sent."""
        with ExitStack() as stack:
            pipeline = stack.enter_context(pipelined(store.connection)) if len(runs) > 1 else None
            cursors = []
            for run in runs:
                debt = self.owed[run]
                cursors.append(stack.enter_context(store.advancing(run, debt.tasks, debt.children, LIMIT)))
                if pipeline is not None:
                    pipeline.sync()  # ends the transaction
            found = [Advanced(*cursor.fetchall()[0]) for cursor in cursors]
        for run, advanced in zip(runs, found, strict=True):
            self.learn(store, run, self.owed.pop(run), advanced)
        return any(advanced.many for advanced in found)

    def advance_singly(self, store: WorkflowStore, runs: Sequence[uuid.UUID], error: Exception) -> bool:
        """Advance runs one by one after an error, and put off those that raise it again; return whether tasks were sent."""
        sent = False
        for run in runs:
            try:
                if len(runs) == 1:
                    raise error
                sent = self.advance(store, [run]) or sent
            except (psycopg.Error, DatabaseError) as again:
                if getattr(store.connection, "closed", False):
                    raise
                logger.warning("workflow run %s could not be advanced; trying again: %s", run, str(again).strip())
                self.owed[run].at = time.monotonic() + FAILED_SECONDS
        return sent

    def learn(self, store: WorkflowStore, run: uuid.UUID, debt: Debt, advanced: Advanced) -> None:
        """Note what a run still owes, and what its parent is owed."""
        if advanced.busy:
            again = self.debt(run)
            again.tasks |= debt.tasks
            again.children |= debt.children
            again.tries = debt.tries + 1
            again.at = time.monotonic() + BUSY_SECONDS[min(debt.tries, len(BUSY_SECONDS) - 1)]
            return
        if debt.children:
            store.told(debt.children)
        if advanced.more:
            self.debt(run)
        if advanced.finished and advanced.parent is not None:
            self.debt(advanced.parent).children.add(run)
        if advanced.halted is not None:
            logger.info("workflow run %s: a node failed, and on_error is %r", run, advanced.halted)
            for child in store.children(run):
                cascade(store, child, "cancel" if advanced.halted == "stop" else "pause")
            if (
                advanced.halted == "pause" and store.status(run) == "RUNNING"
            ):  # it was resumed before its children were paused
                for child in store.children(run):
                    cascade(store, child, "resume")


def cascade(store: WorkflowStore, run: uuid.UUID, verb: str) -> None:
    """Pause, resume or cancel a child run and its children, each in a transaction of its own."""
    store.control(run, verb)
    for child in store.children(run):
        cascade(store, child, verb)


def pipelined(connection: Any) -> AbstractContextManager[Any]:
    """Return a pipeline of a direct connection; of Django's, or without support by libpq, None."""
    direct = isinstance(connection, Connection) and Pipeline.is_supported()
    return connection.pipeline() if direct else nullcontext()
