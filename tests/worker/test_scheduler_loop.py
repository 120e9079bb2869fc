"""The loop around the scheduler: nothing that fails ends it, no news is slept through, and it stops when told to."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from horsies_django import schedules
from horsies_django.conf import config
from horsies_django.models import AuditEntry, Schedule, ScheduleTick
from horsies_django.store.notify import channel_prefix
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.scheduler.scheduler import Scheduler, SchedulerLoop
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
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
    """Return whether something ends within a time that is much shorter than it may sleep."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


def create() -> None:
    schedules.create(
        "a schedule", {"task": "tests.apps.project.tasks.noop", "pattern": "every 1 second"}, actor="a test"
    )


@pytest.mark.parametrize("error", [ZeroDivisionError("a mistake"), psycopg.OperationalError("the link is cut")])
def test_a_failure_ends_a_round_and_not_the_loop(
    scheduler_loop: SchedulerLoop, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create()
    usual, failures = Scheduler.tick, [error, error]

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


def test_a_change_during_a_round_is_not_slept_through(scheduler_loop: SchedulerLoop, connect: Connect) -> None:
    own, other = scheduler_loop.connect(), connect()
    other.execute("SELECT pg_notify(%s, '')", [f"{channel_prefix(other)}_schedules"])
    own.execute("SELECT 1")  # which brings the news along, and leaves the socket silent
    assert ends(lambda: scheduler_loop.sleep(FOR_LONG))


def test_a_change_wakes_it(scheduler_loop: SchedulerLoop, connect: Connect) -> None:
    scheduler_loop.connect()
    other = connect()
    sleeper = threading.Thread(target=scheduler_loop.sleep, args=[FOR_LONG], daemon=True)
    sleeper.start()
    other.execute("SELECT pg_notify(%s, '')", [f"{channel_prefix(other)}_schedules"])
    sleeper.join(PATIENCE_SECONDS)
    assert not sleeper.is_alive()
    assert scheduler_loop.heard() is False  # it was taken note of


def test_the_news_of_another_channel_are_no_change_of_a_schedule(
    scheduler_loop: SchedulerLoop, connect: Connect
) -> None:
    own, other = scheduler_loop.connect(), connect()
    own.execute("LISTEN somebody_elses")  # as a pooler's server connection may
    other.execute("SELECT pg_notify('somebody_elses', 'nightly')")
    own.execute("SELECT 1")  # which brings the news along
    assert not scheduler_loop.heard()


def test_a_cut_connection_wakes_it_and_is_replaced(scheduler_loop: SchedulerLoop, connect: Connect) -> None:
    first = scheduler_loop.connect()
    connect().execute("SELECT pg_terminate_backend(%s)", [first.info.backend_pid])
    assert ends(lambda: scheduler_loop.sleep(FOR_LONG))
    wait_until(lambda: scheduler_loop.turn() and scheduler_loop.connection not in (None, first), "it has another one")


def test_stop_ends_its_sleep_and_may_come_again_when_it_is_over(scheduler_loop: SchedulerLoop) -> None:
    scheduler_loop.start()
    wait_until(lambda: scheduler_loop.connection, "it has connected")
    scheduler_loop.stop()
    scheduler_loop.join(PATIENCE_SECONDS)
    assert not scheduler_loop.is_alive()
    assert scheduler_loop.connection is None
    scheduler_loop.stop()


def unreachable() -> psycopg.Connection[Any]:
    raise psycopg.OperationalError("nobody answers")


def test_only_who_shall_give_up_does_when_resilience_allows_no_further_try(monkeypatch: pytest.MonkeyPatch) -> None:
    command, thread = made(gives_up=True, db_retry_max_attempts=2), made(db_retry_max_attempts=2)
    for one in (command, thread):
        monkeypatch.setattr(one, "connect", unreachable)
        assert [one.turn() > 0, one.turn() > 0] == [True, True]
    assert thread.turn() > 0  # its worker's engine gives up, for both
    with pytest.raises(DatabaseGaveUp, match="nobody answers"):
        command.turn()


def test_a_new_schedule_is_logged_as_new_and_a_changed_one_with_what_changed(
    scheduler_loop: SchedulerLoop, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(**schedules: Any) -> list[str]:
        settings.HORSIES = {**settings.HORSIES, "SCHEDULES": schedules}
        caplog.clear()
        scheduler_loop.declare()
        return [record.getMessage() for record in caplog.records if record.name == "horsies.scheduler"]

    caplog.set_level("INFO", "horsies.scheduler")
    hourly = {"task": "tests.apps.project.tasks.noop", "pattern": "every hour"}
    assert logged(old=hourly) == ["schedule old was added by the code"]
    assert logged(old=hourly) == []
    assert logged(new=hourly, old={**hourly, "priority": 3, "pattern": "every 2 hours"}) == [
        "schedule new was added by the code", "schedule old: pattern, priority changed in the code",
    ]  # fmt: skip


def test_a_schedule_in_nobody_s_code_is_switched_off_after_ten_minutes_and_comes_back_with_its_code(
    scheduler_loop: SchedulerLoop, connect: Connect, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def code(**schedules: Any) -> None:
        settings.HORSIES = {**settings.HORSIES, "SCHEDULES": schedules}
        scheduler_loop.declare()

    def look(minutes: int) -> None:
        scheduler_loop.signed_at = -math.inf
        scheduler_loop.in_touch_since = time.monotonic() - 60 * minutes
        scheduler_loop.tick(connection)

    hourly, connection = {"task": "tests.apps.project.tasks.noop", "pattern": "every hour"}, connect()
    code(old=hourly)
    code(new=hourly)
    look(10)
    assert not Schedule.objects.exclude(gone_at=None).exists(), "others may have it in their code"
    connection.execute("UPDATE horsies_schedules SET declared_at = declared_at - interval '10 minutes'")
    look(9)
    assert not Schedule.objects.exclude(gone_at=None).exists(), "others may come back, as this one just did"
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
    audited = AuditEntry.objects.filter(subject="old").order_by("pk").values_list("action", "actor", "before", "after")
    assert list(audited)[1:] == [
        ("schedule.gone", "a test", {"gone": False}, {"gone": True}),
        ("schedule.declare", "a test", {"gone": True}, {"gone": False}),
    ]
