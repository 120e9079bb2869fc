"""The metrics of a worker over real HTTP: what its parts have counted, without a query."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import psutil
import pytest

from horsies_django import __version__
from horsies_django.core.counts import BOUNDS, CLAIMED, Total
from horsies_django.core.records import Outcome
from horsies_django.models import Task
from horsies_django.worker.maintenance import metrics
from horsies_django.worker.supervisor import Supervisor
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.metrics import Metrics
from tests.support.workers import held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)


def ask(parts: Supervisor, method: str = "GET") -> tuple[int, str]:
    """Return status and text of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{parts.options.health_port}/metrics", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.read().decode()


def scraped(parts: Supervisor) -> Metrics:
    status, text = ask(parts)
    assert status == 200
    return Metrics(text)


def until(parts: Supervisor, condition: object) -> None:
    wait_until(lambda: parts.engine.turn(0.01) or condition(), "it has turned")  # type: ignore[operator]


def ended(status: str, seconds: float | None = None, name: str = "orders.parse") -> Outcome:
    return Outcome(uuid.uuid4(), 1, status, "{}", task_name=name, queue_name="default", seconds=seconds)


NAME = "tests.apps.project.tasks."


def test_each_result_is_a_sample_and_all_results_of_a_task_are_one_histogram(parts: Supervisor) -> None:
    tasks.noop.send_many([{}] * 3)
    tasks.raises.send("an error")
    tasks.blames.send("an error")
    tasks.asks_again.send(None, None)  # in a minute
    parts.engine.wakeups.look_everywhere()
    until(parts, lambda: not Task.objects.exclude(status__in=["COMPLETED", "FAILED"]).exclude(retry_count=1).exists())
    found = scraped(parts)
    results = {
        (labels["task"].removeprefix(NAME), labels["result"]): value
        for (name, pairs), value in found.samples.items()
        if name == "horsies_tasks_total" and (labels := dict(pairs))["queue"] == "default"
    }
    assert results["noop", "COMPLETED"] == 3
    assert results["raises", "UNHANDLED_ERROR"] == 1
    assert results["blames", "RETURNED"] == 1
    assert results["asks_again", "RETRIED"] == 1
    for task in ("noop", "raises", "blames", "asks_again"):
        many = sum(value for (name, _), value in results.items() if name == task)
        assert found.get("horsies_task_duration_seconds_count", queue="default", task=NAME + task) == many
    claims = found.get("horsies_task_wait_seconds_count", queue="default")
    assert claims == sum(results.values())
    assert not [pairs for _, pairs in found.samples if ("result", CLAIMED) in pairs or ("task", "") in pairs]


def test_a_duration_is_in_each_bucket_from_its_own_on_and_results_of_a_task_are_added_up(parts: Supervisor) -> None:
    parts.outbox.counts.settled([ended("COMPLETED", 0.2), ended("FAILED", 3.0), ended("FAILED", 9_000.0)], {})
    found = scraped(parts)
    name, labels = "horsies_task_duration_seconds", {"queue": "default", "task": "orders.parse"}
    counts = [found.get(f"{name}_bucket", le="+Inf" if bound == math.inf else str(bound), **labels) for bound in BOUNDS]
    assert counts == [0] * 5 + [1] * 4 + [2] * 6 + [3]
    assert found.get(f"{name}_sum", **labels) == 9_003.2
    assert found.get(f"{name}_count", **labels) == 3


def test_a_name_with_any_character_is_read_as_it_is(parts: Supervisor) -> None:
    name = 'a "quoted" one, with \\n, a\nline and ü'
    parts.outbox.counts.settled([ended("COMPLETED", 0.2, name)], {})
    found = scraped(parts)
    assert found.get("horsies_tasks_total", queue="default", task=name, result="COMPLETED") == 1
    assert found.get("horsies_task_duration_seconds_count", queue="default", task=name) == 1


