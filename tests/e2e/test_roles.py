"""Roles with only the documented grants send, wait, run, rescue and configure."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection, transaction
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, get_handle, queues, schedules
from horsies_django.models import AuditEntry, ScheduleTick, Task, Worker, WorkerState
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.redaction import redact
from horsies_django.tasks.selection import act_on_all, matching
from tests.apps.project import flows, tasks
from tests.conftest import Claimer, Connect, limit, put, sql, wait_until
from tests.db.test_retention import DAY, finished
from tests.support import runs
from tests.support.factories import (
    AuditEntryFactory,
    HeartbeatFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    WorkerStateFactory,
    now,
)
from tests.support.workers import ROOT, Start, database_url, held_by

PAGE = ROOT / "docs" / "howto" / "database-role.md"
ROLES = ("site", "worker")
(
    SENDING,
    OPERATING,
    CONFIGURING,
    SCHEDULING,
    REDACTING,
    PURGING,
    FLOWING,
    CONTROLLING,
    WORKING,
    CONNECTING,
    LOCKING,
) = range(11)


def own(role: str) -> str:
    """Return the name of a role for this test process.

    Roles belong to the server, which other test processes use, too.
    """
    return f"{role}_{os.getpid()}"


def grants(page: Path) -> list[str]:
    """Return the blocks of the page with the roles of this process.

    They are in the order of the constants above.
    """
    blocks = re.findall(r"<!-- runs -->\n```sql\n(.*?)```", page.read_text(), re.DOTALL)
    return [
        re.sub(rf"\b({'|'.join(ROLES)})\b(?=[;,'])", lambda found: own(found[1]), block)
        for block in blocks
    ]


def as_role(role: str | None) -> None:
    """Make Django's connection, and connections made like it, act as a role."""
    connection.close()
    if role is None:
        connection.settings_dict["OPTIONS"].pop("assume_role", None)
    else:
        connection.settings_dict["OPTIONS"]["assume_role"] = own(role)


@pytest.fixture
def roles(transactional_db: None) -> Iterator[None]:
    """Create two roles that own nothing and have no rights."""
    with connection.cursor() as cursor:
        for role in map(own, ROLES):
            cursor.execute(
                f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{role}'"
            )

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
    """Check that the site is refused because a right is missing."""
    as_role("site")
    with pytest.raises(Exception, match="permission denied"):
        action()
    as_role(None)


def url_of(role: str) -> str:
    parts = urlsplit(database_url())
    return urlunsplit(
        parts._replace(netloc=f"{own(role)}:{own(role)}@{parts.netloc.rpartition('@')[2]}")
    )


def test_the_worker_does_its_work_under_its_grants(roles: None, worker: Start) -> None:
    """A worker does all of its work with its grants only.

    It runs tasks, rescues them, applies caps, deletes old rows and records its state.
    """
    grant(SENDING, WORKING)

    finished(31 * DAY, 3)
    (young,) = finished(29 * DAY)
    long_ago = now() - 400 * DAY
    AuditEntryFactory(pk=uuid.UUID(int=1), at=long_ago)  # ids ascend with time
    WorkerStateFactory(snapshot_at=long_ago)
    ScheduleTickFactory(sent_at=long_ago)
    WorkerFactory(started_at=long_ago, seen_at=long_ago, stopped_at=long_ago)

    # rights for the code of the tasks of this test
    sql(
        f"GRANT SELECT, INSERT, DELETE ON auth_group TO {own('worker')};"
        f"GRANT USAGE ON auth_group_id_seq TO {own('worker')}"
    )

    limit("default", max_concurrency=1)
    limit("mail", partition_by_args=["to"], partition_max_concurrency=1)
    environment = {"DATABASE_URL": url_of("worker"), "HORSIES_TEST_STALE_MS": "2500"}
    first = worker("--processes=1", **environment).ready()

    as_role("site")
    with transaction.atomic():
        lost = tasks.hold.send("lost")
        waits = tasks.add.send(2, b=3)
        mails = [tasks.mail.send("a@example.com") for _ in range(3)]
    as_role(None)

    held_by("lost")
    first.signal(signal.SIGKILL)
    second = worker("--processes=2", **environment, HORSIES_TEST_SNAPSHOT_MS="1000").ready()

    as_role("site")
    assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert waits.get(timeout_ms=30_000).ok_value == 5
    assert [mail.get(timeout_ms=30_000).ok_value for mail in mails] == ["sent to a@example.com"] * 3
    as_role(None)
    wait_until(lambda: not Task.objects.filter(finished_at=None).exists(), "all is done")

    # The first worker deletes some of these and is killed between two batches, or deletes all or
    # none.
    old = (
        Task.objects.filter(finished_at__lt=now() - 30 * DAY),
        AuditEntry.objects.filter(at=long_ago),
        WorkerState.objects.filter(snapshot_at=long_ago),
        ScheduleTick.objects.filter(sent_at=long_ago),
        Worker.objects.filter(started_at=long_ago),
    )
    wait_until(lambda: not any(rows.exists() for rows in old), "what is old is deleted")

    assert Task.objects.filter(pk=young).exists()
    noted = WorkerState.objects.filter(cpu_percent__isnull=False, children=2)
    wait_until(noted.exists, "a snapshot with the CPU")
    assert "permission denied" not in first.log + second.log


