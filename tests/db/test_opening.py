"""Connections of the queue are opened by the project's own backend and receivers, and are then used without Django.

Whoever meets a database in which 'migrate' did not run is told to run it.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import InternalError, ProgrammingError, connection, connections, transaction
from django.db.backends.signals import connection_created
from psycopg.rows import dict_row

from horsies_django import TaskSendError, explain, get_handle, queues, schedules
from horsies_django.models import Task
from horsies_django.store import notify
from horsies_django.store.base import NotMigrated
from horsies_django.store.notify import direct_connection
from horsies_django.tasks import operations
from tests.apps.connector.base import INSTANCE
from tests.apps.project import tasks
from tests.conftest import Connect, sql, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "horsies test of opening"
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


def opened() -> psycopg.Connection[Any]:
    return direct_connection("default", application_name=NAME, prepare=True)


@contextmanager
def receiving(receiver: Callable[..., Any]) -> Iterator[None]:
    """Let a function be the project's receiver of new connections."""
    connection_created.connect(receiver)
    try:
        yield
    finally:
        connection_created.disconnect(receiver)


@pytest.fixture
def own(settings: Any) -> Iterator[dict[str, Any]]:
    """Give the settings of an alias "own", whose backend opens connections itself."""
    default = connections.databases["default"]
    settings.CONNECTOR_HOST = default["HOST"]
    connections.databases["own"] = {**default, "ENGINE": "tests.apps.connector", "HOST": INSTANCE, "OPTIONS": {}}
    yield connections.databases["own"]
    del connections.databases["own"]
    if hasattr(connections._connections, "own"):
        del connections["own"]


def test_a_backend_opens_the_connection_without_pool_and_the_session_is_that_of_the_queue(own: dict[str, Any]) -> None:
    own["AUTOCOMMIT"] = False
    own["OPTIONS"] = {
        "pool": True, "isolation_level": psycopg.IsolationLevel.SERIALIZABLE, "prepare_threshold": 7,
        "options": "-c lock_timeout=5 -c default_transaction_isolation=serializable",
    }  # fmt: skip
    with direct_connection("own", application_name=NAME, prepare=True, statement_timeout_ms=4_000) as conn:
        shown = [
            conn.execute(f"SHOW {name}").fetchall()[0][0]
            for name in ("transaction_isolation", "lock_timeout", "statement_timeout", "application_name")
        ]
        with conn.transaction():
            assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        values = conn.execute("""SELECT '{"a": 1}'::jsonb, '2026-01-02 03:04Z'::timestamptz""").fetchone()
        prepared = conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert shown == ["read committed", "0", "4s", NAME]
    assert values == ({"a": 1}, dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC))
    assert prepared is not None
    assert prepared[0] > 0
    assert "own" not in type(connections["own"])._connection_pools
    assert connections["own"].connection is None


def test_a_receiver_finds_the_new_connection_under_its_alias_and_nobody_finds_it_afterwards() -> None:
    connection.ensure_connection()
    before, found = connection.connection, []

    def choose_schema(connection: Any, **kwargs: Any) -> None:
        connections["default"].cursor().execute("SET search_path = %s, public", ["horsies_test"])
        connection.connection.row_factory = dict_row
        connection.set_autocommit(False)
        found.append(connections["default"] is connection)

    with receiving(choose_schema), opened() as conn:
        assert found == [True]
        assert connection.connection is before
        assert conn.autocommit
        connections.close_all()
        assert conn.execute("SHOW search_path").fetchone() == ("horsies_test, public",)


def broken(connection: Any, **kwargs: Any) -> None:
    raise LookupError("no such tenant")


def refused(connection: Any, **kwargs: Any) -> None:
    connection.cursor().execute("SELECT 1 FROM no_such_table")


def begins(connection: Any, **kwargs: Any) -> None:
    connection.cursor().execute("BEGIN")


class Away:
    def __call__(self, connection: Any, **kwargs: Any) -> None:
        raise psycopg.OperationalError("the directory of tenants does not answer")


@pytest.mark.parametrize(
    ("receiver", "kind", "said"),
    [
        (broken, psycopg.ProgrammingError, "broken .* LookupError: no such tenant"),
        (refused, psycopg.ProgrammingError, 'refused .* "no_such_table" does not exist'),
        (Away(), psycopg.OperationalError, "Away object .* of tenants does not answer"),
        (begins, psycopg.ProgrammingError, ""),
    ],
    ids=["broken", "refused", "away", "begins"],
)
def test_a_receiver_that_raises_or_leaves_a_transaction_is_told_and_no_connection_stays_open(
    connect: Connect, receiver: Callable[..., Any], kind: type[Exception], said: str
) -> None:
    words = f"the receiver <?tests.db.test_opening.{said}.*begins with 'horsies'" if said else "left a transaction open"
    with receiving(receiver), pytest.raises(kind, match=f"(?s){words}"):
        opened()
    watching = connect()
    wait_until(lambda: watching.execute(OPEN, [NAME]).fetchone() == (0,), "the connection is closed")


