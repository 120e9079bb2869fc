"""Connections that are kept as the environment says, can be told from the worker's own, and meet a receiver that does harm."""

from __future__ import annotations

from tests.settings.traps import *  # noqa: F403
from tests.settings.traps import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.cutting"]
DATABASES["default"]["OPTIONS"] = {**DATABASES["default"].get("OPTIONS", {}), "application_name": "project"}