def limits(id_: Any) -> None:
    queues.override("mail", {"max_concurrency": 1}, actor="somebody", reason="a test")
    queues.change(
        "mail", {"partition_by_args": ["to"], "partition_max_concurrency": 1}, actor="somebody"
    )
    queues.pause("mail", actor="somebody")


def purges(id_: Any) -> None:
    for status in ("PENDING", "COMPLETED"):
        assert (
            sum(step.tasks for step in act_on_all(matching(status), "purge", actor="somebody")) == 1
        )


def redacts(id_: Any) -> None:
    assert redact(id_, actor="somebody", reason="a test")


@pytest.mark.parametrize(
    ("action", "block", "audited"),
    [
        (limits, CONFIGURING, ["queue.override", "queue.set", "queue.pause"]),
        (purges, PURGING, ["task.purge"]),
        (redacts, REDACTING, ["task.redact"]),
    ],
)
def test_the_site_acts_under_its_grants_and_not_without_them(
    roles: None, action: Callable[[Any], None], block: int, audited: list[str]
) -> None:
    grant(SENDING)
    put()
    (old,) = finished(2 * DAY)
    TaskAttemptFactory(task_id=old)

    refused(lambda: action(old))

    grant(block)
    as_role("site")
    action(old)

    assert set(audited) <= set(AuditEntry.objects.values_list("action", flat=True))


def everything_sent() -> None:
    """Send in every possible way, including a workflow with a map of values."""
    tasks.noop.send()
    tasks.noop.schedule(dt.timedelta(hours=1))
    tasks.noop.with_options(priority=7, good_until=dt.timedelta(hours=1)).send()
    tasks.noop.with_options(key="a key").send()
    tasks.mail.send("ada@example.com")
    tasks.mail.send_many([{"to": "b@example.com"}, {"to": "c@example.com"}])

    (old,) = Task.objects.filter(status="COMPLETED").values_list("pk", flat=True)
    TaskStore(connection).copy(old, uuid7())

    flow = Workflow("flow")
    flow.map(flows.plus, a=[1, 2], b=flow.add(flows.number, 2))
    flow.map(flows.plus, a=[1, 2], b=1)
    flow.send()


STATES = (
    "status",
    "ordered",
    "order_stop",
    "merged_into",
    "attempts_before",
    "claimed_by",
    "retry_count",
    "finished_at",
    "result",
    "error_code",
    "advanced_at",
    "parked",
    "cancel_requested_at",
    "terminate",
    "claim_generation",
)


def test_the_site_sends_in_every_way_but_inserts_no_state(roles: None) -> None:
    """Fails if: the page grants more or fewer columns than a send writes."""
    limit("mail", partition_by_args=["to"], partition_policy="coalesce")
    finished(DAY)
    grant(SENDING, FLOWING)

    as_role("site")
    everything_sent()

    assert Task.objects.filter(workflow_id__isnull=False).count() == 3
    for column in STATES:
        with (
            pytest.raises(ProgrammingError, match="permission denied for table horsies_tasks"),
            transaction.atomic(),
        ):
            sql(
                f"INSERT INTO horsies_tasks (id, {column}) SELECT id, {column} FROM horsies_tasks "
                "LIMIT 1"
            )