def test_a_password_that_the_server_refuses_or_the_backend_does_not_get_is_a_database_that_is_away(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_token(self: Any, parameters: Any) -> Any:
        raise TimeoutError("no token")

    own["PASSWORD"], own["USER"] = "wrong", "nobody of this name"
    with pytest.raises(psycopg.OperationalError, match="nobody of this name"):
        direct_connection("own", application_name=NAME)
    monkeypatch.setattr(type(connections["own"]), "get_new_connection", no_token)
    with pytest.raises(psycopg.OperationalError, match="backend of 'own' raised TimeoutError: no token"):
        direct_connection("own", application_name=NAME)


def test_a_receiver_that_waits_for_ever_is_cut(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SET_UP_SECONDS", 0.3)
    holder = connect()
    holder.execute("SELECT pg_advisory_lock(471100)")

    def waits(connection: Any, **kwargs: Any) -> None:
        connection.cursor().execute("SELECT pg_advisory_lock(471100)")

    with (
        receiving(waits),
        pytest.raises(psycopg.OperationalError, match=r"test_opening.*\.waits of connection_created"),
    ):
        opened()


def test_what_waits_for_a_result_polls_while_a_receiver_raises(caplog: pytest.LogCaptureFixture) -> None:
    handle = tasks.add.send(1)
    with receiving(broken):
        assert handle.get(timeout_ms=300).err_value.error_code == "WAIT_TIMEOUT"
    assert "callers poll instead: the receiver tests.db.test_opening.broken" in caplog.text


MIGRATE = "run 'python manage.py migrate'$"


@pytest.fixture
def unmigrated() -> Iterator[None]:
    """Have Django's connection look into an empty schema."""
    sql("CREATE SCHEMA nothing; SET search_path = nothing")
    yield
    sql("RESET search_path; DROP SCHEMA nothing")


SENDS: dict[str, Callable[[], Any]] = {
    "send": lambda: tasks.add.send(1),
    "schedule": lambda: tasks.add.schedule(60, 1),
    "send_many": lambda: tasks.add.send_many([{"a": 1}, {"a": 2}]),
    "send_many in portions": lambda: tasks.add.send_many([{"a": number} for number in range(6_000)]),
    "asend": lambda: async_to_sync(tasks.add.asend)(1),
}
ID = uuid.UUID("0193a000-0000-7000-8000-000000000000")
CALLS: dict[str, Callable[[], Any]] = {
    "get": lambda: get_handle(ID).get(timeout_ms=1_000),
    "aget": lambda: async_to_sync(get_handle(ID).aget)(1_000),
    "cancel": lambda: get_handle(ID).cancel(),
    "retry": lambda: operations.retry(ID, actor="ann"),
    "explain": lambda: explain(ID),
    "pause": lambda: queues.pause("mail", actor="ann"),
    "create": lambda: schedules.create("x", {"pattern": "* * * * *", "task": tasks.noop.name}, actor="ann"),
}


@pytest.mark.parametrize("verb", SENDS)
def test_a_send_into_an_unmigrated_database_is_a_send_error_that_says_migrate(unmigrated: None, verb: str) -> None:
    with pytest.raises(TaskSendError, match=f"the database 'default' does not have the tables .*: {MIGRATE}") as caught:
        SENDS[verb]()
    assert (caught.value.code, caught.value.retryable) == ("ENQUEUE_FAILED", True)


@pytest.mark.parametrize("call", CALLS)
def test_what_else_asks_an_unmigrated_database_says_migrate_too(unmigrated: None, call: str) -> None:
    with pytest.raises(ProgrammingError, match=MIGRATE):
        CALLS[call]()


def test_a_send_that_an_unmigrated_database_refused_ends_the_transaction_around_it(unmigrated: None) -> None:
    with pytest.raises(InternalError, match="transaction is aborted"), transaction.atomic():
        with pytest.raises(TaskSendError, match=MIGRATE):
            tasks.add.send(1)
        Task.objects.exists()
    assert str(NotMigrated("queue", "no table")).endswith(": run 'python manage.py migrate --database=queue'")
