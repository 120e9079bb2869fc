"""The scheduler: sends the tasks of schedules at their fire times.

Any number of schedulers may run; none of them is a leader. A scheduler that finds a due schedule locks its row and, in one
transaction, records the fire times, sends their tasks and updates the row: each fire time becomes one task, or none yet if any of
that fails. All schedulers use the database's clock. A schedule that cannot be sent does not delay the others. During a deploy a
scheduler of the other release may have the code that it needs, so for a grace period it is left to those; only then is the error
written to its row.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg

from horsies_django.core.errors import TaskSendError
from horsies_django.core.fire_times import Due, Timing, due
from horsies_django.core.patterns import RULES
from horsies_django.core.records import NewTasks
from horsies_django.core.repeats import Repeats
from horsies_django.core.schedules import ScheduleConfig, as_texts, read_definition
from horsies_django.schedules import task_of
from horsies_django.store.base import said
from horsies_django.store.schedules import ScheduleStore, Taken
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7s
from horsies_django.worker.process.logs import one_line, shown_name

logger = logging.getLogger("horsies.scheduler")

MANY = 100  # schedules per round
TOGETHER = 100  # tasks per statement: each has its arguments, and PostgreSQL accepts at most 256 MB of them at once
LONGEST_WAIT_SECONDS = 60.0
LEFT_SECONDS = 5.0  # before the next try of a schedule that others may be able to send, or that failed for now
BUSY_SECONDS = 0.25  # before the next try of a schedule that another scheduler holds
REFUSED = ("22", "23")  # classes of SQLSTATE: invalid values and violated constraints; trying again does not help


class Scheduler:
    """``tick`` is one round. ``grace`` is for how long schedules that this process cannot send are left to other schedulers.

    Tests set ``now`` in place of the database's clock.
    """

    def __init__(self, grace: dt.timedelta) -> None:
        self.grace = grace
        self.now: dt.datetime | None = None
        self.stopping = False  # set by any thread; the round ends after the current schedule
        self.left: dict[str, float] = {}  # schedules to skip, until when by the monotonic clock
        self.repeats = Repeats()
        self.unsendable: dict[str, tuple[dt.datetime | None, dt.datetime]] = {}  # by name: last fire time, since when

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Send what is due; return the seconds until the next round. Raises psycopg.Error if the connection is lost."""
        self.left = {name: until for name, until in self.left.items() if until > time.monotonic()}
        store = ScheduleStore(connection, self.now)
        names = store.due(MANY, self.left)
        for name in names:
            if self.stopping:
                return 0.0
            self.attend(connection, name)
        wait = 0.0 if len(names) == MANY else store.wait(self.left)
        waits = [LONGEST_WAIT_SECONDS, *(until - time.monotonic() for until in self.left.values())]
        return max(0.0, min(waits if wait is None else [*waits, wait]))

    def attend(self, connection: psycopg.Connection[Any], name: str, problem: str | None = None) -> None:
        """Send what is due of a schedule, or with a ``problem`` skip it and record why. Raises only if the connection is lost."""
        store = ScheduleStore(connection, self.now)
        try:
            with connection.transaction():
                if taken := store.take(name):
                    self.fire(connection, taken, problem)
                else:
                    self.leave(name, BUSY_SECONDS)
        except Exception as error:
            if connection.closed:
                raise
            why = said(error)
            if problem is None and isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in REFUSED:
                self.attend(connection, name, why)
                return
            unforeseen = not isinstance(error, psycopg.Error)
            if (more := self.repeats.told(type(error).__name__, time.monotonic())) is not None:
                line = "schedule %s: could not send its task, will try again: %s%s"
                logger.warning(line, shown_name(name), one_line(why), more, exc_info=unforeseen)
            self.leave(name)

    def fire(self, connection: psycopg.Connection[Any], taken: Taken, problem: str | None) -> None:
        """Send the due tasks of a locked schedule, unless there is a problem, and update its row. Raises psycopg.Error."""
        store = ScheduleStore(connection, self.now)
        schedule, wrong = read_definition(taken.definition)
        if taken.rules is not None and taken.rules > RULES:
            self.leave(taken.name)  # a newer release computed its fire times
        elif schedule is None:
            if not self.others_may(taken):
                problem = "; ".join(as_texts(wrong))
                logger.error("invalid schedule %s: %s", shown_name(taken.name), one_line(problem))
                store.advance(
                    taken.name, last_fire_at=None, next_fire_at=None, next_at=None, rules=RULES, error=problem
                )
        else:
            timing = schedule.timing(taken.name, taken.since)
            found = due(timing, taken.last_fire_at, taken.now)
            if problem is None:
                try:
                    self.send(connection, taken, schedule, found)
                except (LookupError, TaskSendError) as error:
                    if self.others_may(taken):
                        return
                    problem = error.message if isinstance(error, TaskSendError) else str(error)
            if problem is not None:
                logger.error(
                    "schedule %s: could not send its task, skipping it: %s", shown_name(taken.name), one_line(problem)
                )
            elif found.missed and found.first is not None:
                logger.warning(
                    "schedule %s: missed fire times since %s", shown_name(taken.name), found.first.isoformat()
                )
            self.advance(store, taken, timing, found, problem)

    def send(self, connection: psycopg.Connection[Any], taken: Taken, schedule: ScheduleConfig, found: Due) -> None:
        """Record the due fire times and send their tasks. Raises LookupError and TaskSendError before anything is written."""
        if found.fire_times:
            task = task_of(schedule, found.fire_times[0])
            fire_times = dict(zip(uuid7s(len(found.fire_times)), found.fire_times, strict=True))
            noted = ScheduleStore(connection).tick(taken.name, list(fire_times.values()), list(fire_times))
            unsent = {id_: fire_time for id_, fire_time in fire_times.items() if id_ in noted}
            for some in copies(task, found.fire_times[0], unsent):
                TaskStore(connection).send(some)

    def advance(self, store: ScheduleStore, taken: Taken, timing: Timing, found: Due, problem: str | None) -> None:
        """Record how far a schedule came, and its next fire time."""
        following = timing.following(max(filter(None, (found.last, taken.last_fire_at, taken.since))))
        store.advance(
            taken.name,
            last_fire_at=found.last,
            next_fire_at=following,
            next_at=None if following is None else timing.moment(following),
            rules=RULES,
            error=problem,
        )

    def others_may(self, taken: Taken) -> bool:
        """Leave a schedule that this process cannot send to others; return False once the grace period is over."""
        last, since = self.unsendable.get(taken.name, (taken.last_fire_at, taken.now))
        if last != taken.last_fire_at:
            since = taken.now  # another scheduler sent it in the meantime
        self.unsendable[taken.name] = (taken.last_fire_at, since)
        if taken.now - since >= self.grace:
            del self.unsendable[taken.name]
            return False
        self.leave(taken.name)
        return True

    def leave(self, name: str, seconds: float = LEFT_SECONDS) -> None:
        """Skip a schedule for a while."""
        self.left[name] = time.monotonic() + seconds


def copies(task: NewTasks, first: dt.datetime, fire_times: dict[uuid.UUID, dt.datetime]) -> Iterator[NewTasks]:
    """Yield the tasks of fire times, copied from the first one's; with a deadline, a batch each, because each has its own."""
    ids, together = list(fire_times), TOGETHER if task.good_until is None else 1
    for begin in range(0, len(ids), together):
        some = ids[begin : begin + together]
        good_until = task.good_until and task.good_until + (fire_times[some[0]] - first)
        yield task._replace(ids=some, kwargs=task.kwargs * len(some), good_until=good_until)
