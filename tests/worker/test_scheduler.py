"""One scheduler with the clock of the test, and the loop around it, which survives errors."""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from horsies_django import schedules
from horsies_django.conf import config
from horsies_django.core.errors import ScheduleError
from horsies_django.models import AuditEntry, Schedule, ScheduleTick, Task
from horsies_django.store.base import sql_text
from horsies_django.store.notify import channel_prefix
from horsies_django.store.schedules import ScheduleStore
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.scheduler import LONGEST_WAIT_SECONDS, Scheduler, SchedulerLoop
from tests.apps.project import tasks
from tests.conftest import Connect, sql, wait_until
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = dt.timedelta(seconds=1)
DAY = dt.timedelta(days=1)
NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)


class Clockwork:
    """A scheduler, and a clock that the test sets."""

    def __init__(self, connection_: psycopg.Connection[Any]) -> None:
        self.connection = connection_
        self.scheduler = Scheduler(dt.timedelta(minutes=5))

    def at(self, now: dt.datetime) -> float:
        """Run a round at a moment, and return the seconds until the next round."""
        self.scheduler.now = now
        return self.scheduler.tick(self.connection)

    def later(self, now: dt.datetime) -> float:
        """Run a round so much later that it includes schedules that were skipped for a while."""
        self.scheduler.left.clear()
        return self.at(now)


@pytest.fixture
def clockwork(connect: Connect) -> Clockwork:
    return Clockwork(connect())


def make(name: str = "a schedule", *, since: dt.datetime = NOON, **definition: Any) -> None:
    """Create a schedule that has been in force since a moment."""
    schedules.create(
        name,
        {"task": "tests.apps.project.tasks.noop", "pattern": "every minute", **definition},
        actor="a test",
    )
    sql(
        "UPDATE horsies_schedules SET since = %s, next_at = %s WHERE name = %s",
        [since, since, name],
    )


def fire_times(name: str = "a schedule") -> list[dt.datetime]:
    return list(
        ScheduleTick.objects.filter(schedule_name=name)
        .order_by("fire_at")
        .values_list("fire_at", flat=True)
    )


def row(name: str = "a schedule") -> Schedule:
    return Schedule.objects.get(pk=name)


def test_a_fire_time_becomes_a_task_when_its_time_has_come(clockwork: Clockwork) -> None:
    assert clockwork.at(NOON) == LONGEST_WAIT_SECONDS

    make()
    assert clockwork.at(NOON) == 60
    assert clockwork.at(NOON + 59 * SECOND) == pytest.approx(1)
    assert fire_times() == []

    assert clockwork.at(NOON + 60 * SECOND) == 60
    tick = ScheduleTick.objects.get()
    assert (tick.fire_at, Task.objects.get().pk) == (NOON + 60 * SECOND, tick.task_id)
    assert (row().last_fire_at, row().next_fire_at) == (NOON + 60 * SECOND, NOON + 120 * SECOND)

    clockwork.at(NOON + 60 * SECOND)
    assert Task.objects.count() == 1


def test_a_scheduled_task_keeps_the_options_of_its_decorator(
    clockwork: Clockwork,
) -> None:
    """A scheduled task keeps the options of its decorator, except for those of the schedule."""
    mail = {"task": "tests.apps.project.tasks.mail", "kwargs": {"to": "ann@example.org"}}
    make(**mail, good_for_ms=30_000)
    make("urgent", **mail, queue="bulk", priority=3)

    clockwork.at(NOON + 60 * SECOND)
    sent, urgent = (
        Task.objects.get(pk=ScheduleTick.objects.get(schedule_name=name).task_id)
        for name in ("a schedule", "urgent")
    )

    plain = Task.objects.get(pk=tasks.mail.send("ann@example.org").task_id)
    kept = (
        "task_name",
        "queue_name",
        "lane",
        "priority",
        "kwargs",
        "max_retries",
        "options",
        "partition_key",
    )
    assert [getattr(sent, name) for name in kept] == [getattr(plain, name) for name in kept]

    assert sent.good_until == NOON + 90 * SECOND
    assert (urgent.queue_name, urgent.priority) == ("bulk", 3)


