"""The storm at any size, and the time of recovery: ``python -m benchmarks chaos``.

The options are ``[--tasks N] [--faults M]``. Both parts are in ``tests/stress/chaos``. It prints
one line per part, with the goals and whether they were reached. A storm that lost a task, or
finished one twice, ends the benchmark with exit code 1. It runs on a server of its own, which it
stops and kills: never on DATABASE_URL's.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.figures import Reading
from benchmarks.machine import raise_storm, versions

TASKS = 20_000
FAULTS = 150
ROUNDS = 4
# figure -> its greatest permitted 99th percentile, in seconds
GOALS = {"child death to its attempt's end": 1.0, "machine death to running elsewhere": 15.0}


def chaos(scale: float, tasks: int | None, faults: int | None, seed: int) -> list[Reading]:
    """Run one storm, then measure recovery, which takes twelve seconds a round.

    At a very small scale recovery is not measured.
    """
    tasks = tasks or max(1, round(TASKS * scale))
    faults = faults or max(1, round(FAULTS * scale))

    verdict = raise_storm(
        "tests.stress.chaos", f"--tasks={tasks}", f"--faults={faults}", f"--seed={seed}"
    )
    tell("chaos storm", verdict)
    if verdict["violations"] or verdict["leaks"]:
        raise SystemExit("the storm found violations or leaks: see the line above")

    rounds = round(ROUNDS * scale)
    measured = (
        raise_storm("tests.stress.chaos", "--measure", f"--rounds={rounds}") if rounds else {}
    )

    for name, figure in measured.items():
        tell(
            f"chaos: {name}",
            {**figure, "goal_p99_s": GOALS[name], "met": figure["p99_s"] <= GOALS[name]},
        )

    return [
        Reading(f"chaos {name}, p99", figure["p99_s"], "s") for name, figure in measured.items()
    ]


def tell(name: str, figures: dict[str, Any]) -> None:
    """Print one line."""
    print(json.dumps({"name": name, **figures, "versions": versions()}), flush=True)
