"""Settings of a project whose task module cannot be imported."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.broken"]  # noqa: F405
