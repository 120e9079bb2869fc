"""Settings of the storm: dead workers are found within seconds, queues have caps and partitions,
and schedules fire every second.

CHAOS_SOFT has workers claim ahead of time; CHAOS_USUAL leaves the times of recovery as they are by
default.
"""

from __future__ import annotations

import os
from typing import Any

import environ

SECRET_KEY = "for the storm only"
USE_TZ = True
# auth and contenttypes: the server's template database is migrated with them
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "horsies_django",
    "tests.stress.chaos",
]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
DATABASES["default"]["CONN_MAX_AGE"] = 60  # so that there are connections of tasks to be cut
DATABASES["default"].setdefault("OPTIONS", {})["application_name"] = os.environ.get(
    "CHAOS_NAME", "chaos"
)
HORSIES: dict[str, Any] = {
    "KILL_GRACE_MS": 500,
    "RESILIENCE": {
        "NOTIFY_POLL_INTERVAL_MS": 1_000,
        "DB_RETRY_INITIAL_MS": 100,
        "DB_RETRY_MAX_MS": 1_000,
    },
    "RECOVERY": {
        "CLAIMER_HEARTBEAT_INTERVAL_MS": 1_000,
        "RUNNING_STALE_THRESHOLD_MS": 3_000,
        "CHECK_INTERVAL_MS": 1_000,
    },
    "SCHEDULES": {
        f"tick {n}": {"task": "tick", "pattern": "every 1 second", "catch_up": "all"}
        for n in range(3)
    },
    "QUEUES": {
        "free": {"priority": 50},
        "tight": {"priority": 20, "max_concurrency": 3},
        "tenants": {
            "priority": 30,
            "max_concurrency": 8,
            "partition": {"by_args": ["tenant"], "max_concurrency": 2, "local_limit": 1},
        },
    },
}
if os.environ.get("CHAOS_SOFT"):
    HORSIES |= {"PREFETCH_BUFFER": 500, "CLAIM_LEASE_MS": 30_000}  # as the benchmarks have it
if os.environ.get("CHAOS_USUAL"):
    del HORSIES["RECOVERY"], HORSIES["RESILIENCE"]
