"""Several schedulers at once, step by step: whatever the order of their steps, each fire time becomes exactly one task."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest

from horsies_django.models import Schedule, ScheduleTick, Task
from horsies_django.worker.scheduler import Scheduler
from tests.apps.project import tasks
from tests.conftest import Connect, sql
from tests.support.sizes import CI
from tests.worker.test_scheduler import NOON, PATIENCE_SECONDS, SECOND

pytestmark = pytest.mark.django_db(transaction=True)

MINUTES, SCHEDULES = (10, 50) if CI else (2, 20)


class Killed(BaseException):
    """What ends a scheduler in the middle of a round."""


class Gate:
    """Where one thread waits before each of its steps."""

    def __init__(self) -> None:
        self.go, self.stands = threading.Semaphore(0), threading.Semaphore(0)
        self.killed = False

    def wait(self) -> None:
        """Stand still until the next step is allowed; of the thread itself."""
        self.stands.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def step(self) -> None:
        """Let the thread go on to where it waits next, or ends."""
        self.go.release()
        assert self.stands.acquire(timeout=PATIENCE_SECONDS), "a step waits for another scheduler"


class Gated:
    """A connection that waits at its gate before each statement, and before each COMMIT."""

    def __init__(self, connection: psycopg.Connection[Any], gate: Gate) -> None:
        self.connection = connection
        self.gate = gate

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        self.gate.wait()
        with self.connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.gate.wait()
        with self.connection.transaction():
            yield
            self.gate.wait()


class Stepper:
    """A scheduler whose rounds are taken step by step."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.scheduler = Scheduler(dt.timedelta(0))
        self.gate = Gate()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self.thread is not None

    def begin(self, now: dt.datetime) -> None:
        """Begin a round at a moment, and stand before its first step."""
        self.scheduler.now = now
        self.gate = Gate()
        self.thread = threading.Thread(target=self._round, args=(self.gate,), daemon=True)
        self.thread.start()
        assert self.gate.stands.acquire(timeout=PATIENCE_SECONDS)

    def _round(self, gate: Gate) -> None:
        try:
            self.scheduler.tick(cast(psycopg.Connection[Any], Gated(self.connection, gate)))
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.thread = None
        gate.stands.release()

    def step(self) -> None:
        """Take the next step. Raises what the scheduler raised."""
        self.gate.step()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End the round where it stands."""
        self.gate.killed = True
        self.step()


def fill(count: int, pattern: str = "every 1 second", overlap: str = "allow") -> None:
    """Make schedules that are in force since noon."""
    sql(
        "INSERT INTO horsies_schedules (name, changes, since, next_at) "
        "SELECT 'nr. ' || n, jsonb_build_object('task', %s::text, 'pattern', %s::text, 'catch_up', 'all', 'most', 1000, "
        "'overlap', %s::text), %s, %s FROM generate_series(1, %s) AS n",
        [tasks.noop.name, pattern, overlap, NOON, NOON, count],
    )


def orders(steppers: list[Stepper], now: dt.datetime, seen: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """Run rounds of all steppers in an order that was not seen yet, depth first; gives the order that was taken."""
    path: list[int] = []
    prefix = list(seen.pop()) if seen else []
    for stepper in steppers:
        stepper.scheduler.left.clear()
        stepper.begin(now)
    while busy := [number for number, stepper in enumerate(steppers) if stepper.busy]:
        if len(path) < len(prefix):
            choice = prefix[len(path)]
        else:
            choice = busy[0]
            seen.extend((*path, other) for other in busy[1:])
        path.append(choice)
        steppers[choice].step()
    yield path


def judge(expected: list[dt.datetime]) -> None:
    """Compare what was sent with the fire times that there were."""
    names = list(Schedule.objects.values_list("name", flat=True))
    ticks = list(ScheduleTick.objects.values_list("schedule_name", "fire_at", "task_id"))
    assert Counter((name, fire_time) for name, fire_time, _ in ticks) == Counter(
        (name, fire_time) for name in names for fire_time in expected
    )
    assert Counter(task_id for _, _, task_id in ticks) == Counter(Task.objects.values_list("pk", flat=True))


def test_every_order_of_the_steps_of_two_schedulers_sends_a_fire_time_once(connect: Connect) -> None:
    steppers = [Stepper(connect()), Stepper(connect())]
    fill(1)
    seen: list[tuple[int, ...]] = [()]
    taken = 0
    while seen:
        afresh()
        for _ in orders(steppers, NOON + SECOND, seen):
            taken += 1
        judge([NOON + SECOND])
    assert taken > 1_000


@pytest.mark.parametrize("first", [0, 1])
def test_a_round_within_another_sends_one_of_two_fire_times_that_must_not_overlap(connect: Connect, first: int) -> None:
    """It comes at any step of the other one, and one of the two looks when the second fire time has come."""
    steppers, times = [Stepper(connect()), Stepper(connect())], [NOON + SECOND, NOON + 2 * SECOND]
    fill(1, overlap="skip")
    for step in itertools.count():
        afresh()
        for stepper, now in zip(steppers, times, strict=True):
            stepper.scheduler.left.clear()
            stepper.begin(now)
        for _ in range(step):
            steppers[first].step()
        over = not steppers[first].busy
        finish(steppers[1 - first])
        finish(steppers[first])
        steppers[1].scheduler.left.clear()  # what the other one held a moment ago
        steppers[1].begin(times[1])
        finish(steppers[1])
        (task_id,) = Task.objects.values_list("pk", flat=True)
        ticks = ScheduleTick.objects.order_by("fire_at").values_list("fire_at", "task_id", "skipped_for")
        assert list(ticks) == [(times[0], task_id, None), (times[1], None, task_id)]
        if over:
            break
    assert step > 7


def afresh() -> None:
    """Forget what was sent; the first fire time is due."""
    sql("DELETE FROM horsies_schedule_ticks; DELETE FROM horsies_tasks")
    sql("UPDATE horsies_schedules SET last_fire_at = NULL, next_fire_at = NULL, next_at = %s", [NOON + SECOND])


def finish(stepper: Stepper) -> None:
    """Take all steps that are left of a round."""
    while stepper.busy:
        stepper.step()


def test_each_fire_time_of_many_schedules_is_sent_once(connect: Connect) -> None:
    """Two to five schedulers, some of them killed in the middle of a round; the order of their steps is drawn."""
    dice = random.Random(2)
    steppers = [Stepper(connect()) for _ in range(5)]
    fill(SCHEDULES)
    end, now = NOON + dt.timedelta(minutes=MINUTES), NOON
    while now < end:
        now = min(end, now + dice.randint(1, 20) * SECOND)
        for stepper in steppers[: dice.randint(2, 5)]:
            if not stepper.busy:
                stepper.begin(now - dice.randint(0, 1) * SECOND)  # none knows exactly what time it is
        for _ in range(dice.randint(1, 400)):
            busy = [stepper for stepper in steppers if stepper.busy]
            if not busy:
                break
            chosen = dice.choice(busy)
            if dice.random() < 0.002:
                chosen.kill()
            else:
                chosen.step()
    for stepper in steppers:
        finish(stepper)
    steppers[0].scheduler.left.clear()  # what others held a moment ago
    steppers[0].begin(end)
    finish(steppers[0])
    judge([NOON + seconds * SECOND for seconds in range(1, 60 * MINUTES + 1)])
