"""What the database refuses the admin, real roles, locks and read-only sessions: an answer in words, never an error page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, schedules
from horsies_django.admin.base import readonly
from horsies_django.models import AuditEntry, Task
from tests.apps.project import tasks
from tests.e2e.test_roles import OPERATING, SENDING, as_role, grant, own
from tests.e2e.test_roles import roles as roles
from tests.support.factories import HeartbeatFactory, TaskAttemptFactory, TaskFactory, WorkerFactory

Connect = Callable[[], psycopg.Connection[Any]]
LIST = reverse("admin:horsies_task_changelist")
ACTIONS = ("cancel_tasks", "terminate_tasks", "retry_tasks")
PAGES = ("task", "queue", "schedule", "worker", "auditentry", "workflowrun")
TABLES = (
    "horsies_tasks", "horsies_task_attempts", "horsies_queues", "horsies_workers", "horsies_heartbeats",
    "horsies_worker_states", "horsies_audit", "horsies_schedules", "horsies_schedule_ticks",
    "horsies_workflows", "horsies_workflow_nodes", "horsies_workflow_edges",
)  # fmt: skip
OF_DJANGO = (
    "auth_user, auth_group, auth_permission, auth_user_groups, auth_user_user_permissions, auth_group_permissions, "
    "django_content_type, django_session"
)
WORDS = {  # what keeps the database from doing it: what the admin says
    "no grant": [
        "The database refused: permission denied for table horsies_tasks. The site's database role lacks",
        "“Give the database roles no more than they need”",
    ],
    "read-only": ["read-only transaction", "Use the site that is connected to the primary."],
}


@pytest.fixture(params=[False, True], ids=["own transactions", "ATOMIC_REQUESTS"])
def boss(request: pytest.FixtureRequest, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A superuser's browser; what it asks for is, or is not, one transaction."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def with_options() -> Iterator[Callable[[str], None]]:
    """Give a function that lets Django's connection begin with settings of the server."""

    def begin(text: str) -> None:
        connection.close()
        connection.settings_dict["OPTIONS"]["options"] = text

    yield begin
    connection.close()
    connection.settings_dict["OPTIONS"].pop("options", None)


def grant_site(*pages: Any) -> None:
    """Give the role of the site what Django needs and what these parts of the page about roles list."""
    grant(SENDING, *pages)
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {OF_DJANGO} TO {own('site')}")


def act(client: Client, action: str, *rows: Task, **answer: Any) -> list[tuple[str, str]]:
    """Do an action and return what the admin says."""
    data = {"action": action, "_selected_action": [str(row.pk) for row in rows], **answer}
    response = client.post(LIST, data, follow=True)
    assert response.status_code == 200
    return [(message.level_tag, str(message)) for message in response.context["messages"]]


def rows(task: Task) -> list[Any]:
    return [Task.objects.values().get(pk=task.pk), Task.objects.count(), AuditEntry.objects.count()]


def a_task(action: str) -> Task:
    return TaskFactory(status="FAILED" if action == "retry_tasks" else "PENDING")  # type: ignore[no-any-return]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("what", WORDS)
def test_an_action_that_the_database_does_not_do_changes_nothing_and_says_why(
    roles: None, boss: Client, with_options: Callable[[str], None], what: str, action: str
) -> None:
    grant_site()
    task = a_task(action)
    before = rows(task)
    if what == "no grant":
        as_role("site")
    else:
        with_options("-c default_transaction_read_only=on")
    ((level, text),) = act(boss, action, task)
    as_role(None)
    assert level == "error"
    for words in WORDS[what]:
        assert words in text
    assert rows(task) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_leaves_a_task_that_somebody_has_locked_and_says_so(
    boss: Client, connect: Connect, action: str
) -> None:
    locked, other = a_task(action), a_task(action)
    before = Task.objects.values().get(pk=locked.pk)
    with connect() as keeper, keeper.transaction():
        keeper.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [locked.pk])
        ((level, text),) = act(boss, action, locked)
        assert (level, text.partition(": ")[2]) == ("warning", "LOCKED: 1")
        ((level, text),) = act(boss, action, locked, other)
        assert level == "success"
        assert "LOCKED: 1" in text
    assert Task.objects.values().get(pk=locked.pk) == before
    ((level, _text),) = act(boss, action, locked)
    assert level == "success"


