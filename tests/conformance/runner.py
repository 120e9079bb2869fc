"""Django's test runner, which also removes a database with connections of async tests' threads."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.test.runner import DiscoverRunner


class Runner(DiscoverRunner):
    """Ends other sessions before the test database is removed."""

    def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
        """End the sessions that asgiref's threads have opened, then remove the database."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        super().teardown_databases(old_config, **kwargs)
