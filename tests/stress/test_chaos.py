"""Nothing is lost and nothing is finished twice: a storm over workers and their database, and a judge of what it left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stress.chaos.__main__ import NO_SERVER
from tests.support.sites import python
from tests.support.sizes import sized

FAULTS = {
    "kill child", "kill parent", "kill group", "stop child", "stop parent", "stop group", "cut engine", "cut maintenance",
    "cut listener", "cut all", "restart fast",
}  # fmt: skip


pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


def chaos(*options: str) -> dict[str, Any]:
    """Run the storm, or measure recovery, and return what was printed."""
    done = python("-m", "tests.stress.chaos", *options, timeout=580)
    if done.returncode == NO_SERVER:
        pytest.skip(done.stderr.strip())
    assert done.stdout, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    found = printed.get("violations", []), printed.get("leaks", [])
    assert found == ([], []), f"{found}\n{done.stderr[-4_000:]}\n{json.dumps(printed, indent=1)}"
    assert done.returncode == 0
    return printed


@pytest.mark.promise("S2.22")
def test_a_storm_of_faults_loses_no_task_and_finishes_none_twice() -> None:
    tasks, faults = sized(2_000, 8_000), sized(25, 100)
    verdict = chaos(f"--tasks={tasks}", f"--faults={faults}")
    assert (verdict["tasks"], verdict["faults"]) == (tasks, faults)
    assert (verdict["lost"], verdict["finished twice"]) == (0, 0)
    # that it stormed indeed: every fault happened, processes died at work, workers came back from the dead, tasks did, too
    assert verdict["weather"].keys() >= FAULTS
    assert verdict["attempts"]["WORKER_FAILURE"] > 0
    assert verdict["runs without an end"] > 0
    assert verdict["continued"] > 0
    assert verdict["tasks retried"] > 0
    assert verdict["endings"].keys() >= {"COMPLETED", "CANCELLED TASK_CANCELLED", "EXPIRED TASK_EXPIRED"}


def test_the_tasks_of_dead_processes_and_of_dead_machines_come_back_and_how_long_it_takes_is_measured() -> None:
    printed = chaos("--measure", "--rounds=1")
    child, machine = printed["child death to its attempt's end"], printed["machine death to running elsewhere"]
    assert (child["samples"], machine["machines"], machine["samples"]) == (24, 6, 18)
    assert 0 < child["p50_s"] <= child["p99_s"] <= child["max_s"]
    assert 0 < machine["p50_s"] <= machine["p99_s"] <= machine["max_s"]
