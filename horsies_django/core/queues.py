"""The names of queues and lanes, and the numbers of priorities.

Tasks with priority 1 run first. Priorities of django.tasks, from 100 (first) to -100, are stored as
1 to 201.
"""

from __future__ import annotations

CLUSTER = "*"  # the name of the row for all queues together
# Tasks with sync and with async functions have separate slots in a worker.
LANES = ("sync", "async")

# The policies of a partition rule and their descriptions. The tasks of a partition run in order, or
# equal tasks are merged.
POLICIES = {
    "stop": "ordered, a failed task stops its key",
    "continue": "ordered, a failed task stops nothing",
    "cancel": "ordered, a failed task cancels those behind it",
    "coalesce": "waiting tasks are merged into an equal one that starts",
}

LOWEST = 100  # the largest number of a priority of a task of @task
LOWEST_PLAIN = 201  # the largest number of a priority of a task of django.tasks
DJANGO_ZERO = 101  # the stored form of the default priority of django.tasks, 0


def stored_priority(django_priority: int) -> int:
    return DJANGO_ZERO - django_priority


def django_priority(stored: int) -> int:
    return DJANGO_ZERO - stored


def shown_priority(stored: int, codec: str | None) -> str:
    """Return a priority as text.

    For a task of django.tasks, the text also contains the priority of django.tasks.
    """
    return str(stored) if codec is None else f"{stored} (django.tasks: {django_priority(stored)})"
