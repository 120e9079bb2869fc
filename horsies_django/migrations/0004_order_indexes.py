"""The indexes of release 0.2, which are built while tasks are sent and run."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Least


class Migration(migrations.Migration):
    atomic = False  # PostgreSQL builds no index concurrently within a transaction

    dependencies = [("horsies", "0003_flow_control")]

    operations = [
        AddIndexConcurrently(
            "task",
            models.Index(
                models.F("queue_name"),
                models.F("partition_key"),
                Least(models.F("claim_generation"), 1).desc(),
                models.F("sent_at"),
                models.F("id"),
                condition=models.Q(
                    models.Q(finished_at__isnull=True) | models.Q(order_stop__isnull=False),
                    ordered=True,
                ),
                name="horsies_tasks_order",
            ),
        ),
        AddIndexConcurrently(
            "task",
            models.Index(
                models.F("queue_name"),
                models.F("finished_at"),
                condition=models.Q(order_stop__isnull=False),
                name="horsies_tasks_stopped",
            ),
        ),
        AddIndexConcurrently(
            "task",
            models.Index(
                models.F("merged_into"),
                condition=models.Q(merged_into__isnull=False),
                name="horsies_tasks_merged",
            ),
        ),
        AddIndexConcurrently(
            "workflowrun",
            models.Index(
                fields=["sent_at"],
                condition=models.Q(status="PAUSED") | models.Q(error_code="COMPENSATION_FAILED"),
                name="horsies_workflows_halted",
            ),
        ),
        AddIndexConcurrently(
            "workflowedge",
            models.Index(
                fields=["downstream", "workflow_id"],
                condition=models.Q(downstream__isnull=False),
                name="horsies_workflow_edges_up",
            ),
        ),
        RemoveIndexConcurrently("workflowedge", "horsies_workflow_edges_down"),
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    """
                    CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS horsies_workflow_nodes_named
                    ON horsies_workflow_nodes (name, workflow_id, added_by)
                    WHERE name IS NOT NULL""",
                    "DROP INDEX CONCURRENTLY IF EXISTS horsies_workflow_nodes_named",
                    hints={"model_name": "workflownode"},
                )
            ],
            [
                migrations.AddConstraint(
                    "workflownode",
                    models.UniqueConstraint(
                        fields=["name", "workflow_id", "added_by"],
                        condition=models.Q(name__isnull=False),
                        name="horsies_workflow_nodes_named",
                    ),
                )
            ],
        ),
        migrations.RemoveConstraint("workflownode", "horsies_workflow_nodes_name"),
    ]
