"""The functions behind the pass, the trigger that wakes workers, and vacuum settings for tables that churn.

Each function's name carries a version: a later one comes beside it, so that workers of the release before keep theirs.
"""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

FUNCTIONS = {
    "horsies_announce_v1": "DROP TRIGGER horsies_tasks_announce ON horsies_tasks; DROP FUNCTION horsies_announce_v1()",
    "horsies_settle_v1": "DROP FUNCTION horsies_settle_v1(uuid, jsonb)",
    "horsies_release_v1": "DROP FUNCTION horsies_release_v1(uuid, jsonb, text)",
    "horsies_candidates_v1": "DROP FUNCTION horsies_candidates_v1(text, text, int, timestamptz)",
    "horsies_claim_v1": "DROP FUNCTION horsies_claim_v1(uuid, text[], int[], int, int)",
    "horsies_pass_v1": "DROP FUNCTION horsies_pass_v1(uuid, text, jsonb, jsonb, text[], int[], int, int)",
}

# Thresholds by count, not by share: the live part of the table stays small however long the history is.
VACUUM = """
ALTER TABLE {table} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = {rows},
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = {rows})
"""
NO_VACUUM = """
ALTER TABLE {table} RESET (
  autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
  autovacuum_analyze_scale_factor, autovacuum_analyze_threshold)
"""
TABLES = {"horsies_tasks": 10_000, "horsies_workers": 100, "horsies_heartbeats": 100, "horsies_waiters": 100}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0001_initial")]

    operations = [
        *(migrations.RunSQL(load(f"functions/{name}"), drop) for name, drop in FUNCTIONS.items()),
        *(
            migrations.RunSQL(VACUUM.format(table=table, rows=rows), NO_VACUUM.format(table=table))
            for table, rows in TABLES.items()
        ),
    ]
