"""The functions that say why a task does not run; they ask those that the pass asks."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

# name -> the types of its arguments; in the order in which they need each other
FUNCTIONS = {
    "horsies_holders_v1": "horsies_limits, text, boolean, timestamptz, int",
    "horsies_full_v1": "horsies_limits, uuid, boolean, timestamptz",
    "horsies_before_v1": (
        "horsies_limits, text, text[], int, timestamptz, uuid, horsies_workers, interval, timestamptz, int"
    ),
    "horsies_ahead_v1": (
        "horsies_tasks, horsies_limits, text, boolean, int, uuid, jsonb, int, boolean, interval, timestamptz, int"
    ),
    "horsies_takers_v1": "horsies_tasks, horsies_limits, text, boolean, interval, timestamptz",
    "horsies_explain_v1": "uuid, boolean, interval, interval, int, int",
}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0005_caps")]

    operations = [
        migrations.RunSQL(load(f"functions/{name}"), f"DROP FUNCTION {name}({arguments})")
        for name, arguments in FUNCTIONS.items()
    ]
