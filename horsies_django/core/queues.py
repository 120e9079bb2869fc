"""Queues, lanes and priorities: 1 runs first.

Priorities of django.tasks, from 100 (first) to -100, are stored as 1 to 201.
"""

from __future__ import annotations

CLUSTER = "*"  # the row for all queues
# Tasks with sync and with async functions have separate slots in a worker.
LANES = ("sync", "async")

# What the policy of a partition rule means: its tasks run in order, or equal ones are merged.
POLICIES = {
    "stop": "ordered, a failed task stops its key",
    "continue": "ordered, a failed task stops nothing",
    "cancel": "ordered, a failed task cancels those behind it",
    "coalesce": "waiting tasks are merged into an equal one that starts",
}

LOWEST = 100  # of a task of @task
LOWEST_PLAIN = 201  # of a task of django.tasks
DJANGO_ZERO = 101  # the stored form of its default, 0


def stored_priority(django_priority: int) -> int:
    return DJANGO_ZERO - django_priority


def django_priority(stored: int) -> int:
    return DJANGO_ZERO - stored


def shown_priority(stored: int, codec: str | None) -> str:
    """Return a priority as text, with that of django.tasks if the task was sent by it."""
    return str(stored) if codec is None else f"{stored} (django.tasks: {django_priority(stored)})"
