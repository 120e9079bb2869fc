"""The table of tasks that wait to be killed."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "token",
                    models.UUIDField(primary_key=True, serialize=False, verbose_name="token"),
                ),
                ("pid", models.IntegerField(verbose_name="process")),
                (
                    "began_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="began"
                    ),
                ),
            ],
            options={
                "verbose_name": "hold",
                "verbose_name_plural": "holds",
            },
        ),
    ]
