"""A worker as process 1 of a container, with nobody above it: it stops when asked to and reaps what its tasks leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, held_by, let_go

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # the interpreter may lie in a private home
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *READ)


def can_run(*command: str) -> bool:
    """Whether this machine lets us run such a command."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def process_one(worker: Start) -> Callable[..., tuple[WorkerProcess, psutil.Process]]:
    """Give a function that starts a worker as process 1; it returns what runs it, and the worker as this side sees it."""
    if not can_run(*CONTAINER):
        pytest.skip("no right to make a PID namespace here: unshare --pid")

    def start(*options: str, inside: tuple[str, ...] = ()) -> tuple[WorkerProcess, psutil.Process]:
        outer = worker(*options, prefix=(*CONTAINER, *inside)).ready()
        (inner,) = psutil.Process(outer.process.pid).children()
        return outer, inner

    return start


Contained = Callable[..., tuple[WorkerProcess, psutil.Process]]


@pytest.mark.parametrize(
    ("options", "inside"), [(("--processes=2",), ()), (("--processes=0",), ()), (("--processes=1",), NOBODY)]
)
def test_process_one_stops_in_order_and_need_not_be_root(
    process_one: Contained, options: tuple[str, ...], inside: tuple[str, ...]
) -> None:
    if inside and not can_run(*inside):
        pytest.skip("no right to become another user here: setpriv")
    outer, inner = process_one(*options, inside=inside)
    assert (inner.uids().effective == 65534) == bool(inside)
    handle = tasks.hold.send("slow")
    held_by("slow")
    inner.send_signal(signal.SIGTERM)
    wait_until(lambda: "no more tasks are claimed" in outer.log, "the signal is taken")
    let_go("slow")
    assert outer.wait() == 0
    assert handle.get(0).is_ok()


def test_process_one_ends_at_its_deadline(process_one: Contained) -> None:
    outer, inner = process_one("--processes=1", "--shutdown-timeout=0.2")
    handle = tasks.deaf.send("endless")
    held_by("endless")
    inner.send_signal(signal.SIGTERM)
    assert outer.wait() == 1
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"


def test_process_one_replaces_a_child_that_is_killed_and_reaps_what_a_dead_task_left_behind(
    process_one: Contained, tmp_path: Path
) -> None:
    outer, inner = process_one("--processes=1")
    handle = tasks.hold.send("victim")
    inside = held_by("victim")
    next(item for item in inner.children(recursive=True) if pid_inside(item) == inside).kill()
    assert handle.get().err_value.error_code == "WORKER_CRASHED"
    assert tasks.pid.send().get().ok_value != inside
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert tasks.leaves_behind.send(str(fifo)).get().err_value.error_code == "WORKER_CRASHED"
    (orphan,) = [item for item in inner.children(recursive=True) if item.name() == "cat"]
    assert orphan.is_running()
    fifo.open("w").close()
    wait_until(lambda: not psutil.pid_exists(orphan.pid), "it ended and was reaped")
    assert tasks.add.send(1).get().ok_value == 1
    inner.send_signal(signal.SIGTERM)
    assert outer.wait() == 0
    assert "unexpected pid" not in outer.log


def pid_inside(process: psutil.Process) -> int:
    """Return the id that a process has in its own namespace."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
