"""Checks of the installed schema: whether a function exists, whether everybody may create objects in it, and whether the database
was migrated before the first release.

Before the first release there were other migrations. A database that has their names cannot be migrated, because Django would
consider today's ``0001_initial`` and ``0002_functions`` applied.
"""

from __future__ import annotations

from typing import Any

from django.db.migrations.recorder import MigrationRecorder

from horsies_django.store.base import run

UNPUBLISHED = (
    "0003_limits", "0004_indexes", "0005_caps", "0006_explain", "0007_recovery", "0008_retention", "0009_status",
    "0010_send", "0011_schedules", "0012_fits", "0013_copies",
)  # fmt: skip
UNPUBLISHED_FUNCTION = "horsies_pass_v1"  # made by their 0002_functions, and by no release

REMOVE = """\
DO $$
DECLARE
  v_function regprocedure;
BEGIN
  FOR v_function IN SELECT oid FROM pg_proc WHERE proname ~ '^horsies_.*_v[0-9]$' AND pg_function_is_visible(oid) LOOP
    EXECUTE 'DROP FUNCTION ' || v_function || ' CASCADE';
  END LOOP;
END $$;
DROP TABLE IF EXISTS horsies_tasks, horsies_task_attempts, horsies_queues, horsies_limits, horsies_workers,
  horsies_heartbeats, horsies_worker_states, horsies_schedules, horsies_schedule_ticks, horsies_waiters,
  horsies_prunings, horsies_lost_records, horsies_audit, horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges,
  horsies_workflow_signals CASCADE;
DROP SEQUENCE IF EXISTS horsies_workflow_node_numbers;
DELETE FROM django_migrations WHERE app = 'horsies';"""


def has_function(connection: Any, name: str) -> bool:
    return bool(run(connection, "sessions/has_function", {"name": name})[0][0])


def open_schema(connection: Any) -> str | None:
    """Return the schema of the tables if every role may create objects in it, else None."""
    return next((row[0] for row in run(connection, "sessions/open_schema")), None)


def unpublished(connection: Any) -> str | None:
    """Return what to do about a database that was migrated before the first release, or None if it was not."""
    recorded = MigrationRecorder(connection).applied_migrations()
    if not has_function(connection, UNPUBLISHED_FUNCTION) and not any(
        ("horsies", name) in recorded for name in UNPUBLISHED
    ):
        return None
    alias = connection.alias
    where = "" if alias == "default" else f" --database={alias}"
    return (
        f"the database {alias!r} was migrated by horsies_django as it was before its first release. Those migrations are "
        "gone, and no migration leads from their tables to today's. Use a fresh database. Or remove the tables, WITH ALL "
        f"TASKS IN THEM, by the statements below, and run 'python manage.py migrate{where}'.\n\n{REMOVE}"
    )