def test_each_pass_is_in_the_histogram_with_the_time_that_it_took(parts: Supervisor) -> None:
    def passes() -> tuple[float | None, float | None]:
        found = scraped(parts)
        return found.get("horsies_pass_duration_seconds_count"), found.get("horsies_pass_duration_seconds_sum")

    before, sum_before = passes()
    tasks.noop.send()
    parts.engine.wakeups.look_everywhere()
    parts.engine.turn(0.0)
    after, sum_after = passes()
    assert (before, after) == (before, (before or 0) + 1)
    assert (sum_after or 0) > (sum_before or 0)


def test_slots_are_used_by_tasks_that_run_not_by_those_ahead(parts: Supervisor, tmp_path: Path) -> None:
    def slots() -> dict[str, tuple[float, float]]:
        found = scraped(parts)
        used = found.of("horsies_slots_used", "lane")
        return {lane: (used[lane], most) for lane, most in found.of("horsies_slots", "lane").items()}

    assert slots() == {"sync": (0, 1), "async": (0, 100)}
    tasks.linger.send(str(tmp_path / "one"))
    tasks.ahold.send("one")
    parts.engine.wakeups.look_everywhere()
    until(parts, lambda: parts.engine.pool.running("sync") == parts.engine.pool.running("async") == 1)
    held_by("one")
    parts.engine.publish()
    assert slots() == {"sync": (1, 1), "async": (1, 100)}
    parts.engine.status = parts.engine.status._replace(running_sync=40)
    assert slots()["sync"] == (1, 1)
    (tmp_path / "one.go").touch()
    let_go("one")
    until(parts, lambda: parts.engine.pool.idle)


def test_an_outage_shows_in_the_outcomes_that_are_unwritten_and_keeps_no_scrape_waiting(parts: Supervisor) -> None:
    """Naive: a scrape asks the database, and the metrics are gone when they are needed."""
    assert scraped(parts).get("horsies_unwritten_outcomes") == 0
    parts.outbox.disconnect()
    parts.outbox.outcomes.append(ended("COMPLETED"))
    parts.outbox.locked.append(ended("COMPLETED"))
    assert scraped(parts).get("horsies_unwritten_outcomes") == 2
    parts.outbox.outcomes, parts.outbox.locked = [], []


def test_a_worker_without_children_has_its_own_memory_and_names_its_version(parts: Supervisor) -> None:
    found = scraped(parts)
    memory = found.of("horsies_resident_memory_bytes", "role")
    assert memory["worker"] == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.2)
    assert memory["children"] == found.get("horsies_children_resident_memory_max_bytes") == 0
    assert found.get("horsies_worker_info", version=__version__) == 1
    assert ask(parts, "HEAD") == (200, "")


def test_who_renders_hands_over_the_interpreter_at_once(parts: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: each time that the engine waits for the interpreter while 300 tasks are rendered, it waits for 5 ms."""
    before, seen = sys.getswitchinterval(), list[float]()
    sys.setswitchinterval(0.004)

    def read() -> list[Total]:
        seen.append(sys.getswitchinterval())
        raise RuntimeError("to be restored after an error, too")

    monkeypatch.setattr(parts.outbox.counts, "read", read)
    try:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            ask(parts)
        assert (*seen, sys.getswitchinterval()) == pytest.approx((metrics.SWITCH_SECONDS, 0.004))
    finally:
        sys.setswitchinterval(before)


def test_without_prometheus_client_the_answer_says_what_to_install(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert ask(parts) == (501, "Metrics need prometheus-client: pip install 'horsies-django[prometheus]'\n")


def test_a_worker_and_a_site_import_nothing_of_prometheus_client_until_somebody_scrapes_them() -> None:
    """Naive: a project without the extra cannot start a worker, and each worker takes its memory."""
    code = (
        "import django, sys; django.setup()\n"
        "from horsies_django import urls\n"
        "from horsies_django.management.commands import horsies_worker, horsies_status\n"
        "from horsies_django.worker import main\n"
        "print([name for name in sys.modules if name.startswith('prometheus')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
