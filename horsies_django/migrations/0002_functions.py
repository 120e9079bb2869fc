"""The functions behind the statements, the trigger that wakes workers, and the CHECK constraint that calls a function."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

# In the order in which they need each other: PostgreSQL looks into those in SQL when they are made.
FUNCTIONS = (
    "horsies_partition",
    "horsies_holds",
    "horsies_room",
    "horsies_rooms",
    "horsies_cluster_room",
    "horsies_loads",
    "horsies_keys",
    "horsies_servers",
    "horsies_serving",
    "horsies_lock",
    "horsies_unpark",
    "horsies_error",
    "horsies_expire",
    "horsies_pause",
    "horsies_again",
    "horsies_knows",
    "horsies_strange",
    "horsies_first",
    "horsies_candidates",
    "horsies_gather",
    "horsies_parts",
    "horsies_allot",
    "horsies_final",
    "horsies_due",
    "horsies_offer",
    "horsies_claim",
    "horsies_start",
    "horsies_settle",
    "horsies_release",
    "horsies_back",
    "horsies_lapse",
    "horsies_live",
    "horsies_missed",
    "horsies_pass",
    "horsies_short_pass",
    "horsies_in_flight",
    "horsies_holding",
    "horsies_pending",
    "horsies_effective",
    "horsies_configure",
    "horsies_sweep",
    "horsies_orphaned",
    "horsies_freed",
    "horsies_reap",
    "horsies_holders",
    "horsies_full",
    "horsies_before",
    "horsies_ahead",
    "horsies_takers",
    "horsies_explain",
    "horsies_cancel",
    "horsies_prune",
    "horsies_redact",
    "horsies_waits",
    "horsies_burdens",
    "horsies_send",
    "horsies_announce",
    "horsies_change_schedule",
    "horsies_fits",
)

# CASCADE: the trigger goes with its function, the constraint with the one that it calls. No function has a second form.
DROP = "DROP FUNCTION {} CASCADE"

TASKS_FIT = """
ALTER TABLE horsies_tasks ADD CONSTRAINT horsies_tasks_fits CHECK (horsies_fits(
  status, claimed_by, finished_at, error_code, priority, lane, kwargs, options, partition_key, claim_generation, retry_count,
  max_retries, sent_at, enqueued_at, good_until, claimed_at, claim_expires_at, started_at, cancel_requested_at, next_retry_at,
  redacted_at))
"""


class Migration(migrations.Migration):
    dependencies = [("horsies", "0001_initial")]

    operations = [
        *(migrations.RunSQL(load(f"functions/{name}"), DROP.format(name)) for name in FUNCTIONS),
        migrations.RunSQL(TASKS_FIT, migrations.RunSQL.noop),
    ]
