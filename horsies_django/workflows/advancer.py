"""Advances runs whose tasks have finished: a worker does it between passes, ``drain()`` in a test.

What is owed is only a reminder: finished tasks that were not counted are found in the tables as
well. A run that another transaction holds is tried again soon, because that transaction may not see
these tasks.

Elements of a map that end one after another are counted together, because an advance takes as long
as a pass. Where max_in_flight lets others start as they end, none waits, so that no slot stays
empty.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import DatabaseError
from psycopg import Connection, Pipeline

from horsies_django.core.errors import WorkflowError
from horsies_django.core.repeats import Repeats
from horsies_django.store.base import said
from horsies_django.store.workflows import Advanced, WorkflowStore

logger = logging.getLogger("horsies.worker")

LIMIT = 200  # tasks sent per turn and run
WAKING = 50  # runs with waits whose time is over, per transaction; see horsies_wake
GATHER_SECONDS = 0.005  # for so long elements of a map may wait to be counted
BUSY_SECONDS = (0.005, 0.01, 0.02)  # until a busy run is tried again; the last one repeats
BUSY_TRIES = 500  # of a strict advancer, about 10 s
HALTED = {
    "stop": "workflow run %s: a node failed, and on_error is 'stop'",
    "pause": "workflow run %s: a node failed, and on_error is 'pause'",
    "parent": "workflow run %s: paused or cancelled, as its parent run is",
}


@dataclass
class Debt:
    """What one run is owed."""

    tasks: set[uuid.UUID] = field(default_factory=set)
    children: set[uuid.UUID] = field(default_factory=set)
    at: float = 0.0  # not before, by the monotonic clock
    tries: int = 0
    gathered: bool = False  # only elements of a map: see ``Advancer.owe``


Handed = tuple[uuid.UUID, Debt]


@dataclass(eq=False, repr=False)
class Advancer:
    """Keeps what is owed to runs, and advances them. ``max_bytes`` is the most that arguments may
    take.

    ``hand_over`` gets the runs whose advance takes longer than the connection lets a statement run.
    One that is ``strict`` raises WorkflowError for a run that it cannot advance.
    """

    max_bytes: int
    now: datetime | None = None  # in tests, in place of the database's clock
    hand_over: Callable[[Handed], None] | None = None
    strict: bool = False
    repeats: Repeats = field(default_factory=Repeats)
    handed: deque[Handed] = field(default_factory=deque, init=False)  # by another thread
    owed: dict[uuid.UUID, Debt] = field(default_factory=dict, init=False)
    # Runs; another worker may have seen the signals
    signalled: set[uuid.UUID] = field(default_factory=set, init=False)
    # Whether the last count of elements sent no others
    gathers: bool = field(default=True, init=False)

    def twin(self, hand_over: Callable[[Handed], None]) -> Advancer:
        """Return an advancer for another thread.

        What both would log again and again is logged as if one did.
        """
        return Advancer(self.max_bytes, self.now, hand_over, repeats=self.repeats)

    def owe(self, tasks: Iterable[Sequence[uuid.UUID]], *, gather: bool = False) -> None:
        """Note finished tasks, each after its run.

        ``gather``: they are completed elements of maps, and others soon follow.
        """
        at = time.monotonic() + GATHER_SECONDS if gather and self.gathers else 0.0
        for run, task in tasks:
            debt = self.owed.setdefault(run, Debt(at=at, gathered=gather))
            debt.tasks.add(task)
            debt.gathered = debt.gathered and gather
            if not debt.tries:
                debt.at = min(debt.at, at)

    def tell(self, run: uuid.UUID) -> None:
        """Note that a run got a signal.

        All workers are told, so each looks first whether nobody has seen it yet.
        """
        self.signalled.add(run)

    def find(self, store: WorkflowStore, age: timedelta | None, many: int) -> int:
        """Note what the tables say is owed, ``many`` of a kind at most, and return how much that
        is.
        """
        found = store.owed(age, many)
        for run, task, child in found:
            tasks = [task] if task else []
            children = [child] if child else []
            self.debt(run, tasks, children)
        return len(found)

    def debt(
        self, run: uuid.UUID, tasks: Iterable[uuid.UUID] = (), children: Iterable[uuid.UUID] = ()
    ) -> Debt:
        """Note what a run is owed, and return all that it is owed; it is advanced even if that is
        nothing.
        """
        debt = self.owed.setdefault(run, Debt())
        debt.tasks.update(tasks)
        debt.children.update(children)
        return debt

    @property
    def next_at(self) -> float:
        """When to advance next, by the monotonic clock; infinite if nothing is owed."""
        if self.signalled or self.handed:
            return 0.0
        return min(debt.at for debt in self.owed.values()) if self.owed else math.inf

    def store(self, connection: Any, channel: str) -> WorkflowStore:
        return WorkflowStore(connection, channel, self.max_bytes, self.now)

    def turn(self, store: WorkflowStore, seconds: float = 0.02) -> bool:
        """Advance the runs that are due, for a short time; return whether tasks were sent.

        A run that cannot be advanced is logged and tried again later. Raises psycopg.Error if the
        connection is lost.
        """
        now = time.monotonic()
        if self.signalled:
            signalled, self.signalled = self.signalled, set()
            for run in store.unseen(signalled):
                self.debt(run)

        while self.handed:
            run, debt = self.handed.popleft()
            self.debt(run, debt.tasks, debt.children)

        due = [run for run, debt in self.owed.items() if debt.at <= now]
        sent = False
        # After an error, a transaction of the caller runs no other statement.
        together = 1 if self.strict else 8

        for start in range(0, len(due), together):
            sent = self.attempt(store, due[start : start + together]) or sent
            if time.monotonic() - now > seconds:
                break

        return sent

    def wake(self, store: WorkflowStore) -> bool:
        """Advance some runs with waits whose time is over, in one transaction; return whether there
        were any.

        After an error there are none: they are found and advanced one by one then. Raises
        psycopg.Error if the connection is lost.
        """
        try:
            found = store.wake(WAKING, LIMIT)
        except (psycopg.Error, DatabaseError) as error:
            if getattr(store.connection, "closed", False):
                raise
            logger.debug("runs of workflows could not be advanced together: %s", said(error))
            return False

        for run, advanced in found:
            self.learn(store, run, Debt(), advanced)
        return bool(found)

    def attempt(self, store: WorkflowStore, runs: Sequence[uuid.UUID]) -> bool:
        """Advance runs, one by one if that raises an error; log and put off those that cannot be
        advanced alone.
        """
        try:
            return self.advance(store, runs)
        except (psycopg.Error, DatabaseError) as error:
            if getattr(store.connection, "closed", False):
                raise

            if len(runs) > 1:
                # All of them, not only until one sent tasks.
                return sum(self.attempt(store, [run]) for run in runs) > 0

            if self.strict:
                raise WorkflowError(
                    f"workflow run {runs[0]} cannot be advanced: {said(error)}"
                ) from error

            if self.hand_over is not None and isinstance(error, psycopg.errors.QueryCanceled):
                self.hand_over((runs[0], self.owed.pop(runs[0])))
                return False

            now = time.monotonic()
            if (more := self.repeats.due(type(error).__name__, now)) is not None:
                logger.warning(
                    "workflow run %s could not be advanced; trying again: %s%s",
                    runs[0],
                    said(error),
                    more,
                )

            self.debt(runs[0]).at = now + 5.0
            return False

    def advance(self, store: WorkflowStore, runs: Sequence[uuid.UUID]) -> bool:
        """Advance runs, each in a transaction of its own, in one round trip if the driver can;
        return whether tasks were sent.
        """
        debts = [self.debt(run) for run in runs]

        with ExitStack() as stack:
            pipeline = None
            # Only a connection of psycopg has a pipeline, not Django's.
            if (
                len(runs) > 1
                and isinstance(store.connection, Connection)
                and Pipeline.is_supported()
            ):
                pipeline = stack.enter_context(store.connection.pipeline())

            cursors = []
            for run, debt in zip(runs, debts, strict=True):
                cursors.append(
                    stack.enter_context(store.advancing(run, debt.tasks, debt.children, LIMIT))
                )
                if pipeline is not None:
                    pipeline.sync()  # ends the transaction

            found = [Advanced(*cursor.fetchall()[0]) for cursor in cursors]

        # This comes before anything is learned: what a child has done is owed to its parent, which
        # may be among them.
        for run in runs:
            del self.owed[run]

        for run, debt, advanced in zip(runs, debts, found, strict=True):
            self.learn(store, run, debt, advanced)

        return any(advanced.many for advanced in found)

    def learn(self, store: WorkflowStore, run: uuid.UUID, debt: Debt, advanced: Advanced) -> None:
        """Note what a run still owes, and what its parent and its children are owed."""
        if advanced.busy:
            if self.strict and debt.tries == BUSY_TRIES:
                raise WorkflowError(
                    f"workflow run {run} cannot be advanced: another transaction holds its lock"
                )

            again = self.debt(run, debt.tasks, debt.children)
            again.tries = debt.tries + 1
            again.at = time.monotonic() + BUSY_SECONDS[min(debt.tries, len(BUSY_SECONDS) - 1)]
            return

        if debt.gathered:
            self.gathers = not advanced.many
        if debt.children:
            store.mark_advanced(debt.children)
        if advanced.more:
            self.debt(run)
        if advanced.finished and advanced.parent is not None:
            self.debt(advanced.parent, children=[run])

        if advanced.halted is not None:
            if advanced.halted in HALTED:
                logger.info(HALTED[advanced.halted], run)
            for child in store.children(run):
                self.debt(child)
