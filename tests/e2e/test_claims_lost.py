"""A server that crashes and has lost claims: their code ends before its worker claims again, and no claim is held twice.

A claim is lost here because its commit did not wait for the disk, and the server's writer is suspended until the crash. What the
server then has is also what an asynchronous failover leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from horsies_django.worker.pool.process import is_over
from tests.conftest import wait_until
from tests.e2e.test_outages import taken_in
from tests.support.server import Lingering, Server
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
LOST = "the database has lost 1 claim(s) of worker"


def bring_down(server: Server, how: str) -> None:
    """Let the server crash; a postmaster that stays is "the same server" by its start time."""
    if how == "same postmaster":
        server.crash()
    else:
        server.stop(how)
        server.start()


@pytest.mark.parametrize("how", ["immediate", "postmaster", "same postmaster"])
def test_code_whose_claim_was_lost_is_over_before_its_task_runs_again_under_the_same_number(
    worker: Start, server: Server, tmp_path: Path, how: str
) -> None:
    """Naive: the worker claims the task once more, holds (id, generation) twice, and the first of both is written."""
    server.superuser("ALTER ROLE app SET synchronous_commit = off")
    process = worker("--processes=3", **server.environment).ready()
    kept = Lingering(server, tmp_path / "kept")
    kept.runs()
    server.hold_back()
    lost = Lingering(server, tmp_path / "lost")
    child = lost.runs()
    owner = server.task(lost.id)["claimed_by"]
    bring_down(server, how)
    wait_until(lambda: len(lost.lines) == 2, "it runs again")
    assert is_over(child)
    Path(f"{lost.path}.go").touch()
    row = server.becomes(lost.id, "COMPLETED")
    assert (row["claim_generation"], row["attempts"], row["retry_count"]) == (1, 1, 0)
    assert row["claimed_by"] != owner
    assert [line[0] for line in lost.lines] == ["began", "began", "ended"]
    row = server.becomes(kept.id, "FAILED")
    assert (row["error_code"], row["claimed_by"], row["attempts"]) == ("WORKER_CRASHED", owner, 1)
    assert LOST in process.log
    assert process.stop() == 0


def test_an_outcome_whose_claim_was_lost_is_not_written_for_the_next_claim_of_that_number(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """Naive: the pass that does not find the outcome's claim claims the task, and the outcome is written then."""
    server.superuser("ALTER ROLE app SET synchronous_commit = off")
    process = worker("--processes=2", **server.environment).ready()
    server.hold_back()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    owner = server.task(task.id)["claimed_by"]
    server.stop()
    task.end()
    taken_in(process)
    Path(f"{task.path}.go").unlink()
    server.start()
    wait_until(lambda: len(task.lines) == 3, "it runs again")
    assert f"task {task.id} no longer belongs to worker {owner}, generation 1; dropping its outcome" in process.log
    assert LOST in process.log
    Path(f"{task.path}.go").touch()
    row = server.becomes(task.id, "COMPLETED")
    assert (row["claim_generation"], row["attempts"], row["claimed_by"] != owner) == (1, 1, True)
    query = f"SELECT child_pid FROM horsies_task_attempts WHERE task_id = '{task.id}'"
    wait_until(lambda: len(task.lines) == 4, "its code ends")
    assert server.superuser(query) == [(int(task.lines[2][1]),)]
    assert process.stop() == 0


def test_a_crash_that_loses_no_claim_ends_no_task(worker: Start, server: Server, tmp_path: Path) -> None:
    process = worker("--processes=2", **server.environment).ready()
    server.hold_back()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    server.crash()
    wait_until(lambda: "the database is back" in process.log, "it has recovered")
    server.becomes(server.send("add", a=1), "COMPLETED")
    task.end()
    assert server.becomes(task.id, "COMPLETED")["attempts"] == 1
    assert task.ran_once()
    assert process.stop() == 0
