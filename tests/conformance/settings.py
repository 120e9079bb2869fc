"""The settings of the suites' project, for the tests and for the worker."""

from __future__ import annotations

import os
from typing import Any

import environ

PACKAGE = os.environ["CONFORMANCE_PACKAGE"]
KIND = "native" if PACKAGE == "django.tasks" else "backport"
SECRET_KEY = "for tests only"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "horsies_django", "tasks"]
if KIND == "backport":
    INSTALLED_APPS.append("django_tasks")
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TEST_RUNNER = "conformance.runner.Runner"
HORSIES = {"RESILIENCE": {"NOTIFY_POLL_INTERVAL_MS": 1_000}}
TASKS = {
    "default": {"BACKEND": "conformance.kinds.Queued", "QUEUES": []},
    "inline": {"BACKEND": "conformance.kinds.Inline", "QUEUES": []},
}

# The worker sends its log records about tasks to the tests, which expect them in their own process.
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"horsies.task": {"level": "CRITICAL"}},  # failures are expected
}
if PORT := os.environ.get("CONFORMANCE_LOG_PORT"):
    LOGGING["handlers"] = {
        "tests": {
            "class": "logging.handlers.SocketHandler",
            "host": "127.0.0.1",
            "port": int(PORT),
            "level": "DEBUG",
        }
    }
    LOGGING["loggers"][PACKAGE] = {"handlers": ["tests"], "level": "DEBUG"}
