"""Real schedulers.

``manage.py horsies_scheduler`` sends the tasks of due fire times, wakes on changes, and ends at a
signal.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django import schedules
from horsies_django.core.patterns import Every
from horsies_django.core.schedules import ScheduleConfig
from horsies_django.models import AuditEntry, ScheduleTick, Task
from horsies_django.store.schedules import ScheduleStore
from tests.conftest import sql, wait_until
from tests.support.factories import now
from tests.support.server import Server
from tests.support.workers import SchedulerProcess, Start, given
from tests.worker.test_scheduler import fire_times, row

StartScheduler = Callable[..., SchedulerProcess]
FOR_LONG = {"HORSIES_TEST_POLL_MS": "300000"}  # longer than any test waits
NOOP = "tests.apps.project.tasks.noop"
ADD = "tests.apps.project.tasks.add"
SECOND = dt.timedelta(seconds=1)


def create(name: str = "a schedule", **definition: Any) -> None:
    schedules.create(
        name, {"task": NOOP, "pattern": "every 1 second", **definition}, actor="a test"
    )


def sends(name: str = "a schedule", more_than: int = 0) -> list[dt.datetime]:
    """Wait until fire times were sent, and return them."""
    wait_until(lambda: len(fire_times(name)) > more_than, f"fire times of {name} are sent")
    return fire_times(name)


@pytest.mark.promise("S3.2")
@pytest.mark.boundary
def test_the_tasks_of_due_fire_times_are_sent_and_run(
    scheduler: StartScheduler, worker: Start
) -> None:
    create(task=ADD, kwargs={"a": 1})
    runs = worker("--processes=1").ready()
    sent = scheduler().ready()

    first, *rest = sends(more_than=2)
    assert rest == [first + number * SECOND for number in range(1, len(rest) + 1)]

    results = Task.objects.filter(task_name=ADD, status="COMPLETED", result__ok=1)
    wait_until(lambda: results.count() > 2, "the tasks have run")
    assert (sent.stop(), runs.stop()) == (0, 0)

    ids = ScheduleTick.objects.values_list("task_id", flat=True)
    assert sorted(ids) == sorted(Task.objects.values_list("id", flat=True))


# Schedules that the code declares


def test_a_start_writes_the_schedules_of_the_code_to_the_table(
    scheduler: StartScheduler,
) -> None:
    """A scheduler writes the schedules of its code to the table when it starts.

    Changes and signals end its sleep.
    """
    process = scheduler(
        **given(SCHEDULES={"rare": {"task": NOOP, "pattern": "every 365 days"}}), **FOR_LONG
    ).ready()

    assert row("rare").declared_in == "HORSIES['SCHEDULES']['rare']"
    assert AuditEntry.objects.get(action="schedule.declare").actor.startswith("scheduler on ")

    schedules.change("rare", {"pattern": "every 1 second"}, actor="a test")
    sends("rare")

    schedules.disable("rare", actor="a test")
    assert process.stop() == 0


def test_the_newest_of_two_releases_declares_the_schedule(
    scheduler: StartScheduler,
) -> None:
    """Of two releases side by side, the one that started last declares the schedule.

    The older one does not overwrite it.
    """
    older = {"task": NOOP, "pattern": "every 2 seconds"}
    newer = {"task": ADD, "pattern": "every 1 second", "kwargs": {"a": 1}}
    old, new = (scheduler(**given(SCHEDULES={"tick": each})).ready() for each in (older, newer))
    since = row("tick").since

    # Each scheduler declares its schedules again after it reconnects, while the other one is
    # stopped.
    for process in (old, new, old, new):
        process.signal(signal.SIGSTOP)
        signed = now()
        sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND starts_with(application_name, 'horsies "
            "scheduler ')"
        )
        wait_until(lambda signed=signed: row("tick").declared_at > signed, "the other one signs")
        process.signal(signal.SIGCONT)

    assert (row("tick").definition["task"], row("tick").since) == (ADD, since)
    assert AuditEntry.objects.filter(action="schedule.declare", subject="tick").count() == 2

    sends("tick", more_than=len(fire_times("tick")) + 1)
    assert set(Task.objects.filter(sent_at__gt=since).values_list("task_name", flat=True)) == {ADD}
    assert (old.stop(), new.stop()) == (0, 0)


# While the database is away


# Since the schedule is in force: the number of its fire times, how many of them were sent, and the
# number of tasks that were sent.
COUNTS = """
SELECT extract(epoch FROM s.last_fire_at - date_trunc('second', s.since))::int,
       count(DISTINCT k.fire_at), count(t.id),
       (SELECT count(*) FROM horsies_tasks)
FROM horsies_schedules s LEFT JOIN horsies_schedule_ticks k ON k.schedule_name = s.name
LEFT JOIN horsies_tasks t ON t.id = k.task_id GROUP BY s.name
"""
WITHIN = (
    "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'horsies scheduler ') "
    "AND state = '{}' {}"
)


def sent(server: Server) -> int:
    return int(server.superuser("SELECT count(*) FROM horsies_schedule_ticks")[0][0])


def sends_more(server: Server) -> None:
    before = sent(server)
    wait_until(lambda: sent(server) > before + 1, "fire times are sent")


def each_fire_time_once(server: Server) -> bool:
    ((fire_times, ticks, tasks, all_tasks),) = server.superuser(COUNTS)
    return bool(fire_times == ticks == tasks == all_tasks)


@pytest.fixture
def running(scheduler: StartScheduler, server: Server) -> SchedulerProcess:
    """Yield a scheduler that sends a task each second, and all missed ones, on its own server.

    The test may stop the server.
    """
    schedule = ScheduleConfig(NOOP, Every(seconds=1), catch_up="all", most=1_000)
    how = {"action": "schedule.create", "actor": "a test", "create": True}

    with psycopg.connect(server.url, autocommit=True) as connection:
        ScheduleStore(connection).change("a schedule", changes=schedule.definition(), **how)

    process = scheduler(DATABASE_URL=server.url).ready()
    sends_more(server)
    return process


def test_a_server_that_was_down_is_waited_for(running: SchedulerProcess, server: Server) -> None:
    server.stop("postmaster")
    wait_until(lambda: "the database is not available, next try in" in running.log, "it notices")

    server.start()
    sends_more(server)
    wait_until(lambda: "the scheduler is running again" in running.log, "it says so")

    assert running.stop() == 0
    assert "Traceback" not in running.log
    assert each_fire_time_once(server)


def test_a_frozen_scheduler_holds_its_schedule_for_seconds_only(
    running: SchedulerProcess, server: Server, scheduler: StartScheduler
) -> None:
    """A scheduler that is frozen in the middle of a round holds its schedule for seconds only."""
    with psycopg.connect(server.url) as somebody:
        # The scheduler has to wait for this lock when it sends.
        somebody.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        wait_until(
            lambda: server.superuser(WITHIN.format("active", "AND wait_event_type = 'Lock'")),
            "it is in the middle",
        )
        running.signal(signal.SIGSTOP)

    wait_until(
        lambda: server.superuser(WITHIN.format("idle in transaction", "")), "its schedule is held"
    )

    before = sent(server)
    other = scheduler(DATABASE_URL=server.url).ready()
    wait_until(lambda: sent(server) > before, "another one sends what was held")

    running.signal(signal.SIGCONT)
    sends_more(server)

    assert (running.stop(), other.stop()) == (0, 0)
    assert each_fire_time_once(server)
