"""Settings of the measured project: nothing but the queue."""

from __future__ import annotations

import environ

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "horsies_django", "benchmarks.load"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
