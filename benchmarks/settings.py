"""Settings of the measured project, which consists of the queue.

The environment sets the mode (hard by default).
"""

from __future__ import annotations

import environ

env = environ.Env()

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "horsies_django",
    "benchmarks.load",
]
DATABASES = {
    "default": {
        "CONN_MAX_AGE": env.int("BENCH_CONN_MAX_AGE", default=0),
        **env.db_url("DATABASE_URL"),
    }
}
HORSIES = {
    "PREFETCH_BUFFER": env.int("BENCH_PREFETCH_BUFFER", default=0),
    "CLAIM_LEASE_MS": env.int("BENCH_CLAIM_LEASE_MS", default=0) or None,
    "DURABLE_CLAIMS": env.bool("BENCH_DURABLE_CLAIMS", default=True),
}
