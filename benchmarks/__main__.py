"""Measures: ``python -m benchmarks [NAME...]``.

The options are ``[--repeats R] [--scale S] [--json FILE] [--against BASELINE]``. Lines of JSON go
to the standard output, tables for people to the error output. The server is DATABASE_URL's, which
must name a database of the benchmark's own (its tasks are deleted), or a private one with
synchronous_commit and fsync on. ``python -m benchmarks plot FILE`` draws a file of ``--json``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks import against, saved, tables
from benchmarks.figures import Figures, Goal, take_turns
from benchmarks.machine import own_server, prepare, versions

# modules
SCENARIOS = (
    "drain",
    "latency",
    "floor",
    "bare",
    "listeners",
    "fleet",
    "elected",
    "enqueue",
    "recycling",
    "defaults",
    "growth",
    "xmin",
    "rtt",
    "memory",
    "projects",
    "mixed",
    "schedule",
    "workflow",
    "steps",
    "priorities",
    "large",
)
STORMS = ("caps", "chaos")  # they have options and lines of their own
NAMES = (*SCENARIOS, *STORMS)
PARTS = ("slow", "noop", "bound", "flat", "counting", "storm")


def main() -> None:
    """Draw, or measure the scenarios of the command line."""
    if sys.argv[1:2] == ["plot"]:
        from benchmarks import plots  # it imports matplotlib

        plots.main(sys.argv[2:])
        return

    chosen = parse()
    logging.getLogger("horsies").setLevel(logging.ERROR)
    url = os.environ.get("DATABASE_URL")
    figures = Figures()
    goals = list[Goal]()

    with nullcontext(url) if url else own_server() as server:
        prepare(server)
        for name in chosen.names or SCENARIOS:
            goals += measure(name, chosen, figures)
            if chosen.json:  # after each one: hours of measurements survive a later failure
                saved.save(chosen.json, saved.Run(versions(), figures, tuple(goals)))
        measured_on = versions()

    tell(tables.table(figures))
    tell(map(str, tables.verdicts(figures, goals)))
    if chosen.against:
        tell(against.compare(figures, measured_on, chosen.against))


def measure(name: str, chosen: argparse.Namespace, figures: Figures) -> Sequence[Goal]:
    """Run one scenario or storm, add its readings to the figures, and return its goals."""
    # Both need Django set up; a storm's goals are in its own lines.
    if name in STORMS:
        from benchmarks.caps import caps
        from benchmarks.chaos import chaos

        readings = (
            caps(chosen.repeats, chosen.only, chosen.scale, chosen.claims, chosen.slow)
            if name == "caps"
            else chaos(chosen.scale, chosen.tasks, chosen.faults, chosen.seed)
        )
        for reading in readings:
            figures.keep(reading)
        return ()

    scenario = importlib.import_module(f"benchmarks.{name}")
    take_turns(scenario.cases(chosen.scale), chosen.repeats, figures)
    found: Sequence[Goal] = scenario.GOALS
    return found


def tell(lines: Iterable[str]) -> None:
    """Print a table for people, with an empty line before it."""
    if text := "\n".join(lines):
        print(f"\n{text}", file=sys.stderr)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure horsies_django; prints JSON lines, and tables on the error output.",
        epilog="python -m benchmarks plot FILE draws the readings of a file that --json wrote.",
    )

    parser.add_argument(
        "names",
        nargs="*",
        choices=NAMES,
        metavar="NAME",
        help=f"{', '.join(NAMES)} (all but the last two)",
    )
    parser.add_argument(
        "--repeats", type=positive, default=3, help="how often each case is measured (3)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes (1)")
    parser.add_argument(
        "--json", type=writable, metavar="FILE", help="where to write all readings and the versions"
    )
    parser.add_argument(
        "--against", type=baseline, metavar="FILE", help="an earlier run's file to compare with"
    )

    parser.add_argument(
        "--only",
        type=parts,
        default=[],
        metavar="A,B",
        help=f"caps: parts out of {', '.join(PARTS)}",
    )
    parser.add_argument("--claims", type=int, help="caps: only the storm, of so many tasks")
    parser.add_argument(
        "--slow",
        type=float,
        default=5.0,
        help="caps: what tasks of the storm take on average, in 3 ms (5)",
    )
    parser.add_argument("--tasks", type=int, help="chaos: how many tasks the storm sends (20,000)")
    parser.add_argument("--faults", type=int, help="chaos: how many faults befall them (150)")
    parser.add_argument(
        "--seed", type=int, default=1, help="chaos: of the weather and of the mix of tasks (1)"
    )

    return parser.parse_args()


def parts(text: str) -> list[str]:
    """Parse the parts of caps."""
    names = text.split(",")
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(
            f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    return names


def positive(text: str) -> int:
    """Parse a number of repeats."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of repeats: 1 or more")
    return int(text)


def writable(text: str) -> Path:
    """Parse the name of an output file, before hours of measurements."""
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is in no directory that exists")
    return Path(text)


def baseline(text: str) -> saved.Run:
    """Read an earlier run."""
    try:
        return saved.load(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
