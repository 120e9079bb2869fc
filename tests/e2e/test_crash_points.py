"""A worker killed at each step of a task: the end of the task, and how often its code ran.

Each test has a task that lists WORKER_CRASHED and one that does not, at the same point, on one
worker. A second worker finds the remains. The expected results are in the table of
docs/explanation/failure-model.md.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from horsies_django.models import Heartbeat, Task
from tests.apps.project import points
from tests.conftest import wait_until
from tests.support.forwarder import Forwarder
from tests.support.points import (
    Fate,
    Gate,
    Walker,
    kill_machine,
    replies_in_the_pipe,
    send_walkers,
    standing_still,
)
from tests.support.points import gate as gate
from tests.support.workers import SHORT, Start, WorkerProcess, database_url, given

SOFT = given(PREFETCH_BUFFER=4, CLAIM_LEASE_MS=5_000)
AS_IF_NOTHING_HAD_BEEN = Fate("COMPLETED", None, ["COMPLETED"], 0, began=1, ended=1)


def crashed(began: int, ended: int) -> tuple[Fate, Fate]:
    """Return the expected fates of both tasks after a crash of their worker.

    ``began`` and ``ended`` count how often the code came to its first and its last line.
    """
    return (
        Fate("FAILED", "WORKER_CRASHED", ["WORKER_FAILURE"], 0, began, ended),
        Fate("COMPLETED", None, ["WORKER_FAILURE", "COMPLETED"], 1, began + 1, ended + 1),
    )


def hold_up(folder: Path) -> list[Walker]:
    """Keep both slots of a worker busy."""
    blockers = [
        Walker(folder / name, points.walks.send(str(folder / name))) for name in ("left", "right")
    ]
    for blocker in blockers:
        blocker.stands("began")
    return blockers


def fates(walkers: list[Walker]) -> tuple[Fate, ...]:
    """Finish the current runs of the tasks, and return the fates of the tasks."""
    for walker in walkers:
        walker.may("go", "out")
    return tuple(walker.fate() for walker in walkers)


def kill_at_commit(worker: WorkerProcess, gate: Gate, commits: bool) -> None:
    """Kill the worker whose pass waits at the gate, then commit or roll back its transaction."""
    session = gate.held()
    kill_machine(worker)
    gate.pass_on(session) if commits else gate.open(kill=session)


BEFORE_AND_AFTER = pytest.mark.parametrize(
    ("commits", "expected"),
    [(False, (AS_IF_NOTHING_HAD_BEEN,) * 2), (True, crashed(0, 0))],
    ids=["before", "after"],
)


@BEFORE_AND_AFTER
def test_a_worker_killed_around_the_commit_of_a_claim(
    worker: Start, gate: Gate, tmp_path: Path, commits: bool, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **SHORT).ready()
    gate.close("claim")
    walkers = send_walkers(tmp_path)

    kill_at_commit(first, gate, commits)

    assert set(Task.objects.values_list("status", flat=True)) == {
        "RUNNING" if commits else "PENDING"
    }

    worker("--processes=2", **SHORT).ready()
    assert fates(walkers) == expected


@pytest.mark.parametrize("commits", [False, True], ids=["before", "after"])
def test_a_worker_killed_around_the_commit_of_its_prefetch(
    worker: Start, gate: Gate, tmp_path: Path, commits: bool
) -> None:
    """Prefetched tasks run as usual if their worker is killed around the commit of the prefetch."""
    first = worker("--processes=2", **SOFT, **SHORT).ready()
    blockers = hold_up(tmp_path)
    gate.close("take ahead")
    walkers = send_walkers(tmp_path)

    kill_at_commit(first, gate, commits)

    assert {walker.handle.info().status for walker in walkers} == {
        "CLAIMED" if commits else "PENDING"
    }

    worker("--processes=2", **SOFT, **SHORT).ready()
    assert fates(walkers) == (AS_IF_NOTHING_HAD_BEEN,) * 2
    assert {blocker.fate().error_code for blocker in blockers} == {"WORKER_CRASHED"}


@BEFORE_AND_AFTER
def test_a_worker_killed_around_the_commit_of_a_start(
    worker: Start, gate: Gate, tmp_path: Path, commits: bool, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **SOFT, **SHORT).ready()
    blockers = hold_up(tmp_path)
    walkers = send_walkers(tmp_path)
    wait_until(
        lambda: {walker.handle.info().status for walker in walkers} == {"CLAIMED"},
        "both wait in the buffer",
    )

    gate.close("start")
    with standing_still(first):  # so that both start in one pass
        for blocker in blockers:
            blocker.may("go", "out")
            blocker.stands("ended")
        wait_until(lambda: replies_in_the_pipe(first) == 2, "both slots are free")
    kill_at_commit(first, gate, commits)

    assert {walker.handle.info().status for walker in walkers} == {
        "RUNNING" if commits else "CLAIMED"
    }

    worker("--processes=2", **SOFT, **SHORT).ready()
    assert fates(walkers) == expected


@pytest.mark.parametrize(
    ("kill", "expected"), [("child", (AS_IF_NOTHING_HAD_BEEN,) * 2), ("machine", crashed(0, 0))]
)
def test_what_was_sent_to_a_child_and_not_begun(
    worker: Start, tmp_path: Path, kill: str, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **(SHORT if kill == "machine" else {})).ready()
    runners = Heartbeat.objects.filter(role="runner")
    children = wait_until(
        lambda: runners.count() == 2 and list(runners.values_list("pid", flat=True)), "they beat"
    )

    for child in children:
        os.kill(child, signal.SIGSTOP)

    walkers = send_walkers(tmp_path)
    wait_until(
        lambda: sum(len(beat.holding or ()) for beat in runners.all()) == 2,
        "each child has one in its pipe",
    )

    kill_(first, kill, children, worker)

    assert fates(walkers) == expected


@pytest.mark.parametrize("kill", ["child", "machine"])
@pytest.mark.parametrize(("line", "expected"), [("began", crashed(1, 0)), ("ended", crashed(1, 1))])
def test_what_stands_at_the_first_or_the_last_line_of_its_code(
    worker: Start, tmp_path: Path, kill: str, line: str, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **SHORT).ready()
    walkers = send_walkers(tmp_path)
    children = [walker.stands("began") for walker in walkers]

    if line == "ended":
        for walker in walkers:
            walker.may("go")
            walker.stands("ended")

    kill_(first, kill, children, worker)

    assert fates(walkers) == expected


@pytest.mark.parametrize(
    ("kill", "expected"), [("child", (AS_IF_NOTHING_HAD_BEEN,) * 2), ("machine", crashed(1, 1))]
)
def test_a_reply_that_was_written_and_not_read(
    worker: Start, tmp_path: Path, kill: str, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **SHORT).ready()
    walkers = send_walkers(tmp_path)
    children = [walker.stands("began") for walker in walkers]

    with standing_still(first):
        for walker in walkers:
            walker.may("go", "out")
        wait_until(lambda: replies_in_the_pipe(first) == 2, "both replies lie in the pipes")
        kill_(first, kill, children, worker)

    assert fates(walkers) == expected


@pytest.mark.parametrize(
    ("commits", "expected"),
    [(False, crashed(1, 1)), (True, (AS_IF_NOTHING_HAD_BEEN,) * 2)],
    ids=["before", "after"],
)
def test_a_worker_killed_around_the_commit_of_an_outcome(
    worker: Start, gate: Gate, tmp_path: Path, commits: bool, expected: tuple[Fate, ...]
) -> None:
    first = worker("--processes=2", **SHORT).ready()
    walkers = send_walkers(tmp_path)
    for walker in walkers:
        walker.stands("began")

    gate.close("settle")
    with standing_still(first):  # so that both outcomes are written in one pass
        for walker in walkers:
            walker.may("go", "out")
        wait_until(lambda: replies_in_the_pipe(first) == 2, "both replies lie in the pipes")
    kill_at_commit(first, gate, commits)

    assert {walker.handle.info().status for walker in walkers} == {
        "COMPLETED" if commits else "RUNNING"
    }

    worker("--processes=2", **SHORT).ready()
    assert fates(walkers) == expected


@pytest.mark.parametrize("move", ["claim", "start", "settle"])
@pytest.mark.boundary
def test_a_commit_whose_reply_is_lost_runs_no_task_twice(
    worker: Start, gate: Gate, link: Forwarder, tmp_path: Path, move: str
) -> None:
    """A commit whose reply is lost loses no task and runs none twice."""
    process = worker(
        "--processes=2", **link.way(database_url()), **(SOFT if move == "start" else {})
    ).ready()
    blockers = hold_up(tmp_path) if move == "start" else []
    gate.close(move)
    walkers = send_walkers(tmp_path)

    if move == "start":
        wait_until(
            lambda: {walker.handle.info().status for walker in walkers} == {"CLAIMED"},
            "both wait in the buffer",
        )

    for walker in {"claim": [], "start": blockers, "settle": walkers}[move]:
        walker.may("go", "out")

    gate.held()
    link.freeze()
    gate.open()

    became = "COMPLETED" if move == "settle" else "RUNNING"
    wait_until(
        lambda: became in {walker.handle.info().status for walker in walkers}, "it is committed"
    )

    link.cut()
    fates(walkers)
    wait_until(lambda: "the database is available again" in process.log, "it has noticed")

    assert process.stop() == 0
    assert fates(walkers) == (AS_IF_NOTHING_HAD_BEEN,) * 2
    assert ("releasing 2 task(s) that were claimed and never received" in process.log) == (
        move == "claim"
    )


def kill_(first: WorkerProcess, what: str, children: list[int], worker: Start) -> None:
    """Kill the children, or the whole worker.

    The worker notices the death of its children. Another worker finds a dead worker.
    """
    if what == "machine":
        kill_machine(first)
        worker("--processes=2", **SHORT).ready()
    else:
        for child in children:
            os.kill(child, signal.SIGKILL)
