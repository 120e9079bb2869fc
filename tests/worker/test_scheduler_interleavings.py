"""Several schedulers at once, step by step: whatever the order of their steps, each fire time becomes exactly one task."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.db import connection

from horsies_django.models import Schedule, ScheduleTick, Task
from tests.apps.project import tasks
from tests.worker.steps import Stepper

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[tuple[object, ...]]]
SECOND = dt.timedelta(seconds=1)
NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)
MINUTES, SCHEDULES = 10, 50


def fill(count: int, pattern: str = "every 1 second") -> None:
    """Make schedules that are in force since noon."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_schedules (name, changes, since, next_at) "
            "SELECT 'nr. ' || n, jsonb_build_object('task', %s::text, 'pattern', %s::text, 'catch_up', 'all', 'most', 1000), "
            "%s, %s FROM generate_series(1, %s) AS n",
            [tasks.noop.name, pattern, NOON, NOON, count],
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
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM horsies_schedule_ticks; DELETE FROM horsies_tasks")
            cursor.execute(
                "UPDATE horsies_schedules SET last_fire_at = NULL, next_fire_at = NULL, next_at = %s", [NOON + SECOND]
            )
        for _ in orders(steppers, NOON + SECOND, seen):
            taken += 1
        judge([NOON + SECOND])
    assert taken > 1_000


def finish(stepper: Stepper) -> None:
    """Take all steps that are left of a round."""
    while stepper.busy:
        stepper.step()


def test_ten_minutes_of_fifty_schedules_send_each_fire_time_once(connect: Connect) -> None:
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
