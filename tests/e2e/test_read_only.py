"""Read-only servers, real ones: the status names the cause, and a standby answers with what was replicated to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from django.db import connections

from example_project.postgres import SETTINGS, _free_port, private_cluster, stop_server
from tests.e2e.test_status_command import as_a_probe
from tests.support.deadlines import wait_until
from tests.support.workers import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(url: str) -> None:
    command = [sys.executable, "-m", "django", "migrate", "--verbosity=0"]
    variables = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url}
    subprocess.run(command, cwd=ROOT, env=variables, timeout=100, check=True)


def answers(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=2):
        return True
    return False


@pytest.fixture
def writes_refused(transactional_db: None) -> Iterator[None]:
    """Sessions of the test database begin read-only."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT current_database()")
        ((name,),) = cursor.fetchall()
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        yield
        cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


def test_the_status_of_a_database_that_is_read_only_by_default_says_so(writes_refused: None) -> None:
    done = as_a_probe()
    assert (done.returncode, done.stderr) == (1, "")
    assert "the primary, read-only" in done.stdout
    assert "  READ_ONLY: the database is read-only, by default_transaction_read_only" in done.stdout


def test_the_status_of_a_standby_says_so() -> None:
    with private_cluster() as cluster:
        settings, port = SETTINGS | {"max_connections": 50, "shared_buffers": "16MB"}, _free_port()
        with cluster.running(settings, port):
            cluster.create_database("shop", port)
            migrate(cluster.url("shop", port))
        standby_signal = cluster.home / "data" / "standby.signal"
        standby_signal.touch()
        os.chown(standby_signal, os.stat(cluster.home).st_uid, os.stat(cluster.home).st_gid)
        server = cluster.start(settings | {"port": port})
        try:
            url = cluster.url("shop", port)
            wait_until(lambda: answers(url), "the standby answers")
            done = as_a_probe("--json", DATABASE_URL=url)
        finally:
            stop_server(server)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["database"]["in_recovery"], found["database"]["read_only"]) == (True, True)
    (problem,) = found["problems"]
    assert problem["code"] == "READ_ONLY"
    assert "because it is a replica" in problem["text"]
