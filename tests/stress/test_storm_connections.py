"""All tasks succeed after a storm in which the project's young connections were cut.

For ten seconds each connection is cut within moments of its start.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Task
from horsies_django.store.notify import direct_connection
from tests.apps.cutting import tasks
from tests.conftest import wait_until
from tests.e2e.test_traps_database import KEPT
from tests.support.workers import Start, apps, database_url

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True)]

STORM_SECONDS = 10.0
WAITING = 30  # tasks of each kind that wait or run during the storm
GOOD = 200
WORKERS = {
    tasks.note: ("--queues=mail", "--processes=1"),
    tasks.note_on_threads: ("--queues=bulk", "--processes=1", "--threads=4"),
    tasks.anote: ("--queues=twin", "--processes=1", "--async-concurrency=10"),
}
CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'project'
    AND backend_start > clock_timestamp() - interval '200 ms'
"""
numbers = count()


def cut_young_ones(over: threading.Event) -> int:
    """Cut young connections as fast as the server can, until the event is set.

    Return how many were cut.
    """
    cut = 0
    with direct_connection("default", application_name="cuts") as connection:
        while not over.is_set():
            cut += connection.execute(CUT).fetchone()[0]
    return cut


def send(way: Any, how_many: int, kind: str) -> None:
    way.send_many([{"name": f"{kind} {next(numbers)}"} for _ in range(how_many)])


def unfinished(way: Any) -> int:
    return Task.objects.filter(
        task_name=way.name, status__in=["PENDING", "CLAIMED", "RUNNING"]
    ).count()


def all_finished() -> bool:
    return not any(unfinished(way) for way in WORKERS)


def lost() -> set[str]:
    """Return the rows that COMPLETED tasks should have left and did not."""
    claimed = Task.objects.filter(status="COMPLETED").values_list("kwargs__name", flat=True)
    return set(claimed) - set(Group.objects.values_list("name", flat=True))


@KEPT
def test_every_task_succeeds_after_a_storm_of_cut_connections(
    worker: Start, tmp_path: Path, kept: str
) -> None:
    """After a storm of cut connections every task succeeds, and its row exists."""
    order = tmp_path / "order"
    environment = {
        **apps("project", "cutting"),
        "HORSIES_TEST_KEPT": kept,
        "HORSIES_TEST_ORDER": str(order),
    }
    environment["DATABASE_URL"] = f"{database_url()}?application_name=project"

    started = [
        worker(*options, "--max-tasks-per-child=0", **environment) for options in WORKERS.values()
    ]
    for process in started:
        process.ready()

    order.write_text("storm")
    over = threading.Event()
    with ThreadPoolExecutor(1) as aside:
        cutting = aside.submit(cut_young_ones, over)
        until = time.monotonic() + STORM_SECONDS
        while time.monotonic() < until:
            for way in WORKERS:
                send(way, max(0, WAITING - unfinished(way)), "storm")
        over.set()

    order.unlink()
    wait_until(all_finished, "the tasks of the storm end")

    assert cutting.result() > 0
    assert Task.objects.filter(status="FAILED", error_code="UNHANDLED_ERROR").exists()
    assert not lost()

    for way in WORKERS:
        send(way, GOOD, "good")
    wait_until(all_finished, "the good tasks end")

    good = Task.objects.filter(status="COMPLETED", kwargs__name__startswith="good")
    assert good.count() == GOOD * len(WORKERS)
    assert not lost()

    for process in started:
        assert process.stop() == 0
        # The children from before the storm have run the good tasks.
        assert "starting another" not in process.log
