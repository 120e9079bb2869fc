"""The tables, their indexes, constraints and storage settings (made with Django 5.2).

What is SQL here may run again, and over what dropped tables left behind; see
horsies_django/management/migrating.py. It goes with the tables; only the domain and the sequence
are dropped by themselves.
"""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models

# JSON as it was written, which jsonb can read. A domain checks values when they are written, a
# CHECK at every update of the row.
DOMAIN = """
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
                 WHERE n.nspname = current_schema() AND t.typname = 'horsies_json') THEN
    CREATE DOMAIN horsies_json AS json CHECK (jsonb_typeof(VALUE::jsonb) <> '');
  END IF;
END
$$
"""
KEPT = """
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute a
                 WHERE a.attrelid = 'horsies_tasks'::regclass
                   AND a.atttypid = 'horsies_json'::regtype) THEN
    ALTER TABLE horsies_tasks
      ALTER COLUMN kwargs TYPE horsies_json,
      ALTER COLUMN result TYPE horsies_json;
  END IF;
END
$$
"""

# Definitions nested deeper or with longer numbers could not be read by every Python; after later
# moments there is no fire time.
READABLE = (
    "jsonb_typeof({0}) = 'object' AND NOT jsonb_path_exists({0}, '{1}') AND NOT "
    "jsonb_path_exists({0}, '{2}')"
)
DEEP = "$.**{500 to last}"
HUGE = '$.** ? (@.type() == "number" && (@ > 1e4000 || @ < -1e4000))'
MOMENTS = (
    "since, last_fire_at, next_fire_at, next_at, declared_at, gone_at, error_at, created_at, "
    "updated_at"
)
SCHEDULES_FIT = f"""
ALTER TABLE horsies_schedules
  DROP CONSTRAINT IF EXISTS horsies_schedules_fits,
  ADD CONSTRAINT horsies_schedules_fits CHECK (
  {READABLE.format("declared", DEEP, HUGE)} AND {READABLE.format("changes", DEEP, HUGE)}
  AND least({MOMENTS}) > '0003-01-01 00:00+00' AND greatest({MOMENTS}) < '9000-01-01 00:00+00')
"""

# Thresholds by count, not by share: the live part of the table stays small however long the history
# is.
VACUUM = """
ALTER TABLE {table} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = {rows},
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = {rows})
"""
TABLES = {
    "horsies_tasks": 10_000,
    "horsies_workers": 100,
    "horsies_heartbeats": 100,
    "horsies_waiters": 100,
    "horsies_workflows": 1_000,
    "horsies_workflow_nodes": 10_000,
    "horsies_workflow_signals": 10_000,
}

