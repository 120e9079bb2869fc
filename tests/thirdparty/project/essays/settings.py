"""A site with Wagtail, and with django-pictures where Django has its own tasks (6.0 and newer)."""

from __future__ import annotations

import os
from pathlib import Path

import django
import environ

HAS_OWN_TASKS = django.VERSION >= (6, 0)

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
STATIC_URL = "/static/"
MEDIA_ROOT = Path(os.environ["MEDIA_ROOT"])
WAGTAIL_SITE_NAME = "Essays"
WAGTAILADMIN_BASE_URL = "http://localhost"
ROOT_URLCONF = "essays.settings"
urlpatterns: list[object] = []

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "modelcluster",
    "taggit",
    "wagtail",
    "wagtail.admin",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.sites",
    "wagtail.users",
    "django_tasks",
    "essays",
    "horsies_django",
]
TASKS = {"default": {"BACKEND": "horsies_django.backends.HorsiesBackend"}}
if HAS_OWN_TASKS:
    INSTALLED_APPS += ["pictures", "portraits"]
    HORSIES = {"QUEUES": {"default": {}, "pictures": {"max_concurrency": 1}}}
    PICTURES = {
        "FILE_TYPES": ["WEBP"],
        "BREAKPOINTS": {"s": 64},
        "CONTAINER_WIDTH": 64,
        "GRID_COLUMNS": 1,
    }