def test_missed_fire_times_are_logged(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    """Fire times that were missed while no scheduler ran are logged."""
    make()
    clockwork.at(NOON + 200 * SECOND)

    assert fire_times() == [NOON + 180 * SECOND]
    assert row().next_fire_at == NOON + 240 * SECOND
    assert "missed fire times since 2027-03-01T12:01:00+00:00" in caplog.text


def become(status: str, **columns: Any) -> None:
    """Update the last task of a schedule to a status."""
    names = "status claimed_by claimed_at started_at finished_at claim_generation result error_code"
    row_of = TaskFactory.build(status=status)
    last = ScheduleTick.objects.exclude(task_id=None).latest("fire_at")
    Task.objects.filter(pk=last.task_id).update(
        **{name: getattr(row_of, name) for name in names.split()}, **columns
    )


def sent(name: str = "a schedule") -> list[tuple[float, bool]]:
    """Return the fire times in seconds after noon, and whether each was sent.

    Checks that each skipped fire time names the task before it.
    """
    found = []
    last = None

    for tick in ScheduleTick.objects.filter(schedule_name=name).order_by("fire_at"):
        assert tick.skipped_for == (None if tick.task_id else last)
        last = tick.task_id or last
        found.append(((tick.fire_at - NOON).total_seconds(), tick.task_id is not None))

    return found


@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
def test_an_overlapping_fire_time_is_skipped_while_a_task_runs(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture, ended: str
) -> None:
    """A fire time with ``overlap="skip"`` is skipped while the last task has not finished."""
    caplog.set_level("INFO", "horsies.scheduler")
    make(overlap="skip")
    clockwork.at(NOON + 60 * SECOND)

    for number, status in enumerate(["PENDING", "CLAIMED", "RUNNING", "PENDING"], 2):
        become(status, next_retry_at=NOON + DAY if number == 5 else None)
        assert clockwork.at(NOON + number * 60 * SECOND) == 60

    become(ended)
    clockwork.at(NOON + 360 * SECOND)
    clockwork.at(NOON + 420 * SECOND)

    assert sent() == [
        (60, True),
        (120, False),
        (180, False),
        (240, False),
        (300, False),
        (360, True),
        (420, False),
    ]

    first = ScheduleTick.objects.earliest("fire_at").task_id
    assert Task.objects.count() == 2
    assert (
        f"skipped its fire time 2027-03-01T12:02:00+00:00, because task {first} has not finished"
        in caplog.text
    )


@pytest.mark.parametrize("locked", [False, True])
def test_a_task_that_is_late_is_no_overlap(
    clockwork: Clockwork, connect: Connect, locked: bool
) -> None:
    """Fails if: a late task that is not expired yet counts as an overlap, or one that is just being
    claimed does not.
    """
    make(overlap="skip", good_for_ms=30_000)
    clockwork.at(NOON + 60 * SECOND)

    with connect().transaction() as claiming:
        if locked:
            claiming.connection.execute("SELECT FROM horsies_tasks FOR NO KEY UPDATE")
        clockwork.at(NOON + 120 * SECOND)

    assert sent() == [(60, True), (120, not locked)]


def test_the_oldest_of_overlapping_missed_fire_times_is_sent(
    clockwork: Clockwork,
) -> None:
    """Of missed fire times with ``overlap="skip"``, the oldest is sent."""
    make(overlap="skip", catch_up="all", good_for_ms=600_000)
    clockwork.at(NOON + 180 * SECOND)

    assert sent() == [(60, True), (120, False), (180, False)]
    assert Task.objects.get().good_until == NOON + 660 * SECOND


def test_tasks_sent_by_hand_do_not_count_as_an_overlap(
    clockwork: Clockwork,
) -> None:
    """Tasks that were sent by hand, or by other schedules, do not count as an overlap."""
    make(overlap="skip")
    schedules.run_now("a schedule", actor="ann")
    clockwork.at(NOON + 60 * SECOND)

    by_hand = schedules.run_now("a schedule", actor="ann")
    Task.objects.filter(pk=by_hand).update(
        status="CANCELLED", finished_at=NOON, error_code="TASK_CANCELLED"
    )
    clockwork.at(NOON + 120 * SECOND)

    make("another", overlap="skip", since=NOON + 60 * SECOND)
    clockwork.at(NOON + 120 * SECOND)

    assert (sent(), sent("another")) == ([(60, True), (120, False)], [(120, True)])


def test_a_task_sent_while_overlap_was_allowed_is_an_overlap(
    clockwork: Clockwork,
) -> None:
    """A task that was sent while overlap was allowed counts as an overlap.

    A pruned task counts as finished.
    """
    make()
    clockwork.at(NOON + 60 * SECOND)
    clockwork.at(NOON + 120 * SECOND)

    Task.objects.filter(pk=ScheduleTick.objects.earliest("fire_at").task_id).delete()
    assert schedules.change("a schedule", {"overlap": "skip"}, actor="ann") == ["overlap"]
    clockwork.at(NOON + 180 * SECOND)

    sql("DELETE FROM horsies_tasks")
    clockwork.at(NOON + 240 * SECOND)

    assert sent() == [(60, True), (120, True), (180, False), (240, True)]


def test_a_sent_fire_time_with_a_pruned_row_is_not_sent_again(
    clockwork: Clockwork,
) -> None:
    """A fire time that was sent is not sent again, even if its task was pruned."""
    make()
    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)

    sql("DELETE FROM horsies_schedule_ticks")
    sql("UPDATE horsies_schedules SET next_at = %s", [NOON])
    clockwork.at(NOON + 61 * SECOND)

    assert Task.objects.count() == 1


