"""Errors of one schedule, and two schedulers at once.

A schedule with an error is recorded, tried again or skipped for code of another release, and holds
up no other schedule.

Two schedulers are run step by step: in any order of their steps, each fire time becomes exactly one
task.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest
from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from horsies_django import schedules
from horsies_django.core.patterns import PATTERN_EXAMPLES
from horsies_django.core.schedules import FireTimes
from horsies_django.models import Schedule, ScheduleTick, Task
from horsies_django.worker.scheduler import LEFT_SECONDS, LONGEST_WAIT_SECONDS, Scheduler
from tests.conftest import sql
from tests.support import refusing
from tests.worker.test_scheduler import (
    NOON,
    PATIENCE_SECONDS,
    SECOND,
    Clockwork,
    Connect,
    fire_times,
    make,
    row,
)
from tests.worker.test_scheduler import clockwork as clockwork

pytestmark = pytest.mark.django_db(transaction=True)

GRACE = dt.timedelta(minutes=5)
NESTED = '{{"kwargs": {}{}}}'.format("[" * 3_000, "]" * 3_000)
LONG = '{"most": %s}' % ("9" * 5_000)


def damage(definition: str, name: str = "a schedule") -> None:
    """Change a schedule as code of another release might, so that this release refuses it."""
    sql(
        "UPDATE horsies_schedules SET changes = changes || %s::jsonb WHERE name = %s",
        [definition, name],
    )


def test_a_schedule_that_cannot_be_sent_holds_up_no_other(
    clockwork: Clockwork,
) -> None:
    """A schedule that cannot be sent holds up no other.

    Its error is recorded when no other scheduler has sent it in time.
    """
    make("broken")
    make("sound")
    damage('{"kwargs": {"no": 1}}', "broken")

    clockwork.at(NOON)
    clockwork.at(NOON + 60 * SECOND)
    assert (fire_times("broken"), fire_times("sound")) == ([], [NOON + 60 * SECOND])
    assert (row("broken").error, row("broken").next_fire_at) == (None, NOON + 60 * SECOND)

    clockwork.later(NOON + 60 * SECOND + GRACE)
    assert "got an argument that it does not take" in (row("broken").error or "")
    assert row("broken").error_at is not None
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
        ("changes", NESTED),
        ("changes", LONG),
        *(
            (name, when)
            for name in ("since", "last_fire_at", "next_at")
            for when in ("infinity", "-infinity", "9999-12-30")
        ),
    ],
    ids=range(13),
)
def test_a_row_that_would_break_every_round_is_refused(column: str, value: str) -> None:
    """A row that would end every round of every scheduler is refused."""
    make()

    with (
        pytest.raises(IntegrityError, match="horsies_schedules_fits"),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE horsies_schedules SET {column} = %s", [value])


def test_an_unreadable_definition_is_skipped_until_it_changes(
    clockwork: Clockwork,
) -> None:
    """A definition that no scheduler can read is skipped until it is changed."""
    make()
    damage('{"pattern": "at teatime"}')

    clockwork.at(NOON)
    assert row().error is None
    assert clockwork.later(NOON + GRACE) == LONGEST_WAIT_SECONDS
    assert "is not a cron expression" in (row().error or "")

    schedules.change("a schedule", {"pattern": "every 2 minutes"}, actor="ann")
    assert row().next_at is not None


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ({"task": "shop.tasks.newer"}, "this process has no task 'shop.tasks.newer'"),
        ({"catch_up": "newest"}, "catch_up"),
    ],
    ids=str,
)
def test_a_definition_of_another_release_is_left_to_it(
    clockwork: Clockwork, definition: dict[str, Any], error: str
) -> None:
    """A schedule that only code of another release can send is skipped for a while."""
    make()
    damage(json.dumps(definition))

    clockwork.at(NOON)
    assert clockwork.at(NOON + 60 * SECOND) <= LEFT_SECONDS
    assert (row().error, row().last_fire_at) == (None, None)

    for minute in range(1, 10):  # another scheduler sends each fire time in time
        Schedule.objects.update(last_fire_at=NOON + minute * 60 * SECOND)
        clockwork.later(NOON + (minute + 1) * 60 * SECOND)
    assert row().error is None

    clockwork.later(NOON + 600 * SECOND + GRACE)
    assert error in row().error


def test_the_name_of_a_schedule_forges_no_line(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_locked_row_is_skipped_and_tried_again_later(
    clockwork: Clockwork, connect: Connect
) -> None:
    """A locked row is skipped and tried again later."""
    make("held")
    make("free")
    somebody = connect()

    with somebody.transaction():
        somebody.execute("SELECT FROM horsies_schedules WHERE name = 'held' FOR UPDATE")
        assert 0 < clockwork.at(NOON + 60 * SECOND) <= LEFT_SECONDS  # not at once, again and again
        assert (fire_times("held"), fire_times("free")) == ([], [NOON + 60 * SECOND])

    clockwork.later(NOON + 60 * SECOND)
    assert fire_times("held") == [NOON + 60 * SECOND]


@pytest.mark.parametrize(("sqlstate", "for_good"), [("22003", True), ("55P03", False)])
def test_a_temporary_refusal_of_the_database_is_retried(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture, sqlstate: str, for_good: bool
) -> None:
    """A temporary refusal of the database is retried, and a permanent one is recorded."""
    for number in range(5):
        make(f"nr. {number}")
    clockwork.at(NOON)

    with refusing.refused("horsies_tasks", event="INSERT", code=sqlstate):
        clockwork.at(NOON + 60 * SECOND)

    assert fire_times("nr. 0") == []
    assert (row("nr. 0").error, row("nr. 0").last_fire_at) == (
        ("refused", NOON + 60 * SECOND) if for_good else (None, None)
    )

    told = [
        line
        for line in caplog.messages
        if line.endswith("could not send its task, will try again: refused")
    ]
    assert len(told) == (not for_good), "once a minute, however many schedules it is"
    assert clockwork.at(NOON + 61 * SECOND) <= (60 if for_good else 5), (
        "it is left for a little while"
    )

    clockwork.later(NOON + 62 * SECOND)
    assert fire_times("nr. 0") == ([] if for_good else [NOON + 60 * SECOND])


def test_a_mistake_of_ours_in_one_schedule_holds_up_no_other(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make("cursed")
    make("sound")
    usual = FireTimes.following

    def following(timing: FireTimes, fire_time: dt.datetime) -> dt.datetime | None:
        if timing.name == "cursed":
            raise ZeroDivisionError("a mistake")
        return usual(timing, fire_time)

    monkeypatch.setattr(FireTimes, "following", following)
    clockwork.at(NOON + 60 * SECOND)
    assert (fire_times("cursed"), fire_times("sound")) == ([], [NOON + 60 * SECOND])
    assert "ZeroDivisionError: a mistake" in caplog.text

    monkeypatch.undo()
    clockwork.later(NOON + 61 * SECOND)
    assert fire_times("cursed") == [NOON + 60 * SECOND]


MINUTE = 60 * SECOND
letters = st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])
crons = st.lists(st.text("0123456789*,/-#lL", min_size=1, max_size=6), min_size=5, max_size=5).map(
    " ".join
)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1e300, -0.5])
    | st.text(letters, max_size=8)
)
anything = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(letters, max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
# Values that no field accepts, or that only other releases could mean.
WILD: dict[str, list[Any]] = {
    "pattern": [
        *PATTERN_EXAMPLES,
        "0 0 30 2 *",
        "1," * 100_000 + "1 * * * *",
        "30-10/1000000 * * * *",
        "0-999999999999 0 * * 5#5",
        "*/0 * L * l",
        "every 999999999 days",
        "weekly on " + "mon, " * 9_999 + "mon at 09:00",
    ],
    "zone": [
        "Mars/Olympus",
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "Europe",
        "x" * 5_000,
        "posixrules",
    ],
    "task": ["", "no.such.task", "os.system", "tests.apps.project.tasks.add"],
    "kwargs": [{"a": 1}, {"x": []}],
    "queue": ["mail", "nowhere", "*", ""],
    "jitter_ms": [86_400_000, 10**30, -1],
    "catch_up": ["all", "none", "some"],
    "most": [1_000, 10**30, 0],
    "good_for_ms": [1_000, 10**30, 0],
    "priority": [1, 0, 10**30],
    "enabled": [False, "yes"],
}
strange = {name: st.sampled_from(values) | anything for name, values in WILD.items()}
strange["pattern"] |= crons
definitions = st.sets(st.sampled_from(sorted(WILD)), min_size=1, max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({name: strange[name] for name in sorted(names)})
)
sound = definitions.map(
    lambda found: json.dumps(
        {"task": "tests.apps.project.tasks.noop", "pattern": "every minute", **found}
    )
)
texts = (
    sound
    | sound
    | sound
    | st.sampled_from(["[]", "5", "null", NESTED, LONG])
    | anything.map(json.dumps)
)
usual = ["2027-03-01 12:00Z", "2020-02-29", "1970-01-01", "0003-02-01", "8999-01-01"]
moments = st.sampled_from(usual * 6 + ["infinity", "-infinity", "9999-12-31"])
rows = st.fixed_dictionaries(
    {
        "declared": texts,
        "since": moments,
        "last_fire_at": st.none() | moments,
        "next_at": moments | st.just("2027-01-01"),
    }
)


def write(name: str, row: dict[str, Any]) -> bool:
    """Insert a schedule as it is, and return whether the table accepted it."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO horsies_schedules (name, declared, since, last_fire_at, next_at) "
                "VALUES (%(name)s, %(declared)s, %(since)s, %(last_fire_at)s, %(next_at)s)",
                {**row, "name": name},
            )
    except (DataError, IntegrityError):
        return False
    return True


