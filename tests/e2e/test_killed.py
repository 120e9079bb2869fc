"""Real ``kill -9``: of everything below a worker at once, and of a worker, of which nothing remains, not even a directory."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Task
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.runners import kill_a_runner, runners_of
from tests.support.workers import Start, WorkerProcess, held_by

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


def test_a_worker_that_loses_all_its_spawned_children_at_once_time_and_again_starts_others_and_goes_on(
    worker: Start, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"  # while it is there, nobody becomes ready
    slow = {"DJANGO_SETTINGS_MODULE": "tests.settings.slow_import", "SLOW_IMPORT": "child", "SLOW_WHILE": str(closed)}
    process = worker("--processes=2", METHODS[1], **slow).ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")
    closed.touch()
    for number in (2, 4, 6):
        kill_all(process)
        wait_until(lambda least=number: process.log.count("importing in the child") >= least, "others start")
    closed.unlink()
    kill_all(process)
    goes_on(process, lost)


def goes_on(process: WorkerProcess, lost: list[Any]) -> None:
    assert {handle.get(timeout_ms=60_000).err_value.error_code for handle in lost} == {"WORKER_CRASHED"}
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    assert not Task.objects.filter(status="RUNNING").exists()
    assert process.stop() == 0


def template_of(process: WorkerProcess) -> psutil.Process:
    (template,) = psutil.Process(process.process.pid).children()
    return template


def test_a_worker_whose_fork_servers_are_killed_alone_or_with_their_children_time_and_again_goes_on(
    worker: Start,
) -> None:
    process = worker("--processes=2").ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")
    template = template_of(process)
    for blow in range(3):
        (server,) = template.children()
        for item in [*(server.children() if blow else []), server]:
            with suppress(psutil.NoSuchProcess):
                item.kill()
        wait_until(lambda old=server: template.children() not in ([], [old]), "another one starts")
    goes_on(process, lost)
    assert "ended with its fork server" in process.log


def test_a_worker_whose_template_is_killed_ends_and_its_tasks_crashed(worker: Start) -> None:
    """Naive: it waits for children that nobody can start any more."""
    process = worker("--processes=2").ready()
    lost = tasks.hold.send("lost")
    wait_until(lambda: Group.objects.count() == 1, "it runs")
    template_of(process).kill()
    assert process.wait() == 1
    assert "the template of its children was killed; ending" in process.log
    assert lost.get(0).err_value.error_code == "WORKER_CRASHED"


@pytest.mark.parametrize("method", METHODS)
def test_a_storm_that_kills_what_runs_tasks_finds_those_processes_and_nothing_above_them(
    worker: Start, method: str
) -> None:
    """Naive: it takes whatever has no children, as a template has none after the death of its fork server."""
    process = worker("--processes=2", method).ready()
    for name in ("one", "two"):
        tasks.hold.send(name)
    running = {held_by("one"), held_by("two")}
    assert {one.pid for one in runners_of(process.process.pid)} == running
    if method == METHODS[0]:
        template = template_of(process)
        template.suspend()
        template.children()[0].kill()
        wait_until(lambda: not template.children(), "it has no fork server")
        assert not kill_a_runner(process.process.pid, random.Random(1))
        assert template.is_running()


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
def test_nothing_is_left_of_a_worker_that_is_killed_in_the_middle_of_tasks_not_even_a_directory(
    worker: Start, short_directory: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    process = worker(*options, TMPDIR=str(short_directory)).ready()
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    if options != ("--processes=0",):
        os.kill(tasks.pid.send().get(timeout_ms=60_000).ok_value, signal.SIGKILL)  # another child
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    if number == signal.SIGKILL:
        tasks.deaf.send("sync")
        tasks.adeaf.send("async")
        held_by("sync")
        held_by("async")
    below = descendants(process)
    leaves_nothing(process, number, below, short_directory)


def test_a_worker_that_is_killed_while_a_fresh_template_loads_the_project_leaves_no_directory_either(
    worker: Start, short_directory: Path
) -> None:
    slow = {"DJANGO_SETTINGS_MODULE": "tests.settings.slow_import", "SLOW_IMPORT": "child", "HASTY_WORKER": "1"}
    process = worker("--processes=1", TMPDIR=str(short_directory), **slow)
    wait_until(lambda: "importing in the child" in process.log, "it imports")
    leaves_nothing(process, signal.SIGKILL, descendants(process), short_directory)
