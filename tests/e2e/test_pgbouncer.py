"""Workers, sends and results through PgBouncer in transaction mode. LISTEN bypasses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import wait_until
from tests.e2e.test_claims_lost import NO_BEATS, NOT_DURABLE
from tests.e2e.test_outages import TRY
from tests.support.pooler import PoolerError, transaction_pooler
from tests.support.server import Lingering, Server
from tests.support.sites import printed
from tests.support.workers import Busy, Start, given

SEND_AND_GET = """
import django; django.setup()
from django.db import transaction
from tests.apps.project import tasks
handle = tasks.add.send(2, b=3)
many = tasks.add.send_many([{"a": number} for number in range(20)])
try:
    with transaction.atomic():
        inside = tasks.add.send(5)
        raise KeyError
except KeyError:
    pass
print(
    handle.get(60_000).ok_value,
    sum(one.get(60_000).ok_value for one in many),
    inside.get(0).err_value.error_code,
)
"""


@pytest.fixture
def pooled(server: Server) -> Iterator[dict[str, str]]:
    """Return the environment of a project that uses PgBouncer.

    ``default`` goes through PgBouncer, and ``direct`` does not.
    """
    try:
        with transaction_pooler(server.url) as url:
            past_it = {
                "HORSIES_TEST_DIRECT": f"127.0.0.1:{server.port}",
                "HORSIES_TEST_POLL_MS": "300000",
            }
            yield {**server.environment, "DATABASE_URL": url, **past_it}
    except PoolerError as error:
        pytest.skip(str(error))


def test_tasks_are_sent_run_and_waited_for_through_the_pooler(
    worker: Start, pooled: dict[str, str], server: Server
) -> None:
    process = worker("--processes=2", **pooled).ready()

    # The poll comes every five minutes, so the test ends in time only if notifications arrive.
    assert printed("-c", SEND_AND_GET, **pooled).split() == ["5", "190", "TASK_NOT_FOUND"]
    assert len(server.backends("horsies listener")) == 1

    with psycopg.connect(
        pooled["DATABASE_URL"], autocommit=True, prepare_threshold=None
    ) as through:
        # The heartbeat's statement_timeout is not left behind for other sessions.
        assert through.execute("SHOW statement_timeout").fetchone() == ("0",)

    assert process.stop() == 0
    assert "notifications do not arrive" not in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("under_way", [False, True], ids=["before", "during"])
def test_an_outage_behind_the_pooler_costs_no_outcome(
    busy: Busy, pooled: dict[str, str], server: Server, *, under_way: bool
) -> None:
    process, task = busy(**pooled)

    if under_way:
        locking = psycopg.connect(server.url)
        locking.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        task.end()

        waits = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pass%'"
        )
        wait_until(lambda: server.superuser(waits), "the pass waits")

        server.stop()
        locking.close()
    else:
        # The pooler keeps a pass waiting for its server for two minutes without a word, but the
        # worker gives up earlier.
        server.stop()
        task.end()

    wait_until(lambda: process.log.count(TRY) >= 2, "it gives up and tries again")
    server.start()
    task.completes_once()
    assert process.stop() == 0


def test_a_worker_that_listens_through_the_pooler_polls(
    worker: Start, pooled: dict[str, str], server: Server
) -> None:
    """A worker whose LISTEN goes through the pooler logs a warning and polls."""
    deaf = {**pooled, "HORSIES_TEST_DIRECT": "", "HORSIES_TEST_POLL_MS": "1000"}
    seldom = given(RESILIENCE={"DB_RETRY_INITIAL_MS": 60_000, "DB_RETRY_MAX_MS": 300_000})
    process = worker("--processes=1", **deaf, **seldom).ready()

    wait_until(lambda: "HORSIES['LISTEN_DATABASE']" in process.log, "it warns")
    # The next LISTEN comes after a minute, so no look after a LISTEN finds these tasks.
    for number in range(3):
        server.becomes(server.send("add", a=number), "COMPLETED")

    assert not server.backends("horsies listener")
    assert process.log.count("notifications do not arrive") == 1
    assert process.stop() == 0
    assert "prepared statement" not in process.log


def test_claims_stay_durable_behind_the_pooler(
    worker: Start, pooled: dict[str, str], server: Server, tmp_path: Path
) -> None:
    """Claims stay durable behind the pooler, because the pooler hides restarts of the server."""
    process = worker("--processes=1", **pooled, **given(**NO_BEATS, **NOT_DURABLE)).ready()
    assert "claims are durable in spite of HORSIES['DURABLE_CLAIMS'] = False" in process.log

    server.hold_back()
    task = Lingering(server, tmp_path / "one")
    task.runs()

    server.crash()
    task.end()

    task.completes_once()
    assert process.stop() == 0
