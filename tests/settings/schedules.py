"""The test project with the schedules that a test gives as JSON in HORSIES_TEST_SCHEDULES, and if it wants with code of old."""

from __future__ import annotations

import json
import os

from tests.settings.outages import *  # noqa: F403
from tests.settings.outages import HORSIES as USUAL
from tests.settings.outages import INSTALLED_APPS as APPS

HORSIES = {**USUAL, "SCHEDULES": json.loads(os.environ.get("HORSIES_TEST_SCHEDULES", "{}"))}
INSTALLED_APPS = APPS
if os.environ.get("HORSIES_TEST_OLD_CODE"):
    INSTALLED_APPS = ["tests.apps.elder" if app == "tests.apps.project" else app for app in APPS]
