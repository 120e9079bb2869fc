"""Retention and redaction: how far sweeps came, snapshots of workers, when a task was redacted; and the functions behind them."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models

from horsies_django.store.base import load

# name -> the types of its arguments
FUNCTIONS = {
    "horsies_prune_v1": "text, text[], boolean, interval, int",
    "horsies_redact_v1": "uuid, text, text",
}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0007_recovery")]

    operations = [
        migrations.CreateModel(
            name="Pruning",
            fields=[
                ("key", models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="queues")),
                ("reached_at", models.DateTimeField(null=True, verbose_name="reached")),
                ("left_at", models.DateTimeField(null=True, verbose_name="left behind")),
                (
                    "began_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="began"),
                ),
                (
                    "swept_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last sweep"
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
            name="WorkerState",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("worker_id", models.UUIDField(verbose_name="worker")),
                (
                    "snapshot_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="taken"),
                ),
                ("running_sync", models.IntegerField(verbose_name="running, sync")),
                ("running_async", models.IntegerField(verbose_name="running, async")),
                ("buffered", models.IntegerField(verbose_name="in the buffer")),
                ("children", models.IntegerField(verbose_name="children")),
                ("memory_usage_mb", models.FloatField(verbose_name="memory, MB")),
                ("children_memory_mb", models.FloatField(verbose_name="memory of its children, MB")),
                ("cpu_percent", models.FloatField(null=True, verbose_name="CPU, %")),
            ],
            options={
                "verbose_name": "worker state",
                "verbose_name_plural": "worker states",
                "db_table": "horsies_worker_states",
                "default_permissions": (),
                "indexes": [models.Index(fields=["worker_id", "-id"], name="horsies_worker_states_worker")],
            },
        ),
        migrations.AddField("task", "redacted_at", models.DateTimeField(null=True, verbose_name="redacted")),
        *(
            migrations.RunSQL(load(f"functions/{name}"), f"DROP FUNCTION {name}({arguments})")
            for name, arguments in FUNCTIONS.items()
        ),
    ]
