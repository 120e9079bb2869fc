"""Purges: cancel all waiting tasks, or delete all finished ones, of a queue, a name or an age. Used by ``horsies_task purge``."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator

from django.db import connections, transaction

from horsies_django.conf import config
from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import refuse_who
from horsies_django.store import base
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import Matched, PurgeStore, Selection
from horsies_django.store.tasks import TaskStore

__all__ = ["Matched", "Selection", "matched", "purge", "selection"]

PAGE = 50_000  # ids that are read at a time
BATCH = 1_000  # tasks in a transaction


def selection(
    *,
    finished: bool = False,
    queue: str | None = None,
    name: str | None = None,
    status: str | None = None,
    older_than: dt.timedelta = dt.timedelta(0),
) -> Selection:
    """Return the tasks of a purge as of now, by the database's clock: tasks that are sent or finish later are not among them."""
    before = base.now(connections[config().database]) - older_than
    return Selection(before, finished, queue, name, status)


def matched(chosen: Selection) -> Matched:
    """Return how many tasks a purge concerns, and how many it leaves, because they belong to workflow runs."""
    return PurgeStore(connections[config().database]).count(chosen)


def purge(chosen: Selection, *, actor: str, reason: str | None = None) -> int:
    """Cancel waiting tasks, or delete finished ones, and return how many.

    Works in batches, each of which is a transaction and an entry of the audit, or all in the open transaction, if any. Tasks that
    a worker has claimed, that are locked, or that belong to workflow runs are left. Raises ValueError for an actor or a reason
    that cannot be stored.
    """
    refuse_who(ValueError, "no task was purged", actor, reason)
    alias = config().database
    connection = connections[alias]
    store, audit, total = PurgeStore(connection), TaskStore(connection), 0
    action, did = ("task.delete", "deleted") if chosen.finished else ("task.purge", "cancelled")
    given = {key: value for key in ("name", "status") if (value := getattr(chosen, key)) is not None}
    for ids in pages(store, chosen):
        done = 0
        for first in range(0, len(ids), BATCH):
            batch = ids[first : first + BATCH]
            with transaction.atomic(using=alias):
                count = store.delete(batch) if chosen.finished else store.cancel(batch, channel_prefix(connection))
                if count:
                    after = {**given, "before": chosen.before.isoformat(), did: str(count)}
                    audit.note(chosen.queue or CLUSTER, action, actor, reason, after)
            done += count
        total += done
        if not done:  # the others are locked, or were claimed meanwhile
            break
    return total


def pages(store: PurgeStore, chosen: Selection) -> Iterator[list[uuid.UUID]]:
    """Yield ids of tasks until there are no more."""
    while ids := store.page(chosen, PAGE):
        yield ids
