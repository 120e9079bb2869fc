"""The test project with the LOGGING that the environment names, in JSON."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403 - one setting more

LOGGING = json.loads(os.environ["HORSIES_TEST_LOGGING"])
