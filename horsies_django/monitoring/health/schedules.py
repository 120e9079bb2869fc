"""Problems of schedules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from horsies_django.monitoring.health.problem import Problem, ProblemCode, number, problem, span
from horsies_django.monitoring.health.state import LATE, Health
from horsies_django.store.health import ScheduleHealth

START = "start 'manage.py horsies_scheduler' or a worker with --with-scheduler"


def of_schedules(health: Health) -> Iterator[Problem]:
    """Yield what is wrong with schedules, and with the tasks that they send."""
    clock, kept_at = health.database.clock, health.schedules_kept_at
    # a scheduler records once a minute which schedules its code declares
    if health.declared_schedules and (kept_at is None or clock - kept_at > dt.timedelta(minutes=3)):
        told = "no scheduler has loaded them" if kept_at is None else (
            f"no scheduler has had them in its code for {span((clock - kept_at).total_seconds())}"
        )  # fmt: skip
        yield problem(
            ProblemCode.NO_SCHEDULER,
            "schedules",
            f"the code declares {number(health.declared_schedules, 'schedule')}, but {told}",
            START,
            kept_at,
        )
    yield from _late(health.schedules, clock)
    for one in health.schedules:
        if one.error is not None:
            yield problem(
                ProblemCode.SCHEDULE_FAILS,
                f"schedule {one.name}",
                f"the schedule {one.name!r} could not send its task: {one.error}",
                "correct it in the code or in the admin",
                one.error_at,
            )
        if one.missed_at is not None:
            yield problem(
                ProblemCode.FIRE_TIMES_MISSED,
                f"schedule {one.name}",
                f"the schedule {one.name!r} missed fire times in the last 24 hours",
                "see in the scheduler's log which; send what is needed with 'manage.py horsies_schedule run', or set 'catch_up'",
                one.missed_at,
            )
    for failing in health.failing_schedules:
        yield problem(
            ProblemCode.SCHEDULED_TASKS_FAIL,
            f"schedule {failing.name}",
            f"the last two tasks {failing.task_name} that the schedule {failing.name!r} sent failed",
            "see their errors in the admin or with 'manage.py horsies_task list', and correct the task",
            failing.since,
        )


def _late(schedules: list[ScheduleHealth], clock: dt.datetime) -> Iterator[Problem]:
    late = [one for one in schedules if (one.late_seconds or 0) > LATE.total_seconds()]
    if late:
        others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        seconds = late[0].late_seconds or 0
        yield problem(
            ProblemCode.SCHEDULE_LATE,
            f"schedule {late[0].name}",
            f"the schedule {late[0].name!r}{others} is overdue by {span(seconds)}",
            f"{START}, or read in its log why it does not send it",
            clock - dt.timedelta(seconds=seconds),
        )
