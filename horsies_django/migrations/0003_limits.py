"""Limits of queues: declared, overridden and in force; the audit of their changes."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("horsies", "0002_functions"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
                ("actor", models.TextField(verbose_name="by")),
                ("action", models.CharField(max_length=50, verbose_name="action")),
                ("subject", models.TextField(verbose_name="subject")),
                ("reason", models.TextField(null=True, verbose_name="reason")),
                ("before", models.JSONField(null=True, verbose_name="before")),
                ("after", models.JSONField(null=True, verbose_name="after")),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit",
                "db_table": "horsies_audit",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="QueueLimits",
            fields=[
                ("priority", models.SmallIntegerField(db_default=100, default=100, verbose_name="priority")),
                ("max_concurrency", models.IntegerField(null=True, verbose_name="concurrency")),
                ("local_limit", models.IntegerField(null=True, verbose_name="concurrency per worker")),
                ("partition_by_args", models.JSONField(null=True, verbose_name="partition by arguments")),
                (
                    "partition_by_task",
                    models.BooleanField(db_default=False, default=False, verbose_name="partition by task"),
                ),
                (
                    "partition_version",
                    models.IntegerField(db_default=0, default=0, verbose_name="version of the partition rule"),
                ),
                ("partition_max_concurrency", models.IntegerField(null=True, verbose_name="concurrency per partition")),
                (
                    "partition_local_limit",
                    models.IntegerField(null=True, verbose_name="concurrency per partition and worker"),
                ),
                (
                    "queue_name",
                    models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="queue"),
                ),
            ],
            options={
                "verbose_name": "limits in force",
                "verbose_name_plural": "limits in force",
                "db_table": "horsies_limits",
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="queue",
            name="local_limit",
            field=models.IntegerField(null=True, verbose_name="concurrency per worker"),
        ),
        migrations.AddField(
            model_name="queue",
            name="max_concurrency",
            field=models.IntegerField(null=True, verbose_name="concurrency"),
        ),
        migrations.AddField(
            model_name="queue",
            name="override",
            field=models.JSONField(null=True, verbose_name="override"),
        ),
        migrations.AddField(
            model_name="queue",
            name="override_at",
            field=models.DateTimeField(null=True, verbose_name="overridden"),
        ),
        migrations.AddField(
            model_name="queue",
            name="override_by",
            field=models.TextField(null=True, verbose_name="overridden by"),
        ),
        migrations.AddField(
            model_name="queue",
            name="override_reason",
            field=models.TextField(null=True, verbose_name="reason"),
        ),
        migrations.AddField(
            model_name="queue",
            name="override_until",
            field=models.DateTimeField(null=True, verbose_name="override ends"),
        ),
        migrations.AddField(
            model_name="queue",
            name="partition_by_args",
            field=models.JSONField(null=True, verbose_name="partition by arguments"),
        ),
        migrations.AddField(
            model_name="queue",
            name="partition_by_task",
            field=models.BooleanField(db_default=False, default=False, verbose_name="partition by task"),
        ),
        migrations.AddField(
            model_name="queue",
            name="partition_local_limit",
            field=models.IntegerField(null=True, verbose_name="concurrency per partition and worker"),
        ),
        migrations.AddField(
            model_name="queue",
            name="partition_max_concurrency",
            field=models.IntegerField(null=True, verbose_name="concurrency per partition"),
        ),
        migrations.AddField(
            model_name="queue",
            name="partition_version",
            field=models.IntegerField(db_default=0, default=0, verbose_name="version of the partition rule"),
        ),
        migrations.AddField(
            model_name="queue",
            name="paused_at",
            field=models.DateTimeField(null=True, verbose_name="paused"),
        ),
        migrations.AddField(
            model_name="queue",
            name="paused_by",
            field=models.TextField(null=True, verbose_name="paused by"),
        ),
        migrations.AddField(
            model_name="queue",
            name="paused_reason",
            field=models.TextField(null=True, verbose_name="reason for the pause"),
        ),
        migrations.AddField(
            model_name="queue",
            name="served_at",
            field=models.DateTimeField(null=True, verbose_name="last served"),
        ),
        migrations.AddField(
            model_name="queue",
            name="sweep",
            field=models.JSONField(null=True, verbose_name="sweep"),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="holding",
            field=models.JSONField(null=True, verbose_name="tasks"),
        ),
        migrations.AddField(
            model_name="worker",
            name="task_names",
            field=models.JSONField(null=True, verbose_name="tasks that it knows"),
        ),
        migrations.AddField(
            model_name="worker",
            name="wire",
            field=models.SmallIntegerField(null=True, verbose_name="version of tasks that it reads"),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("override__isnull", True), ("override_at__isnull", True), ("override_until__isnull", True)
                    ),
                    models.Q(
                        ("override__isnull", False), ("override_at__isnull", False), ("override_reason__isnull", False)
                    ),
                    _connector="OR",
                ),
                name="horsies_queues_override",
            ),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["subject", "-at"], name="horsies_audit_subject"),
        ),
    ]
