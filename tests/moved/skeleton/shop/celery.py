"""The Celery app of the shop."""

from __future__ import annotations

from celery import Celery

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
