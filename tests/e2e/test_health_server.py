"""Probes of real workers: /live and /ready through a start, a stuck engine, an outage of the heart, a second life and a stop."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from horsies_django.models import Heartbeat, Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, database_url, held_by, let_go

Connect = Callable[[], psycopg.Connection[Any]]


def port(process: WorkerProcess) -> int:
    """Return the port that a worker says it answers on."""
    found = wait_until(lambda: re.search(r"answered at http://127\.0\.0\.1:(\d+)/live", process.log), "a port is open")
    return int(found[1])


def ask(number: int, path: str, seconds: float = 10) -> tuple[int, dict[str, Any]]:
    """Return the status and the record of an answer."""
    client = http.client.HTTPConnection("127.0.0.1", number, timeout=seconds)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        client.close()


def turns(number: int, path: str, status: int) -> dict[str, Any]:
    """Wait until a probe answers with a status, and return the record."""

    def found() -> dict[str, Any] | None:
        answered, record = ask(number, path)
        return record if answered == status else None

    record: dict[str, Any] = wait_until(found, f"{path} answers {status}")
    return record


def names(number: int, word: str) -> None:
    """Wait until the worker is not ready for a reason that contains a word; others may come and go."""
    wait_until(lambda: any(word in reason for reason in turns(number, "/ready", 503)["reasons"]), word)


def test_a_worker_becomes_ready_and_while_it_stops_it_lives_and_is_ready_no_more(worker: Start) -> None:
    process = worker("--processes=2", "--health-port=0")
    number = port(process)
    turns(number, "/live", 200)
    assert turns(number, "/ready", 200)["reasons"] == []
    assert "Worker started" in process.log
    tasks.hold.send("last")
    held_by("last")
    process.signal(signal.SIGTERM)
    assert turns(number, "/ready", 503)["reasons"] == ["the worker is stopping"]
    assert ask(number, "/live")[0] == 200
    let_go("last")
    assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number)).close()


def test_a_worker_whose_database_does_not_answer_or_is_gone_lives_and_is_ready_again_afterwards(
    worker: Start, connect: Connect
) -> None:
    """Its probes wait for nothing, and a restart would not help."""
    process = worker("--processes=1", "--health-port=0", HORSIES_TEST_STALE_MS="3000").ready()
    number = port(process)
    for lock, word in (
        ("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE", "the database"),
        ("LOCK TABLE horsies_heartbeats IN SHARE MODE", "no heartbeat was sent"),  # passes may read it
    ):
        with connect() as conn, conn.transaction():
            conn.execute(lock)
            names(number, word)
            assert ask(number, "/live")[0] == 200
        turns(number, "/ready", 200)
    url = urlsplit(database_url())
    name = sql.Identifier(url.path[1:])
    with psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name = 'horsies engine'",
                [url.path[1:]],
            )
            names(number, "there is no connection to the database")
            assert ask(number, "/live")[0] == 200
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    turns(number, "/ready", 200)
    assert tasks.add.send(1, b=2).get(timeout_ms=30_000).ok_value == 3


def test_a_stopped_process_answers_nobody_and_its_second_life_answers_on_the_same_port(worker: Start) -> None:
    short = {"HORSIES_TEST_STALE_MS": "2500"}
    stopped = worker("--processes=1", "--health-port=0", **short).ready()
    number = port(stopped)
    first = turns(number, "/ready", 200)["worker"]
    worker("--processes=1", "--queues=mail", **short).ready()
    os.killpg(stopped.process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        ask(number, "/live", seconds=0.5)
    wait_until(lambda: Heartbeat.objects.filter(pk=first, died_at__isnull=False).exists(), "the other declares it dead")
    os.killpg(stopped.process.pid, signal.SIGCONT)
    wait_until(lambda: stopped.log.count("Worker started") == 2, "it starts anew")
    second = turns(number, "/ready", 200)["worker"]
    assert second != first
    assert {str(row.id) for row in Worker.objects.filter(pid=stopped.process.pid)} == {first, second}
    assert ask(number, "/live")[0] == 200
    assert stopped.stop() == 0


def test_a_port_that_is_taken_keeps_the_worker_from_starting_and_is_named(worker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        process = worker(f"--health-port={number}")
        assert process.wait() == 1
    assert f"--health-port: 127.0.0.1:{number} cannot be listened on: Address already in use" in process.log
    assert "Traceback" not in process.log
    assert worker("--health-port=70000").wait() == 2
