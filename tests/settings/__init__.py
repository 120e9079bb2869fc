"""Settings of the test project: the plain case, one database, every door of the app installed.

What a test wants otherwise for the processes that it starts stands in their environment;
HORSIES_TEST_APPS and HORSIES_TEST_GIVEN are made by ``apps`` and ``given`` in
``tests/support/workers.py``.
"""

from __future__ import annotations

import json
import os
from typing import Any

import environ

SECRET_KEY = "for tests only"
USE_TZ = os.environ.get("HORSIES_TEST_USE_TZ", "1") == "1"
TIME_ZONE = "Europe/Istanbul"
LANGUAGE_CODE = "en"
DEBUG = False
ALLOWED_HOSTS = ["*"]
# The default takes half a second for each password.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "horsies_django"]
INSTALLED_APPS += os.environ.get("HORSIES_TEST_APPS", "tests.apps.project").split()

# What only a site needs: the workers of the tests, hundreds of them, start without it.
if os.environ.get("HORSIES_TEST_SITE", "1") == "1":
    INSTALLED_APPS += [
        f"django.contrib.{name}" for name in ("admin", "messages", "sessions", "staticfiles")
    ]
    ROOT_URLCONF = "tests.support.urls"
    STATIC_URL = "static/"
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
DATABASES = {
    "default": environ.Env().db_url("DATABASE_URL", default="postgresql://localhost/horsies")
}
# How a child keeps connections: not at all if "0", or in a "pool".
KEPT = os.environ.get("HORSIES_TEST_KEPT", "")
if KEPT == "pool":
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 1}
HORSIES: dict[str, Any] = {
    "TASK_TIMEOUT_MS": int(os.environ.get("HORSIES_TEST_TIMEOUT_MS", "0")) or None,
    "KILL_GRACE_MS": int(os.environ.get("HORSIES_TEST_KILL_GRACE_MS", "5000")),
    "CHILD_CONN_MAX_AGE": 0 if KEPT == "0" else 60,
    "UNKNOWN_TASK_GRACE_MS": int(os.environ.get("HORSIES_TEST_GRACE_MS", "300000")),
    "REPORT_RUNNING_AFTER_MS": int(os.environ.get("HORSIES_TEST_REPORT_MS", "3600000")),
    "RESILIENCE": {
        "NOTIFY_POLL_INTERVAL_MS": int(os.environ.get("HORSIES_TEST_POLL_MS", "1000")),
        "DB_RETRY_INITIAL_MS": 100,
        "DB_RETRY_MAX_MS": 1_000,
    },
    "RECOVERY": {
        "CLAIMER_HEARTBEAT_INTERVAL_MS": 1_000,
        "RUNNING_STALE_THRESHOLD_MS": int(os.environ.get("HORSIES_TEST_STALE_MS", "10000")),
        "CHECK_INTERVAL_MS": 1_000,
        "WORKER_STATE_SNAPSHOT_INTERVAL_MS": int(
            os.environ.get("HORSIES_TEST_SNAPSHOT_MS", "30000")
        ),
    },
    "QUEUES": {"mail": {"priority": 1}, "bulk": {"priority": 50}, "twin": {"priority": 50}},
}
for name, value in json.loads(os.environ.get("HORSIES_TEST_GIVEN", "{}")).items():
    HORSIES[name] = {**HORSIES[name], **value} if name in ("RESILIENCE", "RECOVERY") else value
LOGGING: dict[str, Any] = json.loads(os.environ.get("HORSIES_TEST_LOGGING", "{}"))

# Only what imports django.tasks, or the backport, looks at these.
TASKS: dict[str, Any] = {
    "default": {"BACKEND": "horsies_django.backends.HorsiesBackend", "QUEUES": []},
    "second": {
        "BACKEND": "horsies_django.backends.HorsiesBackend",
        "QUEUES": [],
        "OPTIONS": {
            "MAX_ATTEMPTS": 2,
            "BACKOFF": 120,
            "RETRY_ON": ["builtins.LookupError"],
            "TIMEOUT_MS": 90_000,
        },
    },
}

# Through PgBouncer: DATABASE_URL is the pooler's, and this says where the server itself listens. In
# tests the second alias is the same database as the first.
if DIRECT := os.environ.get("HORSIES_TEST_DIRECT"):
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    host, port = DIRECT.rsplit(":", 1)
    DATABASES["direct"] = {
        **DATABASES["default"],
        "HOST": host,
        "PORT": port,
        "TEST": {"MIRROR": "default"},
    }
    DATABASES["direct"]["DISABLE_SERVER_SIDE_CURSORS"] = False
    HORSIES["LISTEN_DATABASE"] = "direct"
