"""Changes to queues, such as new limits, a pause or an override.

Each change is audited, and applies to all workers as soon as it is committed. A change is a single
statement. It locks the limits in force, so a pass of a worker runs either before or after the
change. It waits for passes, never for tasks. If a pass takes unusually long, the change is tried
again.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from horsies_django.conf import RANGES, Config, PartitionConfig, QueueConfig, config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.jsondata import plain_json, write_json
from horsies_django.core.errors import QueueError
from horsies_django.core.queues import (
    CLUSTER,
    CLUSTER_LIMITS,
    COLUMNS,
    DECLARED,
    LIMITS,
    PARTITION_LIMITS,
    POLICIES,
    RULE,
)
from horsies_django.core.texts import storable_actor, text_problem
from horsies_django.models import Queue
from horsies_django.models.fields import aware
from horsies_django.store.base import LOCK_NOT_AVAILABLE, migrated
from horsies_django.store.queues import NO_OVERRIDE, QueueStore
from horsies_django.store.schema import has_function

ONE_AT_A_TIME = "the tasks of one partition run one at a time here; limit the queue instead"
LOCK_TRIES = 6


def declare_queues(*, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Write the declared queues to the database after ``migrate``.

    This is a receiver of ``post_migrate``, which Django also sends after the flush of a test.
    """
    connection = connections[using]
    if using != config().database or not has_function(connection, "horsies_configure_queue"):
        return  # another database, or the app was migrated back to before it had functions
    sync(actor="migrate")


def sync(*, actor: str) -> dict[str, list[str]]:
    """Write the values that the settings declare, and return the names of changed columns by queue.

    Overrides and pauses are kept. Raises QueueError if the limits cannot be locked.
    """
    changed = {
        name: _change(name, columns, action="queue.declare", actor=actor, create=True)
        for name, columns in declared(config()).items()
    }

    return {name: columns for name, columns in changed.items() if columns}


def declared(conf: Config) -> dict[str, dict[str, Any]]:
    """Return the columns that the settings declare, by queue.

    The cap of the whole cluster, CLUSTER_WIDE_CAP, is in the row of the cluster.
    """
    found = {name: declared_columns(queue) for name, queue in conf.queues.items()}
    found[CLUSTER] = declared_columns(QueueConfig(CLUSTER, max_concurrency=conf.cluster_wide_cap))
    return found


def declared_columns(queue: QueueConfig) -> dict[str, Any]:
    """Return the columns of a queue in the form in which they are stored."""
    complete = replace(queue, partition=queue.partition or PartitionConfig())
    values = {column.name: attrgetter(column.setting)(complete) for column in COLUMNS}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


def change(
    name: str, columns: Mapping[str, Any], *, actor: str, reason: str | None = None
) -> list[str]:
    """Change declared values in the database, and return the names of the changed columns.

    The change ends when the settings are applied again. ``columns`` may contain priority (1 to
    100), the limits, partition_by_args (a list of names, [] for all arguments, or None),
    partition_by_task (True or False) and partition_policy (stop, continue, cancel, coalesce or
    None). Raises QueueError, and changes nothing, if a value is invalid or there is no such queue.
    """
    if unknown := sorted(set(columns) - set(DECLARED)):
        raise QueueError(
            f"queue {name!r} has no setting {unknown[0]!r}; choose from: {', '.join(DECLARED)}"
        )
    if not columns:
        raise QueueError(
            f"queue {name!r}: no value was given; pass at least one of {', '.join(DECLARED)}"
        )

    refuse_limits({key: value for key, value in columns.items() if key in LIMITS}, name)
    refuse_rule(name, columns)

    if (
        name != CLUSTER
        and (rule := set(columns) & set(RULE))
        and (found := _find(name)) is not None
    ):
        refuse_policy(
            name, {key: getattr(found, key) for key in RULE} | {key: columns[key] for key in rule}
        )

    return _change(name, columns, action="queue.set", actor=actor, reason=reason)


