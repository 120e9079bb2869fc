"""Connections of the queue are opened by the project's own backend and receivers, and are then used without Django."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created
from psycopg.rows import dict_row

from horsies_django.store import notify
from horsies_django.store.notify import direct_connection
from tests.apps.connector.base import INSTANCE
from tests.apps.project import tasks
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
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


class Away:
    def __call__(self, connection: Any, **kwargs: Any) -> None:
        raise psycopg.OperationalError("the directory of tenants does not answer")


@pytest.mark.parametrize(
    ("receiver", "kind", "said"),
    [
        (broken, psycopg.ProgrammingError, r"tests.db.test_opening.broken .* LookupError: no such tenant"),
        (refused, psycopg.ProgrammingError, r"tests.db.test_opening.refused .* \"no_such_table\" does not exist"),
        (Away(), psycopg.OperationalError, r"<tests.db.test_opening.Away object .* of tenants does not answer"),
    ],
    ids=["broken", "refused", "away"],
)
def test_a_receiver_that_raises_is_named_and_no_connection_stays_open(
    connect: Connect, receiver: Callable[..., Any], kind: type[Exception], said: str
) -> None:
    with receiving(receiver), pytest.raises(kind, match=f"(?s)the receiver {said}.*begins with 'horsies'"):
        opened()
    watching = connect()
    wait_until(lambda: watching.execute(OPEN, [NAME]).fetchone() == (0,), "the connection is closed")


def test_a_transaction_that_a_receiver_left_open_takes_no_statement_of_the_queue() -> None:
    def begins(connection: Any, **kwargs: Any) -> None:
        connection.cursor().execute("BEGIN")

    with receiving(begins), pytest.raises(psycopg.ProgrammingError, match="left a transaction open"):
        opened()


def test_a_backend_that_gets_no_password_now_is_a_database_that_is_away(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_token(self: Any, parameters: Any) -> Any:
        raise TimeoutError("no token")

    monkeypatch.setattr(type(connections["own"]), "get_new_connection", no_token)
    with pytest.raises(psycopg.OperationalError, match="backend of 'own' raised TimeoutError: no token"):
        direct_connection("own", application_name=NAME)


def test_what_the_server_refuses_is_an_error_of_psycopg(own: dict[str, Any]) -> None:
    own["PASSWORD"], own["USER"] = "wrong", "nobody of this name"
    with pytest.raises(psycopg.OperationalError, match="nobody of this name"):
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
