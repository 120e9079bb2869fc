"""``dumpdata`` and ``loaddata``: every row of the queue comes back as it was, and what waits in it is really sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection

from horsies_django import Workflow, get_handle, queues, schedules
from horsies_django.models import AuditEntry, LostRecord, Pruning, Schedule, Task, TaskStep, Waiter, WorkflowSignal
from horsies_django.store.notify import channel_prefix
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.support.factories import (
    HeartbeatFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    WorkerFactory,
    WorkerStateFactory,
    now,
)

pytestmark = pytest.mark.django_db(transaction=True)


def a_row_of_every_model() -> Any:
    """Write them, also with JSON's null where a column is not NULL; return the handle of a task that waits."""
    flow = Workflow("asks")
    flow.add(flows.number, 1, after=flow.signal("go"))
    run = flow.send()
    run.signal("go", None)
    schedules.create("nightly", {"task": tasks.noop.name, "pattern": "daily at 04:30"}, actor="ada")
    schedules.change("nightly", {"enabled": False}, actor="ada")
    queues.pause("mail", actor="ada", reason="a dump")
    waits = tasks.add.send(1)
    TaskAttemptFactory(task_id=waits.task_id, attempt=9, error_code="X", error_message="it went wrong")
    TaskStep.objects.bulk_create([TaskStep(task_id=waits.task_id, name="asked", digest="0", result=None)])
    worker = WorkerFactory()
    HeartbeatFactory(worker_id=worker.pk, role="claimer", died_at=now())
    WorkerStateFactory(worker_id=worker.pk)
    ScheduleTickFactory(task_id=waits.task_id)
    Pruning.objects.create(key="all")
    Waiter.objects.create(id=worker.pk, expires_at=now())
    LostRecord.objects.create(kind="audit", at=now(), what="queue.pause mail", error="refused")
    return waits


def dump(place: Path) -> list[Any]:
    call_command("dumpdata", "horsies", output=str(place), verbosity=0)
    found: list[Any] = json.loads(place.read_text())
    return sorted(found, key=lambda one: (one["model"], str(one["pk"])))


def test_a_dump_of_every_table_is_loaded_into_an_empty_database(tmp_path: Path) -> None:
    handle = a_row_of_every_model()
    before = dump(tmp_path / "before.json")
    models = apps.get_app_config("horsies").get_models()
    assert {one["model"] for one in before} == {model._meta.label_lower for model in models}
    call_command("flush", interactive=False, verbosity=0)
    AuditEntry.objects.all().delete()  # the queues were declared again
    call_command("loaddata", str(tmp_path / "before.json"), verbosity=0)
    assert dump(tmp_path / "after.json") == before
    assert Schedule.objects.get().definition["enabled"] is False
    assert WorkflowSignal.objects.filter(data=None).count() == 1
    call_command("loaddata", str(tmp_path / "before.json"), verbosity=0)  # over the rows that are there
    assert dump(tmp_path / "after.json") == before
    assert drain() == 2
    assert get_handle(handle.task_id).get(0).ok_value == 1


def test_loaded_tasks_that_wait_are_announced_to_workers_as_sent_ones_are(
    tmp_path: Path, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    tasks.add.send(1)
    dump(tmp_path / "tasks.json")
    Task.objects.all().delete()
    listener = connect()
    listener.execute(f"LISTEN {channel_prefix(connection)}_new")
    call_command("loaddata", str(tmp_path / "tasks.json"), verbosity=0)
    (told,) = listener.notifies(timeout=10, stop_after=1)
    assert told.payload.endswith(" default")
