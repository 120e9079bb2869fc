"""A receiver that adds the schema of the tables to the search path.

Projects with several tenants do so.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created

SCHEMA = "tenant"


class Config(AppConfig):
    name = "tests.apps.connector"

    def ready(self) -> None:
        connection_created.connect(use_schema, dispatch_uid="tests.apps.connector")


def use_schema(connection: Any, **kwargs: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        cursor.execute("SET search_path = %s, public", [SCHEMA])
