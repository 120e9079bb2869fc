"""Settings of the storm: queues with every kind of limit, and dead workers found within seconds.

ORACLE_CLUSTER_CAP gives the whole cluster a cap as well.
"""

from __future__ import annotations

import os

import environ

SECRET_KEY = "for the storm only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "horsies_django", "tests.stress.oracle"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
HORSIES = {
    "RESILIENCE": {"NOTIFY_POLL_INTERVAL_MS": 1_000},
    "RECOVERY": {
        "CLAIMER_HEARTBEAT_INTERVAL_MS": 1_000,
        "RUNNING_STALE_THRESHOLD_MS": 3_000,
        "CHECK_INTERVAL_MS": 1_000,
    },
    "QUEUES": {
        "free": {"priority": 90},
        "tight": {"priority": 10, "max_concurrency": 3},
        "wide": {"priority": 20, "max_concurrency": 8, "local_limit": 4},
        "tenants": {
            "priority": 50,
            "max_concurrency": 12,
            "partition": {"by_args": ["tenant"], "max_concurrency": 2, "local_limit": 1},
        },
        "kinds": {"priority": 50, "partition": {"by_args": ["tenant"], "by_task": True, "local_limit": 1}},
        "pausing": {"priority": 40, "max_concurrency": 4},
        "line": {"priority": 45, "partition": {"by_args": ["tenant"], "ordered": True}},
        "same": {"priority": 30, "partition": {"by_task": True, "by_args": "all", "coalesce": True}},
    },
}
if "ORACLE_CLUSTER_CAP" in os.environ:
    HORSIES["CLUSTER_WIDE_CAP"] = int(os.environ["ORACLE_CLUSTER_CAP"])
