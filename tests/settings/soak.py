"""Settings of the soak: those of the storm with the usual times of recovery."""

from __future__ import annotations

from tests.settings.chaos import *  # noqa: F403
from tests.settings.chaos import HORSIES as STORM
from tests.settings.chaos import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "tests.stress.soak"]
HORSIES = {name: STORM[name] for name in ("QUEUES", "SCHEDULES", "KILL_GRACE_MS")}
# tests.stress.soak.apps says how long rows are kept.
HORSIES["RETENTION"] = {"RETENTION_SWEEP_INTERVAL_S": 30}
