"""Redaction: what a finished task says about people goes for good, and what it was stays."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from horsies_django import get_handle
from horsies_django.models import AuditEntry, Task, TaskAttempt
from horsies_django.tasks.handle import TaskHandle
from horsies_django.tasks.redaction import TaskNotFinished, redact
from tests.apps.project import tasks
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, error

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "ann@example.org"  # noqa: S105 - what must not be found any more
WHY = {"actor": "ada", "reason": "request 17"}


def told(**columns: Any) -> Task:
    """Return a task with the secret wherever a task can have one, and two attempts that tell it."""
    exception = {"type": "ValueError", "message": SECRET, "repr": SECRET, "traceback": SECRET}
    result = {"ok": {"to": SECRET}}
    if columns.get("status") == "FAILED":
        result = error("CARD_DECLINED", SECRET, data=[SECRET], exception=exception)
        columns |= {"error_code": "CARD_DECLINED"}
    task = TaskFactory(
        **{"kwargs": {"to": SECRET}, "result": result, "partition_key": json.dumps({"to": SECRET}), **columns}
    )
    for attempt in (1, 2):
        TaskAttemptFactory(task_id=task.pk, attempt=attempt, error_code="CARD_DECLINED", error_message=SECRET)
    return task


def everything() -> str:
    """Return all rows of all tables of the app, as text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname LIKE 'horsies%%' AND relkind = 'r'")
        rows = [f"SELECT row::text FROM {table} row" for (table,) in cursor.fetchall()]
        cursor.execute(" UNION ALL ".join(rows))
        return "\n".join(row for (row,) in cursor.fetchall())


@pytest.mark.parametrize("status", FINISHED)
def test_no_table_knows_any_more_what_a_redacted_task_was_about_and_the_audit_who_redacted_it_and_why(
    status: str,
) -> None:
    task = told(status=status)
    before = everything()
    assert SECRET in before
    with transaction.atomic():
        redact(task.pk, **WHY)
        transaction.set_rollback(True)
    assert everything() == before, "it belongs to the transaction around it"
    assert redact(task.pk, **WHY) is True
    after, rows = Task.objects.get(pk=task.pk), everything()
    assert SECRET not in rows
    assert after.redacted_at is not None
    for name in ("status", "error_code", "task_name", "queue_name", "sent_at", "finished_at", "claimed_by"):
        assert getattr(after, name) == getattr(task, name), name
    assert list(TaskAttempt.objects.values_list("error_code", flat=True)) == ["CARD_DECLINED"] * 2
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.subject, entry.actor, entry.reason) == (
        "task.redact", str(task.pk), "ada", "request 17",
    )  # fmt: skip
    assert (entry.before, entry.after) == (None, {"task_name": task.task_name, "status": status})
    assert redact(task.pk, **WHY) is False
    assert everything() == rows


def test_a_redacted_value_is_an_error_that_says_so_and_a_redacted_error_keeps_its_code_and_nothing_else() -> None:
    task, failed = told(status="COMPLETED", task_name="tests.apps.project.tasks.add"), told(status="FAILED")
    redact(task.pk, **WHY)
    redact(failed.pk, **WHY)
    for handle, code in (
        (get_handle(task.pk), "RESULT_REDACTED"),
        (TaskHandle(task.pk, tasks.add.definition.result), "RESULT_REDACTED"),
        (get_handle(failed.pk), "CARD_DECLINED"),
    ):
        found = handle.get(0).err_value
        assert (found.error_code, found.message, found.data, found.exception) == (code, "redacted", None, None)


def test_a_partition_by_task_alone_says_nothing_about_people_and_stays() -> None:
    cut = '{"to": "' + "x" * 122 + "..." + "0" * 64
    for key, stays in (('{"": "shop.pay"}', True), ('{"": "shop.pay", "to": 5}', False), (cut, False)):
        task = told(status="COMPLETED", task_name="shop.pay", partition_key=key)
        redact(task.pk, **WHY)
        assert Task.objects.get(pk=task.pk).partition_key == (key if stays else None)


@pytest.mark.parametrize("status", ["PENDING", "CLAIMED", "RUNNING"])
def test_a_task_that_is_not_finished_is_refused_and_stays_as_it_is(status: str) -> None:
    task = told(status=status, result=None)
    before = everything()
    with pytest.raises(TaskNotFinished, match=f"is {status}.*cancel it first"):
        redact(task.pk, **WHY)
    assert everything() == before


def test_the_command_redacts_and_names_what_stands_in_the_way() -> None:
    task, waits = told(status="COMPLETED"), told(result=None)
    out = io.StringIO()
    for _ in range(2):
        call_command("horsies_task", "redact", str(task.pk), "--reason=request 17", stdout=out)
    assert out.getvalue().splitlines() == [f"Task {task.pk} is redacted.", "Nothing changed: it is already redacted."]
    assert AuditEntry.objects.latest("pk").actor.startswith("shell:")
    with pytest.raises(ValueError, match="needs a reason"):
        redact(task.pk, actor="ada", reason=" ")
    for id_, said in (
        (str(waits.pk), "is PENDING"),
        (str(uuid.uuid4()), "there is no task"),
        ("five", "is not a task id"),
    ):
        with pytest.raises(CommandError, match=f"horsies_task: .*{said}"):
            call_command("horsies_task", "redact", id_, "--reason=request 17")
    with pytest.raises(CommandError, match="--reason"):
        call_command("horsies_task", "redact", str(waits.pk))
