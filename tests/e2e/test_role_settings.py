"""What the role or the database may set for its sessions: no worker, scheduler or waiting process stumbles over it."""

from __future__ import annotations

from collections.abc import Iterator

import environ
import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections
from psycopg import sql

from horsies_django.store.notify import SESSION, direct_connection
from tests.conftest import Claimer, put, wait_until
from tests.e2e.test_pgbouncer import pooled as pooled
from tests.support.server import Server
from tests.support.workers import Start

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


@pytest.fixture
def odd_role(transactional_db: None) -> Iterator[None]:
    """Let every session that the tests' own role begins from now on in their database have odd settings."""
    params = connection.get_connection_params()
    role = sql.SQL("ALTER ROLE {} IN DATABASE {}").format(
        sql.Identifier(settings.DATABASES["default"].get("USER") or params["user"]), sql.Identifier(params["dbname"])
    )
    with connection.cursor() as cursor:
        for name, value in ODD.items():
            cursor.execute(sql.SQL("{} SET {} = {}").format(role, sql.Identifier(name), sql.Literal(value)))
        yield
        cursor.execute(sql.SQL("{} RESET ALL").format(role))


def test_our_own_sessions_read_moments_wait_and_round_as_ever_whatever_the_role_says(odd_role: None) -> None:
    with direct_connection("default", application_name="horsies test") as conn:
        held = dict(
            conn.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [list(SESSION)]).fetchall()
        )
        assert {name: value for name, value in SESSION.items() if name in held} == held
        (moment, epoch), *_ = conn.execute("SELECT m, extract(epoch FROM m)::float8 FROM now() AS m").fetchall()
        assert moment.timestamp() == epoch
        worker = Claimer(conn)
        (id_,) = put()
        assert [claim.id for claim in worker.run_pass(sync=1).claims] == [id_]


def make_odd(server: Server, *names: str) -> None:
    """Let every session of the workers' role begin with these settings."""
    for name in names:
        server.superuser(f"ALTER ROLE app SET {name} = '{ODD[name]}'")


def test_a_worker_with_a_scheduler_runs_under_settings_that_cut_and_round_its_sessions_and_that_come_while_it_runs(
    worker: Start, server: Server
) -> None:
    make_odd(server, "extra_float_digits", "lock_timeout", "idle_in_transaction_session_timeout")
    make_odd(server, "idle_session_timeout", "IntervalStyle", "TimeZone", "default_transaction_isolation")
    make_odd(server, "bytea_output", "array_nulls")
    process = worker("--processes=1", "--with-scheduler", **server.environment).ready()
    server.superuser(
        "INSERT INTO horsies_schedules (name, declared, next_at) VALUES ('odd', "
        """'{"task": "tests.apps.project.tasks.noop", "pattern": "every second"}', now())"""
    )
    server.superuser("SELECT pg_notify('horsies_' || left(md5('public'), 8) || '_schedules', '')")
    wait_until(lambda: server.superuser("SELECT 1 FROM horsies_schedule_ticks"), "the schedule fires")
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
    wait_until(lambda: server.superuser("SELECT 1 FROM horsies_schedule_ticks"), "the schedule goes on")
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["DateStyle", "extra_float_digits", "default_transaction_isolation"])
def test_behind_a_pooler_a_session_that_would_go_wrong_is_refused_and_the_setting_is_named(
    pooled: dict[str, str], server: Server, name: str
) -> None:
    make_odd(server, name)
    there = environ.Env.db_url_config(pooled["DATABASE_URL"])
    connections.databases["odd"] = {**connections.databases["default"], **there, "OPTIONS": {}}
    try:
        with pytest.raises(psycopg.OperationalError, match=f"its {name} is .*: workers need"):
            direct_connection("odd", application_name="horsies test")
    finally:
        del connections["odd"], connections.databases["odd"]


@pytest.mark.parametrize("start", ["worker", "scheduler"])
def test_a_date_style_that_django_cannot_read_keeps_it_from_starting_and_is_named(
    server: Server, request: pytest.FixtureRequest, start: str
) -> None:
    """Django reads the table of migrations, and every model, on connections of its own: nothing of a project works so."""
    make_odd(server, "DateStyle")
    made = request.getfixturevalue(start)
    process = made("--processes=1", **server.environment) if start == "worker" else made(**server.environment)
    assert process.wait() == 1
    assert "the DateStyle of the database 'default' is 'German, DMY', which Django cannot read" in process.log
    assert "Traceback" not in process.log
