"""Projects with several databases, with their own backend or with odd session settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import environ
import psycopg
import pytest
from django.db import connections
from psycopg import sql

from horsies_django.store.notify import direct_connection
from tests.apps.connector.apps import SCHEMA
from tests.conftest import wait_until
from tests.e2e.test_pgbouncer import pooled as pooled
from tests.support.server import Server
from tests.support.sites import Site, new_databases
from tests.support.workers import Start

SEND_AND_GET = """
import django; django.setup()
from django.db import connections, transaction
from tests.apps.project import tasks
handle = tasks.add.send(2, b=3)
with transaction.atomic(using="default"):
    outside = tasks.add.send(4)
    transaction.set_rollback(True, using="default")
try:
    with transaction.atomic(using="queue"):
        inside = tasks.add.send(5)
        raise KeyError
except KeyError:
    pass
print(handle.get(60_000).ok_value, outside.get(60_000).ok_value, inside.get(0).err_value.error_code)
"""
GETS = """
import django
django.setup()
from tests.apps.project import tasks
print([tasks.add.send(1, n).get(60_000).ok_value for n in range(3)])
"""
LISTENERS = (
    "SELECT usename FROM pg_stat_activity WHERE application_name = 'horsies listener' AND datname "
    "= %s"
)
SCHEMAS = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'horsies%'"


@pytest.fixture
def two(transactional_db: None) -> Iterator[dict[str, str]]:
    """Yield the URLs of two empty databases, and of the second one for a role that only listens.

    The queue is in the second one.
    """
    role = f"listener_{uuid.uuid4().hex[:8]}"
    with new_databases("two") as create:
        default = create()
        queue = create()
        parts = urlsplit(queue)
        direct = parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()

        with psycopg.connect(default, autocommit=True) as admin:
            admin.execute(
                sql.SQL(
                    "CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE pg_read_all_data, "
                    "pg_write_all_data"
                ).format(sql.Identifier(role))
            )
            yield {"DATABASE_URL": default, "QUEUE_URL": queue, "DIRECT_URL": direct}
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_sends_join_only_the_transaction_of_the_queue_alias(
    worker: Start, two: dict[str, str], tmp_path: Path
) -> None:
    """The queue is in the database of its alias, and sends join only transactions of that alias."""
    settings = "tests.settings.two"
    site = Site(
        tmp_path,
        settings,
        two["DATABASE_URL"],
        QUEUE_URL=two["QUEUE_URL"],
        DIRECT_URL=two["DIRECT_URL"],
    )

    site.manage("migrate", "--verbosity=0")
    site.manage("migrate", "--database=queue", "--verbosity=0")

    for url, schemas in ((two["DATABASE_URL"], []), (two["QUEUE_URL"], [("public",)])):
        with psycopg.connect(url) as connection:
            assert connection.execute(SCHEMAS).fetchall() == schemas

    process = worker("--processes=1", DJANGO_SETTINGS_MODULE=settings, **two).ready()
    assert site.run("-c", SEND_AND_GET).split() == ["5", "4", "TASK_NOT_FOUND"]

    with psycopg.connect(two["QUEUE_URL"]) as connection:
        (listener,) = connection.execute(
            LISTENERS, [urlsplit(two["QUEUE_URL"]).path[1:]]
        ).fetchall()
    assert listener[0] == urlsplit(two["DIRECT_URL"]).username
    assert process.stop() == 0


def test_every_process_finds_the_schema_of_its_own_backend(worker: Start, tmp_path: Path) -> None:
    """Workers, schedulers and waiting callers use the server and schema of a project's backend."""
    settings = "tests.settings.connector"
    with new_databases("own_backend") as create:
        url = create()
        site = Site(tmp_path, settings, url)
        site.manage("migrate", "--verbosity=0")
        with psycopg.connect(url) as connection:
            assert connection.execute(SCHEMAS).fetchall() == [(SCHEMA,)]

        process = worker(
            "--processes=1", "--with-scheduler", DJANGO_SETTINGS_MODULE=settings, DATABASE_URL=url
        ).ready()

        assert site.run("-c", GETS) == "[1, 2, 3]\n"
        assert "Healthy" in site.manage("horsies_status")
        assert process.stop() == 0

    assert "WARNING" not in process.log


# Settings that the role or the database can set for its sessions

ODD = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "300ms",
    "default_transaction_isolation": "serializable",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "enable_indexscan": "off",
    "plan_cache_mode": "force_custom_plan",
    "jit_above_cost": "0",
}


def make_odd(server: Server, *names: str) -> None:
    """Set these settings for every new session of the workers' role."""
    for name in names:
        server.superuser(f"ALTER ROLE app SET {name} = '{ODD[name]}'")


def test_odd_session_settings_do_not_stop_the_scheduler(worker: Start, server: Server) -> None:
    """A worker with a scheduler runs although its role has odd session settings.

    Some settings are there at the start, and another one is set while the worker runs.
    """
    make_odd(server, *ODD.keys() - {"DateStyle"})
    process = worker("--processes=1", "--with-scheduler", **server.environment).ready()

    server.superuser(
        "INSERT INTO horsies_schedules (name, declared, next_at) VALUES ('odd', "
        """'{"task": "tests.apps.project.tasks.noop", "pattern": "every second"}', now())"""
    )
    server.superuser("SELECT pg_notify('horsies_' || left(md5('public'), 8) || '_schedules', '')")
    wait_until(
        lambda: server.superuser("SELECT 1 FROM horsies_schedule_ticks"), "the schedule fires"
    )

    for number in range(3):
        server.becomes(server.send("add", a=number), "COMPLETED")

    assert len(server.backends("horsies listener")) == 1
    for trouble in ("the database is not available", "the LISTEN connection was lost"):
        assert trouble not in process.log

    make_odd(server, "DateStyle")
    server.superuser(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'horsies %' AND datname = current_database()"
    )
    server.superuser("DELETE FROM horsies_schedule_ticks")

    wait_until(
        lambda: server.superuser("SELECT 1 FROM horsies_schedule_ticks"), "the schedule goes on"
    )
    server.becomes(server.send("add", a=1), "COMPLETED")

    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["DateStyle", "extra_float_digits", "default_transaction_isolation"]
)
def test_an_unsafe_session_behind_a_pooler_is_refused(
    pooled: dict[str, str], server: Server, name: str
) -> None:
    """A session with an unsafe setting behind a pooler is refused with an error that names it."""
    make_odd(server, name)
    there = environ.Env.db_url_config(pooled["DATABASE_URL"])
    connections.databases["odd"] = {**connections.databases["default"], **there, "OPTIONS": {}}

    try:
        with pytest.raises(psycopg.OperationalError, match=f"its {name} is .*: workers need"):
            direct_connection("odd", application_name="horsies test")
    finally:
        del connections["odd"], connections.databases["odd"]
