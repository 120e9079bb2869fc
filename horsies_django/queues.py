"""Brings the declared queues into their table: at ``migrate``, and by the first worker that serves one."""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from horsies_django.conf import config
from horsies_django.store.queues import QueueStore


def declare_queues(*, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Write the declared queues after ``migrate`` (and after a test's flush); a receiver of ``post_migrate``."""
    connection = connections[using]
    if using != config().database or "horsies_queues" not in connection.introspection.table_names():
        return  # another database, or the app was just migrated back to zero
    QueueStore(connection).declare(config().queues.values())
