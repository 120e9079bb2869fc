"""The columns of a queue that settings and commands set, and the numbers of priorities.

Tasks with priority 1 run first. Priorities of django.tasks, from 100 (first) to -100, are stored as
1 to 201.
"""

from __future__ import annotations

from typing import NamedTuple

from horsies_django.core.words import gettext_noop

CLUSTER = "*"  # the name of the row for all queues together
# Tasks with sync and with async functions have separate slots in a worker.
LANES = ("sync", "async")

# The policies of a partition rule and their descriptions. The tasks of a partition run in order, or
# equal tasks are merged.
POLICIES = {
    "stop": gettext_noop("ordered, a failed task stops its key"),
    "continue": gettext_noop("ordered, the next task follows a failed task"),
    "cancel": gettext_noop("ordered, a failed task cancels the later tasks of its key"),
    "coalesce": gettext_noop("waiting tasks are merged into an equal one that starts"),
}


class QueueColumn(NamedTuple):
    """A column of a queue that the settings declare and that commands can change.

    ``setting`` is its place in ``HORSIES["QUEUES"][name]``, where ``partition.`` is the partition
    rule. ``help`` is the help text of its option on the command line. A limit has ``words``, a
    template of the text that names what is limited.
    """

    name: str
    setting: str
    help: str
    words: str = ""


# A queue's columns, in the order in which they are shown. ``conf.values`` has their defaults and
# ranges, the models their types and labels.
COLUMNS = (
    QueueColumn("priority", "priority", "priority of the queue: 1 is served first, 100 last"),
    QueueColumn(
        "max_concurrency",
        "max_concurrency",
        "running tasks in the whole cluster; 0 means that no task starts",
        gettext_noop("%(n)s in total"),
    ),
    QueueColumn(
        "local_limit",
        "local_limit",
        "running tasks in each worker",
        gettext_noop("%(n)s per worker"),
    ),
    QueueColumn(
        "partition_by_args",
        "partition.by_args",
        "the arguments whose values make a partition",
    ),
    QueueColumn(
        "partition_by_task",
        "partition.by_task",
        "make a partition for each task name",
    ),
    QueueColumn(
        "partition_max_concurrency",
        "partition.max_concurrency",
        "running tasks of each partition in the whole cluster",
        gettext_noop("%(n)s per partition"),
    ),
    QueueColumn(
        "partition_local_limit",
        "partition.local_limit",
        "running tasks of each partition in each worker",
        gettext_noop("%(n)s per partition and worker"),
    ),
    QueueColumn(
        "partition_policy",
        "partition.policy",
        "run the tasks of a partition one after another, where a failed task stops its key (stop), "
        "stops nothing (continue) or cancels the tasks behind it (cancel); or merge equal waiting "
        "tasks (coalesce)",
    ),
)
DECLARED = tuple(column.name for column in COLUMNS)
LIMITS = {column.name: column for column in COLUMNS if column.words}
RULE = tuple(column.name for column in COLUMNS if column.setting.startswith("partition."))
PARTITION_LIMITS = tuple(name for name in RULE if name in LIMITS)
CLUSTER_LIMITS = {"max_concurrency": LIMITS["max_concurrency"]}  # that the whole cluster can have

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
