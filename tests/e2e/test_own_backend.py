"""Projects whose backend opens connections itself, or whose receiver chooses the schema of the tables, or raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.apps.connector.apps import SCHEMA
from tests.support.sites import Site, new_databases
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SETTINGS = "tests.settings.connector"
GETS = """
import django
django.setup()
from tests.apps.project import tasks
print([tasks.add.send(1, n).get(60_000).ok_value for n in range(3)])
"""
TABLES = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'horsies%'"


def test_workers_schedulers_and_those_who_wait_find_server_and_schema(worker: Start, tmp_path: Path) -> None:
    with new_databases("own_backend") as create:
        url = create()
        site = Site(tmp_path, SETTINGS, url)
        site.manage("migrate", "--verbosity=0")
        with psycopg.connect(url) as connection:
            assert connection.execute(TABLES).fetchall() == [(SCHEMA,)]
        process = worker("--processes=1", "--with-scheduler", DJANGO_SETTINGS_MODULE=SETTINGS, DATABASE_URL=url).ready()
        assert site.run("-c", GETS) == "[1, 2, 3]\n"
        assert "Healthy" in site.manage("horsies_status")
        assert process.stop() == 0
    assert "WARNING" not in process.log


def test_a_worker_names_the_receiver_that_keeps_it_from_starting(worker: Start, tmp_path: Path) -> None:
    order = tmp_path / "order"
    order.write_text("raise")
    process = worker(
        DJANGO_SETTINGS_MODULE="tests.settings.cutting", HORSIES_TEST_KEPT="0", HORSIES_TEST_ORDER=str(order)
    )
    assert process.wait() == 1
    assert (
        "the receiver tests.apps.cutting.apps.obey of connection_created raised LookupError: the project's"
        in process.log
    )
    assert "Traceback" not in process.log
