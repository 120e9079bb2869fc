"""Drains of an earlier checkout and of this one, in turns: whether tasks that use nothing new have become slower.

``python -m benchmarks.pairs EARLIER [--pairs=20] [--rounds=40] [--scale=1]``, EARLIER being the directory of the other
checkout. Each checkout's code runs with this Python, with a private server and a worker. A round is a drain of a fifth of a
second on one and then on the other, in alternating order, so that both have the same share of the machine's better and worse
moments. A pair is some rounds with the same servers and workers, which the next pair starts anew: two processes of the same
code differ, too. Its ratio is the other one's time over the time of this checkout; another ratio is that of the CPU time of
worker, children and server. The bound is the greatest of the ratios that their median is above with a confidence of 95 %,
whatever the distribution (the sign test): of 20 ratios the sixth from below.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.figures import Figures, Goal, Reading
from benchmarks.machine import ROOT

SHAPES = {
    "drain sync, hard mode, 4 processes": 400,
    "drain async, hard mode, 2 processes x 200": 4_000,
}  # with tasks per round
CONFIDENCE, SHARE = 0.95, 0.97
DRAINS = """
import sys
from benchmarks import meters
from benchmarks.machine import ALL_ENDED, drained, own_server, prepare, wait_for, worker
with own_server() as url:
    prepare(url)
    from django.db import connection
    from benchmarks import drain
    from benchmarks.load import tasks
    shape, n = next(shape for shape in drain.SHAPES if shape.name == sys.argv[1]), int(sys.argv[2])
    task = tasks.noop if shape.lane == "sync" else tasks.anoop
    with worker(*shape.options, wait=False, **shape.environment) as process:
        while True:
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
            task.send_many([{"n": number} for number in range(n)])  # one transaction: the worker sees all of it at once
            before = meters.read(process.pid)
            wait_for(ALL_ENDED, process=process)
            costs = meters.read(process.pid).since(before, 1)
            print(drained(n), sum(cost for name, cost in costs.items() if "CPU" in name) / 1e6, flush=True)
            if sys.stdin.readline() != "again\\n":
                break
"""


def main() -> None:
    """Measure the pairs that the command line asks for, and judge them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description="Compare drains of two checkouts.")
    parser.add_argument("earlier", type=Path, help="the directory of the other checkout")
    parser.add_argument("--pairs", type=int, default=20, help="how many; fewer than 5 have no bound (20)")
    parser.add_argument("--rounds", type=int, default=40, help="drains of each checkout per pair (40)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of tasks (1)")
    chosen = parser.parse_args()
    if not (chosen.earlier / "benchmarks" / "drain.py").is_file():
        parser.error(f"{chosen.earlier} is no checkout with benchmarks")
    figures, goals = Figures(), []
    for shape, n in SHAPES.items():
        name = shape.replace("drain", "pairs", 1)
        for what, ratios in compared(chosen, shape, max(20, round(n * chosen.scale)), figures).items():
            if (bound := lower_bound(ratios)) is not None:
                figures.add(Reading(f"{name}, lower bound of the ratio{what}", bound, "share"))
                goals.append(Goal("pairs", f"{name}, lower bound of the ratio{what}", SHARE))
    print("\n".join([*tables.table(figures), *map(str, tables.verdicts(figures, goals))]), file=sys.stderr)


def compared(chosen: argparse.Namespace, shape: str, n: int, figures: Figures) -> dict[str, list[float]]:
    """Measure the pairs of one shape; return their ratios of time and of CPU time."""
    name = shape.replace("drain", "pairs", 1)
    ratios: dict[str, list[float]] = {"": [], " of CPU time": []}
    for _ in range(chosen.pairs):
        with checkout(chosen.earlier.resolve(), shape, n) as earlier, checkout(ROOT, shape, n) as this:
            costs(earlier), costs(this)  # the first drain waits for the worker's start
            spent = {earlier: (0.0, 0.0), this: (0.0, 0.0)}
            for turn in range(chosen.rounds):
                for side in (earlier, this) if turn % 2 == 0 else (this, earlier):
                    side.stdin.write("again\n")
                    side.stdin.flush()
                    seconds, cpu = costs(side)
                    spent[side] = spent[side][0] + seconds, spent[side][1] + cpu
        figures.add(Reading(f"{name}, before", chosen.rounds * n / spent[earlier][0], "tasks/s"))
        figures.add(Reading(f"{name}, now", chosen.rounds * n / spent[this][0], "tasks/s"))
        for what, before, now in zip(ratios, spent[earlier], spent[this], strict=True):
            ratios[what].append(before / now)
            figures.add(Reading(f"{name}, ratio{what}", before / now, "share"))
    return ratios


@contextmanager
def checkout(path: Path, shape: str, n: int) -> Iterator[Any]:
    """Run a checkout's server and worker meanwhile, as a process that drains ``n`` tasks each time that it reads a line."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PYTHONPATH")}
    command = [sys.executable, "-c", DRAINS, shape, str(n)]  # -c: the working directory is searched first
    process = subprocess.Popen(
        command, cwd=path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate("enough\n")


def costs(side: Any) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a checkout's drain. Raises RuntimeError if it failed."""
    line = side.stdout.readline()
    if not line:
        raise RuntimeError(f"the checkout's drain ended with exit code {side.wait()}")
    seconds, cpu = map(float, line.split())
    return seconds, cpu


def lower_bound(ratios: Sequence[float]) -> float | None:
    """Return the greatest of the ratios that their median is above with a confidence of 95 %; None if there are too few."""
    n, chance, bound = len(ratios), 0.0, None
    for below, ratio in enumerate(sorted(ratios)):
        chance += math.comb(n, below) / 2**n  # that so many or fewer of the ratios are below the median
        if chance > 1 - CONFIDENCE:
            break
        bound = ratio
    return bound


if __name__ == "__main__":
    main()
