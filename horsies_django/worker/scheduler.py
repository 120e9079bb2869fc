"""The scheduler, which sends the tasks of schedules at their fire times.

Any number of schedulers may run; none of them is a leader. A scheduler that finds a due schedule
locks its row and, in one transaction, records the fire times, sends their tasks and updates the
row. So each fire time becomes one task, or no task yet if any of these steps fails. A fire time is
recorded as skipped if the task of an earlier one has not finished and must not overlap. All
schedulers use the database's clock.

A schedule that cannot be sent does not delay the others. During a deploy a scheduler of the other
release may have the code that it needs. So this scheduler skips it for a grace period, and only
then writes the error to its row.

The scheduler loop sleeps until the next fire time, and wakes when a schedule is changed. It runs in
``horsies_scheduler``, and in a thread of its own in a worker with ``--with-scheduler``. It also
writes the schedules of its code to the table, and disables those that are no longer in any
scheduler's code. It writes them only when it starts. So if two releases run side by side during a
deploy, the schedules of the one that started last apply.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from horsies_django import schedules
from horsies_django.conf import Config
from horsies_django.core.errors import TaskSendError
from horsies_django.core.patterns import RULES
from horsies_django.core.records import NewTasks
from horsies_django.core.repeats import Repeats
from horsies_django.core.schedules import (
    Due,
    FireTimes,
    ScheduleConfig,
    as_texts,
    due_fire_times,
    read_definition,
)
from horsies_django.core.texts import printable_name, visible
from horsies_django.models import Schedule
from horsies_django.schedules import task_of
from horsies_django.store.base import error_text
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.schedules import ScheduleStore, Taken, session_name
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7s
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.ipc import wait_readable
from horsies_django.worker.process.backoff import Backoff, Link

logger = logging.getLogger("horsies.scheduler")

SCHEDULES_PER_ROUND = 100  # schedules per round
LONGEST_WAIT_SECONDS = 60.0
# the wait before the next try of a schedule that another scheduler holds or may be able to send, or
# that failed for now
LEFT_SECONDS = 1.0
# classes of SQLSTATE: invalid values and violated constraints; trying again does not help
REFUSED_SQLSTATES = ("22", "23")
# A schedule is gone if no scheduler has recorded for so long that it is in its code, while this
# scheduler was connected.
GONE_AFTER = dt.timedelta(minutes=10)


class Scheduler:
    """The rounds that send due tasks; ``tick`` runs one round.

    Schedules that this process cannot send are skipped for the time ``grace``, because other
    schedulers may be able to send them. Tests set ``now`` in place of the database's clock.
    """

    def __init__(self, grace: dt.timedelta) -> None:
        self.grace = grace
        self.now: dt.datetime | None = None
        self.stopping = False  # set by any thread; the round ends after the current schedule
        # schedules to skip -> until when, by the monotonic clock
        self.left: dict[str, float] = {}
        self.repeats = Repeats()
        # schedules that cannot be sent -> their last fire time, and since when they cannot be sent
        self.unsendable: dict[str, tuple[dt.datetime | None, dt.datetime]] = {}

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Send the tasks of due schedules; return the seconds until the next round.

        Raises psycopg.Error if the connection is lost.
        """
        self.left = {name: until for name, until in self.left.items() if until > time.monotonic()}
        store = ScheduleStore(connection, self.now)
        names = store.due(SCHEDULES_PER_ROUND, self.left)

        for name in names:
            if self.stopping:
                return 0.0
            self.attend(connection, name)

        wait = 0.0 if len(names) == SCHEDULES_PER_ROUND else store.wait(self.left)
        waits = [LONGEST_WAIT_SECONDS, *(until - time.monotonic() for until in self.left.values())]
        return max(0.0, min(waits if wait is None else [*waits, wait]))

    def attend(
        self, connection: psycopg.Connection[Any], name: str, problem: str | None = None
    ) -> None:
        """Send the due tasks of a schedule, or with a ``problem`` skip them and record it.

        Raises psycopg.Error only if the connection is lost.
        """
        store = ScheduleStore(connection, self.now)
        try:
            with connection.transaction():
                if taken := store.take(name):
                    self.fire(connection, taken, problem)
                else:
                    self.leave(name)
        except Exception as error:
            if connection.closed:
                raise

            why = error_text(error)
            if (
                problem is None
                and isinstance(error, psycopg.Error)
                and (error.sqlstate or "")[:2] in REFUSED_SQLSTATES
            ):
                self.attend(connection, name, why)
                return

            unforeseen = not isinstance(error, psycopg.Error)
            if (more := self.repeats.due(type(error).__name__, time.monotonic())) is not None:
                line = "schedule %s: could not send its task, will try again: %s%s"
                logger.warning(line, printable_name(name), visible(why), more, exc_info=unforeseen)
            self.leave(name)

    def fire(self, connection: psycopg.Connection[Any], taken: Taken, problem: str | None) -> None:
        """Send the due tasks of a locked schedule, unless there is a problem, and update its row.

        Raises psycopg.Error.
        """
        store = ScheduleStore(connection, self.now)
        schedule, wrong = read_definition(taken.definition)

        if taken.rules is not None and taken.rules > RULES:
            self.leave(taken.name)  # a newer release has computed its fire times
        elif schedule is None:
            if not self.others_may(taken):
                problem = "; ".join(as_texts(wrong))
                logger.error(
                    "invalid schedule %s: %s", printable_name(taken.name), visible(problem)
                )
                store.advance(
                    taken.name,
                    last_fire_at=None,
                    next_fire_at=None,
                    next_at=None,
                    rules=RULES,
                    error=problem,
                )
        else:
            timing = schedule.timing(taken.name, taken.since)
            found = due_fire_times(timing, taken.last_fire_at, taken.now)

            if problem is None:
                try:
                    self.send(connection, taken, schedule, found)
                except (LookupError, TaskSendError) as error:
                    if self.others_may(taken):
                        return
                    problem = error.message if isinstance(error, TaskSendError) else str(error)

            if problem is not None:
                logger.error(
                    "schedule %s: could not send its task, skipping it: %s",
                    printable_name(taken.name),
                    visible(problem),
                )
            elif found.missed and found.first is not None:
                logger.warning(
                    "schedule %s: missed fire times since %s",
                    printable_name(taken.name),
                    found.first.isoformat(),
                )

            self.advance(store, taken, timing, found, problem)

    def send(
        self,
        connection: psycopg.Connection[Any],
        taken: Taken,
        schedule: ScheduleConfig,
        found: Due,
    ) -> None:
        """Record the due fire times and send their tasks.

        With the overlap "skip", a fire time is skipped if an earlier task has not finished. Raises
        LookupError and TaskSendError before anything is written.
        """
        if found.fire_times:
            task = task_of(schedule, found.fire_times[0])
            fire_times = dict(zip(uuid7s(len(found.fire_times)), found.fire_times, strict=True))
            skip = schedule.overlap == "skip"
            store = ScheduleStore(connection, self.now)

            for some in (
                [{id_: fire_time} for id_, fire_time in fire_times.items()]
                if skip
                else [fire_times]
            ):
                noted, unfinished = store.tick(taken.name, list(some.values()), list(some), skip)
                unsent = {id_: fire_time for id_, fire_time in some.items() if id_ in noted}
                for batch in copy_batches(task, found.fire_times[0], unsent):
                    TaskStore(connection).send(batch)

                if unfinished is not None:
                    line = "schedule %s: skipped its fire time %s, because task %s has not finished"
                    logger.info(
                        line, printable_name(taken.name), min(some.values()).isoformat(), unfinished
                    )

    def advance(
        self, store: ScheduleStore, taken: Taken, timing: FireTimes, found: Due, problem: str | None
    ) -> None:
        """Record the last and the next fire time of a schedule."""
        following = timing.following(
            max(filter(None, (found.last, taken.last_fire_at, taken.since)))
        )
        store.advance(
            taken.name,
            last_fire_at=found.last,
            next_fire_at=following,
            next_at=None if following is None else timing.moment(following),
            rules=RULES,
            error=problem,
            missed=found.missed or problem is not None,
        )

    def others_may(self, taken: Taken) -> bool:
        """Return whether other schedulers may still send a schedule that this process cannot send.

        If so, the schedule is skipped for a while. Return False once the grace period is over.
        """
        last, since = self.unsendable.get(taken.name, (taken.last_fire_at, taken.now))
        if last != taken.last_fire_at:
            since = taken.now  # another scheduler has sent it in the meantime
        self.unsendable[taken.name] = (taken.last_fire_at, since)

        if taken.now - since >= self.grace:
            del self.unsendable[taken.name]
            return False

        self.leave(taken.name)
        return True

    def leave(self, name: str) -> None:
        """Skip a schedule for a while."""
        self.left[name] = time.monotonic() + LEFT_SECONDS


