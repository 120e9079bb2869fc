"""Keeps ``migrate`` from a database that was migrated before the first release."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from horsies_django.conf import config
from horsies_django.store.schema import unpublished


def refuse_unpublished(*, using: str, **kwargs: Any) -> None:
    """Raise CommandError for such a database before it is changed; a receiver of ``pre_migrate``."""
    if using == config().database and (problem := unpublished(connections[using])):
        raise CommandError(problem)
