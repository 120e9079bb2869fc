"""How long an engine goes on: through outage after outage, and no longer than its heart is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.models import Task
from tests.conftest import wait_until
from tests.e2e.conftest import WorkerProcess
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]


def ask(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_outages_that_are_over_do_not_count_towards_those_that_resilience_allows(worker: Start) -> None:
    few = {"DJANGO_SETTINGS_MODULE": "tests.settings_outages"}
    few["HORSIES_TEST_RESILIENCE"] = json.dumps({"DB_RETRY_MAX_ATTEMPTS": 3})
    process = worker("--processes=1", **few).ready()
    for outages in range(1, 6):
        ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'horsies engine' AND datname = current_database()"
        )
        assert tasks.noop.send().get(30_000).is_ok()
        assert process.log.count("the database is back") == outages
    assert process.stop() == 0


def test_nothing_is_claimed_once_the_heart_could_not_beat_for_as_long_as_it_is_trusted(
    worker: Start, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    process = worker("--processes=1", HORSIES_TEST_STALE_MS="2500").ready()
    assert tasks.noop.send().get(30_000).is_ok()
    spoke = (
        "SELECT max(state_change) FROM pg_stat_activity "
        "WHERE application_name = 'horsies engine' AND datname = current_database()"
    )
    stale = "SELECT 1 FROM horsies_heartbeats WHERE role = 'claimer' AND sent_at < clock_timestamp() - interval '2.5 s'"
    holder = connect()
    with holder.transaction():
        holder.execute("LOCK TABLE horsies_heartbeats IN SHARE MODE")  # the beats wait, whoever reads does not
        wait_until(lambda: ask(stale), "it has not beaten for as long as it is trusted")
        before = ask(spoke)
        late = tasks.noop.send()
        wait_until(lambda: ask(spoke) > before, "the engine has come round")
        assert Task.objects.get(pk=late.task_id).status == "PENDING"
    assert late.get(30_000).is_ok(), "it beats again, and goes on"
    assert process.stop() == 0
