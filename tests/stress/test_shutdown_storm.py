"""No task is lost and no end written twice by crashes of a server with asynchronous claims.

The server crashes dozens of times under workers whose claims do not wait for the disk. Half of the
crashes come as soon as a lone task has begun, when its claim is most likely to be lost, the others
under load.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.e2e.test_claims_lost import bring_down
from tests.support.server import Server
from tests.support.sizes import sized
from tests.support.workers import Start, given

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1_200)]

CRASHES = sized(3, 60)
SEED = 18
# The crashes go on until a claim was lost: on a busy machine the lone task has often ended by then.
MOST_CRASHES = 10 * CRASHES
LOAD = 15  # tasks that are sent before a crash
MOST_SECONDS = 0.1  # between two lines of a task
WAYS = ("immediate", "postmaster", "same postmaster")
SOFT = {"PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 10_000}
RECOVERY = {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_000, "MAX_CRASHES": 0}
LOST = "claim(s) of worker"
ENDS = """
SELECT t.id::text, t.claimed_by::text, t.claim_generation::text, a.child_pid::text,
       t.status, t.error_code,
       (SELECT count(*) FROM horsies_task_attempts o WHERE o.task_id = t.id)
FROM horsies_tasks t LEFT JOIN horsies_task_attempts a ON a.task_id = t.id
WHERE t.status IN ('COMPLETED', 'FAILED')
"""


class Storm:
    """Workers on a server that crashes, and the tasks that were sent to them."""

    def __init__(self, start: Start, server: Server, notes: Path) -> None:
        self.server = server
        self.notes = notes
        self.random = random.Random(SEED)
        self.sent: list[uuid.UUID] = []

        self.workers = [
            start(
                "--processes=2",
                **server.environment,
                **given(DURABLE_CLAIMS=False, RECOVERY=RECOVERY, **more),
            )
            for more in ({}, {}, SOFT)
        ]

        for each in self.workers:
            each.ready()

    def send(self, count: int) -> None:
        """Send tasks that write their claims when they begin and end."""
        for _ in range(count):
            seconds = self.random.uniform(0, MOST_SECONDS)
            self.sent.append(
                self.server.send("notes_its_claim", path=str(self.notes), seconds=seconds)
            )

    def lines(self) -> list[tuple[str, ...]]:
        """Return the lines of the tasks: "began" or "ended", task, worker, generation, process."""
        return (
            [tuple(line.split()) for line in self.notes.read_text().splitlines()]
            if self.notes.exists()
            else []
        )

    def quiet(self) -> bool:
        """Whether all tasks have ended."""
        return self.server.superuser(
            "SELECT count(*) FROM horsies_tasks WHERE finished_at IS NULL"
        ) == [(0,)]

    def lost(self) -> bool:
        """Whether a worker logged that a crash undid a claim."""
        return any(LOST in each.log for each in self.workers)

    def crash(self, turn: int) -> None:
        """Crash the server, and wait until it has recovered."""
        if turn % 2:
            count = LOAD
            lines = self.random.randint(0, LOAD)  # so the crash comes at any moment
        else:
            wait_until(self.quiet, "all tasks have ended")
            count = 1
            lines = 1

        lines += len(self.lines())
        self.send(count)
        wait_until(lambda: len(self.lines()) >= lines, "they are on their way")
        bring_down(self.server, WAYS[turn % len(WAYS)])


def test_no_crash_loses_a_task_or_duplicates_a_claim(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """No crash loses a task or its end, or lets two runs hold the same claim."""
    # A claim may stay in memory for so long.
    server.superuser("ALTER SYSTEM SET wal_writer_delay = '10s'")
    server.superuser("SELECT pg_reload_conf()")

    storm = Storm(worker, server, tmp_path / "notes")
    for turn in range(MOST_CRASHES):
        if turn >= CRASHES and storm.lost():
            break
        storm.crash(turn)

    wait_until(storm.quiet, "all tasks have ended")
    ends = server.superuser(ENDS)
    lines = storm.lines()

    assert sorted(row[0] for row in ends) == sorted(map(str, storm.sent)), (
        "a task is lost, or its end was written twice"
    )

    began = Counter(line[1:4] for line in lines if line[0] == "began")
    assert [claim for claim, times in began.items() if times > 1] == []

    for *claim, status, error_code, attempts in ends:
        assert (status == "COMPLETED") == (("ended", *claim) in lines) or status == "FAILED", claim
        assert error_code in (None, "WORKER_CRASHED")
        assert attempts == 1

    for each in storm.workers:
        assert each.stop() in (0, 1)  # 1: it has just reconnected and found a claim lost
        assert "Traceback" not in each.log

    assert storm.lost(), "no claim was lost: the storm proves nothing"
    assert max(Counter(task for task, *_ in began).values()) > 1, "no task ran again"
