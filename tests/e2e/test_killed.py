"""Real ``kill -9``: of everything below a worker at once, and of a worker, of which nothing remains, not even a directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Task
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess

METHODS = ("--start-method=forkserver", "--start-method=spawn")


def descendants(process: WorkerProcess) -> list[psutil.Process]:
    """Return the processes below a worker: children, fork server, and what multiprocessing starts beside it."""
    return psutil.Process(process.process.pid).children(recursive=True)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Give an empty directory whose name leaves room for a socket's."""
    with TemporaryDirectory(prefix="t") as directory:
        yield Path(directory)


def kill_all(process: WorkerProcess) -> None:
    for item in descendants(process):
        with suppress(psutil.NoSuchProcess):
            item.kill()


@pytest.mark.parametrize(
    ("method", "imports", "each_time"), [(METHODS[0], "fork server", 1), (METHODS[1], "child", 2)], ids=METHODS
)
def test_a_worker_that_loses_all_its_descendants_at_once_time_and_again_starts_others_and_goes_on(
    worker: Start, tmp_path: Path, method: str, imports: str, each_time: int
) -> None:
    closed = tmp_path / "closed"  # while it is there, nobody becomes ready
    slow = {"DJANGO_SETTINGS_MODULE": "tests.settings.slow_import", "SLOW_IMPORT": imports, "SLOW_WHILE": str(closed)}
    process = worker("--processes=2", method, **slow).ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")
    closed.touch()
    for number in (1, 2, 3):
        kill_all(process)
        starting = number * each_time
        wait_until(lambda least=starting: process.log.count(f"importing in the {imports}") >= least, "others start")
    closed.unlink()
    kill_all(process)
    assert {handle.get(timeout_ms=60_000).err_value.error_code for handle in lost} == {"WORKER_CRASHED"}
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    assert not Task.objects.filter(status="RUNNING").exists()
    assert process.stop() == 0


def leaves_nothing(process: WorkerProcess, number: int, below: list[psutil.Process], place: Path) -> None:
    process.signal(number)
    process.wait()
    wait_until(lambda: not any(item.is_running() for item in below), "nothing is left of it")
    assert list(place.rglob("*")) == []


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("--processes=2", METHODS[0]), signal.SIGKILL),
        (("--processes=2", METHODS[0]), signal.SIGTERM),
        (("--processes=2", METHODS[1]), signal.SIGKILL),
        (("--processes=0",), signal.SIGKILL),
    ],
)
def test_a_worker_leaves_no_directory_behind_when_it_is_killed(
    worker: Start, short_directory: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    process = worker(*options, TMPDIR=str(short_directory)).ready()
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    below = descendants(process)
    if options != ("--processes=0",):
        os.kill(tasks.pid.send().get(timeout_ms=60_000).ok_value, signal.SIGKILL)  # another child, by the hidden socket
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
        below = descendants(process)
    leaves_nothing(process, number, below, short_directory)


def test_a_worker_that_is_killed_while_its_fork_server_loads_the_project_leaves_no_directory_either(
    worker: Start, short_directory: Path
) -> None:
    slow = {"DJANGO_SETTINGS_MODULE": "tests.settings.slow_import", "SLOW_IMPORT": "fork server"}
    process = worker("--processes=1", TMPDIR=str(short_directory), **slow)
    wait_until(lambda: "importing in the fork server" in process.log, "it imports")
    leaves_nothing(process, signal.SIGKILL, descendants(process), short_directory)
