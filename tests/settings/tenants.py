"""Settings of a project with a schema for each tenant, by django-tenants; the queue is in the
schema of all.
"""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

PUBLIC_SCHEMA_NAME = os.environ.get("PUBLIC_SCHEMA", "public")
TENANT_LIMIT_SET_CALLS = os.environ.get("LIMIT_SET_CALLS") == "1"
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
DATABASE_ROUTERS = [
    *filter(None, [os.environ.get("FIRST_ROUTER")]),
    "django_tenants.routers.TenantSyncRouter",
]
SHARED_APPS = [
    "django_tenants",
    "django.contrib.contenttypes",
    "horsies_django",
    "tests.apps.tenants.customers",
]
TENANT_APPS = ["django.contrib.contenttypes", "tests.apps.tenants.books"]
INSTALLED_APPS = [*SHARED_APPS, "tests.apps.tenants.books"]
TENANT_MODEL = "customers.Client"
TENANT_DOMAIN_MODEL = "customers.Domain"
MIDDLEWARE: list[str] = []
HORSIES = {**HORSIES, "MIDDLEWARE": ["tests.apps.tenants.books.middleware.in_schema"]}  # noqa: F405
