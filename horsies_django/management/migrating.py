"""The receiver of ``post_migrate``, which runs the SQL of migrations that a project leaves out."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.migrations import RunSQL
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from horsies_django.models import Task

MIGRATIONS = "horsies_django.migrations"


def complete_tables(*, sender: AppConfig, using: str, plan: Any = None, **kwargs: Any) -> None:
    """Run the SQL of the migrations if tables were created without migrations.

    This is a receiver of ``post_migrate``. MIGRATION_MODULES, ``pytest --nomigrations`` and
    ``TEST["MIGRATE"]`` leave migrations out. Then Django creates the tables from the models, which
    cannot contain functions. A flush has no plan and keeps the functions, so nothing is done after
    it.
    """
    module, _explicit = MigrationLoader.migrations_module(sender.label)
    connection = connections[using]
    if (
        plan is None
        or module == MIGRATIONS
        or Task._meta.db_table not in connection.introspection.table_names()
    ):
        return

    with connection.schema_editor() as editor:
        for name in sorted(
            one.name for one in pkgutil.iter_modules(import_module(MIGRATIONS).__path__)
        ):
            for operation in import_module(f"{MIGRATIONS}.{name}").Migration.operations:
                if isinstance(operation, RunSQL):
                    operation.database_forwards(
                        sender.label, editor, ProjectState(), ProjectState()
                    )
