"""The attempts that workers count: metrics over real HTTP without a query, and the history.

The history counts each attempt once.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import math
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
import pytest
from django.db import connection

from horsies_django import __version__
from horsies_django.conf import Recovery, Retention, config
from horsies_django.core.counts import BOUNDS, CLAIMED, OTHER, Total
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import History, Task, Worker
from horsies_django.monitoring.history import series
from horsies_django.store.history import HistoryStore
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.maintenance import metrics
from horsies_django.worker.maintenance.health_server import MOST_THREADS
from horsies_django.worker.maintenance.pruner import Pruner
from horsies_django.worker.process.counts import MOST_CODES, MOST_TASKS, Counts, HistoryWriter
from horsies_django.worker.supervisor import Supervisor
from tests.apps.project import tasks
from tests.conftest import Claimers, Connect, put, sql, wait_until
from tests.support.factories import WorkerFactory
from tests.support.metrics import Metrics
from tests.support.workers import held_by, let_go
from tests.worker.conftest import Build, ask, turns_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    metrics.cached_worker_metrics.kept.clear()
    yield
    metrics.cached_worker_metrics.kept.clear()


def scraped(parts: Supervisor) -> Metrics:
    metrics.cached_worker_metrics.kept.clear()
    status, text = ask(parts, "/metrics")
    assert status == 200
    return Metrics(text)


def outcome(
    name: str = "shop.pay", code: str | None = None, seconds: float | None = 0.3
) -> Outcome:
    status = "COMPLETED" if code is None else "FAILED"
    return Outcome(
        uuid.uuid4(), 1, status, "{}", code, task_name=name, queue_name="default", seconds=seconds
    )


NAME = "tests.apps.project.tasks."
PASSES = "horsies_pass_duration_seconds"


def test_all_results_of_a_task_share_one_histogram(
    parts: Supervisor,
) -> None:
    """Each result has its own sample, and all results of a task share one histogram."""
    tasks.noop.send_many([{}] * 3)
    tasks.raises.send("an error")
    tasks.blames.send("an error")
    tasks.asks_again.send(None, None)  # in a minute
    put(1, due_at=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=40))
    put(1, good_until=dt.datetime.now(dt.UTC) - MINUTE)

    parts.engine.wakeups.check_everywhere()
    turns_until(
        parts, lambda: not Task.objects.filter(finished_at=None).exclude(retry_count=1).exists()
    )

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
    assert (
        results["tests.nothing", "WORKER_RESOLUTION_ERROR"]
        == results["tests.nothing", "EXPIRED"]
        == 1
    )

    for task in ("noop", "raises", "blames", "asks_again"):
        many = sum(value for (name, _), value in results.items() if name == task)
        assert (
            found.get("horsies_task_duration_seconds_count", queue="default", task=NAME + task)
            == many
        )

    claims = found.get("horsies_task_wait_seconds_count", queue="default")
    assert claims == sum(results.values()) - 1, "what expired was not claimed"
    assert (found.get("horsies_task_wait_seconds_sum", queue="default") or 0) >= 40

    assert not [
        pairs for _, pairs in found.samples if ("result", CLAIMED) in pairs or ("task", "") in pairs
    ]


def test_a_duration_counts_in_every_bucket_from_its_own_upwards(
    parts: Supervisor,
) -> None:
    """A duration counts in each bucket from its own upwards.

    All results of a task are added up.
    """
    odd = 'a "quoted" one, with \\n, a\nline and ü'
    results = [
        outcome(odd, seconds=0.2),
        outcome(odd, "OH_NO", 3.0),
        outcome(odd, "OH_NO", 9_000.0),
    ]
    parts.outbox.counts.settled([*results, outcome(odd, "WORKER_CRASHED", seconds=None)], {})

    waited = [
        Claim(uuid7(), 1, "sync", odd, "{}", queue_name="mail", due_in=due_in)
        for due_in in (-2.0, 0.1)
    ]
    parts.outbox.counts.claimed(waited)

    found = scraped(parts)
    name = "horsies_task_duration_seconds"
    labels = {"queue": "default", "task": odd}
    counts = [
        found.get(f"{name}_bucket", le="+Inf" if bound == math.inf else str(bound), **labels)
        for bound in BOUNDS
    ]

    assert counts == [0] * 5 + [1] * 4 + [2] * 6 + [3]
    assert found.get(f"{name}_sum", **labels) == 9_003.2
    assert found.get(f"{name}_count", **labels) == 3

    waits = [
        found.get(f"horsies_task_wait_seconds_{figure}", queue="mail")
        for figure in ("sum", "count")
    ]
    assert waits == [2.0, 2]


def test_slots_are_used_by_tasks_that_run_not_by_those_ahead(
    parts: Supervisor, tmp_path: Path
) -> None:
    def slots() -> dict[str, tuple[float, float]]:
        found = scraped(parts)
        used = found.of("horsies_slots_used", "lane")
        return {
            lane: (used[lane], most) for lane, most in found.of("horsies_slots", "lane").items()
        }

    assert slots() == {"sync": (0, 1), "async": (0, 100)}

    tasks.linger.send(str(tmp_path / "one"))
    tasks.ahold.send("one")
    parts.engine.wakeups.check_everywhere()
    turns_until(
        parts, lambda: parts.engine.pool.running("sync") == parts.engine.pool.running("async") == 1
    )

    held_by("one")
    parts.engine.publish()
    assert slots() == {"sync": (1, 1), "async": (1, 100)}

    parts.engine.status = parts.engine.status._replace(running_sync=40)
    assert slots()["sync"] == (1, 1)

    (tmp_path / "one.go").touch()
    let_go("one")
    turns_until(parts, lambda: parts.engine.pool.idle)


def test_metrics_are_served_during_an_outage_of_the_database(
    parts: Supervisor,
) -> None:
    """Metrics are served during an outage, and show the number of unwritten outcomes.

    Fails if: a scrape reads the database, and the metrics are missing when they are needed.
    """
    assert scraped(parts).get("horsies_unwritten_outcomes") == 0

    parts.outbox.disconnect()
    parts.outbox.outcomes.append(outcome())
    parts.outbox.locked.append(outcome())
    assert scraped(parts).get("horsies_unwritten_outcomes") == 2

    parts.outbox.outcomes = []
    parts.outbox.locked = []


def test_a_worker_without_children_reports_its_own_memory(
    parts: Supervisor,
) -> None:
    """A worker without children reports its own memory, its version and its passes."""
    found = scraped(parts)

    memory = found.of("horsies_resident_memory_bytes", "role")
    assert memory["worker"] == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.2)
    assert memory["children"] == found.get("horsies_children_resident_memory_max_bytes") == 0
    assert found.get("horsies_worker_info", version=__version__) == 1
    assert ask(parts, "/metrics", "HEAD") == (200, "")

    tasks.noop.send()
    parts.engine.wakeups.check_everywhere()
    parts.engine.turn(0.0)
    after = scraped(parts)

    assert after.get(f"{PASSES}_count") == (found.get(f"{PASSES}_count") or 0) + 1
    assert (after.get(f"{PASSES}_sum") or 0) > (found.get(f"{PASSES}_sum") or 0)


def test_who_renders_hands_over_the_interpreter_at_once(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: the engine waits 5 ms for the interpreter each time it needs it while 300 tasks are
    rendered.
    """
    before = sys.getswitchinterval()
    seen = list[float]()
    sys.setswitchinterval(0.004)

    def read() -> list[Total]:
        seen.append(sys.getswitchinterval())
        raise RuntimeError("to be restored after an error, too")

    monkeypatch.setattr(parts.outbox.counts, "read", read)
    try:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(parts, "/metrics")
        assert (*seen, sys.getswitchinterval()) == pytest.approx((metrics.SWITCH_SECONDS, 0.004))
    finally:
        sys.setswitchinterval(before)