def copy_batches(
    task: NewTasks, first: dt.datetime, fire_times: dict[uuid.UUID, dt.datetime]
) -> Iterator[NewTasks]:
    """Yield the tasks of fire times in batches, as copies of the task of the first one.

    With a deadline, each task is a batch of its own, because the deadlines differ.
    """
    # each copy has the arguments, and PostgreSQL accepts at most 256 MB of them at once
    ids = list(fire_times)
    together = 100 if task.good_until is None else 1

    for begin in range(0, len(ids), together):
        some = ids[begin : begin + together]
        good_until = task.good_until and task.good_until + (fire_times[some[0]] - first)
        yield task._replace(ids=some, kwargs=task.kwargs * len(some), good_until=good_until)


class SchedulerLoop(threading.Thread, Link):
    """The loop that runs the scheduler's rounds until ``stop``.

    Any thread or signal handler may call ``stop``. With ``gives_up`` the loop ends if the database
    is unavailable for longer than RESILIENCE allows. ``wakeup`` becomes readable when a signal
    arrives, so that the main thread does not miss a signal that arrives just before it sleeps.
    """

    def __init__(
        self,
        config: Config,
        actor: str,
        *,
        gives_up: bool = False,
        wakeup: socket.socket | None = None,
    ) -> None:
        super().__init__(name="horsies-scheduler", daemon=True)
        self.config = config
        self.actor = actor
        self.gives_up = gives_up

        self.alias = config.listen_database or config.database
        self.scheduler = Scheduler(dt.timedelta(milliseconds=config.unknown_task_grace_ms))
        self.backoff = Backoff(config.resilience)
        self.poll_seconds = config.resilience.notify_poll_interval_ms / 1000

        self.channel = ""  # of changed schedules; a pooler may deliver other channels, too
        self.names: list[str] = []  # of the schedules in the code
        self.signed_at = -math.inf  # when ``sign`` was called last, by the monotonic clock
        self.in_touch_since = math.inf  # since when it is connected

        self.waker, self.woken = socket.socketpair()
        self.wakeup = wakeup or self.woken

    def declare(self, only: Collection[str] | None = None) -> None:
        """Write the schedules of the code to the table.

        Raises ScheduleError and Django's database errors.
        """
        self.names = sorted({one.name for one in schedules.declared()})
        rows = Schedule.objects.using(self.config.database).filter(name__in=self.names)

        try:
            existing = set(rows.values_list("name", flat=True))
            for name, keys in schedules.declare(actor=self.actor, only=only).items():
                if name in existing:
                    logger.info("schedule %s: %s changed in the code", name, ", ".join(keys))
                else:
                    logger.info("schedule %s was added by the code", name)
        finally:
            connections[self.config.database].close()

    def run(self) -> None:
        """Run until stopped; failures are retried.

        Raises DatabaseGaveUp if it ``gives_up``.
        """
        try:
            while not self.scheduler.stopping:
                self.sleep(self.turn())
        finally:
            self.disconnect()
            self.woken.close()
            self.waker.close()

    def turn(self) -> float:
        """Run one round and handle its errors; return the seconds until the next round.

        Raises DatabaseGaveUp if no further try is allowed.
        """
        try:
            wait = self.tick(self.connection or self.connect())
        except (psycopg.Error, DatabaseError) as error:
            self.disconnect()
            problem = error_text(error)

            if self.gives_up and self.backoff.exhausted:
                raise DatabaseGaveUp(
                    "the database is not available, and RESILIENCE allows no further try: "
                    f"{problem}"
                ) from error

            wait = self.backoff.failed()
            logger.warning("the database is not available, next try in %.1f s: %s", wait, problem)
        except Exception:
            self.disconnect()
            wait = self.backoff.failed()
            logger.exception("the scheduler failed, next try in %.1f s", wait)
        else:
            if self.backoff.failures:
                logger.info("the scheduler is running again")
            self.backoff.succeeded()

        return wait

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Send due tasks and sign the schedules; return the seconds until the next round.

        Raises psycopg.Error.
        """
        now = time.monotonic()
        if now >= self.signed_at + 60.0:
            self.sign(ScheduleStore(connection))
            self.signed_at = now

        return min(self.scheduler.tick(connection), self.poll_seconds)

    def sign(self, store: ScheduleStore) -> None:
        """Record that the schedules of the code are still in use, and disable abandoned ones.

        These are the schedules that are not in the code of any scheduler any more.
        """
        if missed := store.declared(self.names):
            self.declare(missed)  # they were disabled, because no record was written for too long

        if time.monotonic() - self.in_touch_since >= GONE_AFTER.total_seconds():
            for name in store.gone(GONE_AFTER, self.actor):
                logger.warning(
                    "schedule %s is no longer in any scheduler's code; disabling it",
                    printable_name(name),
                )

    def sleep(self, seconds: float) -> None:
        """Wait until the time is over, a schedule is changed, or ``stop`` is called."""
        try:
            if self.has_changes():
                return  # the round before may have missed the change

            wait_readable(
                {self.woken, self.wakeup} | ({self.connection} if self.connection else set()),
                seconds,
            )
            self.has_changes()
        except psycopg.Error:
            self.disconnect()  # the next round connects again

    def has_changes(self) -> bool:
        """Return whether a schedule has been changed since the last call.

        Raises psycopg.Error.
        """
        arrived = [] if self.connection is None else list(self.connection.notifies(timeout=0))
        return any(one.channel == self.channel for one in arrived)

    def connect(self) -> psycopg.Connection[Any]:
        """Open and return the connection, and listen for changes of schedules.

        Raises psycopg.Error.
        """
        connection = direct_connection(
            self.alias, application_name=session_name(), prepare=True, statement_timeout_ms=10_000
        )

        self.connection = connection
        self.signed_at = -math.inf  # sign soon: the loop may have been disconnected for long
        self.in_touch_since = time.monotonic()
        self.channel = f"{channel_prefix(connection)}_schedules"
        connection.execute(f"LISTEN {self.channel}")

        return connection

    def stop(self) -> None:
        """End the loop after the schedule that it is sending now."""
        self.scheduler.stopping = True
        with suppress(OSError):  # the loop has ended
            self.waker.send(b".")
