"""The dead man's timer, with real processes that are really stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies_django.worker.process import kill_timer
from horsies_django.worker.process.kill_timer import KernelTimer, KillTimer
from tests.conftest import wait_until

pytestmark = pytest.mark.skipif(
    kill_timer.library() is None, reason="the dead man's timer needs POSIX timers and /proc, so Linux"
)

ROOT = Path(__file__).parents[2]
FAR = 100_000.0

# A process that arms its timer, says so, and stops itself; nobody continues it.
STOPS_ITSELF = """
import os, signal, time
from horsies_django.worker.process.kill_timer import KernelTimer
timer = KernelTimer()
timer.arm(time.monotonic() + 0.3)
print("armed", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("went on", flush=True)
"""


# A worker without a database: a pool, a heart that re-arms, and an engine that runs what its input says.
WORKER = """
import json, selectors, sys, threading, time, uuid
import django, psutil
from horsies_django.core.records import Claim
from horsies_django.tasks import registry
from horsies_django.worker.process.kill_timer import KillTimer
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.pool.launch import Forker
from horsies_django.worker.pool.pool import Pool

def say(**event):
    print(json.dumps(event), flush=True)

def command():
    name, arguments = json.loads(sys.stdin.readline())
    pool.dispatch([Claim(uuid.uuid4(), 1, "sync", name, json.dumps(arguments))])

def beat():
    while not ended.wait(0.1):
        kill_timer.rearm(time.monotonic())

django.setup()
registry.autodiscover()
options = WorkerOptions(queues=(), processes=1, start_method=sys.argv[1])
forker = Forker(options)
kill_timer, ended = KillTimer(float(sys.argv[2]), forker.arm if options.forks else None), threading.Event()
selector = selectors.DefaultSelector()
selector.register(sys.stdin, selectors.EVENT_READ, (command,))
pool = Pool(options, selector, forker)
pool.start()
kill_timer.rearm(time.monotonic())
if sys.argv[3] == "beats":
    threading.Thread(target=beat, daemon=True).start()
ready = False
while True:
    for key, _ in selector.select():
        key.data[0](*key.data[1:])
    was_ready, ready = ready, any(member.ready for member in pool.members)
    if ready and not was_ready:
        say(child=pool.members[0].pid, fork_server=psutil.Process(pool.members[0].pid).ppid())
    for outcome in pool.outcomes:
        say(status=outcome.status, result=outcome.result, message=outcome.error_message)
    pool.outcomes.clear()
"""

TASKS = """
import ctypes, os, time
from horsies_django import task

@task
def scribble(path: str) -> None:
    while True:
        with open(path, "a") as file:
            file.write(".")
        os.sched_yield()

@task
def keep_the_gil(seconds: float) -> str:
    microseconds = 100_000
    until = time.monotonic() + seconds
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return "kept it" if time.monotonic() >= until else "was too short"
"""

SETTINGS = """
from tests.settings import *
INSTALLED_APPS = ["horsies_django", "stoppable"]
"""


class Worker:
    """A running WORKER in a process group of its own."""

    def __init__(self, folder: Path, start_method: str, seconds: float, heart: str) -> None:
        app = folder / "stoppable"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "tasks.py").write_text(TASKS)
        (folder / "stoppable_settings.py").write_text(SETTINGS)
        self.scribbled = folder / "scribbled"
        self.seen: list[dict[str, Any]] = []
        variables = os.environ | {"DJANGO_SETTINGS_MODULE": "stoppable_settings", "PYTHONPATH": f"{folder}:{ROOT}"}
        command = [sys.executable, "-c", WORKER, start_method, str(seconds), heart]
        self.process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def event(self, key: str, number: int = 0) -> dict[str, Any]:
        """Wait for an event that has ``key``, and return it."""
        assert self.process.stdout is not None
        while len(found := [event for event in self.seen if key in event]) <= number:
            line = self.process.stdout.readline()
            assert line, "it has ended"
            self.seen.append(json.loads(line))
        return found[number]

    def run(self, name: str, **arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([f"stoppable.tasks.{name}", arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def scribble(self) -> None:
        """Start the task that appends to a file for ever, and wait for its first byte."""
        self.run("scribble", path=str(self.scribbled))
        wait_until(lambda: self.scribbled.exists() and self.scribbled.stat().st_size, "the task writes")

    def stop(self, *, whole_group: bool) -> None:
        (os.killpg if whole_group else os.kill)(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what else is left of the group may stand still
        self.process.communicate()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Give a function that starts a worker; it is ended afterwards, and its children with it."""
    started: list[Worker] = []

    def start(start_method: str, seconds: float = 1.5, heart: str = "beats") -> Worker:
        started.append(Worker(tmp_path, start_method, seconds, heart))
        return started[-1]

    yield start
    for item in started:
        item.end()


def state(pid: int) -> str:
    """Return the status of a process: a zombie is one that has ended, as one is that is gone."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def is_gone(pid: int) -> bool:
    return state(pid) == psutil.STATUS_ZOMBIE


def test_a_stopped_process_dies_at_its_deadline_without_being_continued() -> None:
    command = [sys.executable, "-c", STOPS_ITSELF]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "armed\n"), done.stderr


def test_arming_moves_the_deadline_unless_it_has_passed_and_disarming_takes_it_away() -> None:
    timer = KernelTimer()
    try:
        timer.arm(time.monotonic() - 1)
        assert timer.remaining() == 0
        timer.arm(time.monotonic() + FAR)
        assert 0 < timer.remaining() <= FAR
        timer.arm(time.monotonic() + 3 * FAR)
        assert FAR < timer.remaining() <= 3 * FAR
        timer.arm(time.monotonic() - 1)
        assert timer.remaining() > FAR
    finally:
        timer.arm(kill_timer.NEVER)
    assert timer.remaining() == 0


def test_deadlines_count_from_before_the_beat_and_a_late_beat_of_a_worker_that_ends_sets_none() -> None:
    deadlines: list[float] = []
    timer = KillTimer(FAR, deadlines.append)
    timer.rearm(1.0)
    timer.disarm()
    timer.rearm(2.0)
    assert deadlines == [1.0 + FAR, kill_timer.NEVER]


@pytest.mark.parametrize("whole_group", [True, False], ids=["whole group", "parent alone"])
def test_a_stopped_worker_s_tasks_write_nothing_after_it_is_continued_and_its_pool_recovers(
    worker: Callable[..., Worker], whole_group: bool
) -> None:
    stopped = worker("forkserver")
    first = stopped.event("child")
    stopped.scribble()
    stopped.stop(whole_group=whole_group)
    still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(lambda: state(first["child"]) in still, "the task stands still, or is ended")
    written = stopped.scribbled.stat().st_size
    wait_until(lambda: is_gone(first["fork_server"]) and is_gone(first["child"]), "the kernel ends the fork server")
    assert stopped.process.poll() is None
    stopped.go_on()
    crash, second = stopped.event("status"), stopped.event("child", 1)
    assert crash["status"] == "FAILED"
    assert "ended with its fork server" in crash["message"]
    assert second["fork_server"] != first["fork_server"]
    stopped.run("keep_the_gil", seconds=0.1)
    assert json.loads(stopped.event("status", 1)["result"]) == {"ok": "kept it"}
    assert stopped.scribbled.stat().st_size == written


def test_a_stopped_worker_without_a_fork_server_ends_with_its_tasks(worker: Callable[..., Worker]) -> None:
    stopped = worker("spawn")
    child = stopped.event("child")["child"]
    stopped.scribble()
    stopped.stop(whole_group=True)
    assert stopped.process.wait(60) == -signal.SIGKILL
    wait_until(lambda: is_gone(child), "the child ends with its worker")


def test_a_fork_server_that_ends_while_it_is_asked_for_a_child_is_replaced(worker: Callable[..., Worker]) -> None:
    running = worker("forkserver", seconds=3.5)
    first = running.event("child")
    os.kill(first["fork_server"], signal.SIGSTOP)
    os.kill(first["child"], signal.SIGKILL)  # the pool waits for another one from the stopped fork server
    second = running.event("child", 1)
    assert is_gone(first["fork_server"])
    assert second["fork_server"] != first["fork_server"]


def test_the_next_fork_server_has_the_deadline_of_the_last_beat(worker: Callable[..., Worker]) -> None:
    """Naive: a worker that is stopped before its next beat leaves tasks that go on when it does."""
    running = worker("forkserver", seconds=3.0, heart="beats once")
    os.kill(running.event("child")["fork_server"], signal.SIGKILL)
    second = running.event("child", 1)["fork_server"]
    wait_until(lambda: is_gone(second), "the kernel ends it, too")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_task_that_holds_the_gil_for_long_lives_as_long_as_its_worker(
    worker: Callable[..., Worker], start_method: str
) -> None:
    alive = worker(start_method, seconds=1.0)
    alive.event("child")
    alive.run("keep_the_gil", seconds=2.5)
    assert json.loads(alive.event("status")["result"]) == {"ok": "kept it"}
    assert sum("child" in event for event in alive.seen) == 1
