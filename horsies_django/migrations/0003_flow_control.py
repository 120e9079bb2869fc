"""What release 0.2 adds: retries under the same id, snoozes, keys, unique tasks, policies of
partitions, skipped fire times.
"""

from __future__ import annotations

from django.db import migrations, models
from django.db.models.functions import Now

from horsies_django.models.fields import IntegerArray
from horsies_django.store.schema import dropping, functions

# The keys of partitions are made in another way: equal numbers are equal. A new version of the
# rules, with a sweep, has the keys of waiting tasks made anew.
REKEYED = """
UPDATE horsies_queues SET partition_version = partition_version + 1, sweep = '{}'
WHERE partition_by_args IS NOT NULL;
UPDATE horsies_limits l SET partition_version = q.partition_version
FROM horsies_queues q WHERE q.name = l.queue_name AND q.partition_by_args IS NOT NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("horsies", "0002_functions")]

    operations = [
        migrations.AddField(
            "task",
            "attempts_before",
            models.SmallIntegerField(null=True, verbose_name="attempts before a manual retry"),
        ),
        migrations.AddField(
            "task", "snooze_count", models.SmallIntegerField(null=True, verbose_name="snoozes")
        ),
        migrations.RemoveConstraint(
            "taskattempt", "horsies_task_attempts_outcome"
        ),  # SNOOZED; the settle alone writes it
        migrations.CreateModel(
            "SendKey",
            fields=[
                (
                    "digest",
                    models.BinaryField(primary_key=True, serialize=False, verbose_name="digest"),
                ),
                ("task_id", models.UUIDField(verbose_name="task")),
                (
                    "arguments",
                    models.BinaryField(null=True, verbose_name="digest of the arguments"),
                ),
                ("sent_at", models.DateTimeField(verbose_name="sent")),
            ],
            options={
                "db_table": "horsies_send_keys",
                "verbose_name": "task key",
                "verbose_name_plural": "task keys",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        "task_id",
                        condition=models.Q(arguments__isnull=False),
                        name="horsies_send_keys_task",
                    ),
                    models.Index(
                        "sent_at",
                        condition=models.Q(arguments__isnull=False),
                        name="horsies_send_keys_sent",
                    ),
                ],
            },
        ),
        migrations.AlterField(
            "scheduletick", "task_id", models.UUIDField(null=True, verbose_name="task")
        ),
        migrations.AddField(
            "scheduletick",
            "skipped_for",
            models.UUIDField(null=True, verbose_name="skipped because of task"),
        ),
        *(
            migrations.AddField(
                model,
                "partition_policy",
                models.CharField(max_length=10, null=True, verbose_name="policy of partitions"),
            )
            for model in ("queue", "queuelimits")
        ),
        migrations.AddField(
            "task",
            "ordered",
            models.BooleanField(null=True, verbose_name="ordered"),
        ),
        migrations.AddField(
            "task",
            "order_stop",
            models.CharField(max_length=10, null=True, verbose_name="stops its partition"),
        ),
        migrations.AddField(
            "task", "merged_into", models.UUIDField(null=True, verbose_name="merged into")
        ),
        migrations.AddField(
            "taskattempt", "site", models.TextField(null=True, verbose_name="where it failed")
        ),
        migrations.AddField(
            "taskattempt", "site_line", models.IntegerField(null=True, verbose_name="line")
        ),
        migrations.AddField(
            "heartbeat", "memory_mb", models.FloatField(null=True, verbose_name="memory, MB")
        ),
        migrations.AddField(
            "worker",
            "counted",
            models.IntegerField(default=0, db_default=0, verbose_name="writes to the history"),
        ),
        migrations.CreateModel(
            "History",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "width",
                        "at",
                        "queue",
                        "task",
                        "result",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("width", models.IntegerField(verbose_name="width")),
                ("at", models.DateTimeField(verbose_name="start")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("task", models.CharField(max_length=255, verbose_name="name")),
                ("result", models.CharField(max_length=100, verbose_name="result")),
                ("n", models.IntegerField(verbose_name="number")),
                ("seconds", models.FloatField(verbose_name="total seconds")),
                ("buckets", IntegerArray(verbose_name="histogram")),
            ],
            options={
                "db_table": "horsies_history",
                "verbose_name": "history",
                "verbose_name_plural": "history",
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            "schedule",
            "missed_at",
            models.DateTimeField(null=True, verbose_name="missed fire times at"),
        ),
        migrations.AddField(
            "worker", "stopping_at", models.DateTimeField(null=True, verbose_name="stopping since")
        ),
        migrations.AddField(
            "pruning", "done_at", models.DateTimeField(db_default=Now(), verbose_name="done")
        ),
        migrations.AddField(
            "history", "longest", models.FloatField(null=True, verbose_name="longest, seconds")
        ),
        migrations.RunSQL(
            [*functions(), REKEYED],
            # their triggers depend on columns that the operations above remove
            [dropping(["horsies_check_task", "horsies_check_row"])],
            hints={"model_name": "task"},
        ),
    ]
