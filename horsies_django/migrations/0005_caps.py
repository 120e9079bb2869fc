"""The functions behind caps, queues that change while they run, soft mode and the reaper; and limits for the queues there are.

The functions of the release before stay: its workers go on with them until they are replaced.
"""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

# name -> the types of its arguments; in the order in which they need each other
FUNCTIONS = {
    "horsies_partition_v1": "jsonb, boolean, jsonb, text",
    "horsies_holds_v1": "text, timestamptz, boolean, timestamptz",
    "horsies_room_v1": "horsies_limits, uuid, boolean, timestamptz, timestamptz[]",
    "horsies_rooms_v1": "horsies_limits[], uuid, boolean, int, timestamptz, jsonb",
    "horsies_cluster_room_v1": "int, timestamptz",
    "horsies_loads_v1": "horsies_limits, text[], uuid, boolean, timestamptz",
    "horsies_keys_v1": "horsies_limits",
    "horsies_servers_v1": "text",
    "horsies_serving_v1": "text",
    "horsies_lock_v1": "horsies_limits[], int",
    "horsies_unpark_v1": "text, text[], int[]",
    "horsies_error_v1": "text, text",
    "horsies_expire_v1": "uuid[], timestamptz",
    "horsies_pause_v1": "jsonb, int",
    "horsies_again_v1": "uuid, jsonb, int, int, timestamptz, boolean, text, jsonb, jsonb, boolean, int, timestamptz",
    "horsies_knows_v1": "text, jsonb, horsies_workers",
    "horsies_strange_v1": "text, jsonb, timestamptz, timestamptz, horsies_workers, interval, timestamptz",
    "horsies_first_v1": "text, text, smallint, jsonb, timestamptz",
    "horsies_candidates_v2": (
        "text, jsonb, boolean, int, text, int, text[], timestamptz, horsies_workers, interval, jsonb, timestamptz"
    ),
    "horsies_gather_v1": (
        "horsies_limits[], int[], int, int, jsonb, int, timestamptz, horsies_workers, interval, jsonb, timestamptz, "
        "int, int, int, int"
    ),
    "horsies_parts_v1": "horsies_limits[], int[], text[], uuid, boolean, timestamptz",
    "horsies_allot_v1": "int[], text[], int[], boolean[], int[], int[], int[], int[], int, int, int, int",
    "horsies_claim_v2": (
        "uuid, text, horsies_limits[], int, text[], int[], timestamptz, horsies_workers, interval, interval, jsonb, timestamptz, "
        "int, int, int, int"
    ),
    "horsies_start_v1": "uuid, text, horsies_limits[], int, timestamptz, jsonb, jsonb",
    "horsies_settle_v2": "uuid, jsonb, int, text, timestamptz",
    "horsies_release_v2": "uuid, jsonb, text",
    "horsies_back_v1": "text, uuid[]",
    "horsies_lapse_v1": "text[], text",
    "horsies_live_v1": "horsies_limits[], int, text[], boolean, text[], jsonb, timestamptz",
    "horsies_missed_v1": "jsonb, uuid[]",
    "horsies_final_v1": "text, uuid[]",
    "horsies_due_v1": "text, timestamptz, jsonb, timestamptz",
    "horsies_offer_v1": "text, horsies_limits[], int, text[], text[], jsonb, timestamptz",
    "horsies_pass_v2": (
        "uuid, text, jsonb, jsonb, jsonb, text[], int, int, int, int, int, interval, boolean, int, interval, jsonb, timestamptz"
    ),
    "horsies_short_pass_v1": "uuid, text, jsonb, text[], text, int, int",
    "horsies_in_flight_v1": "timestamptz",
    "horsies_holding_v1": "text, int, timestamptz",
    "horsies_pending_v1": "text[], int",
    "horsies_effective_v1": "horsies_queues",
    "horsies_configure_v1": "text, jsonb, boolean, text, text, text, text",
    "horsies_sweep_v1": "text, int, text",
    "horsies_orphaned_v1": "uuid, timestamptz, timestamptz",
    "horsies_freed_v1": "text, text[], text[]",
    "horsies_reap_v1": "interval, boolean, int, int, text",
}

FILL = """
INSERT INTO horsies_limits
SELECT limits.* FROM horsies_queues queue CROSS JOIN LATERAL horsies_effective_v1(queue) AS limits
"""


class Migration(migrations.Migration):
    dependencies = [("horsies", "0004_indexes")]

    operations = [
        *(
            migrations.RunSQL(load(f"functions/{name}"), f"DROP FUNCTION {name}({arguments})")
            for name, arguments in FUNCTIONS.items()
        ),
        migrations.RunSQL(FILL, "DELETE FROM horsies_limits"),
    ]
