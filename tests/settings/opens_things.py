"""Settings of a project whose task module opens a connection and a thread when it is imported."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.hasty"]  # noqa: F405