ROUTED = {"model_name": "task"}  # routers answer as for the tables
# of nodes that running tasks add
NUMBERS = "CREATE SEQUENCE IF NOT EXISTS horsies_workflow_node_numbers START 1000000"


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.RunSQL(DOMAIN, "DROP DOMAIN IF EXISTS horsies_json", hints=ROUTED),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("task_name", models.CharField(max_length=255, verbose_name="name")),
                ("queue_name", models.CharField(max_length=100, verbose_name="queue")),
                ("lane", models.CharField(max_length=5, verbose_name="lane")),
                (
                    "priority",
                    models.SmallIntegerField(db_default=100, default=100, verbose_name="priority"),
                ),
                ("kwargs", models.JSONField(verbose_name="arguments")),
                (
                    "codec",
                    models.CharField(
                        max_length=10, null=True, verbose_name="form of the arguments"
                    ),
                ),
                ("options", models.JSONField(null=True, verbose_name="options")),
                (
                    "status",
                    models.CharField(
                        db_default="PENDING",
                        default="PENDING",
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("partition_key", models.TextField(null=True, verbose_name="partition")),
                (
                    "partition_version",
                    models.IntegerField(null=True, verbose_name="version of the partition rule"),
                ),
                (
                    "parked",
                    models.BooleanField(db_default=False, default=False, verbose_name="parked"),
                ),
                (
                    "sent_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"
                    ),
                ),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="eligible from",
                    ),
                ),
                ("good_until", models.DateTimeField(null=True, verbose_name="good until")),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed")),
                ("claimed_by", models.UUIDField(null=True, verbose_name="worker")),
                (
                    "claim_generation",
                    models.IntegerField(db_default=0, default=0, verbose_name="claim generation"),
                ),
                ("claim_expires_at", models.DateTimeField(null=True, verbose_name="lease ends")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                (
                    "cancel_requested_at",
                    models.DateTimeField(null=True, verbose_name="cancel requested"),
                ),
                (
                    "retry_count",
                    models.SmallIntegerField(db_default=0, default=0, verbose_name="retries"),
                ),
                (
                    "max_retries",
                    models.SmallIntegerField(
                        db_default=0, default=0, verbose_name="retries allowed"
                    ),
                ),
                ("next_retry_at", models.DateTimeField(null=True, verbose_name="next retry")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                (
                    "error_code",
                    models.CharField(max_length=100, null=True, verbose_name="error code"),
                ),
                (
                    "terminate",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="to be terminated"
                    ),
                ),
                ("redacted_at", models.DateTimeField(null=True, verbose_name="redacted")),
                ("copy_of", models.UUIDField(null=True, verbose_name="copy of")),
                ("workflow_id", models.UUIDField(null=True, verbose_name="workflow")),
                ("node", models.BigIntegerField(null=True, verbose_name="node")),
                ("node_index", models.IntegerField(null=True, verbose_name="element")),
                ("advanced_at", models.DateTimeField(null=True, verbose_name="workflow advanced")),
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
                            ("claimed_by__isnull", True),
                            ("finished_at__isnull", True),
                            ("parked", False),
                        ),
                        name="horsies_tasks_claim",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="horsies_tasks_finished",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(
                            ("error_code__isnull", False), ("finished_at__isnull", False)
                        ),
                        name="horsies_tasks_unsuccessful",
                    ),
                    models.Index(
                        models.F("queue_name"),
                        models.F("partition_version"),
                        models.F("partition_key"),
                        models.F("claimed_at"),
                        condition=models.Q(
                            ("claimed_by__isnull", False), ("finished_at__isnull", True)
                        ),
                        name="horsies_tasks_holding",
                    ),
                    models.Index(
                        models.F("queue_name"),
                        models.F("partition_key"),
                        models.F("lane"),
                        models.F("priority"),
                        models.F("enqueued_at"),
                        models.F("id"),
                        condition=models.Q(
                            ("claimed_by__isnull", True),
                            ("finished_at__isnull", True),
                            ("parked", True),
                        ),
                        name="horsies_tasks_parked",
                    ),
                    models.Index(
                        models.F("good_until"),
                        condition=models.Q(
                            ("claimed_by__isnull", True),
                            ("finished_at__isnull", True),
                            ("good_until__isnull", False),
                        ),
                        name="horsies_tasks_deadline",
                    ),
                    models.Index(
                        models.F("copy_of"),
                        condition=models.Q(("copy_of__isnull", False)),
                        name="horsies_tasks_copies",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(
                            ("advanced_at__isnull", True),
                            ("finished_at__isnull", False),
                            ("workflow_id__isnull", False),
                        ),
                        name="horsies_tasks_unadvanced",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["workflow_id", "node", "node_index"],
                        condition=models.Q(("workflow_id__isnull", False)),
                        name="horsies_tasks_node",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskAttempt",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "task_id",
                        "claim_generation",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("task_id", models.UUIDField(verbose_name="task")),
                ("attempt", models.SmallIntegerField(verbose_name="attempt")),
                ("claim_generation", models.IntegerField(verbose_name="claim generation")),
                ("outcome", models.CharField(max_length=14, verbose_name="outcome")),
                (
                    "will_retry",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="will be retried"
                    ),
                ),
                ("started_at", models.DateTimeField(verbose_name="started")),
                ("finished_at", models.DateTimeField(verbose_name="finished")),
                (
                    "error_code",
                    models.CharField(max_length=100, null=True, verbose_name="error code"),
                ),
                ("error_message", models.TextField(null=True, verbose_name="error message")),
                ("exception_class", models.TextField(null=True, verbose_name="exception")),
                ("traceback", models.TextField(null=True, verbose_name="traceback")),
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
                        condition=models.Q(
                            ("outcome__in", ("COMPLETED", "FAILED", "CANCELLED", "WORKER_FAILURE"))
                        ),
                        name="horsies_task_attempts_outcome",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskStep",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "task_id",
                        "name",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("task_id", models.UUIDField(verbose_name="task")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("digest", models.CharField(max_length=32, verbose_name="digest of the arguments")),
                ("result", models.JSONField(verbose_name="result")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="recorded",
                    ),
                ),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "db_table": "horsies_task_steps",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(db_default=100, default=100, verbose_name="priority"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="created"
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="updated"
                    ),
                ),
                (
                    "local_limit",
                    models.IntegerField(null=True, verbose_name="concurrency per worker"),
                ),
                ("max_concurrency", models.IntegerField(null=True, verbose_name="concurrency")),
                ("override", models.JSONField(null=True, verbose_name="override")),
                ("override_at", models.DateTimeField(null=True, verbose_name="overridden")),
                ("override_by", models.TextField(null=True, verbose_name="overridden by")),
                ("override_reason", models.TextField(null=True, verbose_name="reason")),
                ("override_until", models.DateTimeField(null=True, verbose_name="override ends")),
                (
                    "partition_by_args",
                    models.JSONField(null=True, verbose_name="partition by arguments"),
                ),
                (
                    "partition_by_task",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="partition by task"
                    ),
                ),
                (
                    "partition_local_limit",
                    models.IntegerField(
                        null=True, verbose_name="concurrency per partition and worker"
                    ),
                ),
                (
                    "partition_max_concurrency",
                    models.IntegerField(null=True, verbose_name="concurrency per partition"),
                ),
                (
                    "partition_version",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="version of the partition rule"
                    ),
                ),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused")),
                ("paused_by", models.TextField(null=True, verbose_name="paused by")),
                ("paused_reason", models.TextField(null=True, verbose_name="reason for the pause")),
                ("served_at", models.DateTimeField(null=True, verbose_name="last served")),
                ("sweep", models.JSONField(null=True, verbose_name="sweep")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "horsies_queues",
                "permissions": (
                    ("configure_queue", "Can change limits, pause queues and edit schedules"),
                ),
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (1, 100))),
                        name="horsies_queues_priority",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("override__isnull", True),
                                ("override_at__isnull", True),
                                ("override_until__isnull", True),
                            ),
                            models.Q(
                                ("override__isnull", False),
                                ("override_at__isnull", False),
                                ("override_reason__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="horsies_queues_override",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueLimits",
            fields=[
                (
                    "priority",
                    models.SmallIntegerField(db_default=100, default=100, verbose_name="priority"),
                ),
                ("max_concurrency", models.IntegerField(null=True, verbose_name="concurrency")),
                (
                    "local_limit",
                    models.IntegerField(null=True, verbose_name="concurrency per worker"),
                ),
                (
                    "partition_by_args",
                    models.JSONField(null=True, verbose_name="partition by arguments"),
                ),
                (
                    "partition_by_task",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="partition by task"
                    ),
                ),
                (
                    "partition_version",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="version of the partition rule"
                    ),
                ),
                (
                    "partition_max_concurrency",
                    models.IntegerField(null=True, verbose_name="concurrency per partition"),
                ),
                (
                    "partition_local_limit",
                    models.IntegerField(
                        null=True, verbose_name="concurrency per partition and worker"
                    ),
                ),
                (
                    "queue_name",
                    models.CharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="queue"
                    ),
                ),
            ],
            options={
                "verbose_name": "limits in force",
                "verbose_name_plural": "limits in force",
                "db_table": "horsies_limits",
                "default_permissions": (),
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
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="started"
                    ),
                ),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="last seen",
                    ),
                ),
                ("stopped_at", models.DateTimeField(null=True, verbose_name="stopped")),
                (
                    "running_sync",
                    models.IntegerField(db_default=0, default=0, verbose_name="running, sync"),
                ),
                (
                    "running_async",
                    models.IntegerField(db_default=0, default=0, verbose_name="running, async"),
                ),
                ("memory_usage_mb", models.FloatField(null=True, verbose_name="memory, MB")),
                (
                    "children_memory_mb",
                    models.FloatField(null=True, verbose_name="memory of children, MB"),
                ),
                ("task_names", models.JSONField(null=True, verbose_name="names of its tasks")),
                (
                    "wire",
                    models.SmallIntegerField(null=True, verbose_name="version of the task format"),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "horsies_workers",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["-started_at"], name="horsies_workers_started")],
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
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"
                    ),
                ),
                ("died_at", models.DateTimeField(null=True, verbose_name="died")),
                ("holding", models.JSONField(null=True, verbose_name="tasks")),
                ("team", models.BigIntegerField(null=True, verbose_name="team")),
                (
                    "listens",
                    models.BooleanField(db_default=False, default=False, verbose_name="listens"),
                ),
            ],
            options={
                "verbose_name": "heartbeat",
                "verbose_name_plural": "heartbeats",
                "db_table": "horsies_heartbeats",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["worker_id"], name="horsies_heartbeats_worker"),
                    models.Index(
                        condition=models.Q(("role", "claimer")),
                        fields=["died_at", "id"],
                        name="horsies_heartbeats_parents",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ("claimer", "runner"))),
                        name="horsies_heartbeats_role",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkerState",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("worker_id", models.UUIDField(verbose_name="worker")),
                (
                    "snapshot_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="taken"
                    ),
                ),
                ("running_sync", models.IntegerField(verbose_name="running, sync")),
                ("running_async", models.IntegerField(verbose_name="running, async")),
                ("buffered", models.IntegerField(verbose_name="prefetched")),
                ("children", models.IntegerField(verbose_name="children")),
                ("memory_usage_mb", models.FloatField(verbose_name="memory, MB")),
                (
                    "children_memory_mb",
                    models.FloatField(verbose_name="memory of children, MB"),
                ),
                ("cpu_percent", models.FloatField(null=True, verbose_name="CPU, %")),
            ],
            options={
                "verbose_name": "worker state",
                "verbose_name_plural": "worker states",
                "db_table": "horsies_worker_states",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["worker_id", "-id"], name="horsies_worker_states_worker")
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=255, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                (
                    "declared",
                    models.JSONField(
                        db_default=models.Value({}, models.JSONField()), verbose_name="declared"
                    ),
                ),
                ("declared_in", models.TextField(null=True, verbose_name="declared in")),
                ("declared_at", models.DateTimeField(null=True, verbose_name="last declared")),
                ("gone_at", models.DateTimeField(null=True, verbose_name="gone from the code")),
                (
                    "changes",
                    models.JSONField(
                        db_default=models.Value({}, models.JSONField()), verbose_name="changes"
                    ),
                ),
                (
                    "since",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="in force since",
                    ),
                ),
                ("last_fire_at", models.DateTimeField(null=True, verbose_name="last fire time")),
                ("next_fire_at", models.DateTimeField(null=True, verbose_name="next fire time")),
                ("next_at", models.DateTimeField(null=True, verbose_name="next check")),
                ("rules", models.SmallIntegerField(null=True, verbose_name="rules")),
                ("error", models.TextField(null=True, verbose_name="error")),
                ("error_at", models.DateTimeField(null=True, verbose_name="error at")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="created"
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="updated"
                    ),
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
        migrations.CreateModel(
            name="ScheduleTick",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "schedule_name",
                        "fire_at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("schedule_name", models.CharField(max_length=255, verbose_name="schedule")),
                ("fire_at", models.DateTimeField(verbose_name="fire time")),
                ("task_id", models.UUIDField(verbose_name="task")),
                (
                    "sent_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"
                    ),
                ),
            ],
            options={
                "verbose_name": "fire time",
                "verbose_name_plural": "fire times",
                "db_table": "horsies_schedule_ticks",
                "default_permissions": (),
                "indexes": [models.Index(models.F("sent_at"), name="horsies_schedule_ticks_sent")],
            },
        ),
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
            name="Pruning",
            fields=[
                (
                    "key",
                    models.CharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="queues"
                    ),
                ),
                ("reached_at", models.DateTimeField(null=True, verbose_name="reached")),
                ("left_at", models.DateTimeField(null=True, verbose_name="left behind")),
                (
                    "began_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="began"
                    ),
                ),
                (
                    "pruned_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="last round",
                    ),
                ),
            ],
            options={
                "verbose_name": "pruning",
                "verbose_name_plural": "prunings",
                "db_table": "horsies_prunings",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="LostRecord",
            fields=[
                (
                    "kind",
                    models.CharField(
                        max_length=10, primary_key=True, serialize=False, verbose_name="kind"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("what", models.TextField(verbose_name="name")),
                ("error", models.TextField(verbose_name="error")),
            ],
            options={
                "verbose_name": "lost record",
                "verbose_name_plural": "lost records",
                "db_table": "horsies_lost_records",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="at"
                    ),
                ),
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
                "indexes": [models.Index(fields=["subject", "-at"], name="horsies_audit_subject")],
            },
        ),
        migrations.CreateModel(
            name="WorkflowEdge",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "workflow_id",
                        "upstream",
                        "downstream",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("workflow_id", models.UUIDField(verbose_name="run")),
                ("upstream", models.BigIntegerField(verbose_name="upstream node")),
                ("downstream", models.BigIntegerField(verbose_name="downstream node")),
                (
                    "counts",
                    models.BooleanField(db_default=True, default=True, verbose_name="counts"),
                ),
            ],
            options={
                "verbose_name": "edge",
                "verbose_name_plural": "edges",
                "db_table": "horsies_workflow_edges",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["downstream", "workflow_id"], name="horsies_workflow_edges_down"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowNode",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "workflow_id",
                        "number",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("workflow_id", models.UUIDField(verbose_name="run")),
                ("number", models.BigIntegerField(verbose_name="number")),
                (
                    "added_by",
                    models.BigIntegerField(db_default=-1, default=-1, verbose_name="added by node"),
                ),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("kind", models.CharField(max_length=8, verbose_name="kind")),
                ("status", models.CharField(max_length=10, verbose_name="status")),
                ("task_name", models.CharField(max_length=255, verbose_name="task")),
                ("queue_name", models.CharField(max_length=100, verbose_name="queue")),
                ("lane", models.CharField(max_length=5, verbose_name="lane")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                (
                    "max_retries",
                    models.SmallIntegerField(
                        db_default=0, default=0, verbose_name="retries allowed"
                    ),
                ),
                ("options", models.JSONField(null=True, verbose_name="options")),
                ("kwargs", models.JSONField(null=True, verbose_name="arguments")),
                (
                    "codec",
                    models.CharField(
                        max_length=10, null=True, verbose_name="form of the arguments"
                    ),
                ),
                ("inputs", models.JSONField(null=True, verbose_name="arguments from results")),
                ("over", models.TextField(null=True, verbose_name="mapped argument")),
                ("graph", models.JSONField(null=True, verbose_name="graph")),
                ("value", models.JSONField(null=True, verbose_name="value")),
                (
                    "rule",
                    models.CharField(
                        db_default="all", default="all", max_length=10, verbose_name="join"
                    ),
                ),
                ("needs", models.IntegerField(null=True, verbose_name="quorum")),
                (
                    "allow_failed",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="runs after failures"
                    ),
                ),
                (
                    "is_wait",
                    models.BooleanField(db_default=False, default=False, verbose_name="waits"),
                ),
                ("when_node", models.BigIntegerField(null=True, verbose_name="condition on node")),
                ("when_path", models.TextField(null=True, verbose_name="condition")),
                ("delay", models.DurationField(null=True, verbose_name="delay")),
                ("good_until", models.DateTimeField(null=True, verbose_name="good until")),
                (
                    "branches",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="upstream nodes that count"
                    ),
                ),
                (
                    "open",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="upstream nodes open"
                    ),
                ),
                (
                    "ok",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="upstream nodes completed"
                    ),
                ),
                (
                    "bad",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="upstream nodes not completed"
                    ),
                ),
                ("total", models.IntegerField(null=True, verbose_name="elements")),
                (
                    "expanded",
                    models.IntegerField(db_default=0, default=0, verbose_name="elements sent"),
                ),
                (
                    "in_flight",
                    models.IntegerField(db_default=0, default=0, verbose_name="elements in flight"),
                ),
                (
                    "items_ok",
                    models.IntegerField(db_default=0, default=0, verbose_name="elements completed"),
                ),
                (
                    "items_bad",
                    models.IntegerField(
                        db_default=0, default=0, verbose_name="elements not completed"
                    ),
                ),
                ("signal", models.CharField(max_length=200, null=True, verbose_name="signal")),
                (
                    "signal_key",
                    models.CharField(max_length=255, null=True, verbose_name="key of the signal"),
                ),
                ("signal_type", models.TextField(null=True, verbose_name="type of the data")),
                ("due_at", models.DateTimeField(null=True, verbose_name="waits until")),
                (
                    "on_timeout",
                    models.CharField(max_length=8, null=True, verbose_name="after the timeout"),
                ),
                (
                    "permission",
                    models.CharField(max_length=255, null=True, verbose_name="permission"),
                ),
                (
                    "opening",
                    models.IntegerField(db_default=0, default=0, verbose_name="number of waits"),
                ),
                ("decided_by", models.TextField(null=True, verbose_name="decided by")),
                ("undo", models.JSONField(null=True, verbose_name="undo")),
                ("undoes", models.BigIntegerField(null=True, verbose_name="undoes node")),
                ("task_id", models.UUIDField(null=True, verbose_name="task or run")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                (
                    "error_code",
                    models.CharField(max_length=100, null=True, verbose_name="error code"),
                ),
                ("error", models.TextField(null=True, verbose_name="error")),
            ],
            options={
                "verbose_name": "node",
                "verbose_name_plural": "nodes",
                "db_table": "horsies_workflow_nodes",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["workflow_id", "status", "number"],
                        condition=models.Q(("finished_at__isnull", True)),
                        name="horsies_workflow_nodes_open",
                    ),
                    models.Index(
                        fields=["workflow_id", "finished_at"],
                        condition=models.Q(("status", "ADDED")),
                        name="horsies_workflow_nodes_added",
                    ),
                    models.Index(
                        fields=["workflow_id", "added_by"],
                        condition=models.Q(("added_by__gte", 0)),
                        name="horsies_workflow_nodes_grown",
                    ),
                    models.Index(
                        fields=["workflow_id", "status", "due_at"],
                        condition=models.Q(("finished_at__isnull", True), ("is_wait", True)),
                        name="horsies_workflow_nodes_waits",
                    ),
                    models.Index(
                        fields=["due_at"],
                        condition=models.Q(("finished_at__isnull", True), ("status", "WAITING")),
                        name="horsies_workflow_nodes_due",
                    ),
                    models.Index(
                        fields=["workflow_id", "signal", "status", "signal_key", "number"],
                        condition=models.Q(("signal__isnull", False)),
                        name="horsies_workflow_nodes_signal",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["name", "workflow_id", "added_by"],
                        name="horsies_workflow_nodes_name",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowRun",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("key", models.CharField(max_length=255, null=True, verbose_name="key")),
                (
                    "graph_hash",
                    models.CharField(max_length=64, null=True, verbose_name="hash of the graph"),
                ),
                (
                    "status",
                    models.CharField(
                        db_default="RUNNING",
                        default="RUNNING",
                        max_length=12,
                        verbose_name="status",
                    ),
                ),
                ("on_error", models.CharField(max_length=5, verbose_name="on error")),
                ("output", models.BigIntegerField(null=True, verbose_name="output node")),
                (
                    "max_in_flight",
                    models.IntegerField(null=True, verbose_name="maximum tasks in flight"),
                ),
                ("good_until", models.DateTimeField(null=True, verbose_name="good until")),
                ("parent_id", models.UUIDField(null=True, verbose_name="parent run")),
                (
                    "parent_node",
                    models.BigIntegerField(null=True, verbose_name="node of the parent run"),
                ),
                ("continues", models.UUIDField(null=True, verbose_name="continues run")),
                ("continued_as", models.UUIDField(null=True, verbose_name="continued as run")),
                (
                    "sent_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"
                    ),
                ),
                ("owed_at", models.DateTimeField(null=True, verbose_name="to be advanced")),
                ("retrying", models.BigIntegerField(null=True, verbose_name="retried up to node")),
                (
                    "resuming",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="has tasks to resume"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                ("advanced_at", models.DateTimeField(null=True, verbose_name="counted by parent")),
                ("error_node", models.BigIntegerField(null=True, verbose_name="first failed node")),
                (
                    "error_code",
                    models.CharField(max_length=100, null=True, verbose_name="error code"),
                ),
                ("result", models.JSONField(null=True, verbose_name="result")),
            ],
            options={
                "verbose_name": "workflow",
                "verbose_name_plural": "workflows",
                "db_table": "horsies_workflows",
                "permissions": (
                    ("operate_workflow", "Can pause, resume, cancel and retry workflows"),
                ),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["sent_at"], name="horsies_workflows_sent"),
                    models.Index(fields=["name", "sent_at"], name="horsies_workflows_name"),
                    models.Index(
                        fields=["sent_at"],
                        condition=models.Q(("finished_at__isnull", True)),
                        name="horsies_workflows_unfinished",
                    ),
                    models.Index(
                        fields=["owed_at"],
                        condition=models.Q(("owed_at__isnull", False)),
                        name="horsies_workflows_owed",
                    ),
                    models.Index(
                        fields=["finished_at"],
                        condition=models.Q(
                            ("finished_at__isnull", False), ("parent_id__isnull", True)
                        ),
                        name="horsies_workflows_finished",
                    ),
                    models.Index(
                        fields=["finished_at"],
                        condition=models.Q(
                            ("advanced_at__isnull", True),
                            ("finished_at__isnull", False),
                            ("parent_id__isnull", False),
                        ),
                        name="horsies_workflows_untold",
                    ),
                    models.Index(
                        fields=["parent_id", "parent_node"],
                        condition=models.Q(("parent_id__isnull", False)),
                        name="horsies_workflows_parent",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["key", "name"],
                        condition=models.Q(("key__isnull", False)),
                        name="horsies_workflows_key",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowSignal",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("workflow_id", models.UUIDField(verbose_name="run")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("key", models.CharField(max_length=255, null=True, verbose_name="key")),
                ("data", models.JSONField(verbose_name="data")),
                ("actor", models.TextField(verbose_name="by")),
                (
                    "sent_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="sent"
                    ),
                ),
                ("seen_at", models.DateTimeField(null=True, verbose_name="seen")),
                ("node", models.BigIntegerField(null=True, verbose_name="taken by node")),
                ("used_at", models.DateTimeField(null=True, verbose_name="taken")),
            ],
            options={
                "verbose_name": "signal",
                "verbose_name_plural": "signals",
                "db_table": "horsies_workflow_signals",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["workflow_id", "sent_at", "id"], name="horsies_signals_run"
                    ),
                    models.Index(
                        fields=["workflow_id", "sent_at", "id"],
                        condition=models.Q(("seen_at__isnull", True)),
                        name="horsies_signals_unseen",
                    ),
                    models.Index(
                        fields=["workflow_id", "name", "sent_at", "id"],
                        condition=models.Q(("used_at__isnull", True)),
                        name="horsies_signals_unused",
                    ),
                    models.Index(
                        fields=["workflow_id", "name", "key", "sent_at", "id"],
                        condition=models.Q(("key__isnull", False), ("used_at__isnull", True)),
                        name="horsies_signals_keyed",
                    ),
                ],
            },
        ),
        migrations.RunSQL(
            [
                KEPT,
                SCHEDULES_FIT,
                *(VACUUM.format(table=table, rows=rows) for table, rows in TABLES.items()),
                NUMBERS,
            ],
            "DROP SEQUENCE IF EXISTS horsies_workflow_node_numbers",
            hints=ROUTED,
        ),
    ]
