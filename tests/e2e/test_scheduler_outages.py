"""A scheduler whose database goes away goes on when it is back, and sends what was due meanwhile, once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import psycopg
import pytest

from horsies_django.core.patterns import Every
from horsies_django.core.schedules import ScheduleConfig
from horsies_django.store.schedules import ScheduleStore
from tests.conftest import wait_until
from tests.e2e.test_outages_start import TRY, nowhere
from tests.support.forwarder import Forwarder
from tests.support.server import Server
from tests.support.workers import SchedulerProcess

Start = Callable[..., SchedulerProcess]
SCHEDULES = "tests.settings.schedules"
# Of the fire times since the schedule is in force: how many there were, how many were sent, and as how many tasks.
COUNTS = """
SELECT extract(epoch FROM s.last_fire_at - date_trunc('second', s.since))::int, count(DISTINCT k.fire_at), count(t.id),
       (SELECT count(*) FROM horsies_tasks)
FROM horsies_schedules s LEFT JOIN horsies_schedule_ticks k ON k.schedule_name = s.name
LEFT JOIN horsies_tasks t ON t.id = k.task_id GROUP BY s.name
"""
WITHIN = "SELECT pid FROM pg_stat_activity WHERE application_name = 'horsies scheduler' AND state = '{}' {}"


def create(server: Server) -> None:
    """Make a schedule that fires each second and catches up on all that it missed."""
    schedule = ScheduleConfig("tests.apps.project.tasks.noop", Every(seconds=1), catch_up="all", most=1_000)
    with psycopg.connect(server.url, autocommit=True) as connection:
        changes = schedule.definition()
        ScheduleStore(connection).change(
            "a schedule", action="schedule.create", actor="a test", changes=changes, create=True
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
def running(scheduler: Start, server: Server) -> SchedulerProcess:
    """A scheduler that sends something each second, on a server that may be stopped."""
    create(server)
    process = scheduler(**{**server.environment, "DJANGO_SETTINGS_MODULE": SCHEDULES}).ready()
    sends_more(server)
    return process


def test_a_connection_that_is_cut_is_opened_anew(running: SchedulerProcess, server: Server) -> None:
    for _ in range(3):
        (backend,) = wait_until(lambda: server.backends("horsies scheduler"), "it is connected")
        server.superuser(f"SELECT pg_terminate_backend({backend})")
        sends_more(server)
    assert running.stop() == 0
    assert each_fire_time_once(server)


@pytest.mark.parametrize("how", ["fast", "immediate", "postmaster"])
def test_a_server_that_was_down_is_waited_for(running: SchedulerProcess, server: Server, how: str) -> None:
    server.stop(how)
    wait_until(lambda: "the database is not available, next try in" in running.log, "it notices")
    server.start()
    sends_more(server)
    wait_until(lambda: "the scheduler is running again" in running.log, "it says so")
    assert running.stop() == 0
    assert "Traceback" not in running.log
    assert each_fire_time_once(server)


def test_a_scheduler_that_stands_still_in_the_middle_holds_its_schedule_for_seconds_only(
    running: SchedulerProcess, server: Server, scheduler: Start
) -> None:
    with psycopg.connect(server.url) as somebody:
        somebody.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")  # so that it has to wait where it sends
        wait_until(
            lambda: server.superuser(WITHIN.format("active", "AND wait_event_type = 'Lock'")), "it is in the middle"
        )
        running.signal(signal.SIGSTOP)
    wait_until(lambda: server.superuser(WITHIN.format("idle in transaction", "")), "its schedule is held")
    before = sent(server)
    other = scheduler(**{**server.environment, "DJANGO_SETTINGS_MODULE": SCHEDULES}).ready()
    wait_until(lambda: sent(server) > before, "another one sends what was held")
    running.signal(signal.SIGCONT)
    sends_more(server)
    assert (running.stop(), other.stop()) == (0, 0)
    assert each_fire_time_once(server)


def test_a_link_that_was_cut_costs_nothing(scheduler: Start, server: Server) -> None:
    create(server)
    forwarder = Forwarder(server.port)
    try:
        environment = {**server.environment, **forwarder.way(server.url), "DJANGO_SETTINGS_MODULE": SCHEDULES}
        process = scheduler(**environment).ready()
        sends_more(server)
        forwarder.apart = True
        forwarder.cut()
        wait_until(lambda: "the database is not available, next try in" in process.log, "it notices")
        forwarder.apart = False
        sends_more(server)
        assert process.stop() == 0
    finally:
        forwarder.close()
    assert each_fire_time_once(server)


def test_a_scheduler_that_starts_before_its_database_waits_for_it(scheduler: Start, server: Server) -> None:
    create(server)
    server.stop()
    process = scheduler(**{**server.environment, "DJANGO_SETTINGS_MODULE": SCHEDULES})
    wait_until(lambda: process.log.count(TRY) >= 3, "it tries, and says so")
    server.start()
    process.ready()
    sends_more(server)
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduler_that_waits_for_its_database_ends_at_the_first_signal(scheduler: Start, number: int) -> None:
    long = 60_000
    process = scheduler(**nowhere(DB_RETRY_INITIAL_MS=long, DB_RETRY_MAX_MS=long))
    wait_until(lambda: TRY in process.log, "it waits")
    process.signal(number)
    assert process.process.wait(20) == 0
    assert "Stopped before it started" in process.log


def test_a_scheduler_that_may_try_only_so_often_gives_up(scheduler: Start, server: Server) -> None:
    few = {"HORSIES_TEST_RESILIENCE": json.dumps({"DB_RETRY_MAX_ATTEMPTS": 2})}
    never = scheduler(**nowhere(DB_RETRY_MAX_ATTEMPTS=2))
    process = scheduler(**{**server.environment, "DJANGO_SETTINGS_MODULE": SCHEDULES, **few}).ready()
    server.stop()
    assert (never.wait(), process.wait()) == (1, 1)
    assert "RESILIENCE allows no further try" in never.log
    assert process.log.count("the database is not available, next try in") == 2
    assert "the database is gone and RESILIENCE allows no further try" in process.log
    assert "Traceback" not in process.log
