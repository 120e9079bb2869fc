"""The admin shows when schedules fire, what became of their fire times, and where they differ from the code."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import uuid
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django import schedules
from horsies_django.admin.base import readonly
from horsies_django.core.status import Status
from horsies_django.models import Schedule, ScheduleTick, Task
from horsies_django.store.base import load
from horsies_django.store.schedules import ScheduleStore
from tests.apps.project import tasks
from tests.desk.test_admin import body, client_with, page_of
from tests.desk.test_admin_speed import queries
from tests.support.factories import TaskFactory, now

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_schedule_changelist"
NAME = tasks.mail.name
WHY = "the board wants it earlier"
DEFINITION = {"task": NAME, "pattern": "30 4 * * mon-fri", "zone": "Europe/Istanbul", "kwargs": {"to": "a@b"}}


def url(page: str, name: str = "report") -> str:
    return reverse(f"admin:horsies_schedule_{page}", args=(quote(name),))


def make(name: str = "report", **definition: Any) -> Schedule:
    """Make a schedule that the admin made."""
    schedules.create(name, {**DEFINITION, **definition}, actor="ada")
    return row(name)


def declare(name: str = "report", **definition: Any) -> Schedule:
    """Write a schedule as the scheduler does that finds it in the code."""
    columns = schedules.in_wire_form({**DEFINITION, **definition})
    how = {"action": "schedule.declare", "actor": "scheduler", "declared": columns, "declared_in": "shop/tasks.py:41"}
    ScheduleStore(connection).change(name, create=True, **how)
    return row(name)


def force(name: str = "report", **columns: Any) -> None:
    """Write columns of a schedule as they are, whatever the rules say."""
    sets = ", ".join(f"{column} = %s" for column in columns)
    values = [json.dumps(value) if isinstance(value, dict) else value for value in columns.values()]
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE horsies_schedules SET {sets} WHERE name = %s", [*values, name])


def row(name: str = "report") -> Schedule:
    return Schedule.objects.get(name=name)


def fired(name: str, statuses: list[str]) -> list[Task]:
    """Note fire times of a schedule, an hour apart, the newest last, with tasks of these statuses."""
    begin = now().replace(microsecond=0) - dt.timedelta(hours=len(statuses))
    sent = [TaskFactory(task_name=NAME, status=status) for status in statuses]
    ScheduleTick.objects.bulk_create(
        ScheduleTick(schedule_name=name, fire_at=begin + dt.timedelta(hours=number), task_id=task.pk)
        for number, task in enumerate(sent)
    )
    return sent


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def test_to_look_at_schedules_takes_their_permission() -> None:
    make()
    for address in (reverse(LIST), url("change")):
        assert client_with("view_schedule").get(address).status_code == 200
        assert client_with("view_task", "configure_queue").get(address).status_code == 403


# The list


def test_the_list_tells_the_pattern_in_words_and_how_it_is_written(boss: Client) -> None:
    make()
    make("tidy", pattern="every 15 minutes", zone="UTC")
    html = body(boss, reverse(LIST))
    assert 'title="30 4 * * mon-fri Europe/Istanbul">At 04:30, Monday through Friday</span>' in html
    assert "<code>30 4 * * mon-fri</code> · Europe/Istanbul" in html
    assert ">Every 15 minutes</span>" in html


def test_the_list_shows_the_next_fire_time_by_the_clock_of_the_schedules_zone(boss: Client) -> None:
    make()
    force(next_fire_at="2126-03-01T01:30:00Z", next_at="2126-03-01T01:30:00Z")
    html = body(boss, reverse(LIST))
    assert "Fri 2126-03-01 04:30</time>" in html
    assert "Europe/Istanbul, in " in html
    assert "Late" not in html


def test_a_schedule_that_no_scheduler_looked_at_in_time_is_late(boss: Client) -> None:
    make()
    force(next_fire_at="2026-03-02T01:30:00Z", next_at="2026-03-02T01:30:00Z")
    html = body(boss, reverse(LIST))
    assert "Mon 2026-03-02 04:30</time>" in html
    assert "Late" in html


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"changes": {**DEFINITION, "enabled": False}}, "Off"),
        ({"gone_at": "now"}, "Gone from the code"),
        ({"error": "the queue is gone"}, "Error</span> the queue is gone"),
        ({"changes": {**DEFINITION, "zone": "Mars"}}, "Error</span> zone: there is no time zone"),
    ],
)
def test_the_list_says_why_a_schedule_does_not_fire(boss: Client, columns: dict[str, Any], told: str) -> None:
    make()
    force(**columns)
    assert told in body(boss, reverse(LIST)).replace("✕</span> ", "")


def test_the_list_shows_what_became_of_the_last_twenty_fire_times(boss: Client) -> None:
    make()
    sent = fired("report", ["EXPIRED"] + ["COMPLETED"] * 17 + ["FAILED", "COMPLETED", "RUNNING"])
    html = body(boss, reverse(LIST))
    assert 'role="img" aria-label="The last 20 runs: 18 completed, 1 running, 1 failed."' in html
    blocks = [part.partition('"')[0] for part in html.split("horsies-run-")[1:]]
    assert blocks == ["completed"] * 17 + ["failed", "completed", "running"]
    assert f'<a href="{page_of(sent[-1])}"><span class="horsies-badge horsies-running">' in html
    assert page_of(sent[-1]) not in body(client_with("view_schedule"), reverse(LIST))


def test_a_task_that_was_removed_and_a_status_of_a_newer_version_have_blocks_too(boss: Client) -> None:
    make()
    ScheduleTick.objects.bulk_create([ScheduleTick(schedule_name="report", fire_at=now(), task_id=uuid.uuid4())])
    html = body(boss, reverse(LIST))
    assert "The last run: 1 removed." in html
    assert "horsies-run-unknown" in html
    assert "Removed" in body(boss, url("change"))


def test_the_list_says_where_each_schedule_is_defined_and_which_are_changed(boss: Client) -> None:
    make("by hand")
    declare("by code")
    html = body(boss, reverse(LIST))
    assert "the admin" in html
    assert "tasks.<wbr>py:41" in html
    assert "horsies-overridden" not in html
    schedules.change("by code", {"priority": 3}, actor="ada")
    assert body(boss, reverse(LIST)).count("horsies-overridden") == 1
    schedules.change("by code", {"priority": None}, actor="ada")
    assert "horsies-overridden" not in body(boss, reverse(LIST))


def test_the_list_costs_the_same_few_queries_for_many_schedules(boss: Client) -> None:
    make("first")
    make("second", pattern="every minute")
    fired("first", ["COMPLETED", "FAILED"])
    few = len(queries(boss, reverse(LIST)))
    assert few <= 12
    for number in range(48):
        make(f"schedule {number}", pattern="daily at 04:30")
        fired(f"schedule {number}", ["COMPLETED", "FAILED"])
    assert len(boss.get(reverse(LIST)).context["cl"].result_list) == 50
    assert len(queries(boss, reverse(LIST))) == few


def test_the_last_fire_times_are_read_through_primary_keys() -> None:
    begin = now().replace(microsecond=0)
    for name in ("one", "two"):
        sent = TaskFactory.create_batch(1_000, task_name=NAME, status="COMPLETED")
        ScheduleTick.objects.bulk_create(
            ScheduleTick(schedule_name=name, fire_at=begin + dt.timedelta(hours=number), task_id=task.pk)
            for number, task in enumerate(sent)
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_tasks, horsies_schedule_ticks")

    def explain() -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {load('schedules/recent')}", {"names": ["one"], "many": 20})
            return "\n".join(line for (line,) in cursor.fetchall())

    plan = readonly.read_bounded("default", explain)
    assert plan is not None
    assert "horsies_schedule_ticks_pkey" in plan
    assert "horsies_tasks_pkey" in plan
    assert "Seq Scan" not in plan
    found = ScheduleStore(connection).recent(["one", "two", "three"], 20)
    assert [run.fire_at for run in found if run.name == "two"][:2] == [
        begin + dt.timedelta(hours=999),
        begin + dt.timedelta(hours=998),
    ]
    assert len(found) == 40


def test_schedules_are_found_by_what_is_in_force_not_by_what_a_change_replaced(boss: Client) -> None:
    def found(**query: str) -> list[str]:
        return sorted(one.name for one in boss.get(reverse(LIST), query).context["cl"].result_list)

    keys: list[dict[str, Any]] = [{}, {"enabled": True}, {"enabled": False}]
    for number, (declared, changes) in enumerate(itertools.product(keys, keys)):
        declare(f"of-{number}")
        force(f"of-{number}", declared={**declared, "task": "old"}, changes={**changes, "task": "shop.new"})
    rows = Schedule.objects.all()
    assert found(state="off") == [one.name for one in rows.order_by("name") if one.definition.get("enabled") is False]
    assert found(state="on") == [
        one.name for one in rows.order_by("name") if one.definition.get("enabled") is not False
    ]
    assert (len(found(q="new")), found(q="old")) == (9, [])


def test_schedules_are_found_by_state_and_by_their_name_or_that_of_their_task(boss: Client) -> None:
    make("report for the board")
    make("off", enabled=False)
    make("broken", pattern="every minute")
    force("broken", error="the queue is gone")
    declare("gone")
    force("gone", gone_at=now())
    make("tidy", task=tasks.noop.name, kwargs={})

    def found(**query: str) -> list[str]:
        return [schedule.name for schedule in boss.get(reverse(LIST), query).context["cl"].result_list]

    assert found() == ["broken", "gone", "off", "report for the board", "tidy"]
    assert found(state="on") == ["broken", "report for the board", "tidy"]
    assert found(state="off") == ["off"]
    assert found(state="gone") == ["gone"]
    assert found(state="error") == ["broken"]
    assert found(q="the BOARD") == ["report for the board"]
    assert found(q="tasks.noop") == ["tidy"]
    assert boss.get(reverse(LIST), {"state": "lost"}).status_code == 302


# One schedule


def test_a_schedule_shows_its_next_five_fire_times_in_its_zone_also_where_the_clock_jumps(boss: Client) -> None:
    make(pattern="0 9 1 */2 *", zone="Europe/Berlin")  # in eight months the clock jumps at least once
    rows = boss.get(url("change")).context["coming"]
    begin = dt.datetime.now(dt.UTC)
    expected = [
        dt.datetime(begin.year + years, month, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
        for years in range(2)
        for month in range(1, 13, 2)
    ]
    expected = [fire_time for fire_time in expected if fire_time > begin][:5]
    assert [fire_time.local for fire_time in rows] == [f"{fire_time:%a %Y-%m-%d} 09:00" for fire_time in expected]
    assert [fire_time.utc for fire_time in rows] == [
        f"{fire_time.astimezone(dt.UTC):%Y-%m-%d %H:%M}" for fire_time in expected
    ]
    assert {fire_time.offset for fire_time in rows} == {"+01:00", "+02:00"}
    html = body(boss, url("change"))
    assert "Europe/Berlin</th>" in html
    assert "UTC</th>" in html


def test_a_schedule_that_does_not_fire_says_so_beside_the_fire_times_it_would_have(boss: Client) -> None:
    make(enabled=False)
    page = boss.get(url("change"))
    assert len(page.context["coming"]) == 5
    assert "these would be its fire times" in page.content.decode()


def test_a_schedule_shows_its_last_fire_times_and_their_tasks(boss: Client) -> None:
    make()
    sent = fired("report", [status.value for status in Status])
    html = body(boss, url("change"))
    for task in sent:
        assert f'<a href="{page_of(task)}">{task.pk}</a>' in html
    plain = body(client_with("view_schedule"), url("change"))
    assert str(sent[0].pk) in plain
    assert page_of(sent[0]) not in plain


def test_a_schedule_shows_what_holds_and_where_the_code_says_another_thing(boss: Client) -> None:
    declare(good_for_ms=60_000)
    schedules.change("report", {"priority": 3, "queue": "bulk"}, actor="ada", reason=WHY)
    rows = {line.label: line for line in boss.get(url("change")).context["definition"]}
    assert (rows["queue"].held, rows["queue"].declared) == ("bulk", "the task's own")
    assert (rows["priority"].held, rows["priority"].declared) == ("3", "the task's own")
    assert (rows["good for"].held, rows["good for"].declared, rows["good for"].mark) == ("60,000 ms", "", "")
    html = body(boss, url("change"))
    assert html.count("horsies-overridden") == 3
    assert WHY in html
    assert "priority: the task&#x27;s own → 3" in html
    assert "?subject=report" in html


def test_an_error_stands_out_on_the_page(boss: Client) -> None:
    make()
    force(error="there is no room", error_at=now())
    html = body(boss, url("change"))
    assert 'role="alert"' in html
    assert "The task of a fire time could not be sent." in html
    assert "there is no room" in html
