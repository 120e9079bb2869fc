"""What release 0.2 adds: retries of a task under its id, and snoozes."""

from __future__ import annotations

from django.db import migrations, models

from horsies_django.store.schema import functions


class Migration(migrations.Migration):
    dependencies = [("horsies", "0002_functions")]

    operations = [
        migrations.AddField(
            "task",
            "attempts_before",
            models.SmallIntegerField(default=0, db_default=0, verbose_name="attempts before somebody retried it"),
        ),
        migrations.AddField(
            "task", "snooze_count", models.SmallIntegerField(default=0, db_default=0, verbose_name="snoozes")
        ),
        migrations.RemoveConstraint(
            "taskattempt", "horsies_task_attempts_outcome"
        ),  # for SNOOZED; the settle alone writes it
        migrations.RunSQL([*functions()], migrations.RunSQL.noop, hints={"model_name": "task"}),
    ]
