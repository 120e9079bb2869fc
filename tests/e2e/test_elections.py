"""No task waits for a poll while a worker is idle, whatever becomes of those that are told of it, also after a quiet send."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from horsies_django.models import Heartbeat, Task
from horsies_django.store.notify import channel_prefix
from horsies_django.tasks import enqueue
from horsies_django.tasks.notify_throttle import BURST, Notified, NotifyThrottle, Turn
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, let_go

NO_POLL = {"HORSIES_TEST_POLL_MS": "300000", "HORSIES_TEST_STALE_MS": "600000"}


def team(worker: Start, count: int) -> list[WorkerProcess]:
    """Start workers with one slot each, and return them in the order of their election, once each knows its place."""
    started = [worker("--processes=0", "--threads=1", "--queues=default", **NO_POLL) for _ in range(count)]
    for each in started:
        each.ready()
    parents = Heartbeat.objects.filter(role="claimer")
    wait_until(lambda: parents.filter(listens=True).count() == count, "all of them listen")
    latest = max(parents.values_list("sent_at", flat=True))
    wait_until(lambda: parents.filter(sent_at__gt=latest).count() == count, "each has asked for its place since")
    by_pid = {each.process.pid: each for each in started}
    return [by_pid[pid] for pid in parents.order_by("id").values_list("pid", flat=True)]


def held() -> int:
    """Return how many tasks have begun and wait to be let go."""
    return Group.objects.filter(name__startswith="held:").count()


def run_some() -> None:
    """Send tasks one by one, and see each of them run."""
    for _ in range(5):
        assert tasks.noop.send().get(30_000).is_ok()


@pytest.mark.promise("S3.9")
@pytest.mark.parametrize(("fate", "gone"), [(signal.SIGSTOP, [0, 1]), (signal.SIGKILL, [1, 2])])
def test_tasks_start_while_elected_workers_are_stopped_or_dead(
    worker: Start, fate: signal.Signals, gone: list[int]
) -> None:
    workers = team(worker, 3)
    for place in gone:
        workers[place].signal(fate)
    run_some()


def test_tasks_start_when_all_elected_workers_have_stopped_one_by_one(worker: Start) -> None:
    first, second, third, _last = team(worker, 4)
    for each in (second, first, third):
        assert each.stop() == 0
        run_some()


def test_a_burst_and_lone_tasks_reach_as_many_workers_as_they_need(worker: Start) -> None:
    team(worker, 5)
    tasks.hold.send_many([{"name": "held"}] * 5)
    wait_until(lambda: held() == 5, "each worker has one")
    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")
    for count in range(1, 6):
        tasks.hold.send("held")
        wait_until(lambda count=count: held() == count, "those that are not elected run it while the others are full")
    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")


def test_a_full_worker_whose_others_are_stopped_finds_the_one_that_is_not(worker: Start) -> None:
    first, second, third, fourth, _last = team(worker, 5)
    for each in (second, third, fourth):
        each.signal(signal.SIGSTOP)
    tasks.hold.send("held")
    wait_until(lambda: held() == 1, "the first runs it")
    tasks.hold.send("held")
    wait_until(lambda: held() == 2, "the last runs it")
    let_go("held")
    assert first.process.poll() is None


# Quiet sends: those that wake nobody, because one right before them did

SENDS = 200
PATIENCE_SECONDS = 100.0
LOOKED = "SELECT bool_and(query_start > %s AND state = 'idle') FROM pg_stat_activity WHERE application_name = 'horsies engine'"


class Noted(NotifyThrottle):
    """Remembers which sends were quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet: list[bool] = []

    def end(self, turn: Turn, table: int) -> bool:
        late = super().end(turn, table)
        self.quiet.append(turn.notified == table and not late)
        return late


def together(*calls: Callable[[], None]) -> None:
    """Make the calls at once, each on a thread and a connection of its own."""

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    made = Noted()
    monkeypatch.setattr(enqueue, "throttle", made)
    return made


def test_every_task_of_two_senders_starts_though_most_were_quiet_and_no_poll_comes(worker: Start, noted: Noted) -> None:
    worker("--processes=1", **NO_POLL).ready()

    def send() -> None:
        for _ in range(SENDS):
            tasks.noop.send()

    together(send, send)
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() == 2 * SENDS, "all of them ran")
    assert any(noted.quiet)


def test_the_task_of_a_quiet_send_to_a_worker_that_found_nothing_more_starts(worker: Start, noted: Noted) -> None:
    worker("--processes=1", **NO_POLL).ready()
    tasks.noop.send().get(30_000)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'horsies_tasks'::regclass::oid")
        (table,) = cursor.fetchone()
        while time.monotonic() < deadline:
            began = time.monotonic()
            cursor.execute("SELECT clock_timestamp()")
            (moment,) = cursor.fetchone()
            for _ in range(2):
                cursor.execute("SELECT pg_notify(%s, '0!sync default')", [channel_prefix(connection) + "_new"])
            looked = False
            while not looked:
                cursor.execute(LOOKED, [moment])
                (looked,) = cursor.fetchone()
            noted.last["default", "sync"] = Notified(began, time.monotonic(), table, BURST)  # what those two stand for
            handle = tasks.noop.send()
            wait_until(lambda handle=handle: handle.info().status == "COMPLETED", "it ran")
            if noted.quiet[-1]:
                break
    assert noted.quiet[-1], "in no try was the worker done so soon that this send was quiet"
