"""Probes and metrics of real workers.

They are read through a start, an outage, a second life and a stop, and show how children end.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import urllib.request
from collections import Counter
from typing import Any

import psutil
import pytest

from horsies_django.models import Heartbeat, Worker
from horsies_django.worker.pool.process import END_REASONS
from tests.apps.project import tasks, traps
from tests.conftest import Connect, wait_until
from tests.e2e.test_shutdown import without_new_connections
from tests.support.metrics import Metrics, agree, promtool
from tests.support.workers import SHORT, Start, WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)


def port(process: WorkerProcess) -> int:
    """Return the port that a worker logs for its probes."""
    found = wait_until(
        lambda: re.search(r"answered at http://127\.0\.0\.1:(\d+)/live", process.log),
        "a port is open",
    )
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
    """Wait until a probe answers with this status, and return its record."""

    def found() -> dict[str, Any] | None:
        answered, record = ask(number, path)
        return record if answered == status else None

    record: dict[str, Any] = wait_until(found, f"{path} answers {status}")
    return record


def names(number: int, word: str) -> None:
    """Wait until the worker is not ready for a reason that contains a word.

    Other reasons may come and go.
    """
    wait_until(
        lambda: any(word in reason for reason in turns(number, "/ready", 503)["reasons"]), word
    )


def test_a_stopping_worker_is_live_but_not_ready(
    worker: Start,
) -> None:
    """A worker becomes ready after its start. While it stops, it is live but no longer ready."""
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


def test_a_worker_without_its_database_stays_live(worker: Start, connect: Connect) -> None:
    """A worker without its database stays live, and is ready again afterwards.

    Its probes wait for nothing, and a restart would not help.
    """
    number = port(worker("--processes=1", "--health-port=0", HORSIES_TEST_STALE_MS="3000").ready())

    with connect() as conn, conn.transaction():
        conn.execute("LOCK TABLE horsies_heartbeats IN SHARE MODE")  # passes may read it
        names(number, "no heartbeat was sent")
        assert ask(number, "/live")[0] == 200
    turns(number, "/ready", 200)

    with without_new_connections():
        names(number, "there is no connection to the database")
        assert ask(number, "/live")[0] == 200
    turns(number, "/ready", 200)

    assert tasks.add.send(1, b=2).get(timeout_ms=30_000).ok_value == 3


def test_a_stopped_process_answers_again_on_the_same_port(
    worker: Start,
) -> None:
    """A stopped process does not answer, and its second life answers on the same port."""
    stopped = worker("--processes=1", "--health-port=0", **SHORT).ready()
    number = port(stopped)
    first = turns(number, "/ready", 200)["worker"]
    worker("--processes=1", "--queues=mail", **SHORT).ready()

    os.killpg(stopped.process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        ask(number, "/live", seconds=0.5)

    wait_until(
        lambda: Heartbeat.objects.filter(pk=first, died_at__isnull=False).exists(),
        "the other declares it dead",
    )

    os.killpg(stopped.process.pid, signal.SIGCONT)
    wait_until(lambda: stopped.log.count("Worker started") == 2, "it starts anew")
    second = turns(number, "/ready", 200)["worker"]

    assert second != first
    assert {str(row.id) for row in Worker.objects.filter(pid=stopped.process.pid)} == {
        first,
        second,
    }
    assert ask(number, "/live")[0] == 200
    assert stopped.stop() == 0


# Metrics


def scraped(process: WorkerProcess) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port(process)}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Metrics(answer.read().decode())


def ended(process: WorkerProcess, **reasons: int) -> None:
    """Wait until exactly these numbers of children have ended, by reason."""
    expected = {reason: float(reasons.get(reason, 0)) for reason in END_REASONS}
    wait_until(
        lambda: scraped(process).of("horsies_children_ended_total", "reason") == expected,
        str(reasons),
    )


@pytest.mark.boundary
def test_the_metrics_of_a_worker_are_those_of_the_page(
    worker: Start,
) -> None:
    """The metrics of a worker are those of the page, and its memory is that of its processes."""
    process = worker("--processes=2", "--health-port=0", "--max-tasks-per-child=0").ready()
    tasks.raises.send("an error").get(timeout_ms=30_000)
    pid = tasks.eats_and_tells.send(200).get(timeout_ms=30_000).ok_value[0]
    counted = (
        'horsies_tasks_total{queue="default",result="COMPLETED",'
        f'task="{tasks.eats_and_tells.name}"}} 1.0'
    )
    wait_until(lambda: counted in scraped(process).text, "the outcome is counted")

    child = psutil.Process(pid).memory_info().rss
    parent = psutil.Process(process.process.pid).memory_info().rss
    found = scraped(process)

    agree(found, "Metrics of a worker")
    assert promtool("check", "metrics", given=found.text) == ""

    largest = found.get("horsies_children_resident_memory_max_bytes")
    of_roles = found.of("horsies_resident_memory_bytes", "role")
    assert largest == pytest.approx(child, rel=0.2)
    assert of_roles["worker"] == pytest.approx(parent, rel=0.2)
    assert of_roles["children"] > largest * 1.1, "there are two"


def test_children_are_counted_by_why_they_ended(worker: Start) -> None:
    limits = {"HORSIES_TEST_KILL_GRACE_MS": "300"}
    process = worker(
        "--processes=1", "--health-port=0", "--max-tasks-per-child=0", **limits
    ).ready()

    expected: Counter[str] = Counter()
    ended(process)

    for reason, handle in (
        ("exited", tasks.dies.send("exit")),
        ("exited", tasks.dies.send("leave")),
        ("killed", tasks.dies.send("kill")),
        ("killed", tasks.dies.send("segv")),
        ("timeout", tasks.ignores_its_timeout.send()),
        ("state", traps.wreck.send("directory")),
    ):
        handle.get(timeout_ms=30_000)
        expected[reason] += 1
    ended(process, **expected)

    stubborn = tasks.deaf.send("deaf")
    held_by("deaf")
    stubborn.cancel(terminate=True)
    ended(process, **expected, cancel=1)
    assert process.stop() == 0


@pytest.mark.promise("S1.18", "S1.19", "S1.23", "S1.31")
def test_replaced_children_are_counted_by_their_first_limit(worker: Start) -> None:
    """Replaced children are counted under the limit that they reached first."""
    limits = ("--max-tasks-per-child=2", "--max-memory-per-child-mb=400")
    process = worker("--processes=1", "--health-port=0", *limits).ready()

    for handle in (*(tasks.pid.send() for _ in range(4)), tasks.eats.send(500), tasks.pid.send()):
        handle.get(timeout_ms=30_000)
    ended(process, tasks=2, memory=1)

    tasks.hold.send("its last")
    psutil.Process(held_by("its last")).kill()
    ended(process, tasks=2, memory=1, killed=1)
