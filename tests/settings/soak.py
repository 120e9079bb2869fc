"""Settings of the soak: those of the storm with the usual times of recovery, and schedules that fire every second."""

from __future__ import annotations

from tests.settings.chaos import *  # noqa: F403
from tests.settings.chaos import HORSIES as STORM
from tests.settings.chaos import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "tests.stress.soak"]
TICKS = 3
HORSIES = {
    "QUEUES": STORM["QUEUES"],
    "KILL_GRACE_MS": STORM["KILL_GRACE_MS"],
    "RETENTION": {"RETENTION_SWEEP_INTERVAL_S": 30},  # tests.stress.soak.apps says how long rows are kept
    "SCHEDULES": {
        f"tick {number}": {"task": "tick", "pattern": "every 1 second", "catch_up": "all"} for number in range(TICKS)
    },
}