def test_the_history_keeps_the_longest_of_a_minute(build: Build) -> None:
    """Fails if: 75 s are shown as 4 min 43 s, because only the bucket is stored, which ends at five
    minutes.
    """
    worker = WorkerFactory()
    counts = Counts()
    writer = HistoryWriter(worker.pk, counts)
    for seconds in (61.0, 75.0, 62.0):
        counts.settled([outcome(seconds=seconds)], {})

    counts.claimed(
        [Claim(uuid7(), 1, "sync", "shop.pay", "{}", queue_name="default", due_in=-90.0)]
    )
    writer.tick(connection.connection)
    counts.settled([outcome(seconds=64.0)], {})

    writer.tick(connection.connection)

    (steps,) = series(connection, dt.timedelta(hours=1), 1).values()
    assert (steps[0].longest_run, steps[0].longest_wait) == (75.0, 90.0)
    assert 60.0 < (steps[0].run(0.95) or 0) <= 75.0
    assert set(History.objects.filter(result="COMPLETED").values_list("n", "longest")) == {
        (4, 75.0)
    }


def test_metrics_are_kept_for_a_second(parts: Supervisor) -> None:
    first = ask(parts, "/metrics")
    parts.outbox.counts.settled([outcome()], {})

    again = ask(parts, "/metrics")

    assert again == first
    ((until, text),) = metrics.cached_worker_metrics.kept.values()
    metrics.cached_worker_metrics.kept[""] = until - 1.0, text
    assert ask(parts, "/metrics") != first


