"""A worker that cannot work refuses to start: exit code 1 and one message that says why and what to do.

One that cannot reach its database waits for it: test_outages_start.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from horsies_django.models import Worker
from tests.apps.project import tasks
from tests.support.workers import WorkerProcess, database_url

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]


def refused(process: WorkerProcess, *words: str) -> None:
    assert process.wait() == 1
    for word in words:
        assert word in process.log
    assert "Traceback" not in process.log


@pytest.mark.promise("S2.23")
def test_without_its_migrations(worker: Start) -> None:
    name, url = f"empty_{uuid.uuid4().hex[:8]}", database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            process = worker(DATABASE_URL=urlsplit(url)._replace(path=f"/{name}").geturl())
            refused(process, "unapplied migrations of horsies: 0001_initial", "manage.py migrate")
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_with_wrong_settings_naming_all_of_them(worker: Start) -> None:
    process = worker(DJANGO_SETTINGS_MODULE="tests.settings.wrong")
    refused(process, "QUEUS", "QUEUES", "MAX_PAYLOAD_BYTES")


def test_without_any_task(worker: Start) -> None:
    refused(worker(DJANGO_SETTINGS_MODULE="tests.settings.no_tasks"), "no task is registered", "tasks.py")


def test_with_a_task_module_that_cannot_be_imported(worker: Start) -> None:
    process = worker(DJANGO_SETTINGS_MODULE="tests.settings.broken_tasks")
    refused(process, "tests.apps.broken.tasks", "a mistake in a task module")


def test_with_a_queue_that_is_not_declared(worker: Start) -> None:
    refused(worker("--queues=mial"), "'mial'", "bulk, default, mail, twin")


@pytest.mark.parametrize(
    "option", ["--processes=-1", "--threads=0", "--async-concurrency=x", "--shutdown-timeout=-1", "--fast"]
)
def test_with_an_option_that_makes_no_sense(worker: Start, option: str) -> None:
    process = worker(option)
    assert process.wait() == 2
    assert option.split("=")[0] in process.log


@pytest.mark.promise("S2.5")
def test_wrong_settings_are_told_before_the_database_is_asked(worker: Start) -> None:
    nobody = "postgresql://app:secret@127.0.0.1:1/horsies"
    process = worker(DJANGO_SETTINGS_MODULE="tests.settings.wrong", DATABASE_URL=nobody)
    refused(process, "QUEUS", "QUEUES", "MAX_PAYLOAD_BYTES")
    assert "cannot be reached" not in process.log


@pytest.mark.promise("S2.5")
@pytest.mark.boundary
def test_a_worker_connects_has_its_slots_listens_and_only_then_claims(worker: Start) -> None:
    handle = tasks.add.send(1)
    process = worker("--processes=1").ready()
    assert handle.get().ok_value == 1
    lines = ["Concurrency config", "Slots: 1 sync", "Worker started"]
    assert sorted(lines, key=process.log.index) == lines
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name, backend_start FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'horsies %%'"
        )
        began = dict(cursor.fetchall())
    row = Worker.objects.get()
    assert began["horsies engine"] < row.started_at < began["horsies listener"] < handle.info().started_at


def test_a_project_that_opens_things_at_import_gets_fresh_interpreters_and_is_told_which(worker: Start) -> None:
    process = worker("--processes=2", DJANGO_SETTINGS_MODULE="tests.settings.opens_things").ready()
    assert "a connection to the database 'default'" in process.log
    assert "the thread 'hasty-thread'" in process.log
    assert "fresh interpreters" in process.log
    assert tasks.add.send(1).get().ok_value == 1
    assert process.stop() == 0


def test_a_worker_started_from_another_directory_forks_from_a_loaded_server(worker: Start, tmp_path: object) -> None:
    from tests.support.workers import ROOT

    process = worker("--processes=1", CWD=str(tmp_path), PYTHONPATH=str(ROOT)).ready()
    assert tasks.add.send(1).get().ok_value == 1
    assert process.stop() == 0
