"""A database router that keeps the tables of the queue on the alias ``HORSIES["DATABASE"]``."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import Model

from horsies_django.conf import read_settings

LABEL = "horsies"


class HorsiesRouter:
    """The router of the models of horsies, which belongs first in ``DATABASE_ROUTERS``.

    It returns None for the models of other apps, so the next routers decide about them. It works
    with invalid settings too, because the system checks, which report invalid settings, also call
    the routers.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias for models of the queue, and None for other models.

        The alias is never that of a replica, which may not have the latest tasks yet.
        """
        return _alias() if model._meta.app_label == LABEL else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias for models of the queue, and None for other models."""
        return _alias() if model._meta.app_label == LABEL else None

    def allow_relation(self, obj1: Model, obj2: Model, **hints: Any) -> bool | None:
        """Return True for a relation between two models of the queue, and None for others."""
        return True if {obj1._meta.app_label, obj2._meta.app_label} == {LABEL} else None

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        """Return whether the app is migrated on an alias, which is True only on that of the queue.

        Return None for other apps. Return None also on an alias of django-tenants, whose router
        decides in which schemas the app is migrated. ``model_name`` is None for RunSQL and
        RunPython.
        """
        if app_label != LABEL:
            return None
        if db != _alias():
            return False
        return None if hasattr(connections[db], "set_schema_to_public") else True


def _alias() -> str:
    found, _ = read_settings()
    return found.database
