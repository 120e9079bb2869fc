"""The metrics of real workers: their processes, and what Prometheus says of the whole page."""

from __future__ import annotations

import signal
import urllib.request
from collections import Counter

import psutil
import pytest

from horsies_django.worker.pool.process import END_REASONS
from tests.apps.project import tasks, traps
from tests.conftest import wait_until
from tests.e2e.test_health_server import port
from tests.support.metrics import Metrics, agree, promtool
from tests.support.workers import Start, WorkerProcess, held_by

pytestmark = pytest.mark.django_db(transaction=True)


def scraped(process: WorkerProcess) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port(process)}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Metrics(answer.read().decode())


def ended(process: WorkerProcess, **reasons: int) -> None:
    """Wait until as many children as given have ended for each reason, and no others."""
    expected = {reason: float(reasons.get(reason, 0)) for reason in END_REASONS}
    wait_until(lambda: scraped(process).of("horsies_children_ended_total", "reason") == expected, str(reasons))


@pytest.mark.boundary
def test_the_metrics_of_a_worker_are_those_of_the_page_and_promtool_finds_nothing_to_say(worker: Start) -> None:
    process = worker("--processes=2", "--health-port=0").ready()
    tasks.add.send(1).get(timeout_ms=30_000)
    tasks.raises.send("an error").get(timeout_ms=30_000)
    counted = 'horsies_tasks_total{queue="default",result="COMPLETED",task="tests.apps.project.tasks.add"} 1.0'
    wait_until(lambda: counted in scraped(process).text, "the outcome is counted")
    found = scraped(process)
    agree(found, "Metrics of a worker")
    assert promtool("check", "metrics", given=found.text) == ""


def test_the_memory_is_that_of_the_worker_its_children_and_the_largest_of_them(worker: Start) -> None:
    process = worker("--processes=2", "--health-port=0", "--max-tasks-per-child=0").ready()
    pid = tasks.eats_and_tells.send(200).get(timeout_ms=30_000).ok_value[0]
    child, parent = psutil.Process(pid).memory_info().rss, psutil.Process(process.process.pid).memory_info().rss
    found = scraped(process)
    largest = found.get("horsies_children_resident_memory_max_bytes")
    of_roles = found.of("horsies_resident_memory_bytes", "role")
    assert largest == pytest.approx(child, rel=0.2)
    assert of_roles["worker"] == pytest.approx(parent, rel=0.2)
    assert of_roles["children"] > largest * 1.1, "there are two"


def test_children_are_counted_by_why_they_ended(worker: Start) -> None:
    limits = {"HORSIES_TEST_KILL_GRACE_MS": "300"}
    process = worker("--processes=1", "--health-port=0", "--max-tasks-per-child=0", **limits).ready()
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


def test_children_that_are_replaced_are_counted_by_the_limit_that_they_reached(worker: Start) -> None:
    process = worker(
        "--processes=1", "--health-port=0", "--max-tasks-per-child=2", "--max-memory-per-child-mb=400"
    ).ready()
    for _ in range(4):
        tasks.pid.send().get(timeout_ms=30_000)
    ended(process, tasks=2)
    tasks.eats.send(500).get(timeout_ms=30_000)
    ended(process, tasks=2, memory=1)


def test_a_child_that_is_killed_while_it_retires_counts_as_killed(worker: Start) -> None:
    process = worker("--processes=1", "--health-port=0", "--max-tasks-per-child=1").ready()
    tasks.hold.send("long")
    psutil.Process(held_by("long")).send_signal(signal.SIGKILL)
    ended(process, killed=1)
