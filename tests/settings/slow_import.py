"""Settings of a project whose task module takes for ever to import in one kind of process."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.slow"]  # noqa: F405
