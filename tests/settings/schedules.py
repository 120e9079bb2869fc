"""The test project with the schedules that a test gives as JSON in HORSIES_TEST_SCHEDULES."""

from __future__ import annotations

import json
import os

from tests.settings.outages import *  # noqa: F403
from tests.settings.outages import HORSIES as USUAL

HORSIES = {**USUAL, "SCHEDULES": json.loads(os.environ.get("HORSIES_TEST_SCHEDULES", "{}"))}
