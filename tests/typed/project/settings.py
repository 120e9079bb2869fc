"""The settings of the project, for the plugin of django-stubs."""

from __future__ import annotations

SECRET_KEY = "only for type checkers"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "horsies_django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}}
HORSIES = {"QUEUES": {"mail": {"priority": 10}}}
