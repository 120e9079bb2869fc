"""A worker that starts while its database is away is patient, and can be told to stop."""

from __future__ import annotations

import json
import signal

import pytest

from tests.conftest import wait_until
from tests.support.server import Server
from tests.support.workers import Start

TRY = "cannot be reached, next try in"


def nowhere(**resilience: int) -> dict[str, str]:
    """Give the environment of a worker whose database nobody serves."""
    return {
        "DATABASE_URL": "postgresql://app:secret@127.0.0.1:1/horsies",
        "DJANGO_SETTINGS_MODULE": "tests.settings.outages",
        "HORSIES_TEST_RESILIENCE": json.dumps(resilience),
    }


@pytest.mark.promise("S2.13")
def test_a_worker_that_starts_before_its_database_waits_for_it(worker: Start, server: Server) -> None:
    id_ = server.send("add", a=1)
    server.stop()
    process = worker("--processes=1", **server.environment)
    wait_until(lambda: process.log.count(TRY) >= 3, "it tries, and says so")
    assert "the database 'default' cannot be reached" in process.log
    server.start()
    server.becomes(id_, "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_a_worker_that_waits_for_its_database_ends_at_the_first_signal(worker: Start) -> None:
    long = 60_000  # it is told to wait so long: an end before that is the signal's
    process = worker("--processes=1", **nowhere(DB_RETRY_INITIAL_MS=long, DB_RETRY_MAX_MS=long))
    wait_until(lambda: TRY in process.log, "it waits")
    process.signal(signal.SIGINT)
    assert process.process.wait(20) == 0
    assert "Stopped before it started" in process.log
    assert "Traceback" not in process.log


@pytest.mark.promise("S2.18")
def test_a_worker_that_may_try_only_so_often_gives_up_at_its_start_too(worker: Start) -> None:
    process = worker("--processes=1", **nowhere(DB_RETRY_MAX_ATTEMPTS=2))
    assert process.wait() == 1
    assert process.log.count(TRY) == 2
    assert "cannot be reached and RESILIENCE allows no further try" in process.log
    assert "Traceback" not in process.log