# The rights of each grant in SECURITY.md: statements that it allows, and some that it does not.
# SENDING is granted with each of them.
SEND = (
    "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs) "
    "VALUES (gen_random_uuid(), 'x', 'default', 'sync', '{}')"
)
STATUS = (
    "UPDATE horsies_tasks SET status = 'COMPLETED', claimed_by = NULL, finished_at = now(), "
    "result = '1', error_code = NULL"
)
PAUSE = "UPDATE horsies_queues SET paused_at = now() WHERE name = 'default'"
DECIDE = (
    "UPDATE horsies_workflow_nodes SET status = 'COMPLETED', decided_by = 'ada' WHERE signal IS "
    "NOT NULL"
)
SIGN = (
    "INSERT INTO horsies_audit (id, actor, action, subject) VALUES (gen_random_uuid(), 'somebody "
    "else', 'x', 'y')"
)
ODD_TIME = (
    "SET LOCAL horsies.pass = 'on'; UPDATE horsies_tasks SET finished_at = 'infinity' WHERE status "
    "= 'COMPLETED'"
)
DELETE = "DELETE FROM horsies_tasks WHERE status = 'PENDING'"
CREATE = "CREATE TABLE public.mine (id int)"
BEAT = "UPDATE horsies_heartbeats SET sent_at = now()"
TRIED: list[tuple[int, list[str], list[str]]] = [
    (
        SENDING,
        [
            SEND,
            SEND.replace("'x'", f"'{tasks.noop.name}'"),
            "UPDATE horsies_send_keys SET task_id = gen_random_uuid()",
            "UPDATE horsies_waiters SET expires_at = now()",
            "DELETE FROM horsies_waiters",
            "UPDATE horsies_lost_records SET what = 'nothing'",
        ],
        [
            STATUS,
            PAUSE,
            DECIDE,
            SIGN,
            DELETE,
            CREATE,
            BEAT,
            "INSERT INTO horsies_tasks (id, status) VALUES (gen_random_uuid(), 'RUNNING')",
            "UPDATE horsies_tasks SET priority = 1",
            "UPDATE horsies_schedules SET changes = '{}'",
            "DELETE FROM horsies_send_keys",
            "INSERT INTO horsies_workflows (id) VALUES (gen_random_uuid())",
            "INSERT INTO horsies_workflow_signals (id) VALUES (gen_random_uuid())",
            "DELETE FROM horsies_lost_records",
            "SELECT nextval('horsies_workflow_node_numbers')",
        ],
    ),
    (
        OPERATING,
        [
            STATUS,
            SIGN,
            ODD_TIME,
            "UPDATE horsies_tasks SET kwargs = '{\"other\": 1}', task_name = 'y', redacted_at = "
            "now()",
            "UPDATE horsies_tasks SET order_stop = 'stop', ordered = true WHERE status = 'FAILED'",
        ],
        [
            DELETE,
            PAUSE,
            DECIDE,
            "DELETE FROM horsies_audit",
            "UPDATE horsies_audit SET actor = 'nobody'",
        ],
    ),
    (
        CONFIGURING,
        [
            STATUS,
            SIGN,
            PAUSE,
            "UPDATE horsies_limits SET max_concurrency = 0",
            "DELETE FROM horsies_limits",
        ],
        [DELETE, DECIDE, "DELETE FROM horsies_queues"],
    ),
    (
        SCHEDULING,
        [SIGN, "UPDATE horsies_schedules SET changes = '{\"paused\": true}'"],
        [
            STATUS,
            PAUSE,
            DELETE,
            "DELETE FROM horsies_schedules",
            "UPDATE horsies_schedule_ticks SET task_id = NULL",
        ],
    ),
    (
        REDACTING,
        [
            STATUS,
            SIGN,
            "UPDATE horsies_task_attempts SET error_message = NULL",
            "DELETE FROM horsies_task_steps",
            "DELETE FROM horsies_send_keys",
        ],
        [DELETE, PAUSE, "DELETE FROM horsies_task_attempts"],
    ),
    (
        PURGING,
        [
            STATUS,
            SIGN,
            DELETE,
            "DELETE FROM horsies_task_attempts",
            "DELETE FROM horsies_task_steps",
        ],
        [PAUSE, DECIDE, "UPDATE horsies_task_attempts SET error_message = NULL"],
    ),
    (
        FLOWING,
        [
            DECIDE,
            "UPDATE horsies_workflow_nodes SET kwargs = '{}', task_name = 'y'",
            "UPDATE horsies_workflows SET status = 'FAILED', finished_at = now(), error_code = 'X'",
            "INSERT INTO horsies_workflow_signals SELECT * FROM horsies_workflow_signals WHERE "
            "false",
        ],
        [
            STATUS,
            PAUSE,
            DELETE,
            SIGN,
            "DELETE FROM horsies_workflows",
            "DELETE FROM horsies_workflow_nodes",
            "UPDATE horsies_workflow_edges SET upstream = 1",
            "UPDATE horsies_workflow_signals SET seen_at = now()",
        ],
    ),
    (
        CONTROLLING,
        [STATUS, DELETE, SIGN, "UPDATE horsies_workflow_signals SET seen_at = now()"],
        [PAUSE, DECIDE, "DELETE FROM horsies_workflow_signals"],
    ),
]


