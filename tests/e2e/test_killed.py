"""Real ``kill -9``: of everything below a worker at once, and of a worker, of which nothing remains, not even a directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Task
from horsies_django.worker.process import is_over
from tests.conftest import wait_until
from tests.e2e.conftest import WorkerProcess
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
METHODS = ("--start-method=forkserver", "--start-method=spawn")


def descendants(process: WorkerProcess) -> list[psutil.Process]:
    """Return the processes below a worker: children, fork server, and what multiprocessing starts beside it."""
    return psutil.Process(process.process.pid).children(recursive=True)


def kill_all(below: list[psutil.Process]) -> None:
    for item in below:
        with suppress(psutil.NoSuchProcess):
            item.kill()


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_loses_all_its_descendants_at_once_time_and_again_starts_others_and_goes_on(
    worker: Start, method: str
) -> None:
    process = worker("--processes=2", method).ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")
    for _ in range(5):  # but for the first time before any child is ready
        below = wait_until(lambda: descendants(process), "there is somebody to kill")
        kill_all(below)
        wait_until(lambda below=below: all(is_over(item.pid) for item in below), "all of them are gone")
    assert {handle.get(timeout_ms=60_000).err_value.error_code for handle in lost} == {"WORKER_CRASHED"}
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    assert not Task.objects.filter(status="RUNNING").exists()
    assert process.stop() == 0


@pytest.mark.parametrize("options", [("--processes=2", METHODS[0]), ("--processes=2", METHODS[1]), ("--processes=0",)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_worker_leaves_no_directory_behind_when_it_is_killed(
    worker: Start, tmp_path: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    process = worker(*options, TMPDIR=str(place)).ready()
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    below = descendants(process)
    if options != ("--processes=0",):
        os.kill(tasks.pid.send().get(timeout_ms=60_000).ok_value, signal.SIGKILL)  # another child, by the hidden socket
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
        below = descendants(process)
    process.signal(number)
    process.wait()
    wait_until(lambda: not any(item.is_running() for item in below), "nothing is left of it")
    assert list(place.rglob("*")) == []