def test_a_lost_row_of_a_declared_schedule_is_written_again(settings: Any) -> None:
    """A declared schedule is written again if its row was lost."""
    definition = {"task": tasks.noop.name, "pattern": "every minute"}
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"a schedule": definition}}
    schedules.declare(actor="a scheduler")

    sql("DELETE FROM horsies_schedules")
    schedules.declare(actor="a scheduler")

    assert row().next_at is not None
    assert row().declared_in == "HORSIES['SCHEDULES']['a schedule']"


def test_a_new_pattern_counts_from_the_change_on() -> None:
    make(since=NOON)
    before = dt.datetime.now(dt.UTC)
    often = {"pattern": "every 2 minutes"}

    assert schedules.change("a schedule", often, actor="ann", reason="too often") == ["pattern"]
    assert row().since >= before

    assert schedules.change("a schedule", {"priority": 5}, actor="ann") == ["priority"]
    entry = AuditEntry.objects.get(action="schedule.change", reason="too often")
    assert (entry.actor, entry.before, entry.after) == ("ann", {"pattern": "every minute"}, often)


def test_enabled_again_it_sends_nothing_of_the_time_between(clockwork: Clockwork) -> None:
    make(catch_up="all")
    assert schedules.disable("a schedule", actor="ann") == ["enabled"]
    assert schedules.disable("a schedule", actor="ann") == []
    assert clockwork.at(NOON + 600 * SECOND) == LONGEST_WAIT_SECONDS

    schedules.enable("a schedule", actor="ann")
    Schedule.objects.update(since=NOON + 600 * SECOND, next_at=NOON + 600 * SECOND)
    clockwork.at(NOON + 630 * SECOND)

    schedules.run_now("a schedule", actor="ann")
    assert (fire_times(), row().last_fire_at) == ([], None), "a run now is no fire time"

    clockwork.at(NOON + 660 * SECOND)
    assert fire_times() == [NOON + 660 * SECOND]


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"priority": 101, "catch_up": "some"}, "priority: .*catch_up: "),
        (
            {"jitter_ms": 60_000},
            "jitter_ms: must be less than the 60_000 ms between two fire times",
        ),
        (
            {"pattern": "0,1 4 * * *", "jitter_ms": 60_000},
            "less than the 60_000 ms between two fire times",
        ),
    ],
)
def test_what_cannot_be_is_refused_all_of_it_at_once(definition: dict[str, Any], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        make(**definition)

    assert not Schedule.objects.exists()


def test_ten_thousand_schedules_cost_nothing_while_none_is_due(clockwork: Clockwork) -> None:
    """The statement for due schedules reads the index up to now, and no later rows.

    The test explains the statement as a scheduler runs it.
    """
    sql(
        "INSERT INTO horsies_schedules (name, changes, next_at) "
        "SELECT 'nr. ' || n, '{}', %s + n * interval '1 s' FROM generate_series(1, 10000) AS n",
        [NOON + DAY],
    )
    sql("ANALYZE horsies_schedules")

    explain = "EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) " + sql_text("schedules/due")
    for moment in (None, NOON):  # the clock of the database, and that of the test
        asked = {"now": moment, "many": 100, "but": ["unknown"]}
        found = clockwork.connection.execute(explain.encode(), asked).fetchone()
        assert found is not None

        (scan,) = scans(found[0][0]["Plan"])
        assert scan["Index Name"] == "horsies_schedules_next"
        assert "next_at <=" in scan["Index Cond"]
        assert (scan["Actual Rows"], scan.get("Rows Removed by Filter", 0)) == (0, 0)

    make()
    assert ScheduleStore(clockwork.connection, NOON + SECOND).due(100) == ["a schedule"]
    assert ScheduleStore(clockwork.connection, NOON + SECOND).due(100, ["a schedule"]) == []


def scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a plan that read schedules."""
    own = [plan] if plan.get("Relation Name") == "horsies_schedules" else []
    return own + [scan for one in plan.get("Plans", []) for scan in scans(one)]


@pytest.mark.parametrize(
    ("every", "jitter_ms", "looks", "last"),
    [(10, 9_000, (*range(0, 600, 7), *range(0, 700, 11)), 680), (1, 30_000, range(120), 95)],
    ids=["a clock that is set back", "a jitter longer than the interval"],
)
def test_each_fire_time_is_sent_once_and_in_order(
    clockwork: Clockwork, every: int, jitter_ms: int, looks: Sequence[int], last: int
) -> None:
    make(pattern=f"every {every} seconds", catch_up="all", most=1_000, jitter_ms=jitter_ms)
    for seconds in looks:
        clockwork.at(NOON + seconds * SECOND)

    found = fire_times()
    assert found == [NOON + (number + 1) * every * SECOND for number in range(len(found))]
    assert found[-1] == NOON + last * SECOND, "those after it lie behind by their jitter"


def test_a_schedule_that_ran_ahead_continues_once_enabled_again(
    clockwork: Clockwork,
) -> None:
    """A schedule that ran ahead because of a wrong clock goes on once it is enabled again."""
    make(pattern="every 1 second")
    clockwork.at(dt.datetime.now(dt.UTC) + 730 * DAY)
    assert clockwork.at(dt.datetime.now(dt.UTC) + DAY / 24) == LONGEST_WAIT_SECONDS
    ahead = fire_times()

    schedules.disable("a schedule", actor="ann")
    schedules.enable("a schedule", actor="ann")
    since = row().since
    clockwork.at(since + 2 * SECOND)

    assert fire_times() == [since.replace(microsecond=0) + 2 * SECOND, *ahead]


FOR_LONG = 300.0
PATIENCE_SECONDS = 30.0


def made(*, gives_up: bool = False, **resilience: int) -> SchedulerLoop:
    quick = replace(config().resilience, db_retry_initial_ms=100, db_retry_max_ms=100, **resilience)
    return SchedulerLoop(replace(config(), resilience=quick), "a test", gives_up=gives_up)


@pytest.fixture
def scheduler_loop() -> Iterator[SchedulerLoop]:
    found = made(notify_poll_interval_ms=300_000)
    yield found

    found.stop()
    if found.is_alive():
        found.join(PATIENCE_SECONDS)
    found.disconnect()


def ends(act: Callable[[], None]) -> bool:
    """Return whether a call ends much earlier than it may sleep."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a mistake"), psycopg.OperationalError("the link is cut")]
)
def test_a_failure_ends_a_round_and_not_the_loop(
    scheduler_loop: SchedulerLoop,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(pattern="every 1 second", since=dt.datetime.now(dt.UTC))
    usual = Scheduler.tick
    failures = [error, error]

    def tick(scheduler: Scheduler, connection: psycopg.Connection[Any]) -> float:
        if failures:
            raise failures.pop()
        return usual(scheduler, connection)

    monkeypatch.setattr(Scheduler, "tick", tick)
    scheduler_loop.start()
    wait_until(ScheduleTick.objects.exists, "fire times are sent all the same")

    assert scheduler_loop.is_alive()
    assert caplog.text.count(str(error)) >= 2
    assert failures == []


def test_a_change_during_a_round_is_not_slept_through(
    scheduler_loop: SchedulerLoop, connect: Connect
) -> None:
    own = scheduler_loop.connect()
    other = connect()

    own.execute("LISTEN somebody_elses")  # as on a server connection of a pooler
    other.execute("SELECT pg_notify('somebody_elses', 'nightly')")
    own.execute("SELECT 1")  # this receives the notification
    assert not scheduler_loop.has_changes(), "of another channel"

    channel = f"{channel_prefix(other)}_schedules"
    other.execute("SELECT pg_notify(%s, '')", [channel])
    own.execute("SELECT 1")  # and leaves the socket silent
    assert ends(lambda: scheduler_loop.sleep(FOR_LONG))

    sleeper = threading.Thread(target=scheduler_loop.sleep, args=[FOR_LONG], daemon=True)
    sleeper.start()
    other.execute("SELECT pg_notify(%s, '')", [channel])
    sleeper.join(PATIENCE_SECONDS)

    assert not sleeper.is_alive()
    assert scheduler_loop.has_changes() is False  # the notification was read before


def test_a_cut_connection_wakes_it_and_is_replaced(
    scheduler_loop: SchedulerLoop, connect: Connect
) -> None:
    first = scheduler_loop.connect()
    connect().execute("SELECT pg_terminate_backend(%s)", [first.info.backend_pid])
    assert ends(lambda: scheduler_loop.sleep(FOR_LONG))

    wait_until(
        lambda: scheduler_loop.turn() and scheduler_loop.connection not in (None, first),
        "it has another one",
    )


def test_stop_ends_its_sleep_and_may_come_again_when_it_is_over(
    scheduler_loop: SchedulerLoop,
) -> None:
    scheduler_loop.start()
    wait_until(lambda: scheduler_loop.connection, "it has connected")

    scheduler_loop.stop()
    scheduler_loop.join(PATIENCE_SECONDS)

    assert not scheduler_loop.is_alive()
    assert scheduler_loop.connection is None

    scheduler_loop.stop()


def unreachable() -> psycopg.Connection[Any]:
    raise psycopg.OperationalError("nobody answers")


def test_only_the_command_gives_up_when_no_retry_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the command gives up when ``RESILIENCE`` allows no further try."""
    command = made(gives_up=True, db_retry_max_attempts=2)
    thread = made(db_retry_max_attempts=2)

    for one in (command, thread):
        monkeypatch.setattr(one, "connect", unreachable)
        assert [one.turn() > 0, one.turn() > 0] == [True, True]

    assert thread.turn() > 0  # the engine of its worker gives up for both
    with pytest.raises(DatabaseGaveUp, match="nobody answers"):
        command.turn()


def test_a_changed_schedule_is_logged_with_its_changes(
    scheduler_loop: SchedulerLoop, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A new schedule is logged as new, and a changed one with its changes."""

    def logged(**schedules: Any) -> list[str]:
        settings.HORSIES = {**settings.HORSIES, "SCHEDULES": schedules}
        caplog.clear()
        scheduler_loop.declare()
        return [
            record.getMessage() for record in caplog.records if record.name == "horsies.scheduler"
        ]

    caplog.set_level("INFO", "horsies.scheduler")
    hourly = {"task": "tests.apps.project.tasks.noop", "pattern": "every hour"}

    assert logged(old=hourly) == ["schedule old was added by the code"]
    assert logged(old=hourly) == []
    assert logged(new=hourly, old={**hourly, "priority": 3, "pattern": "every 2 hours"}) == [
        "schedule new was added by the code",
        "schedule old: pattern, priority changed in the code",
    ]


def test_a_schedule_in_no_code_is_switched_off_after_ten_minutes(
    scheduler_loop: SchedulerLoop, connect: Connect, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A schedule that is in no scheduler's code is switched off after ten minutes.

    It is switched on again when it is back in the code.
    """

    def code(**schedules: Any) -> None:
        settings.HORSIES = {**settings.HORSIES, "SCHEDULES": schedules}
        scheduler_loop.declare()

    def look(minutes: int) -> None:
        scheduler_loop.signed_at = -math.inf
        scheduler_loop.in_touch_since = time.monotonic() - 60 * minutes
        scheduler_loop.tick(connection)

    hourly = {"task": "tests.apps.project.tasks.noop", "pattern": "every hour"}
    connection = connect()
    code(old=hourly)
    code(new=hourly)

    look(10)
    assert not Schedule.objects.exclude(gone_at=None).exists(), "others may have it in their code"

    connection.execute(
        "UPDATE horsies_schedules SET declared_at = declared_at - interval '10 minutes'"
    )
    look(9)
    assert not Schedule.objects.exclude(gone_at=None).exists(), (
        "others may come back, as this one just did"
    )

    look(10)
    assert [row.name for row in Schedule.objects.exclude(gone_at=None)] == ["old"]
    assert Schedule.objects.get(pk="old").next_at is None
    assert "schedule old is no longer in any scheduler's code" in caplog.text

    before = Schedule.objects.get(pk="old").since
    code(old=hourly, new=hourly)
    back = Schedule.objects.get(pk="old")
    assert back.gone_at is None
    assert back.next_at is not None
    assert back.since > before, "nothing of the time between is sent"

    audited = (
        AuditEntry.objects.filter(subject="old")
        .order_by("pk")
        .values_list("action", "actor", "before", "after")
    )
    assert list(audited)[1:] == [
        ("schedule.gone", "a test", {"gone": False}, {"gone": True}),
        ("schedule.declare", "a test", {"gone": True}, {"gone": False}),
    ]