@pytest.mark.parametrize(("block", "allowed", "denied"), TRIED)
def test_a_grant_allows_no_more_than_the_page_about_security(
    roles: None, block: int, allowed: list[str], denied: list[str]
) -> None:
    """A grant allows the statements that the page about security names, and no others.

    Fails if: a grant of the page gives a right that SECURITY.md does not mention.
    """
    limit("default", max_concurrency=1)
    TaskFactory()
    finished(DAY)
    failed = TaskFactory(status="FAILED", queue_name="default")
    TaskAttemptFactory(task_id=failed.pk)

    flow = Workflow("flow")
    flow.gate("approve", timeout=60, permission="auth.add_user")
    flow.send()
    grant(SENDING, block)

    as_role("site")
    for statement in allowed:
        with transaction.atomic():
            sql(statement)
            transaction.set_rollback(True)

    for statement in denied:
        with (
            pytest.raises(ProgrammingError, match="permission denied|must be owner"),
            transaction.atomic(),
        ):
            sql(statement)


def test_the_grant_of_workers_is_limited_to_the_queue_tables(roles: None) -> None:
    """The grant of workers allows neither DDL nor access to the tables of other apps.

    Fails if: the role of a worker gets more than the tables of the queue.
    """
    grant(WORKING)

    as_role("worker")
    for statement in (
        CREATE,
        "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SELECT FROM auth_user",
        "TRUNCATE horsies_tasks",
        "ALTER TABLE horsies_tasks DISABLE TRIGGER ALL",
        "SET session_replication_role = 'replica'",
    ):
        with (
            pytest.raises(ProgrammingError, match="permission denied|must be owner"),
            transaction.atomic(),
        ):
            sql(statement)


def test_the_site_edits_schedules_under_its_grants(roles: None, worker: Start) -> None:
    """The site edits schedules and a worker sends their tasks, both with their grants only."""
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


def test_the_site_controls_workflows_only_under_its_grants(roles: None, worker: Start) -> None:
    """The site sends and controls workflows with its grants, and is refused without them."""

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
    done = waits.add(flows.anything, first, after=waits.sleep(0), undo=flows.unact)
    late = waits.add(flows.number.with_options(delay=3_600), 2, after=done, name="late")
    waits.add(flows.number, 3, after=late, name="never")
    waiting = waits.send()
    waiting.signal("go", 7)

    refused(handle.pause)
    refused(lambda: waiting.approve("approve", actor="ada"))

    grant(CONTROLLING)
    as_role("site")
    assert handle.pause()
    assert handle.resume()
    waiting.approve("approve", actor="ada")
    waiting.skip("never")

    process = worker("--processes=1", DATABASE_URL=url_of("worker")).ready()
    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"
    handle.retry()
    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKFLOW_FAILED"
    assert handle.progress().completed == 5
    assert not handle.cancel()

    sent = Task.objects.filter(workflow_id=waiting.workflow_id)
    wait_until(lambda: sent.count() == 2, "the node after the one that has completed was sent")
    assert waiting.cancel()
    assert waiting.get(timeout_ms=30_000).err_value.data["undone"] == 1

    as_role(None)
    assert "permission denied" not in process.log


