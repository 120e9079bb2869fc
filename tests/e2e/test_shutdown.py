"""A worker stops in order at a signal and ends in order if it has to.

It leaves nothing behind if it is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from horsies_django import TaskHandle
from horsies_django.models import Heartbeat, Task, Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import (
    Start,
    WorkerProcess,
    apps,
    database_url,
    given,
    gone,
    held_by,
    is_over,
    let_go,
)

SOFT = given(PREFETCH_BUFFER=4, CLAIM_LEASE_MS=5_000)


def attempts(handle: TaskHandle[Any]) -> list[tuple[str, str | None]]:
    return [(one.outcome, one.error_code) for one in handle.info().attempts]


def untouched(handle: TaskHandle[Any]) -> bool:
    """Return whether a task waits as if it was never claimed, except for its claim generation."""
    task = Task.objects.get(pk=handle.task_id)
    waits = (task.status, task.claimed_by, task.started_at, task.retry_count) == (
        "PENDING",
        None,
        None,
        0,
    )
    return waits and not attempts(handle)


def signed_off() -> bool:
    """Return whether the only worker has recorded its stop and sends no more heartbeats."""
    return Worker.objects.get().stopped_at is not None and not Heartbeat.objects.exists()


# In order


def in_order(number: signal.Signals, *options: str, group: bool = False, marks: Any = ()) -> Any:
    """Return a parameter with the options of a worker and the receivers of the signal.

    The signal goes to its group, as from a terminal, or to it alone, as from a service manager.
    """
    words = (number.name, *options, "group" if group else "alone")
    return pytest.param(number, options, group, marks=marks, id=" ".join(words))


@pytest.mark.promise("S2.12")
@pytest.mark.parametrize(
    ("number", "options", "group"),
    [
        in_order(signal.SIGTERM, "--processes=1", marks=pytest.mark.boundary),
        in_order(signal.SIGHUP, "--processes=1", marks=pytest.mark.boundary),
        in_order(signal.SIGINT, "--processes=0", marks=pytest.mark.boundary),
        in_order(signal.SIGTERM, "--processes=0", group=True),
        in_order(signal.SIGINT, "--processes=1", "--threads=2", group=True),
        in_order(signal.SIGHUP, "--processes=1", "--threads=2", group=True),
        in_order(signal.SIGTERM, "--processes=1", "--start-method=spawn", group=True),
        in_order(signal.SIGINT, "--processes=1", "--start-method=spawn", group=True),
    ],
)
def test_a_signal_stops_claims_while_running_tasks_finish(
    worker: Start, number: signal.Signals, options: tuple[str, ...], group: bool
) -> None:
    process = worker(*options).ready()
    sync = tasks.hold.send("sync")
    async_ = tasks.ahold.send("async")
    held_by("sync")
    held_by("async")

    for _ in range(2 if number == signal.SIGHUP else 1):  # a terminal that closes may send it twice
        (os.killpg if group else os.kill)(process.process.pid, number)
        wait_until(lambda: "no more tasks are claimed" in process.log, "the signal is taken")

    after = tasks.add.send(1)
    let_go("sync")
    let_go("async")

    assert process.wait() == 0
    assert sync.get(0).is_ok()
    assert async_.get(0).is_ok()

    assert untouched(after)
    assert Task.objects.get(pk=after.task_id).claim_generation == 0
    assert signed_off()


def test_a_worker_under_nohup_does_not_hang_up(worker: Start) -> None:
    process = worker("--processes=1", ignoring_hangups=True).ready()

    os.killpg(process.process.pid, signal.SIGHUP)

    assert tasks.add.send(1).get().ok_value == 1
    assert "no more tasks are claimed" not in process.log
    assert process.stop() == 0


def test_a_buffered_task_goes_back_while_running_tasks_finish(
    worker: Start,
) -> None:
    """Tasks in a buffer go back untouched while running tasks finish."""
    process = worker("--processes=1", **SOFT).ready()
    running = tasks.hold.send("held")
    held_by("held")

    waiting = [tasks.noop.send() for _ in range(4)]
    wait_until(
        lambda: Task.objects.filter(status="CLAIMED").count() == 4, "four tasks wait in the buffer"
    )

    process.signal(signal.SIGTERM)
    wait_until(lambda: all(untouched(handle) for handle in waiting), "they are pending again")
    assert set(
        Task.objects.filter(status="PENDING").values_list("claim_generation", flat=True)
    ) == {1}

    let_go("held")
    assert process.wait() == 0
    assert running.get(0).is_ok()


def test_a_child_that_dies_during_the_stop_is_not_replaced(worker: Start) -> None:
    """A child that dies while the worker stops has no successor."""
    process = worker("--processes=2").ready()
    idle = tasks.pid.send().get().ok_value
    running = tasks.hold.send("running")

    if held_by("running") == idle:
        runners = Heartbeat.objects.filter(role="runner").exclude(pid=idle)
        wait_until(runners.exists, "the heartbeat names both children")
        idle = runners.get().pid

    process.signal(signal.SIGTERM)
    wait_until(lambda: "no more tasks are claimed" in process.log, "the signal is taken")
    os.kill(idle, signal.SIGKILL)
    wait_until(lambda: f"child {idle} was killed by SIGKILL" in process.log, "its death is seen")
    let_go("running")

    assert process.wait() == 0
    assert running.get(0).is_ok()
    assert "starting another" not in process.log


# With a deadline


@pytest.mark.parametrize(
    ("options", "name"),
    [
        *(
            pytest.param("--processes=1", name, marks=pytest.mark.boundary)
            for name in ("hold", "deaf", "ahold", "adeaf")
        ),
        *(("--processes=0", name) for name in ("hold", "ahold", "hangs_in_a_thread")),
    ],
)
def test_what_is_unfinished_at_the_deadline_crashed(worker: Start, options: str, name: str) -> None:
    process = worker(options, "--shutdown-timeout=0.2").ready()
    handle = getattr(tasks, name).send("endless")
    ran_in = held_by("endless")

    process.signal(signal.SIGTERM)

    assert process.wait() == 1
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"
    assert attempts(handle) == [("WORKER_FAILURE", "WORKER_CRASHED")]
    assert is_over(ran_in)
    assert signed_off()


def test_a_task_not_begun_at_the_deadline_goes_back(worker: Start) -> None:
    """Tasks that no child has begun at the deadline go back untouched."""
    process = worker("--processes=1", "--shutdown-timeout=0.2").ready()
    child = tasks.pid.send().get().ok_value
    os.kill(child, signal.SIGSTOP)

    sent = [tasks.noop.send(), tasks.anoop.send()]
    wait_until(
        lambda: Task.objects.filter(status="RUNNING").count() == 2,
        "both are on their way to the child",
    )

    process.signal(signal.SIGTERM)

    assert process.wait() == 1
    assert all(untouched(handle) for handle in sent)
    assert set(
        Task.objects.filter(status="PENDING").values_list("claim_generation", flat=True)
    ) == {1}


def test_two_sigterm_at_once_are_one_stop(worker: Start) -> None:
    """Fails if: running tasks end because a platform signals each process, and a wrapper passes its
    signal on.
    """
    process = worker("--processes=1").ready()
    handle = tasks.hold.send("long")
    held_by("long")

    process.signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in process.log, "it stops")
    process.signal(signal.SIGTERM)
    let_go("long")

    assert process.wait() == 0
    assert handle.get(timeout_ms=30_000).is_ok()


# At once


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGINT], [signal.SIGQUIT]]
)
def test_a_second_signal_or_sigquit_ends_the_worker_at_once(
    worker: Start, numbers: list[signal.Signals]
) -> None:
    """A second signal or SIGQUIT ends the worker at once, with the same records in the database."""
    process = worker("--processes=1", "--shutdown-timeout=600", **SOFT).ready()
    handle = tasks.deaf.send("endless")
    child = held_by("endless")

    waiting = [tasks.noop.send() for _ in range(4)]
    wait_until(
        lambda: Task.objects.filter(status="CLAIMED").count() == 4, "four tasks wait in the buffer"
    )

    for number in numbers:
        os.killpg(process.process.pid, number)
        wait_until(lambda: "topping" in process.log, "the signal is taken")

    assert process.wait() == 1
    assert attempts(handle) == [("WORKER_FAILURE", "WORKER_CRASHED")]
    assert all(untouched(other) for other in waiting)
    assert is_over(child)
    assert signed_off()


# Before it has started


def test_a_signal_while_it_waits_for_the_database_ends_it(worker: Start) -> None:
    # This server accepts connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        process = worker(
            DATABASE_URL=urlsplit(database_url())
            ._replace(netloc=f"postgres@{host}:{port}")
            .geturl()
        )

        me = psutil.Process(process.process.pid)
        wait_until(
            lambda: any(item.status == "ESTABLISHED" for item in me.net_connections()),
            "it is connecting",
        )

        process.signal(signal.SIGHUP)
        assert process.wait() == 0

    assert "Stopped before it started" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize(
    ("where", "times", "method", "names"),
    [
        ("worker", 1, "forkserver", ["slow"]),
        ("child", 1, "forkserver", ["hasty", "slow"]),
        ("child", 3, "spawn", ["slow"]),
    ],
    ids=["worker", "fresh template", "spawned children"],
)
def test_a_signal_while_task_modules_are_imported_ends_it(
    worker: Start, where: str, times: int, method: str, names: list[str]
) -> None:
    slow = {**apps("project", *names), "SLOW_IMPORT": where, "HASTY_WORKER": "1"}
    process = worker("--processes=3", f"--start-method={method}", **slow)
    wait_until(lambda: process.log.count(f"importing in the {where}") == times, "it imports")

    below = process.family()
    os.killpg(process.process.pid, signal.SIGTERM)

    assert process.wait() == 0
    assert "Traceback" not in process.log
    assert ("Stopped before it started" in process.log) == (method != "spawn")
    gone(below)
    assert not Heartbeat.objects.exists()


# While the database is away


def test_without_the_database_a_stop_waits_for_its_deadline(
    worker: Start,
) -> None:
    """Without the database, a stop waits until its deadline and logs the lost outcomes."""
    process = worker("--processes=2", "--shutdown-timeout=1").ready()
    handle = tasks.hold.send("through")
    held_by("through")

    with without_new_connections() as let_in:
        wait_until(lambda: "is not available" in process.log, "it misses the database")
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        let_in()

    assert "1 outcome(s) of tasks were not written" in process.log
    assert Task.objects.get(pk=handle.task_id).status == "RUNNING"


def test_an_outcome_is_written_if_the_database_returns_in_time(
    worker: Start,
) -> None:
    """The outcome of a task is written if the database is back before the deadline of the stop."""
    process = worker("--processes=1", "--shutdown-timeout=60").ready()
    handle = tasks.hold.send("through")
    held_by("through")

    with without_new_connections() as let_in:
        wait_until(lambda: "is not available" in process.log, "it misses the database")
        process.signal(signal.SIGTERM)
        wait_until(lambda: "no more tasks are claimed" in process.log, "the signal is taken")
        let_go("through")
        let_in()
        assert process.wait() == 0

    assert handle.get(0).is_ok()
    assert attempts(handle) == [("COMPLETED", None)]
    assert signed_off()


@contextmanager
def without_new_connections() -> Iterator[Callable[[], None]]:
    """Cut a worker off, but not the test's own connection.

    Yields a function that allows connections again.
    """
    url = urlsplit(database_url())
    name = url.path.removeprefix("/")

    with ExitStack() as stack:
        admin = stack.enter_context(
            psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True)
        )

        def let_in() -> None:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

        stack.callback(let_in)
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')

        ours = "datname = %s AND application_name LIKE 'horsies %%'"
        admin.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", [name]
        )

        yield let_in


def test_a_hanging_statement_does_not_keep_the_worker_alive(worker: Start) -> None:
    """A statement that never returns does not keep the worker alive."""
    process = worker("--processes=1", "--shutdown-timeout=0").ready()
    below = process.family()
    tasks.hold.send("running")
    held_by("running")

    with psycopg.connect(database_url()) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        other.rollback()

    assert "1 outcome(s) of tasks were not written" in process.log
    gone(below)


# Killed


def test_a_killed_later_child_gives_back_tasks_it_had_not_begun(
    worker: Start,
) -> None:
    """A task goes back if the later child that had not begun it is killed.

    Fails if: the counters of begun tasks are those of the earlier child.
    """
    process = worker("--processes=1").ready()
    assert all(handle.get().is_ok() for handle in tasks.add.send_many([{"a": 1}] * 5))
    first = tasks.pid.send().get().ok_value
    os.kill(first, signal.SIGKILL)

    alive = Heartbeat.objects.filter(role="runner").exclude(pid=first).values_list("pid", flat=True)
    wait_until(alive.exists, "another one is ready")
    child = psutil.Process(alive.get())
    child.suspend()

    handle = tasks.add.send(2)
    wait_until(lambda: Task.objects.get(pk=handle.task_id).status == "RUNNING", "it is handed over")
    child.kill()

    assert handle.get().ok_value == 2
    assert attempts(handle) == [("COMPLETED", None)]
    assert process.stop() == 0


# As process 1 of a container, without a parent

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# The interpreter may be in a private home directory.
READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *READ)


def can_run(*command: str) -> bool:
    """Return whether this machine allows such a command."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def process_one(worker: Start) -> Callable[..., tuple[WorkerProcess, psutil.Process]]:
    """Return a function that starts a worker as process 1.

    The function returns the outer process, and the worker as seen from outside.
    """
    if not can_run(*CONTAINER):
        pytest.skip("no right to make a PID namespace here: unshare --pid")

    def start(*options: str, inside: tuple[str, ...] = ()) -> tuple[WorkerProcess, psutil.Process]:
        outer = worker(*options, prefix=(*CONTAINER, *inside)).ready()
        (inner,) = psutil.Process(outer.process.pid).children()
        return outer, inner

    return start


Contained = Callable[..., tuple[WorkerProcess, psutil.Process]]


@pytest.mark.parametrize(
    ("options", "inside"),
    [(("--processes=2",), ()), (("--processes=0",), ()), (("--processes=1",), NOBODY)],
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


def test_process_one_replaces_a_killed_child_and_reaps_orphans(
    process_one: Contained, tmp_path: Path
) -> None:
    """Process 1 replaces a killed child, and reaps the orphans of a dead task."""
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
    """Return the id of a process in its own namespace."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
