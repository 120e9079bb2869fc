"""The functions behind the statements and their types, the trigger that wakes workers, and a CHECK that calls a function."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

TYPES = ("horsies_passed", "horsies_wanted", "horsies_candidate")

# In the order in which they need each other: PostgreSQL looks into those in SQL when they are made.
FUNCTIONS = (
    "tasks/horsies_channel",
    "workflows/horsies_uuid7",
    "audit/horsies_lost",
    "audit/horsies_note",
    "partitions/horsies_named_arguments",
    "workflows/horsies_stored_arguments",
    "partitions/horsies_partition_key",
    "caps/horsies_holds_permit",
    "caps/horsies_remaining_capacity",
    "partitions/horsies_partition_rooms",
    "caps/horsies_workers_serving",
    "caps/horsies_lock_caps",
    "claim/horsies_forbidding",
    "partitions/horsies_unpark",
    "settle/horsies_error_result",
    "settle/horsies_expire",
    "settle/horsies_retry_decision",
    "claim/horsies_worker_knows",
    "claim/horsies_first_waiting",
    "claim/horsies_candidates",
    "claim/horsies_allot",
    "settle/horsies_notify_finished",
    "claim/horsies_waiting_queues",
    "claim/horsies_claim",
    "claim/horsies_start",
    "settle/horsies_settle",
    "settle/horsies_release",
    "claim/horsies_whole_pass",
    "claim/horsies_pass",
    "claim/horsies_count_due",
    "claim/horsies_pass_on",
    "monitoring/horsies_worker_state",
    "monitoring/horsies_permits_in_use",
    "monitoring/horsies_tasks_holding_permits",
    "monitoring/horsies_count_pending",
    "caps/horsies_effective_limits",
    "caps/horsies_configure_queue",
    "partitions/horsies_sweep",
    "recover/horsies_is_orphaned",
    "recover/horsies_beat",
    "recover/horsies_reap",
    "explain/horsies_permit_holders",
    "explain/horsies_tasks_before",
    "explain/horsies_eligible_workers",
    "explain/horsies_explain",
    "explain/horsies_explain_node",
    "settle/horsies_cancel",
    "tasks/horsies_prunable",
    "tasks/horsies_prune",
    "tasks/horsies_purgeable",
    "tasks/horsies_purge",
    "tasks/horsies_delete_tasks",
    "tasks/horsies_delete_finished",
    "tasks/horsies_redact",
    "tasks/horsies_record_step",
    "monitoring/horsies_longest_waits",
    "monitoring/horsies_tasks_per_worker",
    "tasks/horsies_send",
    "tasks/horsies_announce",
    "schedules/horsies_change_schedule",
    "tasks/horsies_fits",
    "workflows/horsies_part",
    "workflows/horsies_has_failed_upstream",
    "workflows/horsies_node_result",
    "workflows/horsies_condition",
    "workflows/horsies_join_verdict",
    "workflows/horsies_results",
    "workflows/horsies_argument",
    "workflows/horsies_node_kwargs",
    "workflows/horsies_propagate",
    "workflows/horsies_send_all",
    "workflows/horsies_close_maps",
    "workflows/horsies_has_begun",
    "workflows/horsies_begun",
    "workflows/horsies_begun_total",
    "workflows/horsies_new_number",
    "workflows/horsies_begin_undo",
    "workflows/horsies_undo_result",
    "workflows/horsies_retry_undo",
    "workflows/horsies_expand",
    "workflows/horsies_add_nodes",
    "workflows/horsies_begin_run",
    "workflows/horsies_send_run",
    "workflows/horsies_next_signal",
    "workflows/horsies_take_signal",
    "workflows/horsies_take_waits",
    "workflows/horsies_begin_waits",
    "workflows/horsies_take_tasks",
    "workflows/horsies_end_nodes",
    "workflows/horsies_continue_run",
    "workflows/horsies_promote",
    "workflows/horsies_withdraw",
    "workflows/horsies_unhold",
    "workflows/horsies_finish_run",
    "workflows/horsies_begin_retry",
    "workflows/horsies_replace_tasks",
    "workflows/horsies_retry_children",
    "workflows/horsies_retry_part",
    "workflows/horsies_move_run",
    "workflows/horsies_advance",
    "workflows/horsies_plain_runs",
    "workflows/horsies_advance_plain",
    "workflows/horsies_wake",
    "workflows/horsies_signal",
    "workflows/horsies_control_run",
    "workflows/horsies_retry_run",
    "workflows/horsies_skip_node",
    "workflows/horsies_decide",
    "workflows/horsies_owed",
    "workflows/horsies_open_calls",
    "workflows/horsies_prune_runs",
)

# Drops those that exist, also when the tables are gone. CASCADE: the trigger goes with its function, the constraint with the one
# that it calls. Only in the schema where they are created: others may have such functions for their own tables.
CLEAR = f"""
DO $$
DECLARE
  v_one text;
BEGIN
  FOR v_one IN
    SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = current_schema() AND p.proname = ANY ('{{{",".join(name.partition("/")[2] for name in FUNCTIONS)}}}')
    UNION ALL
    SELECT 'TYPE ' || t.oid::regtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = current_schema() AND t.typname = ANY ('{{{",".join(TYPES)}}}')
  LOOP
    EXECUTE 'DROP ' || v_one || ' CASCADE';
  END LOOP;
END
$$
"""

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
            [
                CLEAR,
                *(load(f"types/{name}") for name in TYPES),
                *(load(f"functions/{name}") for name in FUNCTIONS),
                TASKS_FIT,
            ],
            CLEAR,
            hints={"model_name": "task"},  # routers answer as for the tables
        ),
    ]