def test_a_crowd_for_metrics_takes_few_threads(parts: Supervisor) -> None:
    """Fails if: each request waits on its own thread until the earlier requests were rendered."""

    def threads() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    port = parts.options.health_port
    most = 0
    assert port
    with ExitStack() as stack, parts.outbox.counts.lock:
        for _ in range(120):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            most = max(most, threads())
        refused = ask(parts, "/metrics")
        lives = ask(parts, "/live")

    assert most <= MOST_THREADS
    assert refused == (503, "Too many requests wait for the metrics. Try again in a second.\n")
    assert lives[0] == 200
    wait_until(lambda: ask(parts, "/metrics")[0] == 200, "it is rendered")


def test_a_scrape_without_prometheus_client_names_the_package(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape without prometheus-client returns the name of the package to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    assert ask(parts, "/metrics") == (
        501,
        "Metrics need prometheus-client: pip install 'horsies-django[prometheus]'\n",
    )


def test_prometheus_client_is_imported_only_for_a_scrape() -> None:
    """A worker and a site import prometheus-client only for a scrape.

    Fails if: a project without the extra cannot start workers, and each worker takes its memory.
    """
    code = (
        "import django, sys; django.setup()\n"
        "from horsies_django import urls\n"
        "from horsies_django.management.commands import horsies_worker, horsies_status\n"
        "from horsies_django.worker import main\n"
        "print([name for name in sys.modules if name.startswith('prometheus')])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "[]\n"


MINUTE = dt.timedelta(minutes=1)


def counted(counts: Counts) -> dict[tuple[str, str, str], int]:
    return {total[:3]: total.n for total in counts.read()}


def written(width: int = 60) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in History.objects.filter(width=width):
        found[row.queue, row.task, row.result] += row.n
    return found


@pytest.fixture
def writer(transactional_db: None) -> HistoryWriter:
    return HistoryWriter(WorkerFactory().pk, Counts())


def test_names_and_codes_without_end_are_counted_as_others() -> None:
    counts = Counts()
    counts.claimed([Claim(uuid7(), 1, "sync", "task0", "{}", queue_name="default")])
    counts.settled([outcome(f"task{number}") for number in range(MOST_TASKS + 20)], {})
    counts.settled([outcome("task0", f"CODE_{number}") for number in range(MOST_CODES + 20)], {})
    counts.settled(
        [outcome("task0", "CODE_3"), outcome("task0"), outcome(f"task{MOST_TASKS + 7}")], {}
    )

    found = counted(counts)
    assert len(found) == 1 + MOST_TASKS + 1 + MOST_CODES + 1
    assert found["default", "", CLAIMED] == 1, "which are no task"
    assert (found["default", OTHER, "COMPLETED"], found["default", "task0", OTHER]) == (21, 20)
    assert (found["default", "task0", "CODE_3"], found["default", "task0", "COMPLETED"]) == (2, 2)


def test_each_count_is_written_once_in_its_minute_and_hour(
    writer: HistoryWriter, connect: Connect
) -> None:
    conn = connect()
    writer.counts.settled([outcome(), outcome(), outcome(code="OH_NO")], {})
    writer.tick(conn)
    writer.tick(conn)
    writer.counts.settled([outcome(seconds=0.5)], {})
    writer.tick(conn)

    expected = {("default", "shop.pay", "COMPLETED"): 3, ("default", "shop.pay", "OH_NO"): 1}
    assert written() == written(3_600) == expected

    (total, failed) = sorted(
        HistoryStore(connection).totals(dt.timedelta(hours=24)), key=lambda one: one.result
    )
    assert (total.n, total.seconds, total.buckets[6], sum(total.buckets)) == (
        3,
        pytest.approx(1.1),
        3,
        3,
    )

    assert [one.failed for one in (total, failed)] == [False, True]
    assert Worker.objects.get(pk=writer.worker).counted == 3


class Lossy(NamedTuple):
    """A connection whose statements run, but whose replies are lost."""

    conn: psycopg.Connection[Any]

    @contextmanager
    def cursor(self) -> Iterator[Lossy]:
        yield self

    def execute(self, *statement: Any) -> None:
        self.conn.execute(*statement)
        raise psycopg.OperationalError("the reply was lost")


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_sent_again_after_a_lost_reply_counts_once(
    writer: HistoryWriter, connect: Connect, arrived: bool
) -> None:
    """Fails if: the counts of a minute are written twice, or never, because the connection breaks
    while they are written.
    """
    conn = connect()
    broken = connect()
    if not arrived:
        broken.close()

    writer.counts.settled([outcome()], {})
    with pytest.raises(psycopg.OperationalError):
        writer.tick(Lossy(broken))
    assert bool(written()) == arrived

    writer.counts.settled([outcome(code="OH_NO")], {})
    writer.tick(conn)
    assert written() == {
        ("default", "shop.pay", "COMPLETED"): 1,
        ("default", "shop.pay", "OH_NO"): 1,
    }


def test_workers_that_write_the_same_rows_do_not_deadlock(
    connect: Connect,
) -> None:
    """Workers that write the same rows at the same time do not deadlock."""

    def write(rounds: int) -> None:
        store = HistoryStore(connect())
        worker = WorkerFactory().pk

        for number in range(1, rounds + 1):
            rows = [
                Total("default", f"task{one}", "COMPLETED", 1, 0.0, (1, *[0] * 15))
                for one in range(50)
            ]
            store.add(worker, number, rows[:: 1 if number % 2 else -1], MINUTE)

        connection.close()

    threads = [threading.Thread(target=write, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert set(written().values()) == {80}


def test_a_running_worker_writes_its_counts_every_minute(build: Build) -> None:
    """A running worker writes its counts every minute.

    Fails if: the counts are written only when the worker stops, so the current minutes are missing.
    """
    parts = build(started=False)
    thread = parts.maintenance
    thread.history.worker = thread.heartbeat.worker = WorkerFactory().pk
    parts.outbox.counts.settled([outcome()], {})

    thread.jobs[-1].at = 0.0
    thread.start()
    try:
        wait_until(lambda: bool(written()), "it is written")
        assert thread.is_alive()
    finally:
        thread.stop()


def test_old_minutes_and_hours_are_deleted(writer: HistoryWriter, connect: Connect) -> None:
    conn = connect()
    writer.counts.settled([outcome()], {})
    writer.tick(conn)

    with connection.cursor() as cursor:
        for hours in (25, 500, 721):
            cursor.execute(
                "INSERT INTO horsies_history SELECT width, at - %s * interval '1 hour', queue, "
                "task, result, n, seconds, buckets "
                "FROM horsies_history WHERE at > now() - interval '2 hours'",
                [hours],
            )

    for retention, left in ((Retention(history_hours=None), (1, 4)), (Retention(), (1, 3))):
        pruner = Pruner(retention)
        wait_until(
            lambda pruner=pruner: pruner.tick(conn) == pruner.interval_seconds, "the round is over"
        )
        assert tuple(History.objects.filter(width=width).count() for width in (60, 3_600)) == left


@pytest.mark.parametrize(
    ("most", "once", "again"), [(5, "WORKER_CRASHED", "CRASHED"), (1, "POISON", "POISON")]
)
def test_the_reaper_counts_rescued_tasks_under_their_error_code(
    build: Build, connect: Connect, claimer: Claimers, most: int, once: str, again: str
) -> None:
    """The reaper counts rescued tasks under the error code with which they ended.

    Fails if: a task that ended its workers again and again is counted as an ordinary crash.
    """
    parts = build(replace(config(), recovery=Recovery(max_crashes=most)), started=False)
    retry = {"intervals": [1], "strategy": "fixed", "codes": ["WORKER_CRASHED"]}

    put(1, name="shop.once")
    put(1, name="shop.again", max_retries=1, options=json.dumps({"wire": 1, "retry": retry}))
    put(1, name="shop.late", queue="mail", good_until=dt.datetime.now(dt.UTC) - MINUTE)
    claimer().run_pass(sync=2)
    sql("UPDATE horsies_tasks SET claimed_at = claimed_at - interval '1 hour'")

    parts.maintenance.reaper.rescue(connect())

    assert counted(parts.outbox.counts) == {
        ("default", "shop.once", once): 1,
        ("default", "shop.again", again): 1,
        ("mail", "shop.late", "EXPIRED"): 1,
    }
