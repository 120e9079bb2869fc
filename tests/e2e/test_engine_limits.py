"""How long an engine goes on through outage after outage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tests.apps.project import tasks
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]


def ask(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


@pytest.mark.promise("S2.20")
def test_outages_that_are_over_do_not_count_towards_those_that_resilience_allows(worker: Start) -> None:
    few = {"DJANGO_SETTINGS_MODULE": "tests.settings.outages"}
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
