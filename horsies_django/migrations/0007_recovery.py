"""What cancelling needs: tasks that shall end even if they do not listen, and attempts that were cancelled."""

from __future__ import annotations

from django.db import migrations, models

from horsies_django.store.base import load

FUNCTIONS = {"horsies_cancel_v1": "uuid[], boolean, text"}


class Migration(migrations.Migration):
    dependencies = [("horsies", "0006_explain")]

    operations = [
        migrations.AddField(
            "task", "terminate", models.BooleanField(db_default=False, default=False, verbose_name="to be terminated")
        ),
        migrations.RemoveConstraint("taskattempt", "horsies_task_attempts_outcome"),
        migrations.AddConstraint(
            "taskattempt",
            models.CheckConstraint(
                condition=models.Q(("outcome__in", ("COMPLETED", "FAILED", "CANCELLED", "WORKER_FAILURE"))),
                name="horsies_task_attempts_outcome",
            ),
        ),
        *(
            migrations.RunSQL(load(f"functions/{name}"), f"DROP FUNCTION {name}({arguments})")
            for name, arguments in FUNCTIONS.items()
        ),
    ]
