"""Sends that wake nobody: their tasks run at once all the same, though the poll is minutes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection

from horsies_django.models import Task
from horsies_django.store.notify import channel_prefix
from horsies_django.tasks import enqueue
from horsies_django.tasks.notify_throttle import BURST, Notified, NotifyThrottle, Turn
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
pytestmark = pytest.mark.django_db(transaction=True)

SENDS = 200
PATIENCE_SECONDS = 100.0
LOOKED = "SELECT bool_and(query_start > %s AND state = 'idle') FROM pg_stat_activity WHERE application_name = 'horsies engine'"
NO_POLL = {"HORSIES_TEST_POLL_MS": "300000"}


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
