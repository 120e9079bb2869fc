"""Settings of the example, a document library whose slow work is done by tasks.

Environment variables contain the settings that differ between places: DATABASE_URL, SECRET_KEY,
DEBUG, ALLOWED_HOSTS and CONN_MAX_AGE.
"""

from __future__ import annotations

from pathlib import Path

import environ
from django.core.management.utils import get_random_secret_key

BASE_DIR = Path(__file__).parent

env = environ.Env()

# A random key is valid as long as its process. The only effect of a restart is that all users have
# to log in again.
SECRET_KEY = env.str("SECRET_KEY", default="") or get_random_secret_key()
DEBUG = env.bool("DEBUG", default=True)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "horsies_django",
    "example_project.library",
    "example_project.demo",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

DATABASES = {"default": env.db_url("DATABASE_URL", default="postgresql://localhost/horsies")}
# The children of a worker run for a long time and can reuse their connections. The development
# server cannot, because it starts a thread for each request.
DATABASES["default"]["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=0)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# New files are read before older ones are indexed, and checks of documents come last.
HORSIES = {
    "QUEUES": {
        "imports": {"priority": 10},
        "indexing": {"priority": 50},
        # A document that is saved ten times in a row is indexed once, after the last time.
        "search": {
            "priority": 50,
            "partition": {"by_task": True, "by_args": "all", "coalesce": True},
        },
        "verify": {
            "priority": 100,
            # two at a time in the whole cluster, because the site also has visitors
            "max_concurrency": 2,
            # The checks of one document run in the order in which they were sent, so that the
            # result of the last one stays.
            "partition": {"by_args": ["document_id"], "ordered": True, "on_failure": "continue"},
        },
    },
}

# If DEBUG is off, Django's own logging sends errors by mail and writes none to the terminal.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"terminal": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["terminal"], "level": "ERROR", "propagate": False}},
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static_root"
LOGIN_URL = "admin:login"
