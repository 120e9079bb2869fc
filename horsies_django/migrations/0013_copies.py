"""Which task another one is a copy of, and the index that finds the copies of a task, built without holding up writers."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Index, Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("horsies", "0012_fits")]

    operations = [
        migrations.AddField("task", "copy_of", models.UUIDField(null=True, verbose_name="copy of")),
        AddIndexConcurrently(
            "task", Index(F("copy_of"), condition=Q(copy_of__isnull=False), name="horsies_tasks_copies")
        ),
    ]
