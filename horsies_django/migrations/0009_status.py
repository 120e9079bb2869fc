"""The functions that say how the queues and the workers do."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.base import load

# name -> the types of its arguments
FUNCTIONS = {"horsies_waits_v1": "text[]", "horsies_burdens_v1": ""}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0008_retention")]

    operations = [
        migrations.RunSQL(load(f"functions/{name}"), f"DROP FUNCTION {name}({arguments})")
        for name, arguments in FUNCTIONS.items()
    ]
