"""Advances runs of workflows whose tasks have finished.

A worker does this between passes, and ``drain()`` does it in a test.

The advancer keeps its list of tasks to count in memory, and may lose it: finished tasks that were
not counted are also found in the tables. A run is tried again soon if another transaction holds its
lock, because that transaction may not see these tasks.

Elements of a map that end shortly after one another are counted together, because an advance takes
as long as a pass. They are counted at once if max_in_flight allows a new element to start for each
one that ends, so that no slot stays empty.
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
GATHER_SECONDS = 0.005  # how long completed elements of a map may wait to be counted
BUSY_SECONDS = (0.005, 0.01, 0.02)  # pauses before a busy run is tried again; the last repeats
BUSY_TRIES = 500  # the most tries of a strict advancer, about 10 s
HALTED = {
    "stop": "workflow run %s: a node failed, and on_error is 'stop'",
    "pause": "workflow run %s: a node failed, and on_error is 'pause'",
    "parent": "workflow run %s: paused or cancelled, as its parent run is",
}


@dataclass
class Debt:
    """The finished tasks and child runs that still have to be counted in one run."""

    tasks: set[uuid.UUID] = field(default_factory=set)
    children: set[uuid.UUID] = field(default_factory=set)
    at: float = 0.0  # the earliest time to advance the run, by the monotonic clock
    tries: int = 0
    gathered: bool = False  # all tasks are elements of maps; see ``Advancer.owe``


Handed = tuple[uuid.UUID, Debt]


@dataclass(eq=False, repr=False)
class Advancer:
    """The runs that have to be advanced, and the methods that advance them.

    ``max_bytes`` is the maximum size of the arguments of a task. ``hand_over`` is called with a run
    whose advance takes longer than the statement timeout of the connection. A ``strict`` advancer
    raises WorkflowError for a run that it cannot advance.
    """

    max_bytes: int
    now: datetime | None = None  # the time in tests, in place of the database's clock
    hand_over: Callable[[Handed], None] | None = None
    strict: bool = False
    repeats: Repeats = field(default_factory=Repeats)
    # Runs that another thread has handed over to this one
    handed: deque[Handed] = field(default_factory=deque, init=False)
    owed: dict[uuid.UUID, Debt] = field(default_factory=dict, init=False)
    # Runs that got a signal, which another worker may have given to a node already
    signalled: set[uuid.UUID] = field(default_factory=set, init=False)
    # False if new tasks were sent when elements were last counted
    gathers: bool = field(default=True, init=False)

    def twin(self, hand_over: Callable[[Handed], None]) -> Advancer:
        """Return an advancer for another thread.

        The two share their record of repeated warnings, so that each of these is logged as if by
        one.
        """
        return Advancer(self.max_bytes, self.now, hand_over, repeats=self.repeats)

    def owe(self, tasks: Iterable[Sequence[uuid.UUID]], *, gather: bool = False) -> None:
        """Note finished tasks, given as pairs of run and task.

        ``gather`` is true if all of them are completed elements of maps, and more will follow soon.
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

        All workers are notified of a signal, so each first checks that no other one has advanced
        the run.
        """
        self.signalled.add(run)

    def find(self, store: WorkflowStore, age: timedelta | None, many: int) -> int:
        """Note the runs that have to be advanced according to the tables, and return their number.

        At most ``many`` finished tasks, child runs and runs of each kind are noted. If ``age`` is
        given, only tasks that finished at most so long ago are noted.
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
        """Note finished tasks and child runs of a run, and return all that have to be counted.

        The run is advanced even if there are none.
        """
        debt = self.owed.setdefault(run, Debt())
        debt.tasks.update(tasks)
        debt.children.update(children)
        return debt

    @property
    def next_at(self) -> float:
        """The time of the next advance, by the monotonic clock, or infinity if there is none."""
        if self.signalled or self.handed:
            return 0.0
        return min(debt.at for debt in self.owed.values()) if self.owed else math.inf

    def store(self, connection: Any, channel: str) -> WorkflowStore:
        return WorkflowStore(connection, channel, self.max_bytes, self.now)

    def turn(self, store: WorkflowStore, seconds: float = 0.02) -> bool:
        """Advance the runs that are due, for about ``seconds``, and return whether tasks were sent.

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
        """Advance some runs with waits whose time is over, and return whether there were any.

        They are advanced in one transaction. Returns False if it fails: the runs are then found and
        advanced one by one. Raises psycopg.Error if the connection is lost.
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
        """Advance runs together, or one by one after an error, and return whether tasks were sent.

        A run that cannot be advanced alone is logged and tried again later.
        """
        try:
            return self.advance(store, runs)
        except (psycopg.Error, DatabaseError) as error:
            if getattr(store.connection, "closed", False):
                raise

            if len(runs) > 1:
                # A list, because any() would stop at the first run that sent tasks.
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
        """Advance runs, each in its own transaction, and return whether tasks were sent.

        Several runs take one round trip if the driver supports pipelines.
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

        # The old debts are deleted before new ones are noted: a child may add a debt to its parent,
        # which may be among these runs.
        for run in runs:
            del self.owed[run]

        for run, debt, advanced in zip(runs, debts, found, strict=True):
            self.learn(store, run, debt, advanced)

        return any(advanced.many for advanced in found)

    def learn(self, store: WorkflowStore, run: uuid.UUID, debt: Debt, advanced: Advanced) -> None:
        """Note what is left to be done for a run, its parent and its children after an advance."""
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
