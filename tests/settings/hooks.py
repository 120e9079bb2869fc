"""The test project with an app that hooks into everything, and middleware as the environment says."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.hooked"]
HORSIES = {
    **HORSIES,
    "MIDDLEWARE": os.environ.get("HORSIES_TEST_MIDDLEWARE", "").split(),
    "METADATA": os.environ.get("HORSIES_TEST_METADATA", "").split(),
}
