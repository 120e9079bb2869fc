"""Roles with nothing but the grants of the documentation send, wait, run, rescue and configure."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.db import connection, transaction

from horsies_django import Workflow, get_handle, queues, schedules
from horsies_django.models import AuditEntry, ScheduleTick, Task, Worker, WorkerState
from horsies_django.tasks.redaction import redact
from horsies_django.tasks.selection import act_on_all, matching
from tests.apps.project import flows, tasks
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.test_retention import DAY, finished
from tests.support.factories import (
    AuditEntryFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    WorkerFactory,
    WorkerStateFactory,
    now,
)
from tests.support.workers import ROOT, Start, database_url, held_by

PAGE = ROOT / "docs" / "howto" / "database-role.md"
ROLES = ("site", "worker")
SENDING, OPERATING, CONFIGURING, SCHEDULING, REDACTING, PURGING, FLOWING, CONTROLLING, WORKING, CONNECTING, LOCKING = (
    range(11)
)


def own(role: str) -> str:
    """Return a role's name in this process of the tests: roles belong to the server, which other processes use, too."""
    return f"{role}_{os.getpid()}"


def grants(page: Path) -> list[str]:
    """Return the blocks of the page, in the order of the constants above, for the roles of this process."""
    blocks = re.findall(r"<!-- runs -->\n```sql\n(.*?)```", page.read_text(), re.DOTALL)
    return [re.sub(rf"\b({'|'.join(ROLES)})\b(?=[;,'])", lambda found: own(found[1]), block) for block in blocks]


def as_role(role: str | None) -> None:
    """Let Django's connection, and those made like it, act as a role."""
    connection.close()
    if role is None:
        connection.settings_dict["OPTIONS"].pop("assume_role", None)
    else:
        connection.settings_dict["OPTIONS"]["assume_role"] = own(role)


@pytest.fixture
def roles(transactional_db: None) -> Iterator[None]:
    """Two roles that own nothing and may do nothing yet."""
    with connection.cursor() as cursor:
        for role in map(own, ROLES):
            cursor.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{role}'")
    yield
    as_role(None)
    with connection.cursor() as cursor:
        for role in map(own, ROLES):
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")


def grant(*blocks: int) -> None:
    with connection.cursor() as cursor:
        for block in blocks:
            cursor.execute(grants(PAGE)[block])


def refused(action: Callable[[], Any]) -> None:
    """See the site refused for want of a right."""
    as_role("site")
    with pytest.raises(Exception, match="permission denied"):
        action()
    as_role(None)


def url_of(role: str) -> str:
    parts = urlsplit(database_url())
    return urlunsplit(parts._replace(netloc=f"{own(role)}:{own(role)}@{parts.netloc.rpartition('@')[2]}"))


