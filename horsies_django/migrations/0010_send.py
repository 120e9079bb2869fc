"""The function that sends, and a trigger that it can tell to be quiet. Senders of the release before go on with their INSERT."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

FUNCTIONS = {
    "horsies_announce_v2": """
      CREATE OR REPLACE TRIGGER horsies_tasks_announce AFTER INSERT ON horsies_tasks
        REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION horsies_announce_v1();
      DROP FUNCTION horsies_announce_v2()
    """,
    "horsies_send_v1": """
      DROP FUNCTION horsies_send_v1(
        uuid[], jsonb, text, text, text, smallint, interval, timestamptz, timestamptz, smallint, jsonb, oid, interval,
        timestamptz)
    """,
}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0009_status")]

    operations = [migrations.RunSQL(load(f"functions/{name}"), undo) for name, undo in FUNCTIONS.items()]
