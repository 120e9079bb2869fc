"""The test project in soft mode, with the buffer and the lease that the promises give as their example (S0.24)."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES as HARD

HORSIES = {**HARD, "PREFETCH_BUFFER": int(os.environ.get("HORSIES_TEST_PREFETCH", "4")), "CLAIM_LEASE_MS": 5_000}
