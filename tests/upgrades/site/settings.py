"""Settings of a site that this release and the last one can run."""

from __future__ import annotations

import environ

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "horsies_django",
    "tests.upgrades.site",
]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
HORSIES = {
    "QUEUES": {
        "former": {},
        "latter": {},
        "tenants": {"partition": {"by_args": ["tenant"], "max_concurrency": 1}},
    },
    "RECOVERY": {
        "CLAIMER_HEARTBEAT_INTERVAL_MS": 1_000,
        "RUNNING_STALE_THRESHOLD_MS": 10_000,
        "CHECK_INTERVAL_MS": 1_000,
    },
    "PREFETCH_BUFFER": 2,
    "CLAIM_LEASE_MS": 5_000,
    "RETENTION": {
        "TERMINAL_RECORD_RETENTION_HOURS": None,
        "WORKER_STATE_RETENTION_HOURS": None,
        "WORKER_RETENTION_HOURS": None,
        "AUDIT_RETENTION_HOURS": None,
    },
}
