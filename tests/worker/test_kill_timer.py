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

import pytest

from horsies_django.worker.limits import kill_timer
from horsies_django.worker.limits.kill_timer import KernelTimer, KillTimer
from tests.conftest import wait_until
from tests.support.workers import is_over

pytestmark = pytest.mark.skipif(
    kill_timer.library() is None,
    reason="the dead man's timer needs POSIX timers and /proc, so Linux",
)

ROOT = Path(__file__).parents[2]
FAR = 100_000.0

# A process that arms its timer, prints a line and stops itself. It is never continued.
STOPS_ITSELF = """
import os, signal, time
from horsies_django.worker.limits.kill_timer import KernelTimer
timer = KernelTimer()
timer.arm(time.monotonic() + 0.3)
print("armed", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("went on", flush=True)
"""


# A worker without a database: a pool, a heartbeat that re-arms the timer, and an engine that runs
# its task for each line of its input.
WORKER = """
import json, selectors, sys, threading, time, uuid
import django, psutil
from horsies_django.core.records import Claim
from horsies_django.tasks import registry
from horsies_django.worker.limits.kill_timer import KillTimer
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.pool.launch import Forker
from horsies_django.worker.pool.pool import Pool

def say(**event):
    print(json.dumps(event), flush=True)

def command():
    sys.stdin.readline()
    pool.dispatch([Claim(uuid.uuid4(), 1, "sync", "stoppable.tasks.keep_the_gil", "{}")])

def beat():
    while not ended.wait(0.1):
        kill_timer.rearm(time.monotonic())

django.setup()
registry.autodiscover()
options = WorkerOptions(queues=(), processes=1, start_method=sys.argv[1])
forker = Forker(options)
kill_timer = KillTimer(float(sys.argv[2]), forker.arm if options.forks else None)
ended = threading.Event()
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
        say(result=outcome.result)
    pool.outcomes.clear()
"""

TASKS = """
import ctypes, time
from horsies_django import task

@task
def keep_the_gil() -> str:
    until = time.monotonic() + 2.5
    ctypes.PyDLL(None).usleep(2_500_000)
    return "kept it" if time.monotonic() >= until else "was too short"
"""

SETTINGS = """
from tests.settings import *
INSTALLED_APPS = ["horsies_django", "stoppable"]
"""


class Worker:
    """A running WORKER in its own process group."""

    def __init__(self, folder: Path, start_method: str, seconds: float, heart: str) -> None:
        app = folder / "stoppable"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "tasks.py").write_text(TASKS)
        (folder / "stoppable_settings.py").write_text(SETTINGS)

        self.seen: list[dict[str, Any]] = []
        variables = os.environ | {
            "DJANGO_SETTINGS_MODULE": "stoppable_settings",
            "PYTHONPATH": f"{folder}:{ROOT}",
        }

        command = [sys.executable, "-c", WORKER, start_method, str(seconds), heart]
        self.process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def event(self, key: str, number: int = 0) -> dict[str, Any]:
        """Wait for an event that has ``key``, and return it."""
        assert self.process.stdout is not None
        while len(found := [event for event in self.seen if key in event]) <= number:
            line = self.process.stdout.readline()
            assert line, "it has ended"
            self.seen.append(json.loads(line))

        return found[number]

    def run_its_task(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            # Other processes of the group may be stopped.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that starts a worker, and end the worker with its children afterwards."""
    started: list[Worker] = []

    def start(start_method: str, *, seconds: float, heart: str = "beats") -> Worker:
        started.append(Worker(tmp_path, start_method, seconds, heart))
        return started[-1]

    yield start
    for item in started:
        item.end()


def test_a_stopped_process_dies_at_its_deadline() -> None:
    """A stopped process dies at its deadline without being continued."""
    command = [sys.executable, "-c", STOPS_ITSELF]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "armed\n"), done.stderr


def test_arming_moves_a_deadline_that_has_not_passed() -> None:
    """Arming moves the deadline unless it has passed, and disarming removes it."""
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
        timer.arm(kill_timer.DISARMED)

    assert timer.remaining() == 0


def test_a_late_beat_of_a_stopping_worker_sets_no_deadline() -> None:
    """The deadline counts from before a heartbeat.

    A late heartbeat of a worker that ends sets no deadline.
    """
    deadlines: list[float] = []
    timer = KillTimer(FAR, deadlines.append)

    timer.rearm(1.0)
    timer.disarm()
    timer.rearm(2.0)

    assert deadlines == [1.0 + FAR, kill_timer.DISARMED]


def test_a_stopped_worker_ends_with_its_spawned_child(
    worker: Callable[..., Worker],
) -> None:
    """A stopped worker without a fork server ends together with its child."""
    stopped = worker("spawn", seconds=1.5)
    child = stopped.event("child")["child"]

    os.killpg(stopped.process.pid, signal.SIGSTOP)

    assert stopped.process.wait(60) == -signal.SIGKILL
    wait_until(lambda: is_over(child), "the child ends with its worker")


def test_a_fork_server_that_hangs_during_a_start_is_replaced(
    worker: Callable[..., Worker],
) -> None:
    """A fork server that hangs during the start of a child is replaced."""
    running = worker("forkserver", seconds=3.5)
    first = running.event("child")

    os.kill(first["fork_server"], signal.SIGSTOP)
    # The pool now waits for another child of the stopped fork server.
    os.kill(first["child"], signal.SIGKILL)
    second = running.event("child", 1)

    assert is_over(first["fork_server"])
    assert second["fork_server"] != first["fork_server"]


def test_the_next_fork_server_has_the_deadline_of_the_last_beat(
    worker: Callable[..., Worker],
) -> None:
    """Fails if: tasks of a worker that was stopped before its next heartbeat go on when it is
    continued.
    """
    running = worker("forkserver", seconds=3.0, heart="beats once")

    os.kill(running.event("child")["fork_server"], signal.SIGKILL)
    second = running.event("child", 1)["fork_server"]

    wait_until(lambda: is_over(second), "the kernel ends it, too")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_task_that_holds_the_gil_for_long_is_not_killed(
    worker: Callable[..., Worker], start_method: str
) -> None:
    """A task that holds the GIL for long lives as long as its worker."""
    alive = worker(start_method, seconds=1.0)
    alive.event("child")

    alive.run_its_task()

    assert json.loads(alive.event("result")["result"]) == {"ok": "kept it"}
    assert sum("child" in event for event in alive.seen) == 1
