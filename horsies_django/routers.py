"""A database router that keeps the tables of the queue on the alias ``HORSIES["DATABASE"]``."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import Model

from horsies_django.conf import read

LABEL = "horsies"


class HorsiesRouter:
    """Routes the models of horsies. Put it first in ``DATABASE_ROUTERS``. It decides nothing about
    other apps.

    It works with invalid settings too: the system checks, which report the problems, ask the
    routers themselves.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias for models of the queue, never a replica: it may not have the latest
        tasks yet.
        """
        return _alias() if model._meta.app_label == LABEL else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias for models of the queue."""
        return _alias() if model._meta.app_label == LABEL else None

    def allow_relation(self, obj1: Model, obj2: Model, **hints: Any) -> bool | None:
        """Allow relations within the queue."""
        return True if {obj1._meta.app_label, obj2._meta.app_label} == {LABEL} else None

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        """Migrate the queue on its alias only; ``model_name`` is None for RunSQL and RunPython.

        On an alias with schemas of tenants, the router of django-tenants decides for which of them.
        """
        if app_label != LABEL:
            return None
        if db != _alias():
            return False
        return None if hasattr(connections[db], "set_schema_to_public") else True


def _alias() -> str:
    found, _ = read()
    return found.database
