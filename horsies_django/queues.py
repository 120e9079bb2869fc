"""Changes of queues: declared by the settings, set, paused, overridden; each holds everywhere from its commit on, and is audited.

The store's one statement for all of them locks the limits in force, so that no worker's pass straddles a change. It waits for
passes, never for tasks; when a pass takes unusually long, the change is tried again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from horsies_django.conf import LARGEST_LIMIT, Config, QueueConfig, config
from horsies_django.core.errors import QueueError
from horsies_django.core.queues import CLUSTER
from horsies_django.models import Queue
from horsies_django.models.moments import aware
from horsies_django.store.base import migrated
from horsies_django.store.queues import DECLARED, NO_OVERRIDE, QueueStore
from horsies_django.store.schema import has_function

LIMITS = ("max_concurrency", "local_limit", "partition_max_concurrency", "partition_local_limit")
LATEST = dt.timedelta(days=36_500)
TRIES = 6
LOCK_NOT_AVAILABLE = "55P03"


def declare_queues(*, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Write the declared queues after ``migrate`` (and after a test's flush); a receiver of ``post_migrate``."""
    connection = connections[using]
    if using != config().database or not has_function(connection, "horsies_configure_queue"):
        return  # another database, or the app was migrated back to before it had functions
    sync(actor="migrate")


def sync(*, actor: str) -> dict[str, list[str]]:
    """Write what the settings declare over what the table holds; return the columns that changed, by queue.

    Overrides and pauses stay as they are. Raises QueueError when the limits cannot be locked.
    """
    changed = {
        name: _change(name, columns, action="queue.declare", actor=actor, create=True)
        for name, columns in declared(config()).items()
    }
    return {name: columns for name, columns in changed.items() if columns}


def declared(conf: Config) -> dict[str, dict[str, Any]]:
    """Return the columns that the settings declare, by queue; the cluster's cap stands in the row of the cluster."""
    found = {name: declared_columns(queue) for name, queue in conf.queues.items()}
    found[CLUSTER] = declared_columns(QueueConfig(CLUSTER, max_concurrency=conf.cluster_wide_cap))
    return found


def declared_columns(queue: QueueConfig) -> dict[str, Any]:
    """Return one queue's columns."""
    rule = queue.partition
    return {
        "priority": queue.priority,
        "max_concurrency": queue.max_concurrency,
        "local_limit": queue.local_limit,
        "partition_by_args": None if rule is None or rule.by_args is None else list(rule.by_args),
        "partition_by_task": rule is not None and rule.by_task,
        "partition_max_concurrency": None if rule is None else rule.max_concurrency,
        "partition_local_limit": None if rule is None else rule.local_limit,
    }


def change(name: str, columns: Mapping[str, Any], *, actor: str, reason: str | None = None) -> list[str]:
    """Set declared values in the table, until the settings are written over them again; return the columns that changed.

    ``columns``: priority (1 to 100), the limits, partition_by_args (list of names, [] for all, None) and partition_by_task.
    Raises QueueError, and changes nothing then.
    """
    if unknown := sorted(set(columns) - set(DECLARED)):
        raise QueueError(f"queue {name!r}: nothing is called {unknown[0]!r}; there are: {', '.join(DECLARED)}")
    if not columns:
        raise QueueError(f"queue {name!r}: nothing to change: give at least one of {', '.join(DECLARED)}")
    refuse_limits({key: value for key, value in columns.items() if key in LIMITS}, name)
    refuse_rule(name, columns)
    return _change(name, columns, action="queue.set", actor=actor, reason=reason)


