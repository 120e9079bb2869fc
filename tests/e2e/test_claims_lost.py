"""A server that crashes and loses claims.

The code of a lost claim ends before its worker claims again, and no claim is held twice.

A claim is lost here because its commit did not wait for the disk, and the server's writer is
suspended until the crash. The server then has the same data as after an asynchronous failover.
Where no heartbeat is due, only the commits of a test flush earlier commits to the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.support.server import Lingering, Server
from tests.support.workers import Start, WorkerProcess, given, is_over

LOST = "the database has lost 1 claim(s) of worker"
NO_BEATS = {
    "RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 120_000, "RUNNING_STALE_THRESHOLD_MS": 600_000}
}
NOT_DURABLE = {"DURABLE_CLAIMS": False}


def bring_down(server: Server, how: str) -> None:
    """Crash the server.

    A postmaster that survives counts as "the same server", because its start time is the same.
    """
    if how == "same postmaster":
        server.crash()
    else:
        server.stop(how)
        server.start()


def runs_in_memory(server: Server, path: Path, name: str = "linger") -> tuple[Lingering, int, Any]:
    """Run a task whose claim did not reach the disk.

    Return the task, its process and its worker.
    """
    server.hold_back()
    task = Lingering(server, path, name)
    return task, task.runs(), server.task(task.id)["claimed_by"]


def runs_again(
    server: Server, process: WorkerProcess, task: Lingering, child: int, owner: Any
) -> None:
    """Check that a task with a lost claim runs once more, after its first run is over.

    The second claim has the same generation, but another worker.
    """
    wait_until(lambda: len(task.lines) == 2, "it runs again")
    assert is_over(child)

    Path(f"{task.path}.go").touch()
    row = server.becomes(task.id, "COMPLETED")

    assert (row["claim_generation"], row["attempts"], row["retry_count"]) == (1, 1, 0)
    assert row["claimed_by"] != owner
    assert [line[0] for line in task.lines] == ["began", "began", "ended"]
    assert LOST in process.log


@pytest.mark.parametrize("how", ["postmaster", "same postmaster"])
def test_code_of_a_lost_claim_ends_before_its_task_runs_again(
    worker: Start, server: Server, tmp_path: Path, how: str
) -> None:
    """The code of a lost claim ends before its task runs again under the same generation.

    Fails if: the worker claims the task once more, holds the same (id, generation) twice, and
    writes the outcome of the first run.
    """
    server.superuser("ALTER ROLE app SET synchronous_commit = off")
    process = worker("--processes=3", **server.environment).ready()
    kept = Lingering(server, tmp_path / "kept")
    kept.runs()
    lost, child, owner = runs_in_memory(server, tmp_path / "lost")

    bring_down(server, how)

    runs_again(server, process, lost, child, owner)
    row = server.becomes(kept.id, "FAILED")
    assert (row["error_code"], row["claimed_by"], row["attempts"]) == ("WORKER_CRASHED", owner, 1)
    assert process.stop() == 0


def crashed(server: Server, process: WorkerProcess) -> None:
    """Crash the server, and wait until the worker is connected again."""
    before = process.log.count("the database is available again")
    server.crash()
    wait_until(
        lambda: process.log.count("the database is available again") > before,
        "the worker is connected again",
    )


def test_a_task_whose_claim_was_lost_runs_again(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """A claim that did not wait for the disk can be lost, and its task then runs again."""
    process = worker(
        "--processes=2", **server.environment, **given(**NO_BEATS, **NOT_DURABLE)
    ).ready()
    served = "SELECT name FROM horsies_queues WHERE served_at IS NOT NULL"
    wait_until(
        lambda: server.superuser(served), "the worker has recorded once that it serves its queues"
    )

    # Once a second, a pass also searches for expired leases, and then waits for the disk.
    for number in range(10):
        task, child, owner = runs_in_memory(server, tmp_path / str(number))
        crashed(server, process)
        if server.task(task.id)["claimed_by"] != owner:
            break
        task.end()

    runs_again(server, process, task, child, owner)
    assert process.stop() == 0


def test_a_claim_before_any_commit_that_waited_is_kept(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker(
        "--processes=2", **server.environment, **given(**NO_BEATS, **NOT_DURABLE)
    ).ready()
    task, *_ = runs_in_memory(server, tmp_path / "one", "linger_after_commit")

    crashed(server, process)
    task.end()

    task.completes_once()
    assert process.stop() == 0
