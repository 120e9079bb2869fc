"""Indexes of horsies_tasks for caps, partitions and deadlines, built without holding up writers.

What is in flight is counted by queue now, so the index by worker goes.
"""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations
from django.db.models import F, Index, Q

PENDING = Q(claimed_by__isnull=True, finished_at__isnull=True)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies", "0003_limits")]

    operations = [
        AddIndexConcurrently(
            "task",
            Index(
                F("queue_name"),
                F("partition_version"),
                F("partition_key"),
                F("claimed_at"),
                condition=Q(claimed_by__isnull=False, finished_at__isnull=True),
                name="horsies_tasks_holding",
            ),
        ),
        AddIndexConcurrently(
            "task",
            Index(
                F("queue_name"),
                F("partition_key"),
                F("lane"),
                F("priority"),
                F("enqueued_at"),
                F("id"),
                condition=PENDING & Q(parked=True),
                name="horsies_tasks_parked",
            ),
        ),
        AddIndexConcurrently(
            "task",
            Index(F("good_until"), condition=PENDING & Q(good_until__isnull=False), name="horsies_tasks_deadline"),
        ),
        RemoveIndexConcurrently("task", "horsies_tasks_in_flight"),
    ]