def test_a_row_of_any_content_holds_up_no_other_schedule(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    make("sound")
    now = NOON
    taken = 0

    # no Phase.shrink, because time goes on between the examples
    @settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(st.lists(rows, min_size=1, max_size=4))
    def fuzz(strange: list[dict[str, Any]]) -> None:
        nonlocal now, taken

        written = [
            f"{now}, {number}"
            for number, row in enumerate(strange)
            if write(f"{now}, {number}", row)
        ]
        taken += len(written)

        now += MINUTE
        clockwork.at(now)
        clockwork.later(now)
        assert now in fire_times("sound")

        # No other scheduler could send them, so the error is recorded now.
        clockwork.later(now + dt.timedelta(minutes=5))
        now += dt.timedelta(minutes=6)
        clockwork.later(now)
        assert now in fire_times("sound")

        left = Schedule.objects.filter(name__in=written)
        assert [row.definition for row in left.filter(next_at__lte=now, error=None)] == [], (
            "still due, and nothing says why"
        )
        left.delete()

    fuzz()

    assert "will try again" not in caplog.text, "each is sent, or has a problem that its row tells"
    assert taken > 40, "the CHECK leaves too little to try"


class Killed(BaseException):
    """The exception that ends a scheduler in the middle of a round."""


class Stepper:
    """A scheduler whose rounds run step by step.

    It waits before each statement and each COMMIT.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.scheduler = Scheduler(dt.timedelta(0))
        self.go = threading.Semaphore(0)
        self.stands = threading.Semaphore(0)
        self.busy = self.killed = False
        self.error: BaseException | None = None

    def begin(self, now: dt.datetime) -> None:
        """Begin a round at a moment, and stop before its first step."""
        self.scheduler.now = now
        self.scheduler.left.clear()  # rows that the other scheduler held a moment ago
        self.busy = True
        self.killed = False

        threading.Thread(target=self._round, daemon=True).start()
        assert self.stands.acquire(timeout=PATIENCE_SECONDS)

    def _round(self) -> None:
        try:
            self.scheduler.tick(cast(psycopg.Connection[Any], Gated(self)))
        except Killed:
            pass
        except BaseException as error:
            self.error = error

        self.busy = False
        self.stands.release()

    def wait(self) -> None:
        """Wait until the next step is allowed. Called by the thread of the round."""
        self.stands.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def step(self, *, kill: bool = False) -> None:
        """Take the next step, or end the round at this point.

        Raises the error of the scheduler, if there is one.
        """
        self.killed = kill
        self.go.release()
        assert self.stands.acquire(timeout=PATIENCE_SECONDS), "a step waits for another scheduler"

        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        while self.busy:
            self.step()


class Gated:
    """The connection of a stepper, as its scheduler uses it."""

    closed = False

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        self.stepper.wait()
        with self.stepper.connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.stepper.wait()
        with self.stepper.connection.transaction():
            yield
            self.stepper.wait()


@pytest.fixture
def steppers(connect: Connect) -> list[Stepper]:
    return [Stepper(connect()), Stepper(connect())]


def afresh() -> None:
    """Delete all sent tasks, and make the first fire time due."""
    sql("DELETE FROM horsies_schedule_ticks; DELETE FROM horsies_tasks")
    sql(
        "UPDATE horsies_schedules SET last_fire_at = NULL, next_fire_at = NULL, next_at = %s",
        [NOON + SECOND],
    )


def test_two_interleaved_schedulers_send_a_fire_time_once(
    steppers: list[Stepper],
) -> None:
    """Two schedulers send a fire time once, in every order of their steps."""
    make(pattern="every 1 second", catch_up="all")
    # The beginnings of the orders that are still to be tried, the deepest last.
    seen: list[tuple[int, ...]] = [()]
    taken = 0

    while seen:
        afresh()
        path = list[int]()
        prefix = seen.pop()
        for stepper in steppers:
            stepper.begin(NOON + SECOND)

        while busy := [number for number, stepper in enumerate(steppers) if stepper.busy]:
            if len(path) < len(prefix):
                choice = prefix[len(path)]
            else:
                choice = busy[0]
                # It makes no difference which one begins.
                seen.extend((*path, other) for other in busy[1:] if path)

            path.append(choice)
            steppers[choice].step()

        taken += 1
        (task_id,) = Task.objects.values_list("pk", flat=True)
        assert [*ScheduleTick.objects.values_list("fire_at", "task_id")] == [
            (NOON + SECOND, task_id)
        ], path

    assert taken > 500


@pytest.mark.parametrize("kill", [False, True], ids=["goes on", "is killed"])
@pytest.mark.parametrize("first", [0, 1])
def test_interleaved_rounds_skip_an_overlapping_fire_time(
    steppers: list[Stepper], first: int, kill: bool
) -> None:
    """Interleaved rounds send one of two fire times that must not overlap, and skip the other.

    One round runs at any step of the other one, which then goes on or is killed. One of the two
    rounds runs at the second fire time.
    """
    times = [NOON + SECOND, NOON + 2 * SECOND]
    make(pattern="every 1 second", catch_up="all", overlap="skip")

    for step in itertools.count():
        afresh()
        for stepper, now in zip(steppers, times, strict=True):
            stepper.begin(now)
        for _ in range(step):
            steppers[first].step()

        over = not steppers[first].busy
        steppers[1 - first].finish()
        if kill and not over:
            steppers[first].step(kill=True)
        steppers[first].finish()

        steppers[1].begin(times[1])
        steppers[1].finish()

        (task_id,) = Task.objects.values_list("pk", flat=True)
        ticks = ScheduleTick.objects.order_by("fire_at").values_list(
            "fire_at", "task_id", "skipped_for"
        )
        assert list(ticks) == [(times[0], task_id, None), (times[1], None, task_id)], step

        if over:
            break

    assert step > 7
