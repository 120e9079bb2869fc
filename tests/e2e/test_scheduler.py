"""Real schedulers: ``manage.py horsies_scheduler`` sends the tasks of due fire times, wakes on changes, and ends when told to."""

from __future__ import annotations

import datetime as dt
import json
import signal
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from horsies_django import schedules
from horsies_django.models import AuditEntry, Schedule, ScheduleTick, Task
from tests.conftest import wait_until
from tests.e2e.test_start import refused
from tests.support.factories import now
from tests.support.workers import SchedulerProcess, WorkerProcess, database_url
from tests.worker.test_scheduler import fire_times, row

pytestmark = pytest.mark.django_db(transaction=True)

StartScheduler = Callable[..., SchedulerProcess]
StartWorker = Callable[..., WorkerProcess]
FOR_LONG = {"HORSIES_TEST_POLL_MS": "300000"}  # longer than any test waits for anything
NOOP = "tests.apps.project.tasks.noop"
ADD = "tests.apps.project.tasks.add"
SECOND = dt.timedelta(seconds=1)


def create(name: str = "a schedule", **definition: Any) -> None:
    schedules.create(name, {"task": NOOP, "pattern": "every 1 second", **definition}, actor="a test")


def code(**schedules: dict[str, Any]) -> dict[str, str]:
    """Give the environment of a scheduler whose settings declare schedules."""
    return {"HORSIES_TEST_SCHEDULES": json.dumps(schedules)}


def sends(name: str = "a schedule", more_than: int = 0) -> list[dt.datetime]:
    """Wait until fire times were sent, and return them."""
    wait_until(lambda: len(fire_times(name)) > more_than, f"fire times of {name} are sent")
    return fire_times(name)


def cut() -> None:
    """End the connections of all schedulers."""
    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'horsies scheduler'"
    )
    with connection.cursor() as cursor:
        cursor.execute(query)


def asleep() -> None:
    """Wait until the one scheduler there is has nothing more to ask the database."""
    query = (
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' "
        "AND application_name = 'horsies scheduler' AND query LIKE '-- Return the seconds until%'"
    )
    with connection.cursor() as cursor:
        wait_until(lambda: (cursor.execute(query), cursor.fetchone()[0])[1], "it sleeps")


@pytest.mark.promise("S3.2")
@pytest.mark.boundary
def test_the_tasks_of_due_fire_times_are_sent_and_run(scheduler: StartScheduler, worker: StartWorker) -> None:
    create(task=ADD, kwargs={"a": 1})
    runs, sent = worker("--processes=1").ready(), scheduler().ready()
    first, *rest = sends(more_than=2)
    assert rest == [first + number * SECOND for number in range(1, len(rest) + 1)]
    results = Task.objects.filter(task_name=ADD, status="COMPLETED", result__ok=1)
    wait_until(lambda: results.count() > 2, "the tasks have run")
    assert (sent.stop(), runs.stop()) == (0, 0)
    ids = ScheduleTick.objects.values_list("task_id", flat=True)
    assert sorted(ids) == sorted(Task.objects.values_list("id", flat=True))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_with_nothing_half_done(scheduler: StartScheduler, number: int) -> None:
    for count in range(20):
        create(f"nr. {count}")
    process = scheduler(**FOR_LONG).ready()
    at_work = ScheduleTick.objects.values("schedule_name").distinct()
    wait_until(lambda: at_work.count() == 20, "each has had its turn")
    process.signal(number)
    assert process.wait() == 0
    assert process.log.rstrip().endswith("Scheduler stopped")
    assert "Traceback" not in process.log
    ticks = {(tick.schedule_name, tick.fire_at): tick.task_id for tick in ScheduleTick.objects.all()}
    assert sorted(ticks.values()) == sorted(Task.objects.values_list("id", flat=True))
    for found in Schedule.objects.all():
        assert (found.name, found.last_fire_at) in ticks
        assert found.next_fire_at == (found.last_fire_at or now()) + SECOND


def test_a_signal_ends_it_while_it_sleeps(scheduler: StartScheduler) -> None:
    process = scheduler(**FOR_LONG).ready()
    asleep()
    assert process.stop() == 0


# What its code declares


def test_the_schedules_in_its_code_are_in_the_table_once_it_has_started(scheduler: StartScheduler) -> None:
    nightly = {"task": ADD, "pattern": "daily at 04:30", "zone": "Europe/Istanbul", "kwargs": {"a": 1}}
    process = scheduler(**code(nightly=nightly)).ready()
    assert "1 schedules in its code" in process.log
    found = row("nightly")
    assert nightly.items() <= found.definition.items()
    assert found.declared_in == "HORSIES['SCHEDULES']['nightly']"
    assert AuditEntry.objects.get(action="schedule.declare").actor.startswith("scheduler on ")
    wait_until(lambda: row("nightly").next_fire_at, "it knows the next fire time")
    assert process.stop() == 0


