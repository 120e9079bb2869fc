"""The tables (made with Django 5.2)."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Waiter",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("expires_at", models.DateTimeField(verbose_name="expires")),
            ],
            options={
                "verbose_name": "waiter",
                "verbose_name_plural": "waiters",
                "db_table": "horsies_waiters",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("worker_id", models.UUIDField(verbose_name="worker")),
                ("role", models.CharField(max_length=7, verbose_name="role")),
                ("pid", models.IntegerField(verbose_name="process")),
                (
                    "sent_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"),
                ),
                ("died_at", models.DateTimeField(null=True, verbose_name="died")),
            ],
            options={
                "verbose_name": "heartbeat",
                "verbose_name_plural": "heartbeats",
                "db_table": "horsies_heartbeats",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["worker_id"], name="horsies_heartbeats_worker")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ("claimer", "runner"))), name="horsies_heartbeats_role"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="name")),
                ("priority", models.SmallIntegerField(db_default=100, default=100, verbose_name="priority")),
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
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "horsies_queues",
                "permissions": (("configure_queue", "Can change limits, pause queues and edit schedules"),),
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (1, 100))), name="horsies_queues_priority"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("task_name", models.CharField(max_length=255, verbose_name="name")),
                ("queue_name", models.CharField(max_length=100, verbose_name="queue")),
                ("lane", models.CharField(max_length=5, verbose_name="lane")),
                ("priority", models.SmallIntegerField(db_default=100, default=100, verbose_name="priority")),
                ("kwargs", models.JSONField(verbose_name="arguments")),
                ("options", models.JSONField(null=True, verbose_name="options")),
                (
                    "status",
                    models.CharField(db_default="PENDING", default="PENDING", max_length=10, verbose_name="status"),
                ),
                ("partition_key", models.TextField(null=True, verbose_name="partition")),
                ("partition_version", models.IntegerField(null=True, verbose_name="partition rule version")),
                ("parked", models.BooleanField(db_default=False, default=False, verbose_name="parked")),
                (
                    "sent_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"),
                ),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="eligible from"
                    ),
                ),
                ("good_until", models.DateTimeField(null=True, verbose_name="good until")),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed")),
                ("claimed_by", models.UUIDField(null=True, verbose_name="worker")),
                ("claim_generation", models.IntegerField(db_default=0, default=0, verbose_name="claim generation")),
                ("claim_expires_at", models.DateTimeField(null=True, verbose_name="lease ends")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested")),
                ("retry_count", models.SmallIntegerField(db_default=0, default=0, verbose_name="retries")),
                ("max_retries", models.SmallIntegerField(db_default=0, default=0, verbose_name="retries allowed")),
                ("next_retry_at", models.DateTimeField(null=True, verbose_name="next retry")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("error_code", models.CharField(max_length=100, null=True, verbose_name="error code")),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "db_table": "horsies_tasks",
                "permissions": (
                    ("operate_task", "Can retry, cancel and delete tasks"),
                    ("view_payload", "Can see arguments, results and tracebacks of tasks"),
                ),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("queue_name"),
                        models.F("lane"),
                        models.F("priority"),
                        models.F("enqueued_at"),
                        models.F("id"),
                        condition=models.Q(
                            ("claimed_by__isnull", True), ("finished_at__isnull", True), ("parked", False)
                        ),
                        name="horsies_tasks_claim",
                    ),
                    models.Index(
                        models.F("claimed_by"),
                        models.F("claimed_at"),
                        condition=models.Q(("claimed_by__isnull", False), ("finished_at__isnull", True)),
                        name="horsies_tasks_in_flight",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="horsies_tasks_finished",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(("error_code__isnull", False), ("finished_at__isnull", False)),
                        name="horsies_tasks_unsuccessful",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (1, 201))), name="horsies_tasks_priority"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("lane__in", ("sync", "async"))), name="horsies_tasks_lane"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("status", "PENDING"), ("claimed_by__isnull", True), ("finished_at__isnull", True)
                            ),
                            models.Q(
                                ("status__in", ("CLAIMED", "RUNNING")),
                                ("claimed_by__isnull", False),
                                ("finished_at__isnull", True),
                            ),
                            models.Q(
                                ("status__in", ["CANCELLED", "COMPLETED", "EXPIRED", "FAILED"]),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="horsies_tasks_status",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("error_code__isnull", True),
                                ("status__in", ("PENDING", "CLAIMED", "RUNNING", "COMPLETED")),
                            ),
                            models.Q(
                                models.Q(("status__in", ("PENDING", "CLAIMED", "RUNNING", "COMPLETED")), _negated=True),
                                ("error_code__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="horsies_tasks_error_code",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskAttempt",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "task_id", "attempt", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("task_id", models.UUIDField(verbose_name="task")),
                ("attempt", models.SmallIntegerField(verbose_name="attempt")),
                ("claim_generation", models.IntegerField(verbose_name="claim generation")),
                ("outcome", models.CharField(max_length=14, verbose_name="outcome")),
                ("will_retry", models.BooleanField(db_default=False, default=False, verbose_name="will be retried")),
                ("started_at", models.DateTimeField(verbose_name="started")),
                ("finished_at", models.DateTimeField(verbose_name="finished")),
                ("error_code", models.CharField(max_length=100, null=True, verbose_name="error code")),
                ("error_message", models.TextField(null=True, verbose_name="error message")),
                ("worker_id", models.UUIDField(null=True, verbose_name="worker")),
                ("child_pid", models.IntegerField(null=True, verbose_name="process")),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "db_table": "horsies_task_attempts",
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("outcome__in", ("COMPLETED", "FAILED", "WORKER_FAILURE"))),
                        name="horsies_task_attempts_outcome",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("hostname", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                ("queues", models.JSONField(verbose_name="queues")),
                ("processes", models.IntegerField(verbose_name="processes")),
                ("threads", models.IntegerField(verbose_name="threads")),
                ("async_concurrency", models.IntegerField(verbose_name="coroutines")),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="started"),
                ),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last seen"
                    ),
                ),
                ("stopped_at", models.DateTimeField(null=True, verbose_name="stopped")),
                ("running_sync", models.IntegerField(db_default=0, default=0, verbose_name="running, sync")),
                ("running_async", models.IntegerField(db_default=0, default=0, verbose_name="running, async")),
                ("memory_usage_mb", models.FloatField(null=True, verbose_name="memory, MB")),
                ("children_memory_mb", models.FloatField(null=True, verbose_name="memory of its children, MB")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "horsies_workers",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["-started_at"], name="horsies_workers_started")],
            },
        ),
    ]
