"""The test project with connections that are kept: by default, not at all or in a pool, as the environment says."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, HORSIES

KEPT = os.environ["HORSIES_TEST_KEPT"]
if KEPT == "pool":
    DATABASES["default"].update(OPTIONS={"pool": {"min_size": 1, "max_size": 1}}, CONN_HEALTH_CHECKS=True)
elif KEPT == "0":
    HORSIES = {**HORSIES, "CHILD_CONN_MAX_AGE": 0}
