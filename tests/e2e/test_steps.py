"""Durable steps in real workers.

Tasks are killed between any two statements, frozen and woken, timed out and cancelled, and each row
is written once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horsies_django.models import Task, TaskAttempt, TaskStep
from tests.apps.project import stepping
from tests.conftest import sql, wait_until
from tests.support.points import Gate, Walker
from tests.support.points import gate as gate
from tests.support.workers import SHORT, Start

# The kernel ends the processes of a stopped worker after this time.
LONG = {"HORSIES_TEST_STALE_MS": "60000"}
GATES = ("before", "begun", "written", "after")


class Stepper(Walker):
    """A ``steps_at_gates`` task, the file that it writes to, and its rows."""

    def __init__(self, path: Path, **how: Any) -> None:
        options = {"timeout_ms": how.pop("timeout_ms")} if "timeout_ms" in how else {}
        super().__init__(
            path, stepping.steps_at_gates.with_options(**options).send(str(path), **how)
        )

    def stands(self, place: str, times: int = 1) -> int:
        """Continue the task to a place, and return its process.

        Waits until the task has come there ``times`` times.
        """
        self.may(*GATES[: GATES.index(place)])
        return int(wait_until(lambda: self.wrote(place)[times - 1 :], f"it is {place}")[0])

    def end(self) -> tuple[int, list[int], list[str]]:
        """Wait for the end of the task.

        Returns its result, the processes that wrote its rows, and the outcomes of its attempts.
        """
        self.may(*GATES)
        result = self.handle.get(timeout_ms=60_000)
        attempts = TaskAttempt.objects.filter(task_id=self.handle.task_id).order_by("attempt")
        return result.ok_value, self.rows(), list(attempts.values_list("outcome", flat=True))

    def took_it_once(self, *, after: str) -> int:
        """Wait for the end of the task, and check that only one attempt ran the step.

        The attempt before it ended with the outcome ``after``. Returns the process that ran the
        step.
        """
        result, rows, outcomes = self.end()
        assert (rows, self.recorded(), outcomes) == ([result], [result], [after, "COMPLETED"])
        return result

    def rows(self) -> list[int]:
        """Return the processes that wrote the rows of its step."""
        return [
            row[0]
            for row in sql("SELECT process FROM step_rows WHERE task = %s", [self.handle.task_id])
        ]

    def recorded(self) -> list[Any]:
        """Return the recorded results of its step."""
        return list(
            TaskStep.objects.filter(task_id=self.handle.task_id).values_list("result", flat=True)
        )


@pytest.fixture(autouse=True)
def rows(transactional_db: None) -> Iterator[None]:
    """Create the table of the tasks for the time of a test."""
    sql(stepping.TABLE)
    yield
    sql("DROP TABLE step_rows")


@pytest.mark.parametrize("place", GATES)
@pytest.mark.boundary
def test_a_process_killed_before_in_or_after_a_step(
    shared_worker: Any, tmp_path: Path, place: str
) -> None:
    stepper = Stepper(tmp_path / "stepper")
    killed = stepper.stands(place)

    os.kill(killed, signal.SIGKILL)

    assert (stepper.took_it_once(after="WORKER_FAILURE") == killed) == (place == "after")


@pytest.mark.parametrize(
    ("place", "commits"),
    [("record", False), ("commit", True), ("commit", False)],
    ids=["record", "commit", "cut"],
)
def test_a_process_killed_around_the_commit_of_a_step(
    shared_worker: Any, tmp_path: Path, gate: Gate, place: str, commits: bool
) -> None:
    """A step runs once if its process is killed between its record and the end of its commit.

    The server may have received the COMMIT, so no other attempt begins until the server has
    finished it.
    """
    stepper = Stepper(tmp_path / "stepper")
    killed = stepper.stands("before")
    gate.close(place)
    stepper.may(*GATES[:3])
    session = gate.held()

    os.kill(killed, signal.SIGKILL)
    wait_until(
        lambda: Task.objects.get().retry_count == 0 and not stepper.wrote("after"),
        "it is not tried again yet",
    )
    gate.open(kill=session if place == "commit" and not commits else None)

    assert (stepper.took_it_once(after="WORKER_FAILURE") == killed) == commits


@pytest.mark.parametrize(
    ("place", "atomic"), [("begun", True), ("written", True), ("written", False)]
)
def test_a_frozen_worker_records_no_step_that_another_has_run(
    worker: Start, tmp_path: Path, place: str, atomic: bool
) -> None:
    """A worker that wakes in a step that another worker has run meanwhile records nothing."""
    zombie = worker("--processes=1", "--queues=default", **LONG).ready()
    stepper = Stepper(tmp_path / "stepper", atomic=atomic)
    frozen = stepper.stands(place)

    os.killpg(zombie.process.pid, signal.SIGSTOP)
    worker("--processes=1", **SHORT).ready()
    stepper.stands(place, times=2)

    result, rows, outcomes = stepper.end()
    assert (result in rows, result != frozen, outcomes) == (
        True,
        True,
        ["WORKER_FAILURE", "COMPLETED"],
    )

    os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: stepper.wrote("stale") == [frozen], "it hears that it was given up")
    # Without a transaction, the step runs at least once.
    assert stepper.rows().count(frozen) == (0 if atomic else 1)
    assert (stepper.rows().count(result), stepper.recorded()) == (1, [result])

    os.killpg(zombie.process.pid, signal.SIGCONT)
    wait_until(
        lambda: "dropping its outcome" in zombie.log or zombie.log.count("Worker started") == 2,
        "it starts anew",
    )
    assert Task.objects.get().result == {"ok": result}


def test_a_worker_frozen_during_the_commit_keeps_the_step(
    worker: Start, tmp_path: Path, gate: Gate
) -> None:
    """A worker that is frozen during the commit of its step keeps the step."""
    zombie = worker("--processes=1", "--queues=default", **LONG).ready()
    stepper = Stepper(tmp_path / "stepper")
    frozen = stepper.stands("before")

    gate.close("commit")
    stepper.may(*GATES[:3])
    gate.held()

    os.killpg(zombie.process.pid, signal.SIGSTOP)
    worker("--processes=1", **SHORT).ready()
    gate.open()

    assert stepper.took_it_once(after="WORKER_FAILURE") == frozen

    os.killpg(zombie.process.pid, signal.SIGCONT)
    wait_until(lambda: zombie.log.count("Worker started") == 2, "it starts anew")
    assert (stepper.rows(), stepper.recorded()) == ([frozen], [frozen])


@pytest.mark.parametrize(
    "options", [["--threads=1"], ["--threads=2"]], ids=["the main thread", "another thread"]
)
def test_a_step_that_is_interrupted_by_its_timeout_is_taken_anew(
    worker: Start, tmp_path: Path, options: list[str]
) -> None:
    worker("--processes=1", *options).ready()
    stepper = Stepper(tmp_path / "stepper", timeout_ms=1_500)
    stepper.stands("written")

    wait_until(lambda: TaskAttempt.objects.exists(), "its time is over")
    assert stepper.rows() == []
    stepper.took_it_once(after="FAILED")


def test_a_cancel_during_a_step_rolls_back_its_rows(shared_worker: Any, tmp_path: Path) -> None:
    stepper = Stepper(tmp_path / "stepper")
    stepper.stands("written")

    assert stepper.handle.cancel() == "REQUESTED"
    assert stepper.handle.get(timeout_ms=30_000).err_value.error_code == "TASK_CANCELLED"
    assert (stepper.rows(), stepper.recorded()) == ([], [])
