"""What is wrong: with the database, workers, queues, schedules, tasks and workflows. Only reads, without locks.

``examine`` reads the state, and ``problems`` decides what in it needs attention; both doors, the command and the URL, call them.
"""

from __future__ import annotations

from horsies_django.models.fields import aware
from horsies_django.monitoring.health.database import named, of_database
from horsies_django.monitoring.health.problem import Problem, ProblemCode, Severity
from horsies_django.monitoring.health.queues import of_queues, of_workers
from horsies_django.monitoring.health.schedules import of_schedules
from horsies_django.monitoring.health.state import LATE, Health, QueueHealth, examine
from horsies_django.monitoring.health.tasks import of_tasks, of_workflows
from horsies_django.store.health import DatabaseHealth, LostRecord, ScheduleHealth, WorkerHealth, XminHolder

__all__ = [
    "LATE", "MAX_WAIT_SECONDS", "DatabaseHealth", "Health", "LostRecord", "Problem", "ProblemCode", "QueueHealth",
    "ScheduleHealth", "Severity", "WorkerHealth", "XminHolder", "examine", "named", "problems",
]  # fmt: skip

MAX_WAIT_SECONDS = 900.0


def problems(health: Health, *, max_wait_seconds: float | None = MAX_WAIT_SECONDS) -> list[Problem]:
    """Return the problems in the order of ``ProblemCode``, critical ones first, and of a code the oldest first.

    A due task that has been waiting longer than ``max_wait_seconds`` is a problem, unless its queue is paused; None: no limit.
    """
    found = [
        *of_database(health),
        *of_workers(health),
        *of_queues(health, max_wait_seconds),
        *of_schedules(health),
        *of_tasks(health),
        *of_workflows(health),
    ]
    codes = list(ProblemCode)
    told = [one if one.since is None else one._replace(since=aware(one.since)) for one in found]
    return sorted(told, key=lambda one: (codes.index(one.code), one.since.timestamp() if one.since else 0.0))
