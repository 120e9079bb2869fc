"""Schedules: the delay after a fire time, the cost of an idle look, and the time of a crowd.

*Start*: one scheduler and an idle worker, a few schedules that fire each second; the time from the
fire time to the start of its task, by the database's clock. *Look*: one round of a scheduler with
thousands of schedules of which none is due, in process. *Crowd*: as many schedules fire in the same
second; the time until the tasks of all of them are sent, by one scheduler in process.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Sequence
from functools import partial

from django.db import connection

from benchmarks import meters
from benchmarks.figures import Case, Goal, Reading
from benchmarks.latency import percentiles
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, running, wait_for, worker
from horsies_django import schedules
from horsies_django.store.notify import direct_connection
from horsies_django.worker.scheduler import Scheduler

SCHEDULES = 5
SECONDS = 60
MANY = 10_000
LOOKS = 1_000
CROWD = 1_000
START = "schedule fire time to start of its task"
LOOK = "schedule look at 10,000, none due"
AT_ONCE = "schedule 1,000 due at once, until all are sent"
GOALS = (
    Goal("P15", f"{START}, p99", 150.0, at_most=True),
    Goal("P16", f"{LOOK}, p99", 20.0, at_most=True),
)
FILL = """
INSERT INTO horsies_schedules (name, changes, since, next_at)
SELECT 'nr. ' || n, %s::jsonb, clock_timestamp() + %s, clock_timestamp() + %s
FROM generate_series(1, %s) AS n
"""
# Of all fire times in a span of seconds whose tasks have started.
LATE = """
SELECT extract(epoch FROM t.started_at - k.fire_at)::float8
FROM horsies_schedule_ticks k
JOIN horsies_tasks t ON t.id = k.task_id
WHERE k.fire_at > %s::timestamptz
  AND k.fire_at <= %s::timestamptz + %s * interval '1 second'
  AND t.started_at IS NOT NULL
"""
WARM = f"SELECT count(*) > {3 * SCHEDULES} FROM horsies_tasks WHERE finished_at IS NOT NULL"


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each of them."""
    return [
        Case("schedule start", partial(start, max(2, round(SECONDS * scale)))),
        Case(
            "schedule look",
            partial(look, max(10, round(MANY * scale)), max(100, round(LOOKS * scale))),
        ),
        Case("schedule crowd", partial(crowd, max(10, round(CROWD * scale)))),
    ]


def start(seconds: int) -> list[Reading]:
    """Measure an idle worker on the tasks of one scheduler for so long."""
    clear()
    for number in range(SCHEDULES):
        definition = {"task": tasks.moment.name, "pattern": "every 1 second", "catch_up": "all"}
        schedules.create(f"nr. {number}", definition, actor="benchmark")

    with worker("--processes=2") as process, connection.cursor() as cursor:
        tasks.moment.send().get(60_000)

        with running("horsies_scheduler", "--loglevel=ERROR"):
            wait_for(WARM, process=process)
            cursor.execute("SELECT clock_timestamp()")
            ((now,),) = cursor.fetchall()

            wait_for(
                f"SELECT count(*) = {SCHEDULES * seconds} FROM ({LATE}) AS late",
                now,
                now,
                seconds,
                process=process,
            )

        cursor.execute(LATE, [now, now, seconds])
        late = [moment for (moment,) in cursor.fetchall()]

    found = {"fire times": float(len(late))}
    return [
        *percentiles(START, late, found),
        Reading(f"{START}, max", max(late) * 1_000, "ms", found),
    ]


def look(schedules: int, n: int) -> list[Reading]:
    """Run n looks over schedules that are due in a day."""
    fill(schedules, since=dt.timedelta(), next_at=dt.timedelta(days=1))
    scheduler = Scheduler(dt.timedelta())
    took = []

    with direct_connection("default", application_name="horsies benchmark", prepare=True) as direct:
        for _ in range(n):
            began = time.perf_counter()
            scheduler.tick(direct)
            took.append(time.perf_counter() - began)

    return list(percentiles(LOOK, took, {"schedules": float(schedules)}))


def crowd(schedules: int) -> list[Reading]:
    """Send the one task that is due of each schedule."""
    fill(schedules, since=-dt.timedelta(seconds=90), next_at=dt.timedelta())
    scheduler = Scheduler(dt.timedelta())
    before = meters.statements()

    with direct_connection("default", application_name="horsies benchmark", prepare=True) as direct:
        began = time.perf_counter()
        while scheduler.tick(direct) == 0:
            pass
        seconds = time.perf_counter() - began

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM horsies_schedule_ticks JOIN horsies_tasks ON id = task_id"
        )
        ((sent,),) = cursor.fetchall()
    if sent != schedules:
        raise RuntimeError(f"{sent} of {schedules} schedules sent their task")

    each = {
        "ms/fire time": 1_000 * seconds / sent,
        "statements/fire time": (meters.statements() - before) / sent,
    }
    return [Reading(AT_ONCE, seconds, "s", each)]


def clear() -> None:
    """Begin a measurement with no schedule and no task."""
    empty_tables()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE horsies_schedules, horsies_schedule_ticks")


def fill(schedules: int, *, since: dt.timedelta, next_at: dt.timedelta) -> None:
    """Create schedules that fire each minute.

    They are in force since one moment and looked at next at another, relative to now.
    """
    clear()
    definition = json.dumps({"task": tasks.moment.name, "pattern": "every 1 minute"})
    with connection.cursor() as cursor:
        cursor.execute(FILL, [definition, since, next_at, schedules])
        cursor.execute("VACUUM ANALYZE horsies_schedules")