def test_the_worker_runs_rescues_and_keeps_caps_under_its_grants(roles: None, worker: Start) -> None:
    grant(SENDING, WORKING)
    with connection.cursor() as cursor:  # what the tasks of this test do themselves
        cursor.execute(
            f"GRANT SELECT, INSERT, DELETE ON auth_group TO {own('worker')};"
            f"GRANT USAGE ON auth_group_id_seq TO {own('worker')}"
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
    def override() -> None:
        queues.override("mail", {"max_concurrency": 1}, actor="somebody", reason="a test")

    grant(SENDING)
    refused(override)
    grant(CONFIGURING)
    as_role("site")
    override()
    queues.change("mail", {"partition_by_args": ["to"], "partition_max_concurrency": 1}, actor="somebody")
    queues.pause("mail", actor="somebody")
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions[-3:] == ["queue.override", "queue.set", "queue.pause"]


def test_the_site_purges_tasks_under_its_grants_and_not_without_them(roles: None) -> None:
    grant(SENDING)
    put(2)
    (old,) = finished(2 * DAY)
    TaskAttemptFactory(task_id=old)

    def purge(status: str) -> dict[str, int]:
        steps = [step.verdicts for step in act_on_all(matching(status), "purge", actor="somebody")]
        return {verdict: many for verdicts in steps for verdict, many in verdicts.items()}

    refused(lambda: purge("PENDING"))
    grant(PURGING)
    as_role("site")
    assert purge("COMPLETED") == {"DELETED": 1}
    assert purge("PENDING") == {"CANCELLED": 2}
    assert set(Task.objects.values_list("status", flat=True)) == {"CANCELLED"}


def test_the_worker_deletes_what_is_old_and_notes_its_state_under_its_grants(roles: None, worker: Start) -> None:
    grant(SENDING, WORKING)
    finished(31 * DAY, 3)
    (young,) = finished(29 * DAY)
    long_ago = now() - 400 * DAY
    AuditEntryFactory(at=long_ago)
    AuditEntry.objects.filter(at__gt=long_ago).delete()
    WorkerStateFactory(snapshot_at=long_ago)
    ScheduleTickFactory(sent_at=long_ago)
    WorkerFactory(started_at=long_ago, seen_at=long_ago, stopped_at=long_ago)
    environment = {"DATABASE_URL": url_of("worker"), "HORSIES_TEST_SNAPSHOT_MS": "1000"}
    process = worker("--processes=1", **environment).ready()
    swept = "retention deleted tasks: 3, fire times of schedules: 1, snapshots"
    wait_until(lambda: swept in process.log, "the log tells of the round")
    wait_until(lambda: WorkerState.objects.filter(snapshot_at__gt=long_ago).exists(), "a snapshot is there")
    wait_until(lambda: WorkerState.objects.filter(cpu_percent__isnull=False).exists(), "and one with the CPU")
    last = WorkerState.objects.latest("pk")
    assert last.children == 1
    assert last.memory_usage_mb > 10
    assert last.children_memory_mb > 10
    assert list(Task.objects.values_list("pk", flat=True)) == [young]
    assert not AuditEntry.objects.filter(at=long_ago).exists()
    assert not Worker.objects.filter(started_at=long_ago).exists()
    assert "permission denied" not in process.log


def test_the_site_edits_schedules_and_a_worker_sends_them_under_their_grants(roles: None, worker: Start) -> None:
    grant(SENDING, WORKING)
    definition = {"task": tasks.noop.name, "pattern": "every second"}
    refused(lambda: schedules.create("each second", definition, actor="somebody"))
    grant(SCHEDULING)
    as_role("site")
    schedules.create("each second", definition, actor="somebody")
    process = worker("--processes=1", "--with-scheduler", DATABASE_URL=url_of("worker")).ready()
    sent = wait_until(lambda: ScheduleTick.objects.first(), "a fire time is sent")
    assert get_handle(sent.task_id).get(timeout_ms=30_000).is_ok()
    schedules.disable("each second", actor="somebody")
    as_role(None)
    assert process.stop() == 0
    assert "permission denied" not in process.log


def test_the_site_redacts_tasks_under_its_grants_and_not_without_them(roles: None) -> None:
    grant(SENDING)
    (id_,) = finished()
    refused(lambda: redact(id_, actor="somebody", reason="a test"))
    grant(REDACTING)
    as_role("site")
    assert redact(id_, actor="somebody", reason="a test")


def test_the_site_sends_and_controls_workflows_under_its_grants_and_not_without_them(
    roles: None, worker: Start
) -> None:
    def build() -> Workflow:
        flow = Workflow("flow")
        first = flow.add(flows.grows, 2)
        flow.map(flows.plus, a=[1, 2], b=first)
        flow.add(flows.broken)
        return flow

    grant(SENDING)
    refused(lambda: build().send())
    grant(FLOWING, WORKING)
    as_role("site")
    handle = build().send()
    waits = Workflow("waits")
    first = waits.signal("go")
    waits.gate("approve", timeout=60)
    waits.add(flows.anything, first, after=waits.sleep(0))
    waiting = waits.send()
    waiting.signal("go", 7)
    refused(handle.pause)
    refused(lambda: waiting.approve("approve", actor="ada"))
    grant(CONTROLLING)
    as_role("site")
    assert handle.pause()
    assert handle.resume()
    waiting.approve("approve", actor="ada")
    process = worker("--processes=1", DATABASE_URL=url_of("worker")).ready()
    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"
    handle.retry()
    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"
    assert handle.progress().completed == 5
    assert waiting.get(timeout_ms=30_000).is_ok()
    assert not handle.cancel()
    flow = Workflow("undone")
    first = flow.add(flows.number, 1, undo=flows.note_undo)
    late = flow.add(flows.number.with_options(delay=3_600), 2, after=first, name="late")
    flow.add(flows.number, 3, after=late, name="never")
    handle = flow.send()
    handle.skip("never")
    wait_until(lambda: handle.progress().completed == 1, "its first node has completed")
    wait_until(lambda: Task.objects.filter(workflow_id=handle.workflow_id).count() == 2, "the run was advanced")
    assert handle.cancel()
    assert handle.get(timeout_ms=30_000).err_value.data["undone"] == 1
    as_role(None)
    assert "permission denied" not in process.log


@pytest.fixture
def stranger(roles: None) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Give a function that connects as a role without any grant."""
    opened = []
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {own('stranger')} LOGIN NOSUPERUSER PASSWORD '{own('stranger')}'")

    def connect_() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(url_of("stranger"), autocommit=True))
        return opened[-1]

    yield connect_
    for item in opened:
        item.close()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {own('stranger')}; DROP ROLE {own('stranger')}")


# The caps of the queue "default" are counted under it; see functions/caps/horsies_lock_caps.sql.
LOCK_OF_THE_QUEUE = "SELECT pg_advisory_lock(hashtextextended('default', 'horsies_tasks'::regclass::oid::bigint))"
UNLOCK = "SELECT pg_advisory_unlock_all()"


def test_a_role_without_grants_reads_sends_and_changes_nothing(stranger: Any) -> None:
    put()
    someone = stranger()
    for statement in (
        "SELECT FROM horsies_tasks", "DELETE FROM horsies_tasks", "LOCK TABLE horsies_limits IN ACCESS SHARE MODE",
        "SELECT horsies_cancel(ARRAY[gen_random_uuid()], true, 'x')",
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.InsufficientPrivilege), someone.transaction():
            someone.execute(statement)


def test_a_role_without_grants_can_hold_up_queues_with_limits_and_is_kept_from_it_as_the_page_says(
    stranger: Any, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    grant(SENDING, WORKING)
    limit("default", max_concurrency=2)
    someone, conn = stranger(), connect()
    conn.execute(f"SET ROLE {own('worker')}")
    conn.execute("SET statement_timeout = '500ms'")
    worker_ = Claimer(conn)
    put(3)
    someone.execute(LOCK_OF_THE_QUEUE)
    with pytest.raises(psycopg.errors.QueryCanceled):
        worker_.run_pass(sync=1)
    someone.execute(UNLOCK)
    assert len(worker_.run_pass(sync=1).claims) == 1, "nothing is lost"

    try:
        grant(LOCKING)
        for function in ("pg_advisory_lock(1)", "pg_try_advisory_lock(1, 2)", "pg_try_advisory_xact_lock_shared(1)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                someone.execute(f"SELECT {function}")
        assert len(worker_.run_pass(sync=1).claims) == 1
        assert worker_.run_pass(sync=1).claims == [], "and the cap holds"
    finally:
        with connection.cursor() as cursor:
            cursor.execute(grants(PAGE)[LOCKING].replace("REVOKE", "GRANT").replace("FROM PUBLIC", "TO PUBLIC"))


def test_a_role_without_grants_can_notify_whatever_is_revoked_but_not_from_another_database(
    stranger: Any, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    grant(SENDING)
    hearer, someone = connect(), stranger()
    hearer.execute("LISTEN horsies_test")
    (database,) = hearer.execute("SELECT current_database()").fetchall()[0]
    with connection.cursor() as cursor:
        cursor.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
        try:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                someone.execute("SELECT pg_notify('horsies_test', 'by the function')")
            someone.execute("NOTIFY horsies_test, 'by the command'")
            as_role("site")
            with pytest.raises(Exception, match="permission denied for function pg_notify"):
                tasks.noop.send()
        finally:
            as_role(None)
            with connection.cursor() as owner:
                owner.execute("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC")
    assert [heard.payload for heard in hearer.notifies(timeout=10, stop_after=1)] == ["by the command"]
    try:
        with connection.cursor() as cursor:
            cursor.execute(grants(PAGE)[CONNECTING].replace("DATABASE shop", f'DATABASE "{database}"'))
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            stranger()
        for role in ROLES:
            psycopg.connect(url_of(role)).close()
        someone.execute("NOTIFY horsies_test, 'sessions that are connected already stay'")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'GRANT CONNECT ON DATABASE "{database}" TO PUBLIC')
    elsewhere = urlunsplit(urlsplit(url_of("stranger"))._replace(path="/postgres"))
    with psycopg.connect(elsewhere, autocommit=True) as neighbour:
        list(hearer.notifies(timeout=1, stop_after=1))
        neighbour.execute("NOTIFY horsies_test, 'from the neighbour'")
    hearer.execute("NOTIFY horsies_test, 'the last'")
    assert [heard.payload for heard in hearer.notifies(timeout=10, stop_after=1)] == ["the last"]
