"""Damage that one task does to its process or event loop does not reach the next task.

One task does the damage, and another one looks for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.project import tasks, traps, unspeakable
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, held_by, is_over, let_go

SECONDS_30 = 30_000
WITHOUT_CHILDREN = ("--processes=0",)
WHERE = pytest.mark.parametrize("options", [("--processes=1",), WITHOUT_CHILDREN], ids=" ".join)
CHANGES = (
    "language",
    "time zone",
    "context",
    "decimal",
    "directory",
    "handlers",
    "blocked",
    "alarms",
)
TOLD = {
    "directory": "the working directory",
    "handlers": "the handler of SIGINT, the handler of SIGTERM",
    "blocked": "blocked signals",
}


def look(kind: str) -> tuple[int, str]:
    """Return the id of the process that looked, and its findings."""
    pid, _, seen = str(traps.look.send(kind).get(timeout_ms=SECONDS_30).ok_value).partition(" ")
    return int(pid), seen


def wreck(kind: str) -> str | None:
    """Run a task that does damage, and return its error code."""
    result = traps.wreck.send(kind).get(timeout_ms=SECONDS_30)
    return None if result.is_ok() else str(result.err_value.error_code)


@pytest.mark.boundary
def test_the_next_task_finds_the_process_unchanged(
    worker: Start,
) -> None:
    """The next task finds the process as the first one did, and the worker ends well."""
    process = worker("--processes=1").ready()
    tasks.note.send("a group").get(timeout_ms=SECONDS_30)

    for kind in CHANGES:
        _, before = look(kind)
        handle = traps.wreck.send(kind)
        assert handle.get(timeout_ms=SECONDS_30).is_ok()
        assert look(kind)[1] == before, kind

        if kind in TOLD:
            line = (
                f"tests.apps.project.traps.wreck {handle.task_id} changed process state: "
                f"{TOLD[kind]}"
            )
            wait_until(lambda line=line: line in process.log, line)

    assert process.stop() == 0, process.log
    assert process.log.count("changed process state") == len(TOLD), "no other is named"
    assert "left a transaction open" not in process.log


@WHERE
def test_a_task_that_prints_to_an_output_that_broke_goes_on(
    worker: Start, options: tuple[str, ...]
) -> None:
    """Fails if: each task that prints fails once the disk is full or a pipe's reader has gone."""
    process = worker(*options, prefix=("sh", "-c", 'exec "$@" >/dev/full', "sh")).ready()

    assert tasks.prints.send("x" * 100_000).get(timeout_ms=SECONDS_30).is_ok()
    assert process.stop() == 0, process.log


def test_a_task_that_closes_its_output_harms_no_later_one(shared_worker: WorkerProcess) -> None:
    assert wreck("closed stdout") is None

    before = look("nothing")
    assert wreck("stdout") is None
    assert look("nothing") == before

    assert tasks.raises.send("seen in the log").get(timeout_ms=SECONDS_30).is_err()
    wait_until(lambda: "seen in the log" in shared_worker.log, "the failure is in the log")


def test_an_exception_of_any_kind_fails_its_task_alone(
    shared_worker: WorkerProcess,
) -> None:
    """An exception of any kind fails its task, and the next task runs in the same process."""
    before = look("nothing")

    for kind in (
        "SystemExit",
        "KeyboardInterrupt",
        "GeneratorExit",
        "BaseException",
        "recursion",
        "memory",
    ):
        assert wreck(kind) == "UNHANDLED_ERROR", kind
        assert look("nothing") == before, kind


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[int]:
    """Return the reading end of the pipe to which the first worker of the test writes its log."""
    path = tmp_path / "worker-0.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield reader
    os.close(reader)


def test_a_worker_whose_log_nobody_reads_runs_its_tasks(
    pipe: int, worker: Start, tmp_path: Path
) -> None:
    writer = os.open(tmp_path / "worker-0.log", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)

    process = worker("--processes=1")
    assert [tasks.add.send(number).get(timeout_ms=SECONDS_30).ok_value for number in range(3)] == [
        0,
        1,
        2,
    ]

    process.signal(signal.SIGTERM)
    said: list[bytes] = []
    wait_until(lambda: said.append(drained(pipe)) or process.process.poll() is not None, "it ends")

    assert process.process.returncode == 0
    assert b"Worker started" in b"".join(said)
    os.close(writer)


