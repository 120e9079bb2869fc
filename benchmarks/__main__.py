"""Run scenarios: ``python -m benchmarks drain recycling latency enqueue caps chaos [--n N] [--repeats R]``.

The server is DATABASE_URL's, which must name a database of the benchmark's own (its tasks are deleted), or a private one with
synchronous_commit and fsync on.
"""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import nullcontext

from benchmarks.machine import prepare
from example_project.postgres import private_postgres

NAMES = ("drain", "recycling", "latency", "enqueue", "caps", "chaos")
PARTS = ("slow", "noop", "bound", "flat", "counting", "storm")


def main() -> None:
    """Parse the command line and run what it names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure horsies_django; prints JSON lines."
    )
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="|".join(NAMES))
    parser.add_argument(
        "--n", type=int, help="how many tasks (drain 20,000; recycling 4,000; latency 500; enqueue 100,000)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often each configuration is measured (3)")
    parser.add_argument("--only", type=parts, default=[], metavar="A,B", help=f"caps: parts out of {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="caps, chaos: factor on all sizes (1)")
    parser.add_argument("--claims", type=int, help="caps: only the storm, of so many tasks")
    parser.add_argument(
        "--slow", type=float, default=5.0, help="caps: what tasks of the storm take on average, in 3 ms (5)"
    )
    parser.add_argument("--tasks", type=int, help="chaos: how many tasks the storm sends (20,000)")
    parser.add_argument("--faults", type=int, help="chaos: how many faults befall them (150)")
    parser.add_argument("--seed", type=int, default=1, help="chaos: of the weather and of the mix of tasks (1)")
    parser.add_argument("--json", action="store_true", help="caps: no table for people on the error output")
    chosen = parser.parse_args()
    logging.getLogger("horsies").setLevel(logging.ERROR)
    url = os.environ.get("DATABASE_URL")
    with nullcontext(url) if url else private_postgres("benchmarks", durable=True) as server:
        prepare(server)
        from benchmarks.caps import caps
        from benchmarks.chaos import chaos
        from benchmarks.scenarios import SCENARIOS

        for name in chosen.names:
            if name == "caps":
                caps(chosen.repeats, chosen.only, chosen.scale, chosen.claims, chosen.slow, chosen.json)
            elif name == "chaos":
                chaos(chosen.scale, chosen.tasks, chosen.faults, chosen.seed)
            else:
                scenario, n = SCENARIOS[name]
                scenario(chosen.n or n, chosen.repeats)


def parts(text: str) -> list[str]:
    """Parse the parts of caps."""
    names = text.split(",")
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    main()
