"""A database backend that replaces the host, as one of a tunnel or a cloud connector does."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.backends.postgresql import base

INSTANCE = "project:region:instance"  # the HOST in the settings


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        assert conn_params["host"] == INSTANCE
        return super().get_new_connection({**conn_params, "host": settings.CONNECTOR_HOST})
