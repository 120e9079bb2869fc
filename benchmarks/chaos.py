"""The storm at any size, and how long recovery takes: ``python -m benchmarks chaos [--tasks N] [--faults M]``.

Both are in ``tests/chaos``. Prints one line per part, with the goals and whether they were reached. A storm that lost a task, or
finished one twice, ends the benchmark with exit code 1. It runs on a server of its own, which it stops and kills: never on
DATABASE_URL's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.machine import ROOT, versions

TASKS, FAULTS, ROUNDS = 20_000, 150, 4
# figure -> the greatest 99th percentile that it may have, in seconds
GOALS = {"child death to its attempt's end": 1.0, "machine death to running elsewhere": 15.0}


def chaos(scale: float, tasks: int | None, faults: int | None, seed: int) -> None:
    """Raise one storm, then measure recovery, which takes twelve seconds a round: at a very small scale not at all."""
    tasks, faults = tasks or max(1, round(TASKS * scale)), faults or max(1, round(FAULTS * scale))
    verdict = run(f"--tasks={tasks}", f"--faults={faults}", f"--seed={seed}")
    tell("chaos storm", verdict)
    if verdict["violations"] or verdict["leaks"]:
        raise SystemExit("the storm found violations or leaks: see the line above")
    rounds = round(ROUNDS * scale)
    measured = run("--measure", f"--rounds={rounds}") if rounds else {}
    for name, figure in measured.items():
        tell(f"chaos: {name}", {**figure, "goal_p99_s": GOALS[name], "met": figure["p99_s"] <= GOALS[name]})


def tell(name: str, figures: dict[str, Any]) -> None:
    """Print one line."""
    print(json.dumps({"name": name, **figures, "versions": versions()}), flush=True)


def run(*options: str) -> dict[str, Any]:
    """Run the storm in a process with a server and settings of its own. Raises RuntimeError when it comes to no verdict."""
    own = {name: value for name, value in os.environ.items() if name not in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
        cwd=ROOT,
        env=own,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"the storm ended with exit code {done.returncode} and no verdict")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
