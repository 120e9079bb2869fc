"""Settings of the shop before and after its move; the page's blocks are appended to them."""

from __future__ import annotations

import environ

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "shop"]
CELERY_TASK_ALWAYS_EAGER = True
