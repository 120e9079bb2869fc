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
from horsies_django.store.base import error_text
from horsies_django.store.workflows import Advanced, WorkflowStore

logger = logging.getLogger("horsies.worker")

LIMIT = 200  # tasks sent per turn and run
WAKING = 50  # runs with waits whose time is over, per transaction; see horsies_wake
GATHER_ELEMENTS_SECONDS = 0.005  # how long completed elements of a map may wait to be counted
BUSY_SECONDS = (0.005, 0.01, 0.02)  # pauses before a busy run is tried again; the last repeats
BUSY_TRIES = 500  # the most tries of a strict advancer, about 10 s
HALT_LINES = {
    "stop": "workflow run %s was stopped: a node failed, and on_error is 'stop'",
    "pause": "workflow run %s was paused: a node failed, and on_error is 'pause'",
    "parent": "workflow run %s was paused or cancelled with its parent run",
}


@dataclass
class PendingRun:
    """The finished tasks and child runs that still have to be counted in one run."""

    tasks: set[uuid.UUID] = field(default_factory=set)
    children: set[uuid.UUID] = field(default_factory=set)
    at: float = 0.0  # the earliest time to advance the run, by the monotonic clock
    tries: int = 0
    gathered: bool = False  # all tasks are elements of maps; see ``Advancer.note_finished``


Handed = tuple[uuid.UUID, PendingRun]


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
    pending_runs: dict[uuid.UUID, PendingRun] = field(default_factory=dict, init=False)
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

    def note_finished(self, tasks: Iterable[Sequence[uuid.UUID]], *, gather: bool = False) -> None:
        """Note finished tasks, given as pairs of run and task.

        ``gather`` is true if all of them are completed elements of maps, and more will follow soon.
        """
        at = time.monotonic() + GATHER_ELEMENTS_SECONDS if gather and self.gathers else 0.0
        for run, task in tasks:
            pending = self.pending_runs.setdefault(run, PendingRun(at=at, gathered=gather))
            pending.tasks.add(task)
            pending.gathered = pending.gathered and gather
            if not pending.tries:
                pending.at = min(pending.at, at)

    def note_signal(self, run: uuid.UUID) -> None:
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
        found = store.advance_reasons(age, many)
        for run, task, child in found:
            tasks = [task] if task else []
            children = [child] if child else []
            self.pending_run(run, tasks, children)
        return len(found)

    def pending_run(
        self, run: uuid.UUID, tasks: Iterable[uuid.UUID] = (), children: Iterable[uuid.UUID] = ()
    ) -> PendingRun:
        """Note finished tasks and child runs of a run, and return all that have to be counted.

        The run is advanced even if there are none.
        """
        pending = self.pending_runs.setdefault(run, PendingRun())
        pending.tasks.update(tasks)
        pending.children.update(children)
        return pending

    @property
    def next_at(self) -> float:
        """The time of the next advance, by the monotonic clock, or infinity if there is none."""
        if self.signalled or self.handed:
            return 0.0
        return min((pending.at for pending in self.pending_runs.values()), default=math.inf)

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
                self.pending_run(run)

        while self.handed:
            run, pending = self.handed.popleft()
            self.pending_run(run, pending.tasks, pending.children)

        due = [run for run, pending in self.pending_runs.items() if pending.at <= now]
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
            logger.debug(
                "workflow runs could not be advanced together, so each is advanced alone: %s",
                error_text(error),
            )
            return False

        for run, advanced in found:
            self.note_advance(store, run, PendingRun(), advanced)
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
                    f"workflow run {runs[0]} cannot be advanced: {error_text(error)}"
                ) from error

            if self.hand_over is not None and isinstance(error, psycopg.errors.QueryCanceled):
                self.hand_over((runs[0], self.pending_runs.pop(runs[0])))
                return False

            now = time.monotonic()
            if (more := self.repeats.due(type(error).__name__, now)) is not None:
                logger.warning(
                    "workflow run %s could not be advanced, and is tried again: %s%s",
                    runs[0],
                    error_text(error),
                    more,
                )

            self.pending_run(runs[0]).at = now + 5.0
            return False

    def advance(self, store: WorkflowStore, runs: Sequence[uuid.UUID]) -> bool:
        """Advance runs, each in its own transaction, and return whether tasks were sent.

        Several runs take one round trip if the driver supports pipelines.
        """
        noted = [self.pending_run(run) for run in runs]

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
            for run, pending in zip(runs, noted, strict=True):
                cursors.append(
                    stack.enter_context(
                        store.advancing(run, pending.tasks, pending.children, LIMIT)
                    )
                )
                if pipeline is not None:
                    pipeline.sync()  # ends the transaction

            found = [Advanced(*cursor.fetchall()[0]) for cursor in cursors]

        # These runs are removed before others are noted: a child is noted for its parent,
        # which may be among these runs.
        for run in runs:
            del self.pending_runs[run]

        for run, pending, advanced in zip(runs, noted, found, strict=True):
            self.note_advance(store, run, pending, advanced)

        return any(advanced.many for advanced in found)

    def note_advance(
        self, store: WorkflowStore, run: uuid.UUID, pending: PendingRun, advanced: Advanced
    ) -> None:
        """Note what is left to be done for a run, its parent and its children after an advance."""
        if advanced.busy:
            if self.strict and pending.tries == BUSY_TRIES:
                raise WorkflowError(
                    f"workflow run {run} cannot be advanced: another transaction holds its lock"
                )

            again = self.pending_run(run, pending.tasks, pending.children)
            again.tries = pending.tries + 1
            again.at = time.monotonic() + BUSY_SECONDS[min(pending.tries, len(BUSY_SECONDS) - 1)]
            return

        if pending.gathered:
            self.gathers = not advanced.many
        if pending.children:
            store.mark_advanced(pending.children)
        if advanced.more:
            self.pending_run(run)
        if advanced.finished and advanced.parent is not None:
            self.pending_run(advanced.parent, children=[run])

        if advanced.halted is not None:
            if advanced.halted in HALT_LINES:
                logger.info(HALT_LINES[advanced.halted], run)
            for child in store.children(run):
                self.pending_run(child)
