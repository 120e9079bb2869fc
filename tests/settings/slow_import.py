"""Settings of a project whose task module takes for ever to import in one kind of process."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403

HASTY = ["tests.apps.hasty"] if "HASTY_WORKER" in os.environ else []
INSTALLED_APPS = [*INSTALLED_APPS, *HASTY, "tests.apps.slow"]  # noqa: F405
