"""``manage.py horsies_schedule``: what it prints, what it switches and sends, and what it refuses."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.db import connection

from horsies_django import schedules
from horsies_django.models import AuditEntry, Schedule, Task
from tests.apps.project import tasks
from tests.support.commands import command, lines
from tests.support.factories import ScheduleTickFactory, TaskFactory

pytestmark = pytest.mark.django_db
run, machine, refusal = command("horsies_schedule")


def make(name: str, **definition: Any) -> None:
    schedules.create(name, {"task": tasks.noop.name, "pattern": "30 4 * * mon-fri", **definition}, actor="a test")


def test_the_list_says_when_each_fires_in_words_what_came_last_and_what_is_wrong() -> None:
    assert "horsies_scheduler" in run(), "without schedules it says where they come from"
    make("nightly", zone="Europe/Istanbul")
    make("sleeping", pattern="every 15 minutes")
    for name in ("broken", "gone", "unreadable", "busy"):
        make(name)
    schedules.disable("sleeping", actor="a test")
    Schedule.objects.filter(name="broken").update(error="this process has no task 'x'")
    tick = ScheduleTickFactory(schedule_name="nightly", task_id=TaskFactory(status="COMPLETED").pk)
    Schedule.objects.filter(name="nightly").update(last_fire_at=tick.fire_at)
    running = TaskFactory(status="RUNNING").pk
    ScheduleTickFactory(schedule_name="busy", task_id=None, skipped_for=running)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_schedules SET gone_at = now() WHERE name = 'gone'")
        cursor.execute(
            """UPDATE horsies_schedules SET changes = changes || '{"pattern": "at teatime", "zone": "Mars"}'
            WHERE name = 'unreadable'"""
        )
    listed = run()
    assert listed == run("list")
    (nightly,) = [line for line in lines(listed) if line.startswith("nightly")]
    assert "At 04:30, Monday through Friday Europe/Istanbul tests.apps.project.tasks.noop on" in nightly
    assert nightly.endswith("COMPLETED")
    (sleeping,) = [line for line in lines(listed) if line.startswith("sleeping")]
    assert "Every 15 minutes UTC tests.apps.project.tasks.noop off" in sleeping
    assert "broken: this process has no task 'x'" in listed
    assert "gone from the code" in listed
    found = {one["name"]: one for one in machine("list")}
    states = {
        "nightly": "on",
        "busy": "on",
        "sleeping": "off",
        "broken": "error",
        "gone": "gone",
        "unreadable": "error",
    }
    assert {name: one["state"] for name, one in found.items()} == states
    assert (found["nightly"]["last_task"], found["nightly"]["last_skipped"]) == (str(tick.task_id), False)
    (busy,) = [line for line in lines(listed) if line.startswith("busy")]
    assert busy.endswith(f"skipped, {running} had not finished")
    last = [found["busy"][key] for key in ("last_task", "last_status", "last_skipped")]
    assert last == [str(running), "RUNNING", True]
    assert re.search("invalid schedule 'unreadable': .*teatime", refusal("next", "unreadable"))


def test_next_gives_the_coming_fire_times_in_the_zone_of_the_schedule_and_in_utc() -> None:
    make("hourly", pattern="hourly at :05", zone="Asia/Kolkata")
    found = machine("next", "hourly", "--count=3")
    assert found["zone"] == "Asia/Kolkata"
    assert len(found["fire_times"]) == 3
    assert dt.datetime.fromisoformat(found["fire_times"][0]) > dt.datetime.now(dt.UTC)
    printed = run("next", "hourly")
    assert len(printed.splitlines()) == 2 + 1 + 5
    assert "+0530" in printed


def test_switches_and_delete_say_whether_they_changed_anything_and_are_audited() -> None:
    make("nightly")
    assert run("disable", "nightly", "--reason=holidays") == "nightly is disabled.\n"
    assert run("disable", "nightly") == "Nothing changed: nightly is disabled already.\n"
    entry = AuditEntry.objects.get(action="schedule.disable")
    assert entry.actor.startswith("shell:")
    assert entry.reason == "holidays"
    assert machine("enable", "nightly") == {"changed": ["enabled"]}
    assert run("delete", "nightly", "--reason=not needed") == "nightly is deleted.\n"
    assert AuditEntry.objects.get(action="schedule.delete").reason == "not needed"
    make("nightly")
    assert machine("delete", "nightly") == {"deleted": "nightly"}


def test_run_now_sends_one_task_and_prints_its_id() -> None:
    make("nightly")
    assert machine("run-now", "nightly") == {"task_id": str(Task.objects.get().pk)}
    assert "Sent as task" in run("run-now", "nightly", "--reason=the meeting is today")
    assert Task.objects.count() == 2


def test_a_schedule_that_does_not_exist_is_named_and_an_option_that_makes_no_sense_is_refused() -> None:
    for verb in ("next", "run-now", "enable", "disable", "delete"):
        assert "there is no schedule 'nowhere'" in refusal(verb, "nowhere")
    assert "whole number of at least 1" in refusal("next", "nightly", "--count=0")
