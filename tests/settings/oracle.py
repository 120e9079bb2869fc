"""Settings of the storm over limits, of every kind; ORACLE_CLUSTER_CAP gives the whole cluster a
cap as well.
"""

from __future__ import annotations

import os

from tests.settings.chaos import *  # noqa: F403
from tests.settings.chaos import HORSIES as STORM
from tests.settings.chaos import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "tests.stress.oracle"]
HORSIES = STORM | {
    "CLUSTER_WIDE_CAP": int(os.environ.get("ORACLE_CLUSTER_CAP", "0")) or None,
    "QUEUES": {
        "free": {"priority": 90},
        "tight": {"priority": 10, "max_concurrency": 3},
        "wide": {"priority": 20, "max_concurrency": 8, "local_limit": 4},
        "tenants": {
            "priority": 50,
            "max_concurrency": 12,
            "partition": {"by_args": ["tenant"], "max_concurrency": 2, "local_limit": 1},
        },
        "kinds": {
            "priority": 50,
            "partition": {"by_args": ["tenant"], "by_task": True, "local_limit": 1},
        },
        "pausing": {"priority": 40, "max_concurrency": 4},
        "line": {"priority": 45, "partition": {"by_args": ["tenant"], "ordered": True}},
        "same": {
            "priority": 30,
            "partition": {"by_task": True, "by_args": "all", "coalesce": True},
        },
    },
}
