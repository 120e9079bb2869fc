"""Rows of the queue by Django's ORM: only the plugin of django-stubs knows their columns."""

from __future__ import annotations

import uuid
from typing import assert_type

from horsies_django.models import Task, WorkflowRun


def waiting() -> int:
    assert_type(Task.objects.filter(status="PENDING", queue_name="mail").count(), int)
    assert_type(Task.objects.get(pk=uuid.uuid4()).priority, int)
    assert_type([run.name for run in WorkflowRun.objects.filter(status="RUNNING")], list[str])
    Task.objects.filter(stauts="PENDING")  # error: misc -
    return Task.objects.get(pk=uuid.uuid4()).status  # error: return-value -
