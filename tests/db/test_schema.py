"""The schema migrates forward and back, and is the same however it is made; a project's backend
opens connections.

The tests migrate over leftovers, without migrations, from printed SQL and in a tenant's schema;
errors of unmigrated databases name ``migrate``.
"""

from __future__ import annotations

import datetime as dt
import gc
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.checks import Tags, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import (
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext
from psycopg.rows import dict_row

from horsies_django import TaskSendError, get_handle, queues
from horsies_django.checks import check_schema
from horsies_django.models import Task, TaskAttempt
from horsies_django.store import notify
from horsies_django.store.base import NotMigrated
from horsies_django.store.notify import direct_connection
from horsies_django.tasks.ids import uuid7
from horsies_django.testing import drain
from tests.apps.connector.base import INSTANCE
from tests.apps.project import tasks
from tests.conftest import Connect, sql, wait_until
from tests.support.everything import EVERYTHING


@pytest.mark.parametrize("model", [Task, TaskAttempt])
def test_save_and_delete_raise_on_rows_that_statements_write(model: type[Task]) -> None:
    """``save()`` and ``delete()`` raise on models whose rows only statements write."""
    with pytest.raises(TypeError, match=r"cannot be changed by save\(\)"):
        model().save()
    with pytest.raises(TypeError, match=r"cannot be changed by delete\(\)"):
        model().delete()


def test_every_index_has_a_name_of_the_app() -> None:
    """Every index has a name of the app, and every sequence is a bigint.

    Fails if: Django makes up a name that ends with a digest, so that statements about indexes
    cannot name it.
    """
    names = sql(
        "SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        "WHERE c.relname LIKE 'horsies%%' AND NOT i.indisprimary"
    )

    assert [name for (name,) in names if not re.fullmatch(r"horsies_[a-z_]+|.*_like", name)] == []
    assert sql(
        "SELECT DISTINCT data_type::text FROM pg_sequences WHERE sequencename LIKE 'horsies%%'"
    ) == [("bigint",)]


@pytest.mark.parametrize("schema", ["public", "queue"])
def test_a_schema_where_any_role_creates_functions_is_a_warning(schema: str) -> None:
    """The check warns of a schema in which every role may create functions.

    Fails if: there is no warning about PostgreSQL up to 14, which grants this, so that the workers
    can call a function of any role.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        if schema != "public":
            cursor.execute(
                "CREATE SCHEMA queue; ALTER TABLE horsies_tasks SET SCHEMA queue; SET LOCAL "
                "search_path = public, queue"
            )

        cursor.execute(f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")
        assert check_schema(databases=["default"]) == []

        cursor.execute(f"GRANT CREATE ON SCHEMA {schema} TO PUBLIC")
        (message,) = run_checks(tags=[Tags.database], databases=["default"])
        assert (message.id, f"the schema '{schema}'" in message.msg) == ("horsies.W006", True)
        assert check_schema() == check_schema(databases=["other"]) == []

        assert message.hint is not None
        cursor.execute(message.hint.partition(": ")[2])
        assert run_checks(tags=[Tags.database], databases=["default"]) == []
        transaction.set_rollback(True)


MIGRATIONS = ("0001", "0002", "0003", "0004")
TABLES = {model._meta.db_table for model in apps.get_app_config("horsies").get_models()}

# Leftovers as of an earlier release: other arguments, another result, another type, a function
# on a type of its own.
OLDER = """
DROP TYPE IF EXISTS horsies_candidate CASCADE;
CREATE TYPE horsies_candidate AS (one int);
CREATE FUNCTION horsies_lock_caps(p_caps horsies_candidate) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION horsies_send(p_one int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION horsies_fits(p_one int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE FUNCTION horsies_announce() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN RAISE EXCEPTION ''an older one''; END';
"""


def made() -> set[Any]:
    """Return all objects of the app in the current schema, one line for each."""
    return set(sql(EVERYTHING))


def drop_tables() -> None:
    """Drop all tables and their records of migrations.

    Their functions, types and sequences stay.
    """
    for table in TABLES:
        sql(f"DROP TABLE IF EXISTS {table} CASCADE")
    sql("DELETE FROM django_migrations WHERE app = 'horsies'")


@pytest.fixture
def before() -> Iterator[set[Any]]:
    """Give all objects that the migrations made, and make them again after the test."""
    found = made()
    assert {kind for kind, *_ in found} == {
        "column",
        "type",
        "index",
        "constraint",
        "storage",
        "function",
        "trigger",
        "sequence",
    }

    yield found

    sql("RESET search_path")
    drop_tables()
    call_command("migrate", verbosity=0)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Put a new schema before the other one on the search path.

    It contains only a table of its migrations.
    """
    sql("CREATE SCHEMA elsewhere")
    sql("CREATE TABLE elsewhere.django_migrations (LIKE public.django_migrations INCLUDING ALL)")
    sql("SET search_path = elsewhere, public")

    yield

    sql("RESET search_path")
    sql("DROP SCHEMA elsewhere CASCADE")


def runs_a_task() -> bool:
    handle = tasks.add.send(1, 2)
    return drain() == 1 and handle.get(0).ok_value == 3


def test_migrations_run_back_to_zero_and_forward_again(
    before: set[Any],
) -> None:
    """Migrations run back to the tables alone, back to zero, and forward again."""
    for target, left in (
        ("0001", TABLES - {"horsies_send_keys", "horsies_history"}),
        ("zero", set()),
    ):
        call_command("migrate", "horsies", target, verbosity=0)
        assert {
            name for kind, name, *_ in made() if kind in ("storage", "function", "trigger")
        } == left

        call_command("migrate", "horsies", verbosity=0)
        assert made() == before


@pytest.mark.parametrize("left", ["", OLDER], ids=["today's", "older"])
def test_migrate_replaces_leftovers_of_dropped_tables(before: set[Any], left: str) -> None:
    """After the tables were dropped, ``migrate`` replaces the functions and types left behind."""
    drop_tables()
    sql(f"{left};")

    call_command("migrate", "horsies", verbosity=0)

    assert made() == before
    assert runs_a_task()


def test_migrating_back_removes_leftovers_of_dropped_tables(before: set[Any]) -> None:
    """Migrating back removes the functions and types that dropped tables left behind."""
    for table in TABLES:
        sql(f"DROP TABLE IF EXISTS {table} CASCADE")

    # These migrations act on the tables, which are gone.
    sql("DELETE FROM django_migrations WHERE app = 'horsies' AND name > '0003'")

    call_command("migrate", "horsies", "0001", verbosity=0)

    # the constraint is that of the domain
    assert {kind for kind, *_ in made()} == {"sequence", "constraint"}


def test_syncdb_makes_the_same_schema_as_the_migrations(before: set[Any], settings: Any) -> None:
    """Without migrations, ``migrate`` makes the same schema as with them.

    It makes the functions again each time, but ``flush`` does not.
    """
    call_command("migrate", "horsies", "zero", verbosity=0)
    settings.MIGRATION_MODULES = {"horsies": None}
    call_command("migrate", run_syncdb=True, verbosity=0)
    assert made() == before
    assert runs_a_task()

    sql(OLDER)
    sql("CREATE VIEW of_the_project AS SELECT kwargs, result FROM horsies_tasks")
    call_command("migrate", run_syncdb=True, verbosity=0)
    assert made() == before

    with CaptureQueriesContext(connection) as queries:
        call_command("flush", interactive=False, verbosity=0)
    assert not [one for one in queries if " FUNCTION horsies_" in one["sql"]]
    assert made() == before


def test_functions_of_another_schema_are_left_alone(before: set[Any], elsewhere: None) -> None:
    """Migrations leave functions of another schema on the search path alone."""
    call_command("migrate", "horsies", verbosity=0)
    assert {tuple(line[:3]) for line in made()} == {tuple(line[:3]) for line in before}

    call_command("migrate", "horsies", "zero", verbosity=0)
    assert made() == set()

    sql("SET search_path = public")
    assert made() == before


def printed(name: str, **how: Any) -> str:
    """Return the SQL of a migration."""
    text = io.StringIO()
    call_command("sqlmigrate", "horsies", name, stdout=text, no_color=True, **how)
    return text.getvalue()


def test_the_printed_sql_makes_the_same_schema_and_reverts_it(
    before: set[Any], elsewhere: None
) -> None:
    """The printed SQL of the migrations makes the same schema, and its reverse removes it."""

    # One statement at a time, as psql does, so that indexes can be built concurrently.
    def one_by_one(text: str) -> None:
        for statement in re.findall(r"(?s)[^;]*(?:CONCURRENTLY|ALTER TABLE)[^;]*;", text):
            sql(statement)

    sql("".join(printed(name) for name in MIGRATIONS[:3]))
    one_by_one(printed("0004"))
    assert made() == before

    one_by_one(printed("0004", backwards=True))
    sql("".join(printed(name, backwards=True) for name in reversed(MIGRATIONS[:3])))
    assert made() == set()


class Router:
    """A project's router that refuses the tables of the queue by the names of their models."""

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        models = {model._meta.model_name for model in apps.get_app_config("horsies").get_models()}
        return False if model_name in models else None


def test_no_functions_are_made_where_a_router_refuses_the_tables(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.Router"]
    for name in MIGRATIONS:
        statements = [line for line in printed(name).splitlines() if not line.startswith("--")]
        assert set(statements) <= {"BEGIN;", "COMMIT;"}


NAME = "horsies test of opening"
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


def opened() -> psycopg.Connection[Any]:
    return direct_connection("default", application_name=NAME, prepare=True)


@contextmanager
def receiving(receiver: Callable[..., Any]) -> Iterator[None]:
    """Connect a function as the project's receiver of new connections during the block."""
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
    connections.databases["own"] = {
        **default,
        "ENGINE": "tests.apps.connector",
        "HOST": INSTANCE,
        "OPTIONS": {},
    }

    yield connections.databases["own"]

    del connections.databases["own"]
    if hasattr(connections._connections, "own"):
        del connections["own"]


def test_a_backend_opens_a_connection_outside_its_pool(
    own: dict[str, Any],
) -> None:
    """A backend opens the connection outside its pool, and the queue sets up the session."""
    own["AUTOCOMMIT"] = False
    own["OPTIONS"] = {
        "pool": True,
        "isolation_level": psycopg.IsolationLevel.SERIALIZABLE,
        "prepare_threshold": 7,
        "options": "-c lock_timeout=5 -c default_transaction_isolation=serializable",
    }

    with direct_connection(
        "own", application_name=NAME, prepare=True, statement_timeout_ms=4_000
    ) as conn:
        shown = [
            conn.execute(f"SHOW {name}").fetchall()[0][0]
            for name in (
                "transaction_isolation",
                "lock_timeout",
                "statement_timeout",
                "application_name",
            )
        ]

        with conn.transaction():
            assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)

        values = conn.execute(
            """SELECT '{"a": 1}'::jsonb, '2026-01-02 03:04Z'::timestamptz"""
        ).fetchone()
        ((prepared,),) = conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()

    assert shown == ["read committed", "0", "4s", NAME]
    assert values == ({"a": 1}, dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC))
    assert prepared > 0
    assert "own" not in type(connections["own"])._connection_pools
    assert connections["own"].connection is None


def test_a_receiver_finds_the_new_connection_under_its_alias() -> None:
    """A receiver finds the new connection under its alias, and the old one is back afterwards."""
    connection.ensure_connection()
    before = connection.connection
    found = []

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


def begins(connection: Any, **kwargs: Any) -> None:
    connection.cursor().execute("BEGIN")


class Away:
    def __call__(self, connection: Any, **kwargs: Any) -> None:
        raise psycopg.OperationalError("the directory of tenants does not answer")


@pytest.mark.parametrize(
    ("receiver", "kind", "said"),
    [
        (broken, psycopg.ProgrammingError, "broken .* LookupError: no such tenant"),
        (Away(), psycopg.OperationalError, "Away object .* of tenants does not answer"),
        (begins, psycopg.ProgrammingError, ""),
    ],
    ids=["broken", "away", "begins"],
)
def test_a_connection_closes_if_its_receiver_raises(
    connect: Connect, receiver: Callable[..., Any], kind: type[Exception], said: str
) -> None:
    """If a receiver raises or leaves a transaction open, the connection closes with an error."""
    words = (
        f"the receiver <?tests.db.test_schema.{said}.*begins with 'horsies'"
        if said
        else "left a transaction open"
    )

    with receiving(receiver), pytest.raises(kind, match=f"(?s){words}"):
        opened()

    watching = connect()
    wait_until(
        lambda: watching.execute(OPEN, [NAME]).fetchone() == (0,), "the connection is closed"
    )


def test_a_refused_password_is_an_operational_error(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused password, or a backend without one, is an ``OperationalError`` of psycopg."""

    def no_token(self: Any, parameters: Any) -> Any:
        raise TimeoutError("no token")

    own["PASSWORD"] = "wrong"
    own["USER"] = "nobody of this name"

    with pytest.raises(psycopg.OperationalError, match="nobody of this name"):
        direct_connection("own", application_name=NAME)

    monkeypatch.setattr(type(connections["own"]), "get_new_connection", no_token)
    with pytest.raises(
        psycopg.OperationalError, match="backend of 'own' raised TimeoutError: no token"
    ):
        direct_connection("own", application_name=NAME)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OperationalError("the connector is restarting"), psycopg.OperationalError),
        (InterfaceError("the tunnel is closed"), psycopg.OperationalError),
        (RuntimeError("can't start new thread"), psycopg.OperationalError),
        (NotSupportedError("PostgreSQL 15 or later is required"), psycopg.ProgrammingError),
        (ImproperlyConfigured("no region"), psycopg.ProgrammingError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_all_errors_of_a_backend_become_those_of_psycopg(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[Exception]
) -> None:
    """Fails if: a worker's thread, which survives errors of psycopg, ends with one of Django's
    errors.
    """

    def refuse(self: Any, parameters: Any) -> Any:
        raise raised

    monkeypatch.setattr(type(connections["own"]), "get_new_connection", refuse)

    with pytest.raises(
        kind, match=f"the database backend of 'own' raised {type(raised).__name__}: {raised}"
    ):
        direct_connection("own", application_name=NAME)


class Pooled:
    """A stand-in for a connection of a pool like SQLAlchemy's.

    It goes back to the pool when it is collected.
    """

    def __init__(self, connection: Any) -> None:
        vars(self).update(driver_connection=connection, detached=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver_connection, name)

    def detach(self) -> None:
        vars(self)["detached"] = True

    def __del__(self) -> None:
        if not self.detached:
            self.driver_connection.close()


def test_a_connection_of_a_pool_is_taken_out_of_it(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: the settings are made on the proxy only, so that each pass raises and the worker
    runs no task.
    """
    kind = type(connections["own"])
    get_new_connection = kind.get_new_connection
    monkeypatch.setattr(
        kind, "get_new_connection", lambda self, given: Pooled(get_new_connection(self, given))
    )

    with direct_connection("own", application_name=NAME, prepare=True) as conn:
        gc.collect()
        values = (
            conn.cursor(binary=True)
            .execute("SELECT 1::bigint, current_setting('application_name')")
            .fetchone()
        )

    assert isinstance(conn, psycopg.Connection)
    assert values == (1, NAME)


def test_a_backend_of_another_driver_is_refused_by_name(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Foreign:
        closed = False

        def close(self) -> None:
            pass

    kind = type(connections["own"])
    for name in ("init_connection_state", "set_autocommit"):
        monkeypatch.setattr(kind, name, lambda self, *args: None)
    monkeypatch.setattr(kind, "get_new_connection", lambda self, given: Foreign())

    with pytest.raises(
        psycopg.NotSupportedError, match=r"ENGINE of the database 'own' .*\.Foreign.* psycopg 3"
    ):
        direct_connection("own", application_name=NAME)


def test_a_receiver_that_waits_for_ever_is_cut(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SET_UP_SECONDS", 0.3)
    holder = connect()
    holder.execute("SELECT pg_advisory_lock(471100)")

    def waits(connection: Any, **kwargs: Any) -> None:
        connection.cursor().execute("SELECT pg_advisory_lock(471100)")

    said = r"test_schema.*\.waits of connection_created"
    with receiving(waits), pytest.raises(psycopg.OperationalError, match=said):
        opened()


def test_what_waits_for_a_result_polls_while_a_receiver_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = tasks.add.send(1)

    with receiving(broken):
        assert handle.get(timeout_ms=300).err_value.error_code == "WAIT_TIMEOUT"

    assert "callers poll instead: the receiver tests.db.test_schema.broken" in caplog.text


MIGRATE = "run 'python manage.py migrate'$"


@pytest.fixture
def unmigrated() -> Iterator[None]:
    """Give Django's connection an empty schema as its search path."""
    sql("CREATE SCHEMA nothing; SET search_path = nothing")
    yield
    sql("RESET search_path; DROP SCHEMA nothing")


CALLS: dict[str, Callable[[], Any]] = {
    "send": lambda: tasks.add.send(1),
    "send_many": lambda: tasks.add.send_many([{"a": 1}, {"a": 2}]),
    "send_many in portions": lambda: tasks.add.send_many(
        [{"a": number} for number in range(6_000)]
    ),
    "asend": lambda: async_to_sync(tasks.add.asend)(1),
    "get": lambda: get_handle(uuid7()).get(timeout_ms=1_000),
    "pause": lambda: queues.pause("mail", actor="ann"),
}


@pytest.mark.parametrize("verb", CALLS)
def test_every_call_on_an_unmigrated_database_names_migrate(unmigrated: None, verb: str) -> None:
    """On an unmigrated database every call raises an error that names ``migrate``.

    For a send it is a ``TaskSendError``.
    """
    kind, code = (TaskSendError, "ENQUEUE_FAILED.*") if "send" in verb else (ProgrammingError, "")

    with pytest.raises(
        kind, match=f"{code}the database 'default' does not have the tables .*: {MIGRATE}"
    ):
        CALLS[verb]()


def test_a_send_to_an_unmigrated_database_ends_the_transaction(
    unmigrated: None,
) -> None:
    """A send that an unmigrated database refuses also ends the transaction around it."""
    with pytest.raises(InternalError, match="transaction is aborted"), transaction.atomic():
        with pytest.raises(TaskSendError, match=MIGRATE):
            tasks.add.send(1)
        Task.objects.exists()

    assert str(NotMigrated("queue", "no table")).endswith(
        ": run 'python manage.py migrate --database=queue'"
    )
