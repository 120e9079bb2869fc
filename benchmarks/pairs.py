"""Drains of an earlier checkout and of this one, in turns: whether tasks that use nothing new have become slower.

``python -m benchmarks.pairs EARLIER [--pairs=20] [--scale=1]``, where EARLIER is the directory of the other checkout. Each drain
runs the code of its checkout with this Python, on a private server of its own; the order alternates. A ratio is the rate of this
checkout over that of the other one in the same pair. The bound is the greatest of the ratios that their median is above with a
confidence of 95 %, whatever the distribution (the sign test): of 20 ratios the sixth from below.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.figures import Figures, Goal, Reading
from benchmarks.machine import ROOT

SHAPES = ("drain sync, hard mode, 4 processes", "drain async, hard mode, 2 processes x 200")
CONFIDENCE, SHARE = 0.95, 0.97
DRAINS = """
import sys
from benchmarks.machine import own_server, prepare
with own_server() as url:
    prepare(url)
    from benchmarks import drain
    for name in sys.argv[2:]:
        shape = next(shape for shape in drain.SHAPES if shape.name == name)
        print(drain.measure(shape, max(20, round(shape.size * float(sys.argv[1]))))[0].value)
"""


def main() -> None:
    """Measure the pairs that the command line asks for, and judge them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description="Compare drains of two checkouts.")
    parser.add_argument("earlier", type=Path, help="the directory of the other checkout")
    parser.add_argument("--pairs", type=int, default=20, help="how many; fewer than 5 have no bound (20)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of tasks (1)")
    chosen = parser.parse_args()
    if not (chosen.earlier / "benchmarks" / "drain.py").is_file():
        parser.error(f"{chosen.earlier} is no checkout with benchmarks")
    figures, ratios = Figures(), dict[str, list[float]]()
    for turn in range(chosen.pairs):
        for name, ratio in pair(chosen.earlier.resolve(), turn, chosen.scale, figures).items():
            ratios.setdefault(name, []).append(ratio)
    goals = []
    for name, found in ratios.items():
        if (bound := lower_bound(found)) is not None:
            figures.add(Reading(f"{name}, lower bound of the ratio", bound, "share"))
            goals.append(Goal("pairs", f"{name}, lower bound of the ratio", SHARE))
    print("\n".join([*tables.table(figures), *map(str, tables.verdicts(figures, goals))]), file=sys.stderr)


def pair(earlier: Path, turn: int, scale: float, figures: Figures) -> dict[str, float]:
    """Measure both checkouts, in an order that alternates, and return the ratios by shape."""
    checkouts = [("before", earlier), ("now", ROOT)]
    rates = {when: drains(path, scale) for when, path in (checkouts if turn % 2 == 0 else checkouts[::-1])}
    found = {}
    for place, shape in enumerate(SHAPES):
        name, now, before = shape.replace("drain", "pairs", 1), rates["now"][place], rates["before"][place]
        found[name] = now / before
        figures.add(Reading(f"{name}, before", before, "tasks/s"))
        figures.add(Reading(f"{name}, now", now, "tasks/s"))
        figures.add(Reading(f"{name}, ratio", now / before, "share"))
    return found


def drains(checkout: Path, scale: float) -> list[float]:
    """Run the drains of a checkout, and return their rates."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PYTHONPATH")}
    command = [sys.executable, "-c", DRAINS, str(scale), *SHAPES]  # -c: the working directory is searched first
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(line) for line in done.stdout.splitlines()]


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
