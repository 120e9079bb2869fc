"""A project with several databases: the queue lives on the alias that the settings name, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.support.workers import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

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

LISTENERS = "SELECT usename FROM pg_stat_activity WHERE application_name = 'horsies listener' AND datname = %s"


@pytest.fixture
def environment(transactional_db: None) -> Iterator[dict[str, str]]:
    """Give the environment of a project with two fresh databases, and a role that only listens."""
    url, made = database_url(), [f"two_{name}_{uuid.uuid4().hex[:8]}" for name in ("default", "queue")]
    role = f"listener_{uuid.uuid4().hex[:8]}"
    default, queue = (urlsplit(url)._replace(path=f"/{name}").geturl() for name in made)
    parts = urlsplit(queue)
    direct = parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(url, autocommit=True) as admin:
        for name in made:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE pg_read_all_data, pg_write_all_data").format(
            sql.Identifier(role)
        ))  # fmt: skip
        yield {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings.two",
            "DATABASE_URL": default,
            "QUEUE_URL": queue,
            "DIRECT_URL": direct,
        }
        for name in made:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        return {
            row[0]
            for row in conn.execute("SELECT relname FROM pg_class WHERE relname LIKE 'horsies%' AND relkind = 'r'")
        }


def test_the_queue_lives_on_its_alias_and_sends_join_only_that_aliass_transaction(environment: dict[str, str]) -> None:
    run(environment, "-m", "django", "migrate", "--verbosity=0")
    run(environment, "-m", "django", "migrate", "--database=queue", "--verbosity=0")
    assert tables(environment["DATABASE_URL"]) == set()
    assert "horsies_tasks" in tables(environment["QUEUE_URL"])
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", "horsies_worker", "--processes=1"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert run(environment, "-c", SEND_AND_GET).split() == ["5", "4", "TASK_NOT_FOUND"]
        with psycopg.connect(environment["QUEUE_URL"]) as conn:
            (listener,) = conn.execute(LISTENERS, [urlsplit(environment["QUEUE_URL"]).path[1:]]).fetchall()
        assert listener[0] == urlsplit(environment["DIRECT_URL"]).username
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
