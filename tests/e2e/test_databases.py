"""Projects with several databases, with a backend that opens connections itself, or with a receiver that keeps workers out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.apps.connector.apps import SCHEMA
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
LISTENERS = "SELECT usename FROM pg_stat_activity WHERE application_name = 'horsies listener' AND datname = %s"
SCHEMAS = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'horsies%'"


@pytest.fixture
def two(transactional_db: None) -> Iterator[dict[str, str]]:
    """Give the addresses of two empty databases, the second of which is the queue's, and those of a role that only listens."""
    role = f"listener_{uuid.uuid4().hex[:8]}"
    with new_databases("two") as create:
        default, queue = create(), create()
        parts = urlsplit(queue)
        direct = parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()
        with psycopg.connect(default, autocommit=True) as admin:
            admin.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE pg_read_all_data, pg_write_all_data").format(
                    sql.Identifier(role)
                )
            )
            yield {"DATABASE_URL": default, "QUEUE_URL": queue, "DIRECT_URL": direct}
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_the_queue_lives_on_its_alias_and_sends_join_only_that_aliass_transaction(
    worker: Start, two: dict[str, str], tmp_path: Path
) -> None:
    settings = "tests.settings.two"
    site = Site(tmp_path, settings, two["DATABASE_URL"], QUEUE_URL=two["QUEUE_URL"], DIRECT_URL=two["DIRECT_URL"])
    site.manage("migrate", "--verbosity=0")
    site.manage("migrate", "--database=queue", "--verbosity=0")
    for url, schemas in ((two["DATABASE_URL"], []), (two["QUEUE_URL"], [("public",)])):
        with psycopg.connect(url) as connection:
            assert connection.execute(SCHEMAS).fetchall() == schemas
    process = worker("--processes=1", DJANGO_SETTINGS_MODULE=settings, **two).ready()
    assert site.run("-c", SEND_AND_GET).split() == ["5", "4", "TASK_NOT_FOUND"]
    with psycopg.connect(two["QUEUE_URL"]) as connection:
        (listener,) = connection.execute(LISTENERS, [urlsplit(two["QUEUE_URL"]).path[1:]]).fetchall()
    assert listener[0] == urlsplit(two["DIRECT_URL"]).username
    assert process.stop() == 0


def test_workers_schedulers_and_those_who_wait_find_server_and_schema_of_an_own_backend(
    worker: Start, tmp_path: Path
) -> None:
    settings = "tests.settings.connector"
    with new_databases("own_backend") as create:
        url = create()
        site = Site(tmp_path, settings, url)
        site.manage("migrate", "--verbosity=0")
        with psycopg.connect(url) as connection:
            assert connection.execute(SCHEMAS).fetchall() == [(SCHEMA,)]
        process = worker("--processes=1", "--with-scheduler", DJANGO_SETTINGS_MODULE=settings, DATABASE_URL=url).ready()
        assert site.run("-c", GETS) == "[1, 2, 3]\n"
        assert "Healthy" in site.manage("horsies_status")
        assert process.stop() == 0
    assert "WARNING" not in process.log


def test_a_worker_names_the_receiver_that_keeps_it_from_starting(worker: Start, tmp_path: Path) -> None:
    order = tmp_path / "order"
    order.write_text("raise")
    cutting = {"DJANGO_SETTINGS_MODULE": "tests.settings.cutting", "HORSIES_TEST_ORDER": str(order)}
    process = worker(HORSIES_TEST_KEPT="0", **cutting)
    assert process.wait() == 1
    receiver = "the receiver tests.apps.cutting.apps.obey of connection_created raised LookupError: the project's"
    assert receiver in process.log
    assert "Traceback" not in process.log
