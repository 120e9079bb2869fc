"""No task is lost and none finishes twice in a storm over workers and their database.

A judge checks the rows and notes that the storm left.
"""

from __future__ import annotations

import pytest

from tests.stress.conftest import verdict_of
from tests.support.sizes import sized

FAULTS = {
    "kill child",
    "kill parent",
    "kill group",
    "stop child",
    "stop parent",
    "stop group",
    "cut engine",
    "cut maintenance",
    "cut listener",
    "cut all",
    "restart fast",
}


pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


@pytest.mark.promise("S2.22")
def test_a_storm_of_faults_loses_no_task_and_finishes_none_twice() -> None:
    tasks = sized(2_000, 8_000)
    faults = sized(25, 100)

    verdict = verdict_of("chaos", f"--tasks={tasks}", f"--faults={faults}")

    assert (verdict["tasks"], verdict["faults"]) == (tasks, faults)
    assert (verdict["lost"], verdict["finished twice"]) == (0, 0)

    # The storm did happen: every fault occurred, processes died at work, stopped workers were
    # continued, and tasks were retried.
    assert verdict["weather"].keys() >= FAULTS
    assert verdict["attempts"]["WORKER_FAILURE"] > 0
    assert verdict["runs without an end"] > 0
    assert verdict["continued"] > 0
    assert verdict["tasks retried"] > 0
    assert verdict["fire times"] > 3 * faults
    assert verdict["endings"].keys() >= {
        "COMPLETED",
        "CANCELLED TASK_CANCELLED",
        "EXPIRED TASK_EXPIRED",
    }


def test_a_failover_loses_no_task_and_finishes_none_twice() -> None:
    """A failover loses no task, finishes none twice, and ends no worker."""
    failovers = sized(1, 5)
    workers = 3
    tasks = f"--tasks={sized(800, 6_000)}"

    verdict = verdict_of("chaos", tasks, f"--failovers={failovers}", f"--workers={workers}")

    assert verdict["faults"] == failovers == len(verdict["failovers"])
    assert (verdict["lost"], verdict["finished twice"]) == (0, 0)

    # It happened under load: tasks were left for the new primary, and caps were fully used.
    assert verdict["sender"]["send broken by an outage"] > 0
    assert "queue tight" in verdict["full"]
    assert "replaced" not in verdict["weather"]  # no worker ended

    for one in verdict["failovers"]:
        assert one["workers"] == workers  # all of them went on
        assert one["answered"] == one["waited across"] > 0


def test_tasks_of_dead_processes_and_machines_are_rescued() -> None:
    """Tasks of dead processes and dead machines run again, and the time this takes is measured."""
    printed = verdict_of("chaos", "--measure", "--rounds=1")
    child = printed["child death to its attempt's end"]
    machine = printed["machine death to running elsewhere"]

    assert (child["samples"], machine["machines"], machine["samples"]) == (24, 6, 18)
    assert 0 < child["p50_s"] <= child["p99_s"] <= child["max_s"]
    assert 0 < machine["p50_s"] <= machine["p99_s"] <= machine["max_s"]
