"""CHECK constraints that refuse rows which a statement, a worker or a scheduler would stumble over.

For tasks one stands in place of four.

Migrating fails, and names the rule, where such a row is in the table: correct or delete it, and migrate again.
"""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

FITS = "horsies_fits_v1"
ADD = f"""
ALTER TABLE horsies_tasks ADD CONSTRAINT horsies_tasks_fits CHECK ({FITS}(
  status, claimed_by, finished_at, error_code, priority, lane, kwargs, options, partition_key, claim_generation, retry_count,
  max_retries, sent_at, enqueued_at, good_until, claimed_at, claim_expires_at, started_at, cancel_requested_at, next_retry_at,
  redacted_at))
"""
# Nested deeper, or with longer numbers, a definition could not be read by every Python; at a later moment, no slot could follow.
READABLE = "jsonb_typeof({0}) = 'object' AND NOT jsonb_path_exists({0}, '{1}') AND NOT jsonb_path_exists({0}, '{2}')"
DEEP = "$.**{500 to last}"
HUGE = '$.** ? (@.type() == "number" && (@ > 1e4000 || @ < -1e4000))'
MOMENTS = "since, last_slot, next_slot, next_at, declared_at, gone_at, error_at, created_at, updated_at"
SCHEDULES = f"""
ALTER TABLE horsies_schedules ADD CONSTRAINT horsies_schedules_fits CHECK (
  {READABLE.format("declared", DEEP, HUGE)} AND {READABLE.format("changes", DEEP, HUGE)}
  AND least({MOMENTS}) > '0003-01-01 00:00+00' AND greatest({MOMENTS}) < '9000-01-01 00:00+00')
"""
ARGUMENTS = (
    "varchar, uuid, timestamptz, varchar, smallint, varchar, jsonb, jsonb, text, int, smallint, smallint"
    + 9 * ", timestamptz"
)


class Migration(migrations.Migration):
    dependencies = [("horsies", "0011_schedules")]

    operations = [
        migrations.RunSQL(load(f"functions/{FITS}"), f"DROP FUNCTION {FITS}({ARGUMENTS})"),
        migrations.RunSQL(ADD, "ALTER TABLE horsies_tasks DROP CONSTRAINT horsies_tasks_fits"),
        migrations.RunSQL(SCHEDULES, "ALTER TABLE horsies_schedules DROP CONSTRAINT horsies_schedules_fits"),
        *(
            migrations.RemoveConstraint("task", f"horsies_tasks_{name}")
            for name in ("priority", "lane", "status", "error_code")
        ),
    ]
