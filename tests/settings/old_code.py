"""The test project before most of its tasks were written: its workers know one of those that others send."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES as TODAY
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = ["tests.apps.elder" if app == "tests.apps.project" else app for app in APPS]
HORSIES = TODAY
if os.environ.get("HORSIES_TEST_SOFT"):
    HORSIES = {**TODAY, "PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 5_000}
