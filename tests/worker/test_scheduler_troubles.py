"""What goes wrong with one schedule: it is written down or tried again, left to other code, and holds up no other."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from horsies_django import schedules
from horsies_django.core.schedules import Timing
from horsies_django.models import Schedule, ScheduleTick, Task
from horsies_django.worker.scheduler.scheduler import BUSY_SECONDS, LEFT_SECONDS, LONGEST_WAIT_SECONDS
from tests.worker.test_scheduler import NOON, SECOND, Clockwork, Connect, fire_times, make, row
from tests.worker.test_scheduler import clockwork as clockwork

pytestmark = pytest.mark.django_db(transaction=True)

GRACE = dt.timedelta(minutes=5)


def damage(definition: str, name: str = "a schedule") -> None:
    """Leave a schedule as the code of another release might, which no code of this one accepts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE horsies_schedules SET changes = changes || %s::jsonb WHERE name = %s", [definition, name]
        )


def test_a_schedule_that_cannot_be_sent_holds_up_no_other_and_says_so_when_nobody_could(clockwork: Clockwork) -> None:
    make("broken")
    make("sound")
    damage('{"kwargs": {"no": 1}}', "broken")
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    assert (fire_times("broken"), fire_times("sound")) == ([], [NOON + 60 * SECOND])
    assert (row("broken").error, row("broken").next_fire_at) == (None, NOON + 60 * SECOND)
    clockwork.later(NOON + 60 * SECOND + GRACE)
    assert "was sent 1 argument that it does not take" in (row("broken").error or "")
    assert row("broken").next_fire_at == NOON + 420 * SECOND
    schedules.change("broken", {"kwargs": {}}, actor="ann")
    assert row("broken").error is None
    clockwork.at(NOON + 420 * SECOND)
    assert fire_times("broken") == [NOON + 420 * SECOND]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("changes", "[]"),
        ("declared", "5"),
        ("changes", '{{"kwargs": {}{}}}'.format("[" * 3_000, "]" * 3_000)),
        ("changes", '{"most": %s}' % ("9" * 5_000)),
        *((name, when) for name in ("since", "last_fire_at", "next_at") for when in ("infinity", "-infinity", "9999-12-30")),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_row_that_would_end_every_round_of_every_scheduler_is_refused(column: str, value: str) -> None:
    make()
    with (
        pytest.raises(IntegrityError, match="horsies_schedules_fits"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE horsies_schedules SET {column} = %s", [value])


def test_a_definition_that_nobody_understands_is_not_looked_at_until_it_is_changed(clockwork: Clockwork) -> None:
    make()
    damage('{"pattern": "at teatime"}')
    clockwork.at(NOON)
    assert row().error is None
    assert clockwork.later(NOON + GRACE) == LONGEST_WAIT_SECONDS
    assert "is not a cron expression" in (row().error or "")
    schedules.change("a schedule", {"pattern": "every 2 minutes"}, actor="ann")
    assert row().next_at is not None


@pytest.mark.parametrize(
    "definition",
    [{"task": "shop.tasks.newer"}, {"kwargs": {"more": 1}}, {"queue": "newer"}, {"catch_up": "newest"}, {"colour": 1}],
    ids=str,
)
def test_what_the_code_of_another_release_can_send_is_left_to_it_for_a_while(
    clockwork: Clockwork, definition: dict[str, Any]
) -> None:
    make()
    damage(json.dumps(definition))
    clockwork.at(NOON)
    assert clockwork.at(NOON + 60 * SECOND) <= LEFT_SECONDS
    assert (row().error, row().last_fire_at) == (None, None)
    for minute in range(1, 10):  # somebody else sends each fire time, in good time
        with connection.cursor() as cursor:
            cursor.execute("UPDATE horsies_schedules SET last_fire_at = %s", [NOON + minute * 60 * SECOND])
        clockwork.later(NOON + (minute + 1) * 60 * SECOND)
    assert row().error is None
    clockwork.later(NOON + 600 * SECOND + GRACE)
    assert row().error


def test_the_name_of_a_schedule_forges_no_line(clockwork: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    make("damaged")
    make("late")
    damage('{"kwargs": {"no": 1}}', "damaged")
    for name in ("damaged", "late"):
        Schedule.objects.filter(pk=name).update(name=f"{name}\n[CRITICAL] \x1b[2J{'x' * 200}")
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    clockwork.later(NOON + 86_400 * SECOND)
    lines = [line for line in caplog.messages if "CRITICAL" in line]
    assert len(lines) == 2
    assert all(line.isprintable() and line.startswith("schedule ") for line in lines)
    assert all("x" * 200 not in line for line in lines)


def test_a_task_that_no_code_has_is_named(clockwork: Clockwork) -> None:
    make()
    damage('{"task": "shop.tasks.newer"}')
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    clockwork.later(NOON + 60 * SECOND + GRACE)
    assert row().error == "this process has no task 'shop.tasks.newer'"


def test_a_row_that_somebody_holds_is_passed_by_and_looked_at_again(clockwork: Clockwork, connect: Connect) -> None:
    make("held")
    make("free")
    somebody = connect()
    with somebody.transaction():
        somebody.execute("SELECT FROM horsies_schedules WHERE name = 'held' FOR UPDATE")
        assert 0 < clockwork.at(NOON + 60 * SECOND) <= BUSY_SECONDS  # not at once, again and again
        assert (fire_times("held"), fire_times("free")) == ([], [NOON + 60 * SECOND])
    clockwork.later(NOON + 60 * SECOND)
    assert fire_times("held") == [NOON + 60 * SECOND]


@pytest.mark.parametrize(("sqlstate", "says"), [("22003", "refuse"), ("55P03", None)])
def test_what_the_database_refuses_for_good_is_written_down_and_what_it_refuses_for_now_is_tried_again(
    clockwork: Clockwork, sqlstate: str, says: str | None
) -> None:
    make()
    clockwork.at(NOON)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'refuse it' USING ERRCODE = '{sqlstate}'; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        clockwork.at(NOON + 60 * SECOND)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON horsies_tasks; DROP FUNCTION refuse()")
    assert fire_times() == []
    assert (says or "") in (row().error or "")
    assert row().last_fire_at == (NOON + 60 * SECOND if says else None)
    clockwork.later(NOON + 60 * SECOND)
    assert fire_times() == ([] if says else [NOON + 60 * SECOND])


def test_what_the_database_refuses_for_now_is_logged_once_a_minute_however_many_schedules_it_is(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        make(f"schedule {number}")
    clockwork.at(NOON)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'not now' USING ERRCODE = '55P03'; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        clockwork.at(NOON + 60 * SECOND)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert [line for line in caplog.messages if "will try again" in line] == [
        "schedule schedule 0: could not send its task, will try again: not now"
    ]


def test_a_mistake_of_ours_in_one_schedule_holds_up_no_other(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make("cursed")
    make("sound")
    usual = Timing.following

    def following(timing: Timing, fire_time: dt.datetime) -> dt.datetime | None:
        if timing.name == "cursed":
            raise ZeroDivisionError("a mistake")
        return usual(timing, fire_time)

    monkeypatch.setattr(Timing, "following", following)
    clockwork.at(NOON + 60 * SECOND)
    assert (fire_times("cursed"), fire_times("sound")) == ([], [NOON + 60 * SECOND])
    assert "ZeroDivisionError: a mistake" in caplog.text
    monkeypatch.undo()
    clockwork.later(NOON + 61 * SECOND)
    assert fire_times("cursed") == [NOON + 60 * SECOND]


@pytest.mark.parametrize("good_for_ms", [None, 5_000_000])
def test_a_thousand_missed_fire_times_are_sent_in_order_each_with_its_own_time_limit(
    clockwork: Clockwork, good_for_ms: int | None
) -> None:
    make(pattern="every 1 second", catch_up="all", most=1_000, good_for_ms=good_for_ms)
    clockwork.at(NOON + 1_000 * SECOND)
    expected = [NOON + seconds * SECOND for seconds in range(1, 1_001)]
    assert fire_times() == expected
    ids = list(ScheduleTick.objects.order_by("fire_at").values_list("task_id", flat=True))
    found = list(Task.objects.order_by("enqueued_at", "id").values_list("id", "good_until"))
    span = None if good_for_ms is None else dt.timedelta(milliseconds=good_for_ms)
    assert found == [(id_, span and fire_time + span) for id_, fire_time in zip(ids, expected, strict=True)]
