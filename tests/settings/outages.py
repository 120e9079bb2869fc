"""The test project with what a test gives as JSON in HORSIES_TEST_RESILIENCE, HORSIES_TEST_RECOVERY and HORSIES_TEST_MORE."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES as USUAL

QUICK = {"DB_RETRY_INITIAL_MS": 100, "DB_RETRY_MAX_MS": 1_000}
HORSIES = {
    **USUAL,
    "RESILIENCE": {**USUAL["RESILIENCE"], **QUICK, **json.loads(os.environ.get("HORSIES_TEST_RESILIENCE", "{}"))},
    "RECOVERY": {**USUAL["RECOVERY"], **json.loads(os.environ.get("HORSIES_TEST_RECOVERY", "{}"))},
    **json.loads(os.environ.get("HORSIES_TEST_MORE", "{}")),
}
