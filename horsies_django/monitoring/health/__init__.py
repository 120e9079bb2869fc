"""What is wrong: with the database, workers, queues, schedules, tasks and workflows. Only reads, without locks.

``examine`` reads the state, and ``problems`` decides what in it needs attention; both doors, the command and the URL, call them.
"""

from __future__ import annotations

from horsies_django.monitoring.health.problem import MAX_WAIT_SECONDS, Problem, ProblemCode, Severity, named, problems
from horsies_django.monitoring.health.state import LATE, Health, QueueHealth, examine
from horsies_django.store.health import DatabaseHealth, WorkerHealth, XminHolder

__all__ = [
    "LATE", "MAX_WAIT_SECONDS", "DatabaseHealth", "Health", "Problem", "ProblemCode", "QueueHealth", "Severity", "WorkerHealth",
    "XminHolder", "examine", "named", "problems",
]  # fmt: skip
