"""Roles with nothing but the grants of the documentation send, wait, run, rescue and configure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection, transaction

from horsies_django import get_handle, queues, scheduling
from horsies_django.erasing import redact
from horsies_django.models import AuditEntry, ScheduleTick, Task, Worker, WorkerState
from tests.conftest import limit, wait_until
from tests.e2e.conftest import ROOT, WorkerProcess, database_url, held_by
from tests.factories import AuditEntryFactory, ScheduleTickFactory, WorkerFactory, WorkerStateFactory, now
from tests.project import tasks
from tests.store.test_retention import DAY, finished

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = ROOT / "docs" / "howto" / "database-role.md"
ROLES = ("site", "worker")
SENDING, OPERATING, CONFIGURING, SCHEDULING, REDACTING, WORKING = range(6)


def grants(page: Path) -> list[str]:
    """Return the blocks of the page, in the order of the constants above."""
    return re.findall(r"<!-- runs -->\n```sql\n(.*?)```", page.read_text(), re.DOTALL)


def as_role(role: str | None) -> None:
    """Let Django's connection, and those made like it, act as a role."""
    connection.close()
    if role is None:
        connection.settings_dict["OPTIONS"].pop("assume_role", None)
    else:
        connection.settings_dict["OPTIONS"]["assume_role"] = role


@pytest.fixture
def roles(transactional_db: None) -> Iterator[None]:
    """Two roles that own nothing and may do nothing yet."""
    with connection.cursor() as cursor:
        for role in ROLES:
            cursor.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{role}'")
    yield
    as_role(None)
    with connection.cursor() as cursor:
        for role in ROLES:
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")


def grant(*blocks: int) -> None:
    with connection.cursor() as cursor:
        for block in blocks:
            cursor.execute(grants(PAGE)[block])


def url_of(role: str) -> str:
    parts = urlsplit(database_url())
    return urlunsplit(parts._replace(netloc=f"{role}:{role}@{parts.netloc.rpartition('@')[2]}"))


def test_the_worker_runs_rescues_and_keeps_caps_under_its_grants(
    roles: None, worker: Callable[..., WorkerProcess]
) -> None:
    grant(SENDING, WORKING)
    with connection.cursor() as cursor:  # what the tasks of this test do themselves
        cursor.execute(
            "GRANT SELECT, INSERT, DELETE ON auth_group TO worker; GRANT USAGE ON auth_group_id_seq TO worker"
        )
    limit("default", max_concurrency=1)
    limit("mail", partition_by_args=["to"], partition_max_concurrency=1)
    environment = {"DATABASE_URL": url_of("worker"), "HORSIES_TEST_STALE_MS": "2500"}
    first = worker("--processes=1", **environment).ready()
    as_role("site")
    with transaction.atomic():
        lost, waits = tasks.hold.send("lost"), tasks.add.send(2, b=3)
        mails = [tasks.mail.send("a@example.com") for _ in range(3)]
    as_role(None)
    held_by("lost")
    first.signal(signal.SIGKILL)
    worker("--processes=2", **environment).ready()
    as_role("site")
    assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert waits.get(timeout_ms=30_000).ok_value == 5
    assert [mail.get(timeout_ms=30_000).ok_value for mail in mails] == ["sent to a@example.com"] * 3
    as_role(None)
    wait_until(lambda: not Task.objects.filter(finished_at=None).exists(), "all is done")


def test_the_site_changes_limits_under_its_grants_and_not_without_them(roles: None) -> None:
    grant(SENDING)
    as_role("site")
    with pytest.raises(Exception, match="permission denied"):
        queues.override("mail", {"max_concurrency": 1}, actor="somebody", reason="a test")
    as_role(None)
    grant(CONFIGURING)
    as_role("site")
    queues.override("mail", {"max_concurrency": 1}, actor="somebody", reason="a test")
    queues.change("mail", {"partition_by_args": ["to"], "partition_max_concurrency": 1}, actor="somebody")
    queues.pause("mail", actor="somebody")
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True))[-3:] == [
        "queue.override",
        "queue.set",
        "queue.pause",
    ]


def test_the_worker_deletes_what_is_old_and_notes_its_state_under_its_grants(
    roles: None, worker: Callable[..., WorkerProcess]
) -> None:
    grant(SENDING, WORKING)
    finished(31 * DAY, 3)
    long_ago = now() - 400 * DAY
    AuditEntryFactory(at=long_ago)
    AuditEntry.objects.filter(at__gt=long_ago).delete()
    WorkerStateFactory(snapshot_at=long_ago)
    ScheduleTickFactory(sent_at=long_ago)
    WorkerFactory(started_at=long_ago, seen_at=long_ago, stopped_at=long_ago)
    process = worker("--processes=1", DATABASE_URL=url_of("worker")).ready()
    swept = "retention deleted tasks: 3, slots of schedules: 1, snapshots"
    wait_until(lambda: swept in process.log, "the log tells of the sweep")
    wait_until(lambda: WorkerState.objects.filter(snapshot_at__gt=long_ago).exists(), "a snapshot is there")
    assert not AuditEntry.objects.filter(at=long_ago).exists()
    assert not Worker.objects.filter(started_at=long_ago).exists()
    assert "permission denied" not in process.log


def test_the_site_edits_schedules_and_a_worker_sends_them_under_their_grants(
    roles: None, worker: Callable[..., WorkerProcess]
) -> None:
    grant(SENDING, WORKING)
    definition = {"task": tasks.noop.name, "pattern": "every second"}
    as_role("site")
    with pytest.raises(Exception, match="permission denied"):
        scheduling.create("each second", definition, actor="somebody")
    as_role(None)
    grant(SCHEDULING)
    as_role("site")
    scheduling.create("each second", definition, actor="somebody")
    process = worker("--processes=1", "--with-scheduler", DATABASE_URL=url_of("worker")).ready()
    sent = wait_until(lambda: ScheduleTick.objects.first(), "a slot is sent")
    assert get_handle(sent.task_id).get(timeout_ms=30_000).is_ok()
    scheduling.disable("each second", actor="somebody")
    as_role(None)
    assert process.stop() == 0
    assert "permission denied" not in process.log


def test_the_site_redacts_tasks_under_its_grants_and_not_without_them(roles: None) -> None:
    grant(SENDING)
    (id_,) = finished()
    as_role("site")
    with pytest.raises(Exception, match="permission denied"):
        redact(id_, actor="somebody", reason="a test")
    as_role(None)
    grant(REDACTING)
    as_role("site")
    assert redact(id_, actor="somebody", reason="a test")
