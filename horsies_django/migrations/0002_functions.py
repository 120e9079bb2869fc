"""The functions behind the statements and their types, the trigger that wakes workers, and a CHECK that calls a function."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.schema import CLEAR, functions, types

TASKS_FIT = """
ALTER TABLE horsies_tasks ADD CONSTRAINT horsies_tasks_fits CHECK (horsies_fits(
  status, claimed_by, finished_at, error_code, priority, lane, kwargs, options, partition_key, claim_generation, retry_count,
  max_retries, sent_at, enqueued_at, good_until, claimed_at, claim_expires_at, started_at, cancel_requested_at, next_retry_at,
  redacted_at))
"""


class Migration(migrations.Migration):
    dependencies = [("horsies", "0001_initial")]

    operations = [
        migrations.RunSQL(
            [CLEAR, *types(), *functions(), TASKS_FIT],
            CLEAR,
            hints={"model_name": "task"},  # routers answer as for the tables
        ),
    ]
