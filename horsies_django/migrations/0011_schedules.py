"""The tables of schedules and of their slots, and the function that changes a schedule."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models

from horsies_django.store.base import load

CHANGE = "horsies_change_schedule_v1"
DEFINITION = "ALTER TABLE horsies_schedules ADD COLUMN definition jsonb NOT NULL GENERATED ALWAYS AS (declared || changes) STORED"


class Migration(migrations.Migration):
    dependencies = [
        ("horsies", "0010_send"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="name")),
                (
                    "declared",
                    models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="declared"),
                ),
                ("declared_in", models.TextField(null=True, verbose_name="declared in")),
                ("declared_at", models.DateTimeField(null=True, verbose_name="last declared")),
                ("gone_at", models.DateTimeField(null=True, verbose_name="gone from the code")),
                ("changes", models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="changes")),
                (
                    "since",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="in force since"
                    ),
                ),
                ("last_slot", models.DateTimeField(null=True, verbose_name="last slot")),
                ("next_slot", models.DateTimeField(null=True, verbose_name="next slot")),
                ("next_at", models.DateTimeField(null=True, verbose_name="next look")),
                ("rules", models.SmallIntegerField(null=True, verbose_name="rules")),
                ("error", models.TextField(null=True, verbose_name="error")),
                ("error_at", models.DateTimeField(null=True, verbose_name="error at")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="updated"),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "horsies_schedules",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("next_at"),
                        condition=models.Q(("next_at__isnull", False)),
                        name="horsies_schedules_next",
                    )
                ],
            },
        ),
        # Not a GeneratedField: its check asks the database for its version, in every command (Django 6.1).
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(DEFINITION, "ALTER TABLE horsies_schedules DROP COLUMN definition")],
            state_operations=[
                migrations.AddField(
                    "Schedule", "definition", models.JSONField(editable=False, verbose_name="definition")
                )
            ],
        ),
        migrations.CreateModel(
            name="ScheduleTick",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "schedule_name", "slot", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("schedule_name", models.CharField(max_length=255, verbose_name="schedule")),
                ("slot", models.DateTimeField(verbose_name="slot")),
                ("task_id", models.UUIDField(verbose_name="task")),
                (
                    "sent_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"),
                ),
            ],
            options={
                "verbose_name": "slot",
                "verbose_name_plural": "slots",
                "db_table": "horsies_schedule_ticks",
                "default_permissions": (),
                "indexes": [models.Index(models.F("sent_at"), name="horsies_schedule_ticks_sent")],
            },
        ),
        migrations.RunSQL(
            load(f"functions/{CHANGE}"),
            f"DROP FUNCTION {CHANGE}(text, jsonb, text, jsonb, text[], boolean, text, text, text, text)",
        ),
    ]
