"""The configuration that connects the receiver when the app is ready, as projects do.

A worker connects its own receivers later.
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
    """The app with the receiver.

    At each new connection the receiver reads the harm to do from the file that HORSIES_TEST_ORDER
    names. Without the file it does none.
    """

    name = "tests.apps.cutting"

    def ready(self) -> None:
        connection_created.connect(obey, weak=False, dispatch_uid="tests.apps.cutting")


def obey(connection: Any, **kwargs: Any) -> None:
    """Do the harm that the file names to a connection, but not to one of the queue itself.

    The harm "storm" is one of two kinds or none, at random.
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
    """Terminate the server process of a connection, and run a query that notices it."""
    with direct_connection("default", application_name="horsies cuts") as other:
        other.execute(
            "SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid]
        )
    connection.cursor().execute("SELECT 1")