def test_the_actions_do_their_work_under_the_grants_of_the_page(roles: None, boss: Client) -> None:
    grant_site(OPERATING)
    waiting, failed, running = TaskFactory(), TaskFactory(status="FAILED"), TaskFactory(status="RUNNING")
    as_role("site")
    for action, task, told in (
        ("cancel_tasks", waiting, "Cancel: CANCELLED: 1"),
        ("terminate_tasks", running, "Cancel, and kill the processes of tasks that do not stop: REQUESTED: 1"),
        ("copy_tasks", failed, "Send a copy: COPIED: 1"),
        ("retry_tasks", failed, "Retry: RETRIED: 1"),
    ):
        assert act(boss, action, task) == [("success", told)]
    assert tasks.noop.send().cancel() == "CANCELLED"
    as_role(None)
    assert Task.objects.get(pk=running.pk).terminate
    actions = AuditEntry.objects.filter(action__startswith="task.").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["task.cancel", "task.terminate", "task.copy", "task.retry"]


def change(client: Client, run: Any, verb: str, **data: str) -> str:
    """Send a form of a workflow run and return the page that answers."""
    address = reverse(f"admin:horsies_workflowrun_{verb}", args=(run.workflow_id,))
    return str(client.post(address, data, follow=True).content.decode())


def a_run() -> Any:
    flow = Workflow("flow")
    flow.add(tasks.noop, name="second", after=flow.add(tasks.noop, name="first"))
    return flow.send()


@pytest.mark.parametrize("statement_timeout", [False, True])
def test_a_workflow_that_somebody_has_locked_is_left_and_the_admin_says_so(
    boss: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch, with_options: Callable[[str], None],
    statement_timeout: bool,
) -> None:  # fmt: skip
    words = "Another open transaction has locked one of these rows."
    run, keeper = a_run(), connect()
    if statement_timeout:
        words = "Another transaction may have locked one of these rows"
        with_options("-c statement_timeout=1500")
    else:
        monkeypatch.setattr(readonly, "LOCK_PATIENCE", "200ms")
    with keeper.transaction():
        keeper.execute("SELECT FROM horsies_workflows WHERE id = %s FOR UPDATE", [run.workflow_id])
        for verb, data in (("pause", {}), ("cancel", {}), ("retry", {}), ("skip", {"node": "second"})):
            assert words in change(boss, run, verb, **data), verb
    assert run.status() == "RUNNING"
    assert words not in change(boss, run, "pause")
    assert run.status() == "PAUSED"


def test_an_action_leaves_the_lock_timeout_of_the_request_as_it_was(boss: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '7s'")
        act(boss, "cancel_tasks", TaskFactory())
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchall() == [("7s",)]
        cursor.execute("RESET lock_timeout")


@pytest.mark.parametrize("table", TABLES)
def test_a_page_about_a_table_that_may_not_be_read_says_so(roles: None, boss: Client, table: str) -> None:
    grant_site()
    worker = WorkerFactory()
    HeartbeatFactory(worker_id=worker.pk)
    running = TaskFactory(status="RUNNING", claimed_by=worker.pk)
    failed = TaskFactory(status="FAILED", claimed_by=worker.pk)
    TaskAttemptFactory(task_id=failed.pk, worker_id=worker.pk)
    schedules.create("hourly", {"task": tasks.noop.name, "pattern": "every hour"}, actor="somebody")
    entry = AuditEntry.objects.latest("pk")
    run = a_run().workflow_id
    addresses = [reverse(f"admin:horsies_{name}_changelist") for name in PAGES]
    addresses += [reverse("admin:horsies_task_change", args=(row.pk,)) for row in (running, failed)]
    addresses += [reverse("admin:horsies_workflowrun_node", args=(run, 0))]
    addresses += [
        reverse(f"admin:horsies_{name}", args=(key,))
        for name, key in (
            ("queue_change", "default"), ("queue_override", "default"), ("schedule_change", "hourly"),
            ("schedule_edit", "hourly"), ("worker_change", worker.pk), ("auditentry_change", entry.pk),
            ("workflowrun_change", run), ("workflowrun_pause", run),
        )
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(f"REVOKE SELECT ON {table} FROM {own('site')}")
    as_role("site")
    answers = {address: boss.get(address) for address in addresses}
    as_role(None)
    refused = {address: answer for address, answer in answers.items() if answer.status_code != 200}
    assert refused, "some page reads it"
    for address, answer in refused.items():
        assert answer.status_code == 503, address
        assert f"permission denied for table {table}" in answer.content.decode(), address
        assert "Give the database roles no more than they need" in answer.content.decode(), address
