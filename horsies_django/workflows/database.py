"""The statements about workflows, on Django's connection to the queue's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import QuerySet

from horsies_django.conf import config
from horsies_django.store.notify import channel_prefix
from horsies_django.store.workflows import WorkflowStore


def reading(now: datetime | None = None) -> WorkflowStore:
    """Return the statements that need no transaction around them: those that only read, ``send`` and ``signal``."""
    conf = config()
    return WorkflowStore(connections[conf.database], "", conf.max_payload_bytes, now)


@contextmanager
def writing(now: datetime | None = None) -> Iterator[WorkflowStore]:
    """Yield the statements within a transaction. Tests pass ``now`` in place of the database's clock."""
    conf = config()
    connection = connections[conf.database]
    with transaction.atomic(using=conf.database):
        yield WorkflowStore(connection, channel_prefix(connection), conf.max_payload_bytes, now)


def rows(model: str, **filters: Any) -> QuerySet[Any]:
    """Return rows of a model by its name: modules of tasks are imported before the models are ready."""
    found: QuerySet[Any] = apps.get_model("horsies", model)._default_manager.using(config().database).filter(**filters)
    return found
