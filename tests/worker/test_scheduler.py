"""One scheduler, driven by a clock of the test's own: which tasks it sends, and what it writes down."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django import schedules
from horsies_django.core.errors import ScheduleError
from horsies_django.models import AuditEntry, Schedule, ScheduleTick, Task
from horsies_django.schedules import ScheduleConfig
from horsies_django.store.base import load
from horsies_django.store.schedules import ScheduleStore
from horsies_django.worker.scheduler.scheduler import LONGEST_WAIT_SECONDS, Scheduler
from tests.apps.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
SECOND = dt.timedelta(seconds=1)
NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)


class Clockwork:
    """A scheduler, and a clock that the test sets."""

    def __init__(self, connection_: psycopg.Connection[Any]) -> None:
        self.connection = connection_
        self.scheduler = Scheduler(dt.timedelta(minutes=5))

    def at(self, now: dt.datetime) -> float:
        """Have it look at a moment, and return after how many seconds it would look again."""
        self.scheduler.now = now
        return self.scheduler.tick(self.connection)

    def later(self, now: dt.datetime) -> float:
        """Have it look at a moment that is so much later that it looks also at what it left for a while."""
        self.scheduler.left.clear()
        return self.at(now)


@pytest.fixture
def clockwork(connect: Connect) -> Clockwork:
    return Clockwork(connect())


def make(name: str = "a schedule", *, since: dt.datetime = NOON, **definition: Any) -> None:
    """Make a schedule that is in force since a moment."""
    schedules.create(
        name, {"task": "tests.apps.project.tasks.noop", "pattern": "every minute", **definition}, actor="a test"
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_schedules SET since = %s, next_at = %s WHERE name = %s", [since, since, name])


def fire_times(name: str = "a schedule") -> list[dt.datetime]:
    return list(ScheduleTick.objects.filter(schedule_name=name).order_by("fire_at").values_list("fire_at", flat=True))


def row(name: str = "a schedule") -> Schedule:
    return Schedule.objects.get(pk=name)


def test_a_fire_time_becomes_a_task_when_its_time_has_come(clockwork: Clockwork) -> None:
    make()
    assert clockwork.at(NOON) == 60 - 0
    assert clockwork.at(NOON + 59 * SECOND) == pytest.approx(1)
    assert fire_times() == []
    assert clockwork.at(NOON + 60 * SECOND) == 60
    tick = ScheduleTick.objects.get()
    assert (tick.fire_at, Task.objects.get().pk) == (NOON + 60 * SECOND, tick.task_id)
    assert (row().last_fire_at, row().next_fire_at) == (NOON + 60 * SECOND, NOON + 120 * SECOND)
    clockwork.at(NOON + 60 * SECOND)
    assert Task.objects.count() == 1


def test_without_schedules_it_waits_for_long(clockwork: Clockwork) -> None:
    assert clockwork.at(NOON) == LONGEST_WAIT_SECONDS


def test_a_scheduled_task_keeps_its_decorator_s_options(clockwork: Clockwork) -> None:
    make(task="tests.apps.project.tasks.mail", kwargs={"to": "ann@example.org"}, good_for_ms=30_000)
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    sent = Task.objects.get()
    tasks.mail.send("ann@example.org")
    plain = Task.objects.exclude(pk=sent.pk).get()
    kept = ("task_name", "queue_name", "lane", "priority", "kwargs", "max_retries", "options", "partition_key")
    assert [getattr(sent, name) for name in kept] == [getattr(plain, name) for name in kept]
    assert sent.good_until == NOON + 90 * SECOND


def test_queue_and_priority_of_the_schedule_come_first(clockwork: Clockwork) -> None:
    make(queue="mail", priority=3)
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    assert Task.objects.values_list("queue_name", "priority").get() == ("mail", 3)


@pytest.mark.parametrize(
    ("catch_up", "expected"), [("latest", [180]), ("all", [60, 120, 180]), ("none", [180])]
)  # the last one is a little late, not missed
def test_after_a_while_without_a_scheduler(clockwork: Clockwork, catch_up: str, expected: list[int]) -> None:
    make(catch_up=catch_up)
    clockwork.at(NOON)
    clockwork.at(NOON + 200 * SECOND)
    assert fire_times() == [NOON + seconds * SECOND for seconds in expected]
    assert row().next_fire_at == NOON + 240 * SECOND


def test_fire_times_that_were_missed_are_said(clockwork: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    make()
    clockwork.at(NOON)
    with caplog.at_level(logging.WARNING):
        clockwork.at(NOON + 200 * SECOND)
    assert "missed fire times since 2027-03-01T12:01:00+00:00" in caplog.text


def test_a_fire_time_that_was_sent_is_not_sent_again_though_its_row_was_pruned(clockwork: Clockwork) -> None:
    make()
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM horsies_schedule_ticks")
        cursor.execute("UPDATE horsies_schedules SET next_at = %s", [NOON])
    clockwork.at(NOON + 61 * SECOND)
    assert Task.objects.count() == 1


def test_a_clock_set_back_by_an_hour_sends_nothing_twice(clockwork: Clockwork) -> None:
    make(catch_up="all")
    clockwork.at(NOON)
    for minute in range(1, 91):
        clockwork.at(NOON + minute * 60 * SECOND)
    for minute in range(30, 95):
        clockwork.at(NOON + minute * 60 * SECOND)
    assert fire_times() == [NOON + minute * 60 * SECOND for minute in range(1, 95)]


def test_an_error_that_passes_is_tried_again_with_the_same_fire_time(clockwork: Clockwork, connect: Connect) -> None:
    make()
    clockwork.at(NOON)
    clockwork.connection.execute("SET lock_timeout = '100ms'")
    with connect().transaction() as held:
        held.connection.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
        clockwork.at(NOON + 60 * SECOND)
        assert (fire_times(), row().next_fire_at, row().error) == ([], NOON + 60 * SECOND, None)
    assert clockwork.at(NOON + 61 * SECOND) <= 5, "it is left for a little while"
    clockwork.scheduler.left.clear()
    clockwork.at(NOON + 62 * SECOND)
    assert fire_times() == [NOON + 60 * SECOND]


def test_what_the_code_declares_is_written_again_when_its_row_was_lost(settings: Any) -> None:
    definition = {"task": tasks.noop.name, "pattern": "every minute"}
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"a schedule": definition}}
    schedules.declare(actor="a scheduler")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM horsies_schedules")
    schedules.declare(actor="a scheduler")
    assert row().next_at is not None
    assert row().declared_in == "HORSIES['SCHEDULES']['a schedule']"


def test_a_new_pattern_counts_from_the_change_on() -> None:
    make(since=NOON)
    before = dt.datetime.now(dt.UTC)
    assert schedules.change("a schedule", {"pattern": "every 2 minutes"}, actor="ann", reason="too often") == [
        "pattern"
    ]
    assert row().since >= before
    assert schedules.change("a schedule", {"priority": 5}, actor="ann") == ["priority"]
    entry = AuditEntry.objects.get(action="schedule.change", reason="too often")
    assert (entry.actor, entry.before, entry.after) == (
        "ann",
        {"pattern": "every minute"},
        {"pattern": "every 2 minutes"},
    )


def test_enabled_again_it_sends_nothing_of_the_time_between(clockwork: Clockwork) -> None:
    make(catch_up="all")
    assert schedules.disable("a schedule", actor="ann") == ["enabled"]
    assert schedules.disable("a schedule", actor="ann") == []
    assert clockwork.at(NOON + 600 * SECOND) == LONGEST_WAIT_SECONDS
    schedules.enable("a schedule", actor="ann")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_schedules SET since = %s, next_at = %s", [NOON + 600 * SECOND] * 2)
    clockwork.at(NOON + 630 * SECOND)
    assert fire_times() == []
    clockwork.at(NOON + 660 * SECOND)
    assert fire_times() == [NOON + 660 * SECOND]


def test_run_now_sends_a_task_and_leaves_the_fire_times_alone() -> None:
    make()
    task_id = schedules.run_now("a schedule", actor="ann", reason="a look")
    assert Task.objects.get().pk == task_id
    assert (fire_times(), row().last_fire_at) == ([], None)
    assert AuditEntry.objects.get(action="schedule.run_now").actor == "ann"


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"task": "no.such.task"}, "there is no task 'no.such.task'"),
        ({"kwargs": {"x": 1}}, "kwargs: "),
        ({"pattern": "0 0 31 4 *"}, "never fires"),
        ({"zone": "Mars/Olympus"}, "there is no time zone"),
        ({"queue": "nowhere"}, "queue: 'nowhere' is not declared"),
        ({"priority": 101, "catch_up": "some"}, "priority: .*catch_up: "),
        ({"most": 0}, "most: must be a whole number from 1"),
        ({"jitter_ms": 60_000}, "jitter_ms: must be less than the 60_000 ms between two fire times"),
        ({"pattern": "0,1 4 * * *", "jitter_ms": 60_000}, "less than the 60_000 ms between two fire times"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_all_of_it_at_once(definition: dict[str, Any], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        make(**definition)
    assert not Schedule.objects.exists()


def test_a_definition_is_read_as_it_was_written() -> None:
    make(kwargs={}, priority=4, catch_up="all", most=7, jitter_ms=50, zone="Europe/Istanbul")
    found = row().definition
    assert (
        found
        == ScheduleConfig(
            "tests.apps.project.tasks.noop",
            schedules.Every(minutes=1, zone="Europe/Istanbul"),
            {},
            None,
            4,
            None,
            "all",
            7,
            50,
        ).definition()
    )


@pytest.mark.parametrize("moment", [None, NOON], ids=["the clock of the database", "a moment"])
def test_ten_thousand_schedules_cost_nothing_while_none_is_due(
    clockwork: Clockwork, moment: dt.datetime | None
) -> None:
    """The statement itself is explained, as a scheduler runs it: it reads the index up to now, and not what comes later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_schedules (name, changes, next_at) "
            "SELECT 'nr. ' || n, '{}', %s + n * interval '1 s' FROM generate_series(1, 10000) AS n",
            [NOON + dt.timedelta(days=1)],
        )
        cursor.execute("ANALYZE horsies_schedules")
    explain = "EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) " + load("schedules/due")
    found = clockwork.connection.execute(explain.encode(), {"now": moment, "many": 100, "but": ["unknown"]}).fetchone()
    assert found is not None
    scans = [node for node in nodes(found[0][0]["Plan"]) if node.get("Relation Name") == "horsies_schedules"]
    assert [scan["Index Name"] for scan in scans] == ["horsies_schedules_next"]
    assert "next_at <=" in scans[0]["Index Cond"]
    assert (scans[0]["Actual Rows"], scans[0].get("Rows Removed by Filter", 0)) == (0, 0)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give all nodes of a plan."""
    yield plan
    for one in plan.get("Plans", []):
        yield from nodes(one)


def test_the_schedules_that_are_due_are_found_among_ten_thousand(clockwork: Clockwork) -> None:
    make()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_schedules (name, changes, next_at) "
            "SELECT 'nr. ' || n, '{}', %s FROM generate_series(1, 10000) AS n",
            [NOON + dt.timedelta(days=1)],
        )
    assert ScheduleStore(clockwork.connection, NOON + SECOND).due(100) == ["a schedule"]
    assert ScheduleStore(clockwork.connection, NOON + SECOND).due(100, ["a schedule"]) == []