def pause(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Let nothing more of a queue start, whatever its limits say; running tasks go on. Returns [] when it is paused already.

    Raises QueueError.
    """
    found = _find(name)
    if found is not None and found.paused_at is not None and (found.paused_by, found.paused_reason) == (actor, reason):
        return []
    columns = {"paused_at": "now", "paused_by": actor, "paused_reason": reason}
    return _change(name, columns, action="queue.pause", actor=actor, reason=reason)


def resume(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """End a pause; return [] when there is none. Raises QueueError."""
    columns = dict.fromkeys(("paused_at", "paused_by", "paused_reason"))
    return _change(name, columns, action="queue.resume", actor=actor, reason=reason)


def override(
    name: str, limits: Mapping[str, int | None], *, actor: str, reason: str, until: dt.datetime | None = None
) -> list[str]:
    """Put limits in the place of the declared ones: until removed, ``until`` (aware), or nobody serves the queue.

    ``limits``: any of max_concurrency, local_limit, partition_max_concurrency, partition_local_limit; None is no limit. They
    replace an earlier override as a whole. Raises QueueError.
    """
    if not limits:
        raise QueueError(f"queue {name!r}: an override needs a limit: one of {', '.join(LIMITS)}")
    if not reason.strip():
        raise QueueError(f"queue {name!r}: an override needs a reason, for whoever finds it later")
    refuse_until(name, until)
    refuse_limits(limits, name)
    found = _find(name)
    if found is not None and (dict(limits), actor, reason, until) == (
        found.override, found.override_by, found.override_reason, found.override_until and aware(found.override_until),
    ):  # fmt: skip
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
    """Remove the override: the declared limits hold again; return [] when there is none. Raises QueueError."""
    return _change(name, NO_OVERRIDE, action="queue.clear", actor=actor, reason=reason)


def refuse_limits(limits: Mapping[str, Any], name: str) -> None:
    """Raise QueueError for a limit that cannot be."""
    if name == CLUSTER and limits.get("max_concurrency") is not None and config().prefetch_buffer:
        raise QueueError(
            "the cluster cannot have a cap together with HORSIES['PREFETCH_BUFFER']: tasks that wait in buffers would fill it. "
            "Cap queues instead, or pause the cluster"
        )
    for key, value in limits.items():
        if key not in LIMITS:
            raise QueueError(f"queue {name!r}: there is no limit {key!r}; there are: {', '.join(LIMITS)}")
        if name == CLUSTER and key != "max_concurrency":
            raise QueueError(f"the cluster has a max_concurrency only, no {key}")
        low = 0 if key == "max_concurrency" else 1
        if value is not None and (not _is_whole(value) or not low <= value <= LARGEST_LIMIT):
            hint = ", 0 for a pause" if low == 0 else ""
            raise QueueError(
                f"queue {name!r}: {key} must be a whole number from {low} to {LARGEST_LIMIT:_}, or None for no limit{hint}; "
                f"not {value!r}"
            )


def refuse_rule(name: str, columns: Mapping[str, Any]) -> None:
    """Raise QueueError for a priority or a partition rule that cannot be."""
    if name == CLUSTER and set(columns) - {"max_concurrency"}:
        raise QueueError("the cluster has a max_concurrency only: no priority and no partitions")
    priority = columns.get("priority", 1)
    if not _is_whole(priority) or not 1 <= priority <= 100:
        raise QueueError(f"queue {name!r}: priority must be a whole number from 1 (first) to 100, not {priority!r}")
    if not isinstance(columns.get("partition_by_task", False), bool):
        raise QueueError(
            f"queue {name!r}: partition_by_task must be True or False, not {columns['partition_by_task']!r}"
        )
    by_args = columns.get("partition_by_args")
    if by_args is None:
        return
    if not isinstance(by_args, list) or not all(isinstance(one, str) and one and one.isprintable() for one in by_args):
        raise QueueError(
            f"queue {name!r}: partition_by_args must be a list of argument names, [] for all, or None, not {by_args!r}"
        )
    if len(set(by_args)) < len(by_args):
        raise QueueError(f"queue {name!r}: partition_by_args must name each argument once, not {by_args!r}")


def refuse_until(name: str, until: dt.datetime | None) -> None:
    """Raise QueueError for an end that is not a moment, or is over."""
    if until is None:
        return
    if until.utcoffset() is None:
        raise QueueError(f"queue {name!r}: until={until} has no time zone; pass an aware datetime")
    now = dt.datetime.now(dt.UTC)
    if until <= now:
        raise QueueError(f"queue {name!r}: until={until.isoformat()} is over already; pass a moment in the future")
    if until > now + LATEST:
        raise QueueError(
            f"queue {name!r}: until={until.isoformat()} is too far away; leave it out for an override without end"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _find(name: str) -> Queue | None:
    alias = config().database
    with migrated(connections[alias]):
        return Queue.objects.using(alias).filter(name=name).first()


def _change(name: str, columns: Mapping[str, Any], **how: Any) -> list[str]:
    store = QueueStore(connections[config().database])
    for left in reversed(range(TRIES)):
        try:
            changed = store.configure(name, columns, **how)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            if not left or connections[config().database].in_atomic_block:
                raise QueueError(
                    f"queue {name!r} was not changed: some transaction keeps the limits locked. Look for one that is open for "
                    "long in pg_stat_activity, end it, and try again"
                ) from error
            continue
        if changed is None:
            raise QueueError(
                f"there is no queue {name!r} in the table; declare it in HORSIES['QUEUES'] and run 'migrate'"
            )
        return changed
    raise AssertionError("unreachable")
