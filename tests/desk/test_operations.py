"""What somebody does to a task that was sent: cancel it, run it again; from code, from the shell, in the admin."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from horsies_django import TaskHandle
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.models import AuditEntry, Task
from horsies_django.tasks import operations, redaction
from horsies_django.testing import drain
from tests.apps.project import tasks
from tests.support.factories import TaskFactory, now

pytestmark = pytest.mark.django_db
OF_TASKS = AuditEntry.objects.filter(action__startswith="task.")
LIST = reverse("admin:horsies_task_changelist")


def status(handle: TaskHandle[Any]) -> str:
    return Task.objects.get(pk=handle.task_id).status


def shell(*arguments: Any) -> str:
    out = StringIO()
    call_command("horsies_task", *map(str, arguments), stdout=out)
    return out.getvalue()


def failed() -> TaskHandle[Any]:
    handle = tasks.raises.with_options(priority=7).send("x")
    drain(raise_errors=False)
    return handle


def test_cancelling_is_part_of_the_transaction_around_it() -> None:
    handle = tasks.noop.send()
    with pytest.raises(RuntimeError), transaction.atomic():
        assert handle.cancel() == "CANCELLED"
        raise RuntimeError
    assert status(handle) == "PENDING"
    assert drain() == 1


def test_a_cancelled_task_answers_so_to_whoever_waits() -> None:
    handle = tasks.noop.schedule(60)
    handle.cancel()
    assert handle.get(0).err_value.error_code == "TASK_CANCELLED"
    assert drain() == 0


def test_a_task_that_waits_for_its_retry_can_be_cancelled_or_made_due() -> None:
    first, second = tasks.asks_again.send(60, None), tasks.asks_again.send(60, None)
    drain()
    assert first.cancel() == "CANCELLED"
    assert operations.retry(second.task_id, actor="ada") == second.task_id
    assert drain(raise_errors=False) == 1
    row = Task.objects.get(pk=second.task_id)
    assert (row.status, row.retry_count) == ("FAILED", 1)


def test_cancelling_what_does_not_exist_says_so() -> None:
    with pytest.raises(LookupError, match="there is no task"):
        TaskHandle[None](uuid.uuid4()).cancel()


def test_a_failed_task_runs_again_under_a_new_id_with_all_that_it_had() -> None:
    handle = tasks.asks_again.with_options(priority=7, timeout_ms=5_000).send(0, "BUSY")
    drain(raise_errors=False)
    new = Task.objects.get(pk=operations.retry(handle.task_id, actor="ada", reason="the server is back"))
    old = Task.objects.get(pk=handle.task_id)
    kept = ("task_name", "queue_name", "lane", "priority", "kwargs", "options", "max_retries")
    assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
    assert (old.status, new.status, new.retry_count) == ("FAILED", "PENDING", 0)
    entry = OF_TASKS.get()
    assert (entry.action, entry.actor, entry.reason, entry.after) == (
        "task.retry", "ada", "the server is back", {"new": str(new.pk)},
    )  # fmt: skip
    assert drain(raise_errors=False) == 2


@pytest.mark.parametrize("prepare", ["completed", "pending", "redacted", "absent"])
def test_what_cannot_run_again_is_refused_with_its_reason(prepare: str) -> None:
    if prepare == "redacted":
        handle: TaskHandle[Any] = failed()
        redaction.redact(handle.task_id, actor="ada", reason="asked for")
    else:
        handle = tasks.noop.send()
    if prepare == "completed":
        drain()
    id_ = uuid.uuid4() if prepare == "absent" else handle.task_id
    said = {"completed": "completed", "pending": "is PENDING", "redacted": "was redacted", "absent": "there is no task"}
    with pytest.raises((TaskNotRetryable, LookupError), match=said[prepare]):
        operations.retry(id_, actor="ada")
    assert Task.objects.count() == 1


def test_the_shell_shows_cancels_and_runs_again() -> None:
    handle = failed()
    shown = shell("show", handle.task_id)
    assert "FAILED UNHANDLED_ERROR" in shown
    assert "LookupError: x" not in shown
    assert "LookupError: x" in shell("show", handle.task_id, "--payload")
    found = json.loads(shell("show", handle.task_id, "--json"))
    assert (found["status"], found["attempts"][0]["outcome"]) == ("FAILED", "FAILED")
    assert "result" not in found
    again = shell("retry", handle.task_id, "--reason", "try").strip().rpartition(" ")[2]
    assert "cancelled before it started" in shell("cancel", again, "--reason", "enough")
    assert "nothing changed" in shell("cancel", again)
    assert list(OF_TASKS.order_by("pk").values_list("action", "reason")) == [
        ("task.retry", "try"), ("task.cancel", "enough"),
    ]  # fmt: skip
    with pytest.raises(CommandError, match="there is no task"):
        shell("show", uuid.uuid4())
    with pytest.raises(CommandError, match="is not a task id"):
        shell("cancel", "7")


def operator(*permissions: str) -> Client:
    user = User.objects.create_user("ada", password="x", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, action: str, *handles: TaskHandle[Any]) -> str:
    data = {"action": action, "_selected_action": [str(handle.task_id) for handle in handles]}
    return client.post(LIST, data, follow=True).content.decode()


def test_whoever_may_operate_tasks_cancels_and_runs_them_again_in_the_admin() -> None:
    client = operator("view_task", "operate_task")
    waits, over = tasks.noop.schedule(dt.timedelta(hours=1)), failed()
    assert 'value="cancel_tasks"' in client.get(LIST).content.decode()
    assert "1 cancelled, 0 running and asked to stop, 1 already finished." in act(client, "cancel_tasks", waits, over)
    assert "1 task will run again." in act(client, "retry_tasks", over)
    assert status(waits) == "CANCELLED"
    entries = OF_TASKS.order_by("pk").values_list("actor", "action", "subject")
    assert list(entries) == [("ada", "task.cancel", str(waits.task_id)), ("ada", "task.retry", str(over.task_id))]


def test_whoever_may_only_look_is_offered_nothing_and_can_do_nothing() -> None:
    client = operator("view_task")
    waits = tasks.noop.schedule(60)
    assert 'name="action"' not in client.get(LIST).content.decode()
    act(client, "cancel_tasks", waits)
    assert status(waits) == "PENDING"


def test_a_page_deletes_nothing_even_for_a_superuser() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    handle = failed()
    act(client, "delete_selected", handle)
    assert Task.objects.filter(pk=handle.task_id).exists()


def test_a_task_that_runs_for_very_long_stands_out_in_the_list(settings: Any) -> None:
    TaskFactory(status="RUNNING", started_at=now() - dt.timedelta(minutes=61))
    client = operator("view_task")
    assert "horsies-full" in client.get(LIST).content.decode()
    settings.HORSIES = {**settings.HORSIES, "REPORT_RUNNING_AFTER_MS": dt.timedelta(hours=2)}
    assert "horsies-full" not in client.get(LIST).content.decode()
