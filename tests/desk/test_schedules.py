"""Schedules that the code declares: reading, checks and rows; and ``horsies_schedule``."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

import pytest
from django.core.checks import run_checks

from horsies_django import TaskDefinitionError, schedules, task
from horsies_django.conf.section import CHECK_TAG
from horsies_django.core.errors import ScheduleError
from horsies_django.models import AuditEntry, Schedule, Task
from horsies_django.monitoring import overview
from horsies_django.schedules import Cron, Daily, Every
from tests.apps.project import tasks
from tests.support.commands import command, lines
from tests.support.factories import ScheduleTickFactory, TaskFactory, now

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]

NIGHTLY = {
    "task": tasks.add.name,
    "pattern": "daily at 04:30",
    "zone": "Europe/Istanbul",
    "kwargs": {"a": 1},
}


def declare(settings: Any, schedules: Mapping[str, Any]) -> None:
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": schedules}


def reported() -> str:
    found = run_checks(tags=[CHECK_TAG])
    return "\n".join(f"{message.id} {message.obj} {message.msg}" for message in found)


def test_a_schedule_on_a_task_has_its_name_and_arguments() -> None:
    """A schedule of a task has the name of the task, and its arguments in their wire form.

    It may be a pattern alone.
    """

    @task(
        name="shop.turn",
        schedule={"pattern": Cron("*/5 * * * *"), "kwargs": {"point": tasks.Point(1, 2)}},
    )
    def turn(point: tasks.Point) -> tasks.Point:
        return point

    @task(name="shop.tidy", schedule=Daily("04:30", zone="Europe/Istanbul"))
    def tidy() -> None: ...

    @task(name="shop.sweep", schedule="every 15 minutes")
    def sweep() -> None: ...

    schedules.declare(actor="a scheduler")

    found = {row.name: row for row in Schedule.objects.all()}
    turned = found["shop.turn"]
    assert (turned.definition["task"], turned.definition["kwargs"]) == (
        "shop.turn",
        {"point": {"x": 1, "y": 2}},
    )
    assert "test_schedules" in (turned.declared_in or "")

    patterns = {
        name: (row.definition["pattern"], row.definition["zone"]) for name, row in found.items()
    }
    assert patterns["shop.tidy"] == ("daily at 04:30", "Europe/Istanbul")
    assert patterns["shop.sweep"] == ("every 15 minutes", "UTC")


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"pattern": "every hour", "task": "shop.other"}, "task: is always the decorated task"),
        ({"pattern": "every hour", "colour": "red"}, "unknown key 'colour'"),
        (
            {"pattern": Daily("04:30"), "zone": "Europe/Berlin"},
            "the pattern already has the zone 'UTC'",
        ),
        (5, "pattern: must be a cron string"),
    ],
)
def test_an_invalid_schedule_is_refused_at_the_task_definition(schedule: Any, says: str) -> None:
    """A task with an invalid schedule is refused where it is defined."""
    with pytest.raises(TaskDefinitionError, match=says):

        @task(name="shop.tidy", schedule=schedule)
        def tidy() -> None: ...


def test_the_checks_report_every_error_in_schedules(settings: Any) -> None:
    """The checks report every error in schedules."""
    wrong = {
        **NIGHTLY,
        "pattern": "0 0 31 4 *",
        "zone": "Mars/Olympus",
        "most": 0,
        "overlap": "forbid",
    }
    unknown = {"task": "no.such.task", "pattern": "every hour", "queue": "nowhere"}
    declare(
        settings, {"good": NIGHTLY, "a": wrong, "b": unknown, "c": {**NIGHTLY, "kwargs": {"x": 1}}}
    )

    told = reported()
    for name, words in (
        ("a", "pattern: '0 0 31 4 *' never fires"),
        ("a", "zone: there is no time zone 'Mars/Olympus'"),
        ("a", "most: must be a whole number from 1"),
        ("a", "overlap: must be one of allow, skip, not 'forbid'"),
        ("b", "task: there is no task 'no.such.task'"),
        ("b", "queue: 'nowhere' is not declared"),
        ("c", "kwargs: "),
    ):
        assert f"horsies.E021 HORSIES['SCHEDULES']['{name}'] The schedule '{name}': {words}" in told

    with pytest.raises(ScheduleError) as caught:
        schedules.declare(actor="a scheduler")
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == {
        f"HORSIES['SCHEDULES']['{name}']" for name in "abc"
    }
    assert not Schedule.objects.exists()

    declare(settings, {"d": "daily at 04:30", "": NIGHTLY})
    told = reported()
    assert "horsies.E001 HORSIES['SCHEDULES']['d']" in told
    assert "horsies.E021 HORSIES['SCHEDULES'][''] This cannot be the name of a schedule" in told

    @task(name="shop.tidy", schedule="every hour")
    def tidy() -> None: ...

    declare(settings, {"shop.tidy": NIGHTLY})
    (message,) = [line for line in reported().splitlines() if "E022" in line]
    assert "HORSIES['SCHEDULES']['shop.tidy']" in message, "two of one name"


def test_a_change_overrides_the_code_until_it_is_reverted(
    settings: Any,
) -> None:
    """A change by a person overrides the declaration of the code until it is reverted."""

    def held(*keys: str) -> list[Any]:
        definition = Schedule.objects.get(pk="nightly").definition
        return [definition[key] for key in keys]

    nightly = {**NIGHTLY, "queue": "mail"}
    declare(settings, {"nightly": nightly})

    assert reported() == ""
    assert "pattern" in schedules.declare(actor="a scheduler")["nightly"]
    assert Schedule.objects.get().declared_in == "HORSIES['SCHEDULES']['nightly']"
    assert held(*nightly) == list(nightly.values())
    assert schedules.declare(actor="a scheduler") == {}, "nothing changed"

    changed = ["priority", "queue"]
    assert (
        schedules.change("nightly", {"priority": 3, "queue": None}, actor="ann", reason="quicker")
        == changed
    )

    declare(settings, {"nightly": {**NIGHTLY, "queue": "bulk", "pattern": "daily at 05:00"}})
    assert schedules.declare(actor="a scheduler") == {"nightly": ["pattern"]}
    assert held("pattern", *changed) == ["daily at 05:00", 3, None]
    assert overview.schedules(["nightly"])[0].changed == changed

    assert schedules.revert("nightly", actor="ann") == changed
    assert overview.schedules(["nightly"])[0].changed == []
    assert (held(*changed), Schedule.objects.get().changes) == ([None, "bulk"], {})

    written = (
        AuditEntry.objects.filter(subject="nightly").order_by("pk").values_list("action", flat=True)
    )
    assert list(written) == [
        f"schedule.{verb}" for verb in ("declare", "change", "declare", "revert")
    ]


def test_the_default_overlap_is_not_stored(
    settings: Any,
) -> None:
    """``overlap`` can be declared and changed; its default is not stored, for the last release."""

    def held() -> dict[str, Any]:
        return {row.name: row.definition.get("overlap") for row in Schedule.objects.all()}

    @task(name="shop.sweep", schedule={"pattern": "every 15 minutes", "overlap": "skip"})
    def sweep() -> None: ...

    declare(settings, {"nightly": {**NIGHTLY, "overlap": "allow"}})
    schedules.declare(actor="a scheduler")
    schedules.create("by hand", {**NIGHTLY, "overlap": "skip"}, actor="ann")
    schedules.create("plain", NIGHTLY, actor="ann")

    assert held() == {"shop.sweep": "skip", "nightly": None, "by hand": "skip", "plain": None}
    assert not Schedule.objects.filter(
        name__in=["nightly", "plain"], declared__has_key="overlap"
    ).exists()
    assert not Schedule.objects.filter(name="plain", changes__has_key="overlap").exists()

    assert schedules.change("nightly", {"overlap": "skip"}, actor="ann") == ["overlap"]
    assert schedules.change("shop.sweep", {"overlap": "allow"}, actor="ann") == ["overlap"]
    assert held() == {"shop.sweep": "allow", "nightly": "skip", "by hand": "skip", "plain": None}

    with pytest.raises(ScheduleError, match="overlap: must be one of allow, skip, not 'wait'"):
        schedules.change("nightly", {"overlap": "wait"}, actor="ann")


def test_a_pattern_object_changes_the_zone_of_its_schedule() -> None:
    """A pattern can be changed to an object, which also sets the zone."""
    schedules.create("by hand", {**NIGHTLY, "zone": "Europe/Berlin"}, actor="ann")

    for pattern, zone in (
        (Every(minutes=6), "UTC"),
        (Daily("05:00", zone="Asia/Tokyo"), "Asia/Tokyo"),
    ):
        assert schedules.change("by hand", {"pattern": pattern}, actor="ann") == ["pattern", "zone"]
        held = Schedule.objects.get().definition
        assert (held["pattern"], held["zone"]) == (str(pattern), zone)
        assert schedules.change("by hand", {"pattern": pattern, "zone": zone}, actor="ann") == []

    with pytest.raises(ScheduleError, match="already has the zone"):
        schedules.change("by hand", {"pattern": pattern, "zone": "Europe/Oslo"}, actor="ann")


def test_a_schedule_outside_the_code_is_deleted_but_not_reverted(settings: Any) -> None:
    """A schedule that is not in the code can be deleted, but not reverted."""
    declare(settings, {"nightly": NIGHTLY})
    schedules.declare(actor="a scheduler")

    with pytest.raises(
        ScheduleError, match=r"declared in HORSIES\['SCHEDULES'\]\['nightly'\]: delete it there"
    ):
        schedules.delete("nightly", actor="ann")

    Schedule.objects.update(gone_at=dt.datetime.now(dt.UTC))
    schedules.create("by hand", NIGHTLY, actor="ann")
    with pytest.raises(ScheduleError, match="nothing to revert to"):
        schedules.revert("by hand", actor="ann")
    with pytest.raises(ScheduleError, match="already"):
        schedules.create("by hand", NIGHTLY, actor="ann")

    for name in ("nightly", "by hand"):
        schedules.delete(name, actor="ann", reason="not needed")

    assert not Schedule.objects.exists()
    written = AuditEntry.objects.filter(action="schedule.delete").values_list(
        "subject", "actor", "reason", "after"
    )
    assert sorted(written) == [(name, "ann", "not needed", {}) for name in ("by hand", "nightly")]
    assert (
        AuditEntry.objects.filter(action="schedule.delete", before__contains=NIGHTLY).count() == 2
    )


# manage.py horsies_schedule

run, machine, refusal = command("horsies_schedule")


def make(name: str, **definition: Any) -> None:
    schedules.create(
        name, {"task": tasks.noop.name, "pattern": "30 4 * * mon-fri", **definition}, actor="a test"
    )


def test_the_list_describes_fire_times_results_and_problems() -> None:
    """The list describes the fire times in words, and shows the last results and the problems."""
    assert "horsies_scheduler" in run(), "without schedules it says where they come from"

    make("nightly", zone="Europe/Istanbul")
    make("sleeping", pattern="every 15 minutes")
    for name in ("broken", "gone", "unreadable", "busy"):
        make(name)
    schedules.disable("sleeping", actor="a test")

    tick = ScheduleTickFactory(schedule_name="nightly", task_id=TaskFactory(status="COMPLETED").pk)
    running = TaskFactory(status="RUNNING").pk
    ScheduleTickFactory(schedule_name="busy", task_id=None, skipped_for=running)

    for name, columns in {
        "broken": {"error": "this process has no task 'x'"},
        "gone": {"gone_at": now()},
        "nightly": {"last_fire_at": tick.fire_at},
        "unreadable": {
            "changes": {"task": tasks.noop.name, "pattern": "at teatime", "zone": "Mars"}
        },
    }.items():
        Schedule.objects.filter(name=name).update(**columns)

    listed = run()
    assert listed == run("list")

    rows = {line.split()[0]: line for line in lines(listed) if line}
    assert (
        "At 04:30, Monday through Friday Europe/Istanbul tests.apps.project.tasks.noop on"
        in rows["nightly"]
    )
    assert rows["nightly"].endswith("COMPLETED")
    assert "Every 15 minutes UTC tests.apps.project.tasks.noop off" in rows["sleeping"]
    assert rows["busy"].endswith(f"skipped, {running} had not finished")
    assert "broken: this process has no task 'x'" in listed
    assert "gone from the code" in listed

    found = {one["name"]: one for one in machine("list")}
    assert {name: one["state"] for name, one in found.items()} == {
        "nightly": "on",
        "sleeping": "off",
        "broken": "error",
        "gone": "gone",
        "unreadable": "error",
        "busy": "on",
    }

    assert (found["nightly"]["last_task"], found["nightly"]["last_skipped"]) == (
        str(tick.task_id),
        False,
    )

    last = [found["busy"][key] for key in ("last_task", "last_status", "last_skipped")]
    assert last == [str(running), "RUNNING", True]
    assert re.search("invalid schedule 'unreadable': .*teatime", refusal("next", "unreadable"))


def test_next_gives_fire_times_in_the_zone_and_in_utc() -> None:
    """``next`` prints the coming fire times in the zone of the schedule and in UTC."""
    make("hourly", pattern="hourly at :05", zone="Asia/Kolkata")

    found = machine("next", "hourly", "--count=3")

    assert found["zone"] == "Asia/Kolkata"
    assert len(found["fire_times"]) == 3

    printed = run("next", "hourly")
    assert len(printed.splitlines()) == 2 + 1 + 5
    assert "+0530" in printed


def test_switches_run_now_and_delete_are_audited() -> None:
    """``enable``, ``disable``, ``run-now`` and ``delete`` print their effect and are audited."""
    make("nightly")
    assert run("disable", "nightly", "--reason=holidays") == "nightly is disabled.\n"
    assert run("disable", "nightly") == "Nothing changed: nightly is already disabled.\n"

    entry = AuditEntry.objects.get(action="schedule.disable")
    assert entry.actor.startswith("shell:")
    assert entry.reason == "holidays"

    assert machine("enable", "nightly") == {"changed": ["enabled"]}
    assert machine("run-now", "nightly") == {"task_id": str(Task.objects.get().pk)}
    assert "Sent as task" in run("run-now", "nightly", "--reason=the meeting is today")
    assert Task.objects.count() == 2

    assert run("delete", "nightly", "--reason=not needed") == "nightly is deleted.\n"
    assert AuditEntry.objects.get(action="schedule.delete").reason == "not needed"

    make("nightly")
    assert machine("delete", "nightly") == {"deleted": "nightly"}


def test_the_error_names_an_unknown_schedule() -> None:
    """An unknown schedule is named in the error, and an invalid option is refused."""
    for verb in ("next", "run-now", "enable", "disable", "delete"):
        assert "there is no schedule 'nowhere'" in refusal(verb, "nowhere")
    assert "whole number of at least 1" in refusal("next", "nightly", "--count=0")


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    """Fails if: the form of a schedule answers with a RecursionError."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(ScheduleError, match="nested more than 200 levels deep, or contains itself"):
        schedules.create(
            "deep",
            {"task": tasks.echo.name, "pattern": "every hour", "kwargs": {"x": deep}},
            actor="ann",
        )