@pytest.fixture
def stranger(roles: None) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Return a function that connects as a role without any grant."""
    opened = []
    sql(f"CREATE ROLE {own('stranger')} LOGIN NOSUPERUSER PASSWORD '{own('stranger')}'")

    def connect_() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(url_of("stranger"), autocommit=True))
        return opened[-1]

    yield connect_

    for item in opened:
        item.close()
    sql(f"DROP OWNED BY {own('stranger')}; DROP ROLE {own('stranger')}")


# The caps of the queue "default" are counted under this lock; see
# functions/caps/horsies_lock_caps.sql.
LOCK_OF_THE_QUEUE = (
    "SELECT pg_advisory_lock(hashtextextended('default', 'horsies_tasks'::regclass::oid::bigint))"
)
UNLOCK = "SELECT pg_advisory_unlock_all()"


def test_a_role_without_grants_reads_sends_and_changes_nothing(stranger: Any) -> None:
    put()
    someone = stranger()

    for statement in (
        "SELECT FROM horsies_tasks",
        "DELETE FROM horsies_tasks",
        "LOCK TABLE horsies_limits IN ACCESS SHARE MODE",
        "SELECT horsies_cancel(ARRAY[gen_random_uuid()], true, 'x')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), someone.transaction():
            someone.execute(statement)


def test_a_role_without_grants_cannot_lock_queues_after_a_revoke(
    stranger: Any, connect: Connect
) -> None:
    """A role without grants can block queues with limits, until the REVOKE of the page.

    The page describes both.
    """
    grant(SENDING, WORKING)
    limit("default", max_concurrency=2)

    someone = stranger()
    conn = connect()
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
        for function in (
            "pg_advisory_lock(1)",
            "pg_try_advisory_lock(1, 2)",
            "pg_try_advisory_xact_lock_shared(1)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                someone.execute(f"SELECT {function}")

        assert len(worker_.run_pass(sync=1).claims) == 1
        assert worker_.run_pass(sync=1).claims == [], "and the cap holds"
    finally:
        sql(grants(PAGE)[LOCKING].replace("REVOKE", "GRANT").replace("FROM PUBLIC", "TO PUBLIC"))


def test_a_role_without_grants_cannot_connect_after_a_revoke(
    stranger: Any, connect: Connect
) -> None:
    """A role without grants cannot connect where CONNECT was revoked."""
    grant(SENDING)
    (database,) = connect().execute("SELECT current_database()").fetchall()[0]
    stranger()

    try:
        sql(grants(PAGE)[CONNECTING].replace("DATABASE shop", f'DATABASE "{database}"'))
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            stranger()
        for role in ROLES:
            psycopg.connect(url_of(role)).close()
    finally:
        sql(f'GRANT CONNECT ON DATABASE "{database}" TO PUBLIC')


# Refusals of the database in the admin, with real roles, locks and read-only sessions: the admin
# answers with a message, never with an error page

LIST = reverse("admin:horsies_task_changelist")
ACTIONS = ("cancel_tasks", "terminate_tasks", "retry_tasks")
TABLES = (
    "horsies_tasks",
    "horsies_task_attempts",
    "horsies_queues",
    "horsies_workers",
    "horsies_heartbeats",
    "horsies_worker_states",
    "horsies_audit",
    "horsies_schedules",
    "horsies_schedule_ticks",
    "horsies_workflows",
    "horsies_workflow_nodes",
    "horsies_workflow_edges",
)
OF_DJANGO = (
    "auth_user, auth_group, auth_permission, auth_user_groups, auth_user_user_permissions, "
    "auth_group_permissions, "
    "django_content_type, django_session"
)
WORDS = {  # cause of the refusal: message of the admin
    "no grant": [
        "The database refused: permission denied for table horsies_tasks. The site's database role "
        "lacks",
        "“Give the database roles no more than they need”",
    ],
    "read-only": ["read-only transaction", "Use the site that is connected to the primary."],
}


@pytest.fixture(params=[False, True], ids=["own transactions", "ATOMIC_REQUESTS"])
def boss(
    request: pytest.FixtureRequest, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Client:
    """Return a superuser's client, for requests with or without ``ATOMIC_REQUESTS``."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def grant_site(*pages: Any) -> None:
    """Grant the site the rights that Django needs, and these parts of the page about roles."""
    grant(SENDING, *pages)
    sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {OF_DJANGO} TO {own('site')}")


def act(client: Client, action: str, *rows: Task, **answer: Any) -> list[tuple[str, str]]:
    """Run an action, and return the message of the admin."""
    data = {"action": action, "_selected_action": [str(row.pk) for row in rows], **answer}
    response = client.post(LIST, data, follow=True)
    assert response.status_code == 200
    return [(message.level_tag, str(message)) for message in response.context["messages"]]


def rows(task: Task) -> list[Any]:
    return [Task.objects.values().get(pk=task.pk), Task.objects.count(), AuditEntry.objects.count()]


def a_task(action: str) -> Task:
    status = "FAILED" if action == "retry_tasks" else "PENDING"
    return TaskFactory(status=status)  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", WORDS)
