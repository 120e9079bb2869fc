"""The functions behind the statements and their types, and the triggers that call some of them."""

from __future__ import annotations

from django.db import migrations

from horsies_django.store.schema import CLEAR, functions, types


class Migration(migrations.Migration):
    dependencies = [("horsies", "0001_initial")]

    operations = [
        migrations.RunSQL(
            [CLEAR, *types(), *functions()],
            CLEAR,
            hints={"model_name": "task"},  # routers answer as for the tables
        ),
    ]
