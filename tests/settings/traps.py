"""The test project with connections that are kept: by default, as the environment says, for some time or in a pool."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

KEPT = os.environ["HORSIES_TEST_KEPT"]
if KEPT == "pool":
    DATABASES["default"].update(OPTIONS={"pool": {"min_size": 1, "max_size": 1}}, CONN_HEALTH_CHECKS=True)
elif KEPT != "default":
    DATABASES["default"].update(CONN_MAX_AGE=int(KEPT), CONN_HEALTH_CHECKS=True)