def drained(reader: int) -> bytes:
    """Read all data of a pipe."""
    try:
        return os.read(reader, 1 << 16)
    except BlockingIOError:
        return b""


def test_a_task_that_ruins_its_process_crashes_alone(worker: Start) -> None:
    process = worker("--processes=2").ready()
    sibling = tasks.hold.send("sibling")
    held_by("sibling")

    for kind in ("_exit", "all files", "C stack"):
        assert wreck(kind) == "WORKER_CRASHED", kind
        assert look("nothing")[0] > 0

    let_go("sibling")
    assert sibling.get(timeout_ms=SECONDS_30).is_ok()
    assert process.stop() == 0


def written(path: Path) -> list[int]:
    """Return the two processes that have written their ids to a file."""
    pids = wait_until(
        lambda: path.exists() and len(lines := path.read_text().split()) == 2 and lines,
        "both wrote",
    )
    return [int(pid) for pid in pids]


@WHERE
def test_a_forked_copy_ends_with_the_function_and_runs_no_lane(
    worker: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    process = worker(*options).ready()

    for how in ("returns", "raises", "waits"):
        handle = traps.forks.send(str(tmp_path / how), how)
        original = handle.get(timeout_ms=SECONDS_30).ok_value
        (copy,) = {*written(tmp_path / how)} - {original}
        wait_until(lambda copy=copy: is_over(copy), "the copy ends")

        assert look("nothing")[0] == original
        assert [attempt.outcome for attempt in handle.info().attempts] == ["COMPLETED"]

    assert process.stop() == 0


def test_a_copy_can_be_ended_from_its_first_moment(shared_worker: WorkerProcess) -> None:
    copies = traps.ends_its_copies.send(10).get(timeout_ms=SECONDS_30).ok_value
    assert copies == [signal.SIGTERM] * 10


def test_a_copy_of_an_event_loop_goes_on_with_nothing(
    shared_worker: WorkerProcess, tmp_path: Path
) -> None:
    paths = [tmp_path / "forked", tmp_path / "beside"]
    beside = traps.arounds.send(str(paths[1]), 2_000)
    wait_until(lambda: paths[1].exists(), "another coroutine goes round")

    original = traps.aforks.send(str(paths[0])).get(timeout_ms=SECONDS_30).ok_value
    assert beside.get(timeout_ms=SECONDS_30).ok_value == 2_000

    (copy,) = {*written(paths[0])} - {original}
    wait_until(lambda: is_over(copy), "the copy ends")

    assert set(paths[1].read_text().split()) == {str(original)}
    assert tasks.anoop.send().get(timeout_ms=SECONDS_30).is_ok()


@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt", "stop"])
def test_a_coroutine_that_breaks_the_event_loop_harms_no_other(
    shared_worker: WorkerProcess, how: str
) -> None:
    """A coroutine that breaks the event loop ends no other coroutine."""
    other = tasks.ahold.send("other")
    pid = held_by("other")

    broken = traps.abreaks.send(how).get(timeout_ms=SECONDS_30)
    assert broken.is_ok() == (how == "stop")

    let_go("other")
    assert other.get(timeout_ms=SECONDS_30).ok_value == pid
    wait_until(lambda: "stopped the event loop" in shared_worker.log, "the log tells it")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_program_that_a_task_runs_has_default_signals(
    shared_worker: WorkerProcess,
) -> None:
    """A program that a task runs has the default handlers of all signals."""
    assert traps.runs_a_program.send().get(timeout_ms=SECONDS_30).ok_value == ["0", "0", "0"]


def test_a_thread_that_never_ends_does_not_keep_its_child_alive(worker: Start) -> None:
    """A thread that never ends does not keep its child from ending."""
    process = worker("--processes=1").ready()
    assert wreck("thread") is None
    pid = look("nothing")[0]

    assert process.stop() == 0
    assert is_over(pid)
    # The child ended by itself, because a killed child logs nothing.
    assert "left threads or processes that do not end" in process.log


# The event loop, which async tasks share


def lasting(worker: Start, *options: str) -> WorkerProcess:
    """Start a worker with two threads per process.

    Its children are not replaced because of their tasks.
    """
    return worker(*options, "--threads=2", "--max-tasks-per-child=0").ready()


def async_pid() -> int:
    return int(unspeakable.apid.send().get(timeout_ms=SECONDS_30).unwrap())


@WHERE
def test_a_task_that_removes_loop_readers_harms_no_other(
    worker: Start, options: tuple[str, ...]
) -> None:
    """A task that removes its readers and writers from the loop harms no other task."""
    process = lasting(worker, *options)
    pid = async_pid()

    for how in ("remove_writer", "stop", "close", "cancel"):
        for _ in range(3):
            unspeakable.abreaks.send(how).get(timeout_ms=SECONDS_30)
            assert async_pid() == pid, how

    for how in ("remove_writer", "remove_reader"):
        breaker = unspeakable.abreaks.send(how, name="goes on")
        held_by("goes on")
        wait_until(
            lambda how=how: (
                (async_pid() == pid) == (how == "remove_writer" or options == WITHOUT_CHILDREN)
            ),
            how,
        )
        let_go("goes on")
        assert breaker.get(timeout_ms=SECONDS_30).ok_value == pid

    assert ("replacing it" in process.log) == (options != WITHOUT_CHILDREN)
    assert process.stop() == 0


@WHERE
def test_each_task_has_an_outcome_after_one_cancels_all_others(
    worker: Start, options: tuple[str, ...]
) -> None:
    """After a task cancels all others, each of them still has an outcome."""
    process = lasting(worker, *options)
    pid = async_pid()
    running = tasks.ahold.send("running")
    assert held_by("running") == pid

    breaker = unspeakable.abreaks.send_many([{"how": "cancel"}] * 20)
    others = unspeakable.apid.send_many([{}] * 60)
    results = [handle.get(timeout_ms=SECONDS_30) for handle in (*breaker, *others)]

    assert {result.err_value.error_code for result in results if result.is_err()} <= {
        "UNHANDLED_ERROR"
    }
    assert {result.ok_value for result in results if result.is_ok()} <= {pid}

    assert running.get(timeout_ms=SECONDS_30).err_value.error_code == "UNHANDLED_ERROR"
    assert async_pid() == pid
    assert process.stop() == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@WHERE
def test_a_task_that_ruins_the_loop_has_its_child_replaced(
    worker: Start, options: tuple[str, ...]
) -> None:
    """A task that breaks the loop beyond repair has its child replaced.

    A worker without children ends.
    """
    process = lasting(worker, *options)

    for how in ("close sockets", "close epoll", "close for real"):
        pid = async_pid()
        broken = unspeakable.abreaks.send(how)

        if options == WITHOUT_CHILDREN:
            assert process.wait() == 1, how
            process = lasting(worker, *options)
            continue

        assert broken.get(timeout_ms=SECONDS_30).err_value.error_code == "WORKER_CRASHED", how
        assert async_pid() != pid
        assert is_over(pid)

    assert process.stop() == 0


@WHERE
def test_an_exception_that_cannot_be_shown_fails_its_task_alone(
    worker: Start, options: tuple[str, ...]
) -> None:
    """An exception that cannot be shown fails its own task only."""
    process = lasting(worker, *options)
    sibling = tasks.hold.send("sibling")
    asibling = tasks.ahold.send("asibling")
    pid = held_by("sibling")
    assert held_by("asibling") == pid

    for way in (unspeakable.raises, unspeakable.araises):
        for handle in way.send_many([{"kind": kind} for kind in unspeakable.KINDS]):
            assert handle.get(timeout_ms=SECONDS_30).err_value.error_code == "UNHANDLED_ERROR"

    let_go("sibling")
    let_go("asibling")
    assert sibling.get(timeout_ms=SECONDS_30).ok_value == pid
    assert asibling.get(timeout_ms=SECONDS_30).ok_value == pid
    assert process.stop() == 0


@pytest.mark.parametrize("name", ["writes_to_its_worker", "claims_to_have_run_another"])
def test_a_child_that_sends_an_odd_message_is_killed(worker: Start, name: str) -> None:
    """Fails if: a message that a task writes to a channel of its process harms other processes."""
    process = worker("--processes=2").ready()
    long = tasks.hold.send("long")
    held_by("long")
    odd = getattr(traps, name).send(
        {"writes_to_its_worker": "Traceback", "claims_to_have_run_another": 4_711}[name]
    )

    assert odd.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert "has sent an invalid message" in process.log
    assert tasks.add.send(1).get(timeout_ms=30_000).is_ok()
    let_go("long")
    assert long.get(timeout_ms=30_000).is_ok()
    assert process.stop() == 0