def test_an_action_reports_why_the_database_refused_it(
    roles: None, boss: Client, what: str
) -> None:
    """An action that the database refuses changes nothing, and its message gives the reason."""
    grant_site()
    given = {action: a_task(action) for action in ACTIONS}
    before = [rows(task) for task in given.values()]

    if what == "no grant":
        as_role("site")
    else:
        sql("SET default_transaction_read_only = on")

    for action, task in given.items():
        ((level, text),) = act(boss, action, task)
        assert level == "error"
        assert all(words in text for words in WORDS[what])

    as_role(None)
    assert [rows(task) for task in given.values()] == before


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_skips_and_reports_a_locked_task(
    boss: Client, connect: Connect, action: str
) -> None:
    """An action skips a task that another session has locked, and its message reports it."""
    locked = a_task(action)
    other = a_task(action)

    with connect() as keeper, keeper.transaction():
        keeper.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [locked.pk])

        ((level, text),) = act(boss, action, locked)
        assert (level, text.partition(": ")[2]) == ("warning", "LOCKED: 1")

        ((level, text),) = act(boss, action, locked, other)
        assert (level, "LOCKED: 1" in text) == ("success", True)

    ((level, text),) = act(boss, action, locked)
    assert (level, "LOCKED" in text) == ("success", False)


def test_the_actions_do_their_work_under_the_grants_of_the_page(roles: None, boss: Client) -> None:
    grant_site(OPERATING)
    waiting = TaskFactory()
    failed = TaskFactory(status="FAILED")
    running = TaskFactory(status="RUNNING")
    as_role("site")

    for action, task, told in (
        ("cancel_tasks", waiting, "Cancel: CANCELLED: 1"),
        (
            "terminate_tasks",
            running,
            "Cancel, and kill the processes of tasks that do not stop: REQUESTED: 1",
        ),
        ("copy_tasks", failed, "Send a copy: COPIED: 1"),
        ("retry_tasks", failed, "Retry: RETRIED: 1"),
    ):
        assert act(boss, action, task) == [("success", told)]

    assert tasks.noop.send().cancel() == "CANCELLED"
    as_role(None)
    assert Task.objects.get(pk=running.pk).terminate

    actions = (
        AuditEntry.objects.filter(action__startswith="task.")
        .order_by("pk")
        .values_list("action", flat=True)
    )
    assert list(actions) == ["task.cancel", "task.terminate", "task.copy", "task.retry"]


def test_an_action_keeps_the_lock_timeout_of_the_request(boss: Client) -> None:
    """An action does not change the lock timeout of the request."""
    sql("SET lock_timeout = '7s'")

    act(boss, "cancel_tasks", TaskFactory())

    assert sql("SHOW lock_timeout") == [("7s",)]
    sql("RESET lock_timeout")


@pytest.mark.parametrize("table", TABLES)
def test_a_page_reports_a_missing_read_permission(roles: None, boss: Client, table: str) -> None:
    grant_site()
    worker = WorkerFactory()
    HeartbeatFactory(worker_id=worker.pk)
    running = TaskFactory(status="RUNNING", claimed_by=worker.pk)
    failed = TaskFactory(status="FAILED", claimed_by=worker.pk)
    TaskAttemptFactory(task_id=failed.pk, worker_id=worker.pk)

    schedules.create("hourly", {"task": tasks.noop.name, "pattern": "every hour"}, actor="somebody")
    run = runs.sent().workflow_id
    entry = AuditEntry.objects.latest("pk")

    shown = {
        "task": running.pk,
        "queue": "default",
        "schedule": "hourly",
        "worker": worker.pk,
        "auditentry": entry.pk,
    }
    shown["workflowrun"] = run

    forms = {
        "task_change": failed.pk,
        "queue_override": "default",
        "schedule_edit": "hourly",
        "workflowrun_pause": run,
    }
    forms |= {f"{name}_change": key for name, key in shown.items()}

    addresses = [reverse(f"admin:horsies_{name}_changelist") for name in shown]
    addresses += [reverse(f"admin:horsies_{name}", args=(key,)) for name, key in forms.items()]
    addresses += [reverse("admin:horsies_workflowrun_node", args=(run, 0))]

    sql(f"REVOKE SELECT ON {table} FROM {own('site')}")
    as_role("site")
    answers = {address: boss.get(address) for address in addresses}
    as_role(None)

    refused = {address: answer for address, answer in answers.items() if answer.status_code != 200}
    assert refused, "some page reads it"
    for address, answer in refused.items():
        assert answer.status_code == 503, address
        assert f"permission denied for table {table}" in answer.content.decode(), address
        assert "Give the database roles no more than they need" in answer.content.decode(), address