def pause(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Pause a queue, and return the names of the changed columns.

    No more tasks of the queue start. Running tasks continue. Returns [] if the same actor has
    already paused the queue for the same reason. Raises QueueError if the queue cannot be changed.
    """
    found = _find(name)
    if (
        found is not None
        and found.paused_at is not None
        and (found.paused_by, found.paused_reason) == (actor, reason)
    ):
        return []

    columns = {"paused_at": "now", "paused_by": actor, "paused_reason": reason}
    return _change(name, columns, action="queue.pause", actor=actor, reason=reason)


def resume(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """End the pause of a queue, and return the names of the changed columns.

    Returns [] if the queue is not paused. Raises QueueError if the queue cannot be changed.
    """
    columns = dict.fromkeys(("paused_at", "paused_by", "paused_reason"))
    return _change(name, columns, action="queue.resume", actor=actor, reason=reason)


def override(
    name: str,
    limits: Mapping[str, int | None],
    *,
    actor: str,
    reason: str,
    until: dt.datetime | None = None,
) -> list[str]:
    """Replace declared limits of a queue for a time, and return the names of the changed columns.

    The override ends if it is cleared, if ``until`` (an aware datetime) has passed, or if no worker
    serves the queue. ``limits`` may contain max_concurrency, local_limit, partition_max_concurrency
    and partition_local_limit. None means no limit. An earlier override is replaced as a whole.
    Returns [] if the same override is in force already. Raises QueueError if a value is invalid or
    the queue cannot be changed.
    """
    if not limits:
        raise QueueError(f"queue {name!r}: an override needs at least one of {', '.join(LIMITS)}")

    actor, reason = storable_actor(
        QueueError, f"queue {name!r:.200} was not changed", actor, reason
    )
    if not reason.strip():
        raise QueueError(f"queue {name!r}: an override needs a reason")

    refuse_until(name, until)
    refuse_limits(limits, name)

    found = _find(name)
    if (
        found is not None
        and found.partition_policy is not None
        and (of_partitions := set(limits) & set(PARTITION_LIMITS))
    ):
        raise QueueError(
            f"queue {name!r}: {min(of_partitions)} cannot be overridden, because {ONE_AT_A_TIME}"
        )

    if found is not None and (dict(limits), actor, reason, until) == (
        found.override,
        found.override_by,
        found.override_reason,
        found.override_until and aware(found.override_until),
    ):
        return []

    columns = {
        "override": dict(limits),
        "override_by": actor,
        "override_reason": reason,
        "override_at": "now",
        "override_until": None if until is None else until.isoformat(),
    }
    return _change(name, columns, action="queue.override", actor=actor, reason=reason)


def clear(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Remove the override of a queue, and return the names of the changed columns.

    The declared limits apply again. Returns [] if there is no override. Raises QueueError if the
    queue cannot be changed.
    """
    return _change(name, NO_OVERRIDE, action="queue.clear", actor=actor, reason=reason)


def skip(
    name: str, key: Mapping[str, Any], *, actor: str, reason: str, task: str | None = None
) -> uuid.UUID:
    """Give up the failed task that stops a key of an ordered queue, and return its id.

    The next task of the key can start then. ``key`` has the arguments of the partition rule by
    name. Its values are those of JSON, so a UUID or a date is a str. ``task`` is the name of the
    task if the rule is by task. Raises QueueError if the key does not fit the rule, and if no
    failed task stops the key.
    """
    actor, reason = storable_actor(
        QueueError, f"no task of queue {name!r:.200} was skipped", actor, reason
    )
    if not reason.strip():
        raise QueueError(f"queue {name!r}: a skip needs a reason")

    if (found := _find(name)) is None:
        raise _unknown(name)
    refuse_key(found, key, task)

    try:
        written = write_json(plain_json(dict(key)))
    except CodecError as error:
        raise QueueError(
            f"queue {name!r}: the key {dict(key)!r:.200} cannot be written as JSON: {error}"
        ) from error

    store = QueueStore(connections[config().database])
    skipped = store.skip(None, name, written, task=task, actor=actor, reason=reason)

    if skipped.id is None:
        first = "the key has no waiting and no failed task"
        if skipped.first is not None:
            first = f"task {skipped.first} comes first in the key and is {skipped.status}"
        if skipped.status == "FAILED":
            first += ": the later tasks of the key are being cancelled"
        raise QueueError(
            f"no failed task stops the key {written:.200} of queue {name!r} now: {first}; see "
            f"'horsies_queue show {name}'"
        )

    return skipped.id


def refuse_key(queue: Queue, key: Mapping[str, Any], task: str | None) -> None:
    """Raise QueueError if a key does not fit the partition rule of a queue."""
    subject = f"queue {queue.name!r}"
    if queue.partition_policy not in POLICIES or queue.partition_policy == "coalesce":
        raise QueueError(f"{subject} is not ordered: no failed task stops others")

    names = queue.partition_by_args
    if names != [] and set(key) != set(names or ()):
        wanted, given = (", ".join(map(str, each)) or "none" for each in (names or (), key))
        raise QueueError(
            f"{subject}: a key must have a value for each argument of its rule ({wanted}), but "
            f"these were given: {given}"
        )

    if queue.partition_by_task and (problem := text_problem("task", task)):
        raise QueueError(
            f"{subject}: its rule is by task, so a key requires the name of the task: {problem}"
        )
    if not queue.partition_by_task and task is not None:
        raise QueueError(
            f"{subject}: its rule is not by task, so a key has no task; remove {task!r:.200}"
        )


def refuse_limits(limits: Mapping[str, Any], name: str) -> None:
    """Raise QueueError if a limit is invalid."""
    if name == CLUSTER and limits.get("max_concurrency") is not None and config().prefetch_buffer:
        raise QueueError(
            "the cluster cannot have a cap while HORSIES['PREFETCH_BUFFER'] is set, because "
            "prefetched tasks would use up the cap. "
            "Limit queues instead, or pause the cluster"
        )

    for key, value in limits.items():
        if key not in LIMITS:
            raise QueueError(
                f"queue {name!r}: unknown limit {key!r}; choose from: {', '.join(LIMITS)}"
            )
        if name == CLUSTER and key not in CLUSTER_LIMITS:
            raise QueueError(f"the cluster supports only max_concurrency, not {key}")

        low, high = RANGES[LIMITS[key].setting]
        if value is not None and (not _is_whole(value) or not low <= value <= high):
            hint = " (with 0, no task starts)" if low == 0 else ""
            raise QueueError(
                f"queue {name!r}: {key} must be a whole number from {low} to {high:_}{hint}, or "
                f"None for no limit, not {value!r}"
            )


def refuse_rule(name: str, columns: Mapping[str, Any]) -> None:
    """Raise QueueError if a priority or a value of a partition rule is invalid."""
    if name == CLUSTER and set(columns) - set(CLUSTER_LIMITS):
        raise QueueError(
            "the cluster supports only max_concurrency: it has no priority and no partitions"
        )

    priority = columns.get("priority", 1)
    by_task = columns.get("partition_by_task", False)
    policy = columns.get("partition_policy")
    by_args = columns.get("partition_by_args")
    problem = None

    first, last = RANGES["priority"]
    if not _is_whole(priority) or not first <= priority <= last:
        problem = (
            f"priority must be a whole number from {first} (first) to {last}, not {priority!r}"
        )
    elif not isinstance(by_task, bool):
        problem = f"partition_by_task must be True or False, not {by_task!r}"
    elif policy is not None and policy not in tuple(POLICIES):
        problem = (
            f"partition_policy must be one of {', '.join(POLICIES)}, or None, not {policy!r:.100}"
        )
    elif by_args is None:
        return
    elif not isinstance(by_args, list) or not all(
        isinstance(one, str) and one and one.isprintable() for one in by_args
    ):
        problem = (
            "partition_by_args must be a list of argument names, [] for all, or None, not "
            f"{by_args!r}"
        )
    elif len(set(by_args)) < len(by_args):
        problem = f"partition_by_args must name each argument once, not {by_args!r}"

    if problem:
        raise QueueError(f"queue {name!r}: {problem}")


def refuse_policy(name: str, rule: Mapping[str, Any]) -> None:
    """Raise QueueError if the policy of a partition rule does not fit the rest or the settings.

    ``rule`` has all columns of the partition rule.
    """
    policy = rule["partition_policy"]
    by_args = rule["partition_by_args"]
    by_task = rule["partition_by_task"]
    if policy is None:
        return

    problem = None
    if config().prefetch_buffer:
        problem = (
            "is not possible while HORSIES['PREFETCH_BUFFER'] is set: prefetched tasks are neither "
            "ordered nor merged"
        )
    elif policy == "coalesce" and not (by_task and by_args == []):
        problem = (
            "merges only equal tasks: it requires partition_by_args=[] (all arguments) and "
            "partition_by_task=True"
        )
    elif by_args is None and not by_task:
        problem = "requires partition_by_args or partition_by_task, which define the partitions"
    elif rule["partition_max_concurrency"] not in (None, 1):
        problem = f"requires partition_max_concurrency=None: {ONE_AT_A_TIME}"
    elif rule["partition_local_limit"] is not None:
        problem = f"requires partition_local_limit=None: {ONE_AT_A_TIME}"

    if problem:
        raise QueueError(f"queue {name!r}: partition_policy={policy!r} {problem}")


def refuse_until(name: str, until: dt.datetime | None) -> None:
    """Raise QueueError if ``until`` is naive, in the past, or more than 100 years away."""
    now = dt.datetime.now(dt.UTC)
    problem = None
    if until is None:
        return

    if until.utcoffset() is None:
        problem = f"until={until} has no time zone; pass an aware datetime"
    elif until <= now:
        problem = f"until={until.isoformat()} is in the past; pass a datetime in the future"
    elif until > now + dt.timedelta(days=36_500):
        problem = (
            f"until={until.isoformat()} is too far in the future; remove it for an override "
            "without an end"
        )

    if problem:
        raise QueueError(f"queue {name!r}: {problem}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _find(name: str) -> Queue | None:
    alias = config().database
    if text_problem("name", name, 100):
        return None
    with migrated(connections[alias]):
        return Queue.objects.using(alias).filter(name=name).first()


def _unknown(name: str) -> QueueError:
    return QueueError(
        f"there is no queue {name!r:.200} in the database; declare it in HORSIES['QUEUES'] and run "
        "'migrate'"
    )


def _change(
    name: str, columns: Mapping[str, Any], *, actor: str, reason: str | None = None, **options: Any
) -> list[str]:
    actor, reason = storable_actor(
        QueueError, f"queue {name!r:.200} was not changed", actor, reason
    )
    if text_problem("name", name, 100):
        raise _unknown(name)

    store = QueueStore(connections[config().database])
    for left in reversed(range(LOCK_TRIES)):
        try:
            changed = store.configure(name, columns, actor=actor, reason=reason, **options)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            if not left or connections[config().database].in_atomic_block:
                raise QueueError(
                    f"queue {name!r} was not changed: another transaction keeps the limits locked. "
                    "Find the long-running "
                    "transaction in pg_stat_activity, end it, and try again"
                ) from error
            continue

        if changed is None:
            raise _unknown(name)
        return changed

    raise AssertionError("unreachable")
