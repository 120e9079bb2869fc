"""The scheduler: sends the tasks of schedules when their slots come.

Any number of them may run, and none of them leads. Who finds a schedule due takes its row, and in one transaction notes its
slots, sends their tasks, and moves it on: so a slot becomes one task or, when anything of that fails, none yet. All of them go by
the database's clock. A schedule that cannot be sent holds up no other. During a deploy another scheduler may have the code that
can: it is left to those for a while, and only then says in its row what is wrong.
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
from horsies_django.core.patterns import RULES
from horsies_django.core.records import NewTasks
from horsies_django.core.schedules import ScheduleConfig, as_texts, read_definition
from horsies_django.core.slots import Due, Timing, due
from horsies_django.schedules import task_of
from horsies_django.store.schedules import ScheduleStore, Taken
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7s

logger = logging.getLogger("horsies.scheduler")

MANY = 100  # schedules of one round
TOGETHER = 100  # tasks of one statement: each brings its arguments, and PostgreSQL reads no more than 256 MB at once
LONGEST_WAIT_SECONDS = 60.0
LEFT_SECONDS = 5.0  # between looks at what others may know how to send, or what the database refused for now
BUSY_SECONDS = 0.25  # before another look at what somebody else holds
REFUSED = ("22", "23")  # classes of SQLSTATE: a value or a row that PostgreSQL will not take, however often it is asked


class Scheduler:
    """``tick`` is one round. ``grace``: for how long what the code of this process cannot send is left to others.

    ``now`` stands in for the database's clock, in tests.
    """

    def __init__(self, grace: dt.timedelta) -> None:
        self.grace = grace
        self.now: dt.datetime | None = None
        self.stopping = False  # set by any thread: the round ends with the schedule that it is at
        self.left: dict[str, float] = {}  # schedules not to look at, until when by the monotonic clock
        self.strange: dict[str, tuple[dt.datetime | None, dt.datetime]] = {}  # by name: its last slot, and since when

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Send what is due, and return after how many seconds to come again. Raises psycopg.Error when the connection broke."""
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
        """Send what is due of one schedule, or with a ``problem`` go past it. Raises only when the connection broke."""
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
            said = str(error).strip()
            if problem is None and isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in REFUSED:
                self.attend(connection, name, said)
                return
            unforeseen = not isinstance(error, psycopg.Error)
            logger.warning("schedule %s: could not send its task, trying again: %s", name, said, exc_info=unforeseen)
            self.leave(name)

    def fire(self, connection: psycopg.Connection[Any], taken: Taken, problem: str | None) -> None:
        """Send the slots of a schedule that is held, unless there is a problem, and move it on. Raises psycopg.Error."""
        store = ScheduleStore(connection, self.now)
        schedule, wrong = read_definition(taken.definition)
        if taken.rules is not None and taken.rules > RULES:
            self.leave(taken.name)  # a newer scheduler has it
        elif schedule is None:
            if not self.others_may(taken):
                problem = "; ".join(as_texts(wrong))
                logger.error("schedule %s: %s", taken.name, problem)
                store.advance(taken.name, last_slot=None, next_slot=None, next_at=None, rules=RULES, error=problem)
        else:
            timing = schedule.timing(taken.name, taken.since)
            found = due(timing, taken.last_slot, taken.now)
            if problem is None:
                try:
                    self.send(connection, taken, schedule, found)
                except (LookupError, TaskSendError) as error:
                    if self.others_may(taken):
                        return
                    problem = error.message if isinstance(error, TaskSendError) else str(error)
            if problem is not None:
                logger.error("schedule %s: %s", taken.name, problem)
            elif found.missed and found.first is not None:
                logger.warning("schedule %s: slots since %s were missed", taken.name, found.first.isoformat())
            self.advance(store, taken, timing, found, problem)

    def send(self, connection: psycopg.Connection[Any], taken: Taken, schedule: ScheduleConfig, found: Due) -> None:
        """Note and send the slots that are due. Raises LookupError and TaskSendError before anything is written."""
        if found.slots:
            task = task_of(schedule, found.slots[0])
            slots = dict(zip(uuid7s(len(found.slots)), found.slots, strict=True))
            noted = ScheduleStore(connection).tick(taken.name, list(slots.values()), list(slots))
            for some in copies(task, found.slots[0], {id_: slot for id_, slot in slots.items() if id_ in noted}):
                TaskStore(connection).send(some)

    def advance(self, store: ScheduleStore, taken: Taken, timing: Timing, found: Due, problem: str | None) -> None:
        """Note how far a schedule came, and when its next slot is."""
        following = timing.following(max(filter(None, (found.last, taken.last_slot, taken.since))))
        store.advance(
            taken.name,
            last_slot=found.last,
            next_slot=following,
            next_at=None if following is None else timing.moment(following),
            rules=RULES,
            error=problem,
        )

    def others_may(self, taken: Taken) -> bool:
        """Leave a schedule that the code of this process cannot send to others; False: none of them did in a long time."""
        last, since = self.strange.get(taken.name, (taken.last_slot, taken.now))
        if last != taken.last_slot:
            since = taken.now  # somebody sent it meanwhile
        self.strange[taken.name] = (taken.last_slot, since)
        if taken.now - since >= self.grace:
            del self.strange[taken.name]
            return False
        self.leave(taken.name)
        return True

    def leave(self, name: str, seconds: float = LEFT_SECONDS) -> None:
        """Look at a schedule again a little later."""
        self.left[name] = time.monotonic() + seconds


def copies(task: NewTasks, first: dt.datetime, slots: dict[uuid.UUID, dt.datetime]) -> Iterator[NewTasks]:
    """Give the tasks of slots by their ids, made after that of the first slot; those with a time limit have it each to itself."""
    ids, together = list(slots), TOGETHER if task.good_until is None else 1
    for begin in range(0, len(ids), together):
        some = ids[begin : begin + together]
        good_until = task.good_until and task.good_until + (slots[some[0]] - first)
        yield task._replace(ids=some, kwargs=task.kwargs * len(some), good_until=good_until)
