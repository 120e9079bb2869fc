"""Sends that wake nobody: their tasks run at once all the same, though the poll is minutes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection

from horsies_django.models import Task
from horsies_django.tasks import enqueue
from horsies_django.tasks.notify_throttle import Announcements, Turn
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
pytestmark = pytest.mark.django_db(transaction=True)

SENDS = 200
PATIENCE_SECONDS = 100.0
NO_POLL = {"HORSIES_TEST_POLL_MS": "300000"}


class Noted(Announcements):
    """Remembers which sends were quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet: list[bool] = []

    def end(self, turn: Turn, table: int) -> bool:
        late = super().end(turn, table)
        self.quiet.append(turn.told == table and not late)
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
    monkeypatch.setattr(enqueue, "announcements", made)
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
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        tasks.noop.send()
        announced = tasks.noop.send()
        while announced.info().status != "COMPLETED":
            continue  # the pass that settled it looked for another, in vain
        handle = tasks.noop.send()
        wait_until(lambda handle=handle: handle.info().status == "COMPLETED", "it ran")
        if noted.quiet[-1]:
            break
    assert noted.quiet[-1], "in no try was the task before done so soon that this one was quiet"
