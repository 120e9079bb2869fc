"""Settings of a project that has no task yet."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "tests.apps.project"]  # noqa: F405
HORSIES = {}
