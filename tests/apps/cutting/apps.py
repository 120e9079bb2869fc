"""Connects the receiver as projects do: when the app is ready, before a worker has connected any of
its own.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created

from horsies_django.store.notify import direct_connection


class Config(AppConfig):
    """Reads what harm to do from the file that HORSIES_TEST_ORDER names, at each new connection;
    without one it does none.
    """

    name = "tests.apps.cutting"

    def ready(self) -> None:
        connection_created.connect(obey, weak=False, dispatch_uid="tests.apps.cutting")


def obey(connection: Any, **kwargs: Any) -> None:
    """Do what the file says, and with "storm" now this and now that; not to connections of the
    queue itself.
    """
    if connection.settings_dict["OPTIONS"].get("application_name", "").startswith("horsies "):
        return

    path = Path(os.environ["HORSIES_TEST_ORDER"])
    order = path.read_text() if path.exists() else ""
    if order == "storm":
        order = random.choice(["open", "raise", *["nothing"] * 8])

    if order == "cut":
        cut(connection)
    elif order == "open":
        connection.cursor().execute("BEGIN")
    if order in ("open", "raise"):
        raise LookupError("the project's receiver")


def cut(connection: Any) -> None:
    """End the server's side of a connection, and notice it."""
    with direct_connection("default", application_name="horsies cuts") as other:
        other.execute(
            "SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid]
        )
    connection.cursor().execute("SELECT 1")
