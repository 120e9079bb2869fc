"""The database goes away and comes back: the worker goes on, nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_until
from tests.support.server import Lingering, Server
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
SHORT = {"HORSIES_TEST_STALE_MS": "4000"}


# A worker that failed so often has gone for 4.9 s at least without its database, by the pauses of tests.settings.outages.
TRIES_IN_A_LONG_OUTAGE = 10


def taken_in(process: WorkerProcess) -> None:
    """Wait until the worker has noticed that the database is away."""
    wait_until(lambda: "the database is not available, next try in" in process.log, "the worker notices")


@pytest.mark.promise("S2.13", "S3.14")
@pytest.mark.parametrize("how", ["fast", "immediate", "postmaster"])
@pytest.mark.boundary
def test_tasks_that_end_while_the_server_is_down_are_settled_when_it_is_back(
    worker: Start, server: Server, tmp_path: Path, how: str
) -> None:
    process = worker("--processes=2", **server.environment).ready()
    tasks = [Lingering(server, tmp_path / name) for name in ("one", "two")]
    for task in tasks:
        task.runs()
    server.stop(how)
    for task in tasks:
        task.end()
    taken_in(process)
    server.start()
    for task in tasks:
        assert server.becomes(task.id, "COMPLETED")["attempts"] == 1
        assert task.ran_once()
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.boundary
def test_a_backend_that_is_killed_restarts_the_server_and_loses_no_task(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker("--processes=2", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    (engine,) = server.backends("horsies engine")
    os.kill(engine, signal.SIGKILL)
    task.end()
    taken_in(process)
    wait_until(lambda: "the database is back" in process.log, "the server recovers by itself")
    assert server.becomes(task.id, "COMPLETED")["attempts"] == 1
    assert task.ran_once()
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0


def test_what_a_server_forgot_of_its_last_moments_runs_again_as_after_an_asynchronous_failover(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """The outcome was committed and confirmed, and its record had not left the server's memory when the server crashed."""
    server.superuser("ALTER ROLE app SET synchronous_commit = off")
    process = worker("--processes=1", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    server.hold_back()
    task.end()
    server.becomes(task.id, "COMPLETED")
    server.crash()
    wait_until(lambda: len(task.lines) == 4, "it runs again")
    row = server.becomes(task.id, "COMPLETED")
    assert (row["attempts"], row["claim_generation"], row["retry_count"]) == (1, 2, 0)
    assert "releasing 1 task(s) that were claimed and never received" in process.log
    assert process.stop() == 0


def test_an_outage_longer_than_the_threshold_makes_nobody_count_as_dead(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    workers = [worker("--processes=1", **server.environment, **SHORT).ready() for _ in range(2)]
    tasks = [Lingering(server, tmp_path / name) for name in ("one", "two")]
    children = [task.runs() for task in tasks]
    living = {str(id_) for (id_,) in server.superuser("SELECT id FROM horsies_workers")}
    server.stop()
    wait_until(
        lambda: all(process.log.count("is not available, next try") >= TRIES_IN_A_LONG_OUTAGE for process in workers),
        "the outage lasts longer than the threshold",
    )
    assert all(psutil.pid_exists(child) for child in children)
    server.start()
    wait_until(lambda: all("the heartbeat succeeds again" in process.log for process in workers), "both beat")
    dead = uuid.uuid4()
    server.superuser(
        "INSERT INTO horsies_heartbeats (id, worker_id, role, pid, sent_at) "
        f"VALUES ('{dead}', '{dead}', 'claimer', 1, now() - interval '1 hour')"
    )
    judged = wait_until(
        lambda: server.superuser("SELECT id FROM horsies_heartbeats WHERE died_at IS NOT NULL"), "somebody is judged"
    )
    assert judged == [(dead,)]  # not those whose last beat before the outage is as old as the outage
    for task in tasks:
        task.end()
        row = server.becomes(task.id, "COMPLETED")
        assert (row["attempts"], row["claim_generation"]) == (1, 1)
        assert task.ran_once()
    for process in workers:
        assert living & set(re.findall(r"worker (\S+) sent no heartbeat", process.log)) == set()
        assert "declared dead" not in process.log
        assert process.stop() == 0


def test_a_worker_whose_heartbeat_is_answered_again_does_not_wait_out_its_delay(worker: Start, server: Server) -> None:
    """After a long outage the delay has grown to half a minute; this one would last longer than the test."""
    slow = {"HORSIES_TEST_RESILIENCE": json.dumps({"DB_RETRY_INITIAL_MS": 60_000, "DB_RETRY_MAX_MS": 60_000})}
    process = worker("--processes=1", **server.environment, **slow).ready()
    server.stop()
    taken_in(process)
    server.start()
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0


@pytest.mark.parametrize("options", [("--processes=1",), ("--processes=1", "--start-method=spawn")], ids=" ".join)
def test_a_worker_that_shall_not_outlive_its_claims_ends_its_tasks_when_it_is_cut_off(
    worker: Start, server: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    kill = {"HORSIES_TEST_RECOVERY": json.dumps({"ON_CUT_OFF": "kill"})}
    process = worker(*options, **server.environment, **SHORT, **kill).ready()
    task = Lingering(server, tmp_path / "one")
    child = task.runs()
    server.stop()
    wait_until(lambda: not psutil.pid_exists(child), "its process is gone while the server is down")
    server.start()
    row = server.becomes(task.id, "FAILED")
    assert (row["error_code"], row["attempts"]) == ("WORKER_CRASHED", 1)
    assert len(task.lines) == 1
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert "ON_CUT_OFF" in process.log
    assert process.stop() == 0


@pytest.mark.promise("S2.18")
def test_a_worker_gives_up_after_the_number_of_tries_that_it_was_given(worker: Start, server: Server) -> None:
    few = {"HORSIES_TEST_RESILIENCE": json.dumps({"DB_RETRY_MAX_ATTEMPTS": 2})}
    process = worker("--processes=1", **server.environment, **few).ready()
    server.stop()
    assert process.wait() == 1
    assert "the database is gone and RESILIENCE allows no further try" in process.log
    assert process.log.count("the database is not available, next try in") == 2
