"""A worker of a project with many queues, and the same queues for the sender."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.test.utils import override_settings

from benchmarks.latency import pace
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, worker
from benchmarks.settings_large import horsies
from horsies_django.queues import sync

PAUSE_SECONDS = 0.02


@contextmanager
def project(queues: int = 1, cap: int = 0) -> Iterator[None]:
    """Begin with empty tables, and declare only these queues during the block."""
    empty_tables()
    declare(horsies(queues, cap))

    with override_settings(HORSIES=horsies(queues, cap)):
        try:
            yield
        finally:
            declare({})
            empty_tables()


def declare(settings: dict[str, Any]) -> None:
    """Declare the queues of some settings, and no others."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM horsies_queues")
        cursor.execute("DELETE FROM horsies_limits")
    with override_settings(HORSIES=settings):
        sync(actor="benchmarks")


@contextmanager
def working(
    *options: str, queues: int = 1, cap: int = 0, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of that project during the block."""
    environment |= {"BENCH_QUEUES": str(queues), "BENCH_QUEUE_CAP": str(cap)}
    with worker(
        *options, DJANGO_SETTINGS_MODULE="benchmarks.settings_large", **environment
    ) as process:
        yield process


def starts(sends: Sequence[Callable[[], Any]]) -> list[float]:
    """Send tasks that return when they began, one every 20 ms at most.

    Return how long each took to begin.
    """
    waits = []
    for turn in pace(len(sends), PAUSE_SECONDS):
        handle = sends[turn]()
        committed = time.time()
        waits.append(handle.get(60_000).unwrap() - committed)

    return waits


def ready() -> None:
    """Wait until a worker has run tasks, and is idle."""
    starts([tasks.moment.with_options(queue="queue-0").send] * 5)
