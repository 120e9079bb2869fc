"""DURABLE_CLAIMS: what a crash of the server does to claims that did not wait for the disk, and to those that did.

The server's writer is suspended, and no heartbeat is due: nothing but the commits of a test flushes what came before them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from horsies_django.worker.pool.process import is_over
from tests.conftest import wait_until
from tests.e2e.test_claims_lost import LOST
from tests.support.server import Lingering, Server
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
NO_BEATS = {
    "HORSIES_TEST_RECOVERY": json.dumps(
        {"CLAIMER_HEARTBEAT_INTERVAL_MS": 120_000, "RUNNING_STALE_THRESHOLD_MS": 600_000}
    )
}
NOT_DURABLE = {"HORSIES_TEST_MORE": json.dumps({"DURABLE_CLAIMS": False})}


def crashed(server: Server, process: WorkerProcess) -> None:
    """Let the server crash, and wait until the worker has found it again."""
    before = process.log.count("the database is back")
    server.crash()
    wait_until(lambda: process.log.count("the database is back") > before, "the worker is connected again")


def test_a_claim_that_did_not_wait_for_the_disk_may_be_lost_and_its_task_runs_again(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker("--processes=2", **server.environment, **NO_BEATS, **NOT_DURABLE).ready()
    served = "SELECT name FROM horsies_queues WHERE served_at IS NOT NULL"
    wait_until(lambda: server.superuser(served), "the worker has recorded once that it serves its queues")
    for number in range(10):  # once a second, a pass also looks for expired leases, and waits for the disk
        server.hold_back()
        task = Lingering(server, tmp_path / str(number))
        child, owner = task.runs(), server.task(task.id)["claimed_by"]
        crashed(server, process)
        if server.task(task.id)["claimed_by"] != owner:
            break
        task.end()
    wait_until(lambda: len(task.lines) == 2, "it runs again")
    assert is_over(child)
    Path(f"{task.path}.go").touch()
    row = server.becomes(task.id, "COMPLETED")
    assert (row["claim_generation"], row["attempts"]) == (1, 1)
    assert row["claimed_by"] != owner
    assert [line[0] for line in task.lines] == ["began", "began", "ended"]
    assert LOST in process.log
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("name", "more"),
    [("linger_after_commit", NOT_DURABLE), ("linger", {})],
    ids=["its code has committed", "durable, the default"],
)
def test_a_claim_before_any_commit_that_waited_is_kept(
    worker: Start, server: Server, tmp_path: Path, name: str, more: dict[str, str]
) -> None:
    process = worker("--processes=2", **server.environment, **NO_BEATS, **more).ready()
    server.hold_back()
    task = Lingering(server, tmp_path / "one", name)
    task.runs()
    crashed(server, process)
    task.end()
    assert server.becomes(task.id, "COMPLETED")["attempts"] == 1
    assert task.ran_once()
    assert process.stop() == 0


def test_what_was_settled_is_kept_with_what_was_claimed_in_the_same_pass(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker("--processes=1", **server.environment, **NO_BEATS, **NOT_DURABLE).ready()
    server.hold_back()
    first = Lingering(server, tmp_path / "first")
    first.runs()
    second = Lingering(server, tmp_path / "second")
    first.end()
    second.runs()
    crashed(server, process)
    assert server.status(first.id) == "COMPLETED"
    second.end()
    assert server.becomes(second.id, "COMPLETED")["attempts"] == 1
    assert first.ran_once()
    assert second.ran_once()
    assert process.stop() == 0