DAILY = {"task": ADD, "pattern": "daily at 04:30"}


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        (
            {"1": {**DAILY, "task": "no.such.task"}, "2": {**DAILY, "kwargs": {"no": 1}}, "3": {**DAILY, "queue": "mial"}},
            ["no.such.task", "kwargs: ", "mial"],
        ),
        ({"one": {**DAILY, "pattern": "at teatime"}, "two": {**DAILY, "zone": "Mars"}}, ["at teatime", "Mars"]),
    ],
    ids=["what does not fit", "what cannot be"],
)  # fmt: skip
def test_what_cannot_be_declared_ends_the_start_and_all_of_it_is_told(
    scheduler: StartScheduler, schedules: dict[str, dict[str, Any]], words: list[str]
) -> None:
    refused(scheduler(**code(**schedules)), *words)
    assert not Schedule.objects.exists()


def test_one_that_was_out_of_touch_declares_again_what_was_taken_for_gone(scheduler: StartScheduler) -> None:
    process = scheduler(**code(tick={"task": NOOP, "pattern": "every 1 second"})).ready()
    sends("tick")
    process.signal(signal.SIGSTOP)
    with connection.cursor() as cursor:  # as another scheduler does after ten minutes
        cursor.execute("UPDATE horsies_schedules SET gone_at = now(), next_at = NULL, declared_at = NULL")
    cut()
    process.signal(signal.SIGCONT)
    wait_until(lambda: row("tick").gone_at is None, "it declares it again")
    sends("tick", more_than=len(fire_times("tick")))


def test_of_two_releases_side_by_side_the_one_that_started_last_is_right_and_they_do_not_fight(
    scheduler: StartScheduler,
) -> None:
    old = scheduler(**code(tick={"task": NOOP, "pattern": "every 2 seconds"})).ready()
    new = scheduler(**code(tick={"task": ADD, "pattern": "every 1 second", "kwargs": {"a": 1}})).ready()
    since = row("tick").since
    for process in (old, new, old, new):  # each signs anew when it connects anew, and the other one waits meanwhile
        process.signal(signal.SIGSTOP)
        signed = now()
        cut()
        wait_until(lambda signed=signed: row("tick").declared_at > signed, "the other one signs")
        process.signal(signal.SIGCONT)
    assert (row("tick").definition["task"], row("tick").since) == (ADD, since)
    assert AuditEntry.objects.filter(action="schedule.declare", subject="tick").count() == 2
    sends("tick", more_than=len(fire_times("tick")) + 1)
    assert set(Task.objects.filter(sent_at__gt=since).values_list("task_name", flat=True)) == {ADD}
    assert (old.stop(), new.stop()) == (0, 0)


def test_a_task_that_only_one_of_two_knows_is_sent_by_that_one(scheduler: StartScheduler) -> None:
    create(task=ADD, kwargs={"a": 1}, catch_up="all")
    create("plain")
    old = scheduler(HORSIES_TEST_OLD_CODE="1").ready()
    sends("plain", more_than=1)
    assert (fire_times(), row().error) == ([], None)
    new = scheduler().ready()
    found = sends(more_than=3)
    assert found == [row().since.replace(microsecond=0) + (number + 1) * SECOND for number in range(len(found))]
    assert row().error is None
    assert (old.stop(), new.stop()) == (0, 0)


# Waking


def test_it_wakes_when_a_schedule_is_created_changed_or_enabled(scheduler: StartScheduler) -> None:
    process = scheduler(**FOR_LONG).ready()
    asleep()
    create()
    sends()
    schedules.disable("a schedule", actor="a test")
    create("another", pattern="every 365 days")
    wait_until(lambda: row("another").next_fire_at, "it looks at that one")
    asleep()
    schedules.enable("a schedule", actor="a test")
    sends(more_than=len(fire_times()))
    schedules.disable("a schedule", actor="a test")
    asleep()
    schedules.change("another", {"pattern": "every 2 seconds"}, actor="a test")
    sends("another")
    assert process.stop() == 0


# Starts that are refused


def test_without_migrations_it_does_not_start(scheduler: StartScheduler) -> None:
    name, url = f"empty_{uuid.uuid4().hex[:8]}", database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            process = scheduler(DATABASE_URL=urlsplit(url)._replace(path=f"/{name}").geturl())
            refused(process, "unapplied migrations of horsies: 0001_initial", "manage.py migrate")
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("tests.settings.wrong", ["QUEUS", "MAX_PAYLOAD_BYTES"]),
        ("tests.settings.no_tasks", ["no task is registered"]),
        ("tests.settings.broken_tasks", ["tests.apps.broken.tasks", "a mistake in a task module"]),
    ],
)
def test_a_project_that_is_not_ready_is_refused(scheduler: StartScheduler, settings: str, words: list[str]) -> None:
    refused(scheduler(DJANGO_SETTINGS_MODULE=settings), *words)
