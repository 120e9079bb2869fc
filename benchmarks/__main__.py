"""Run scenarios: ``python -m benchmarks drain latency enqueue [--n N] [--repeats R]``.

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

NAMES = ("drain", "latency", "enqueue")


def main() -> None:
    """Parse the command line and run what it names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure horsies_django; prints JSON lines."
    )
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="|".join(NAMES))
    parser.add_argument("--n", type=int, help="how many tasks (drain 20,000; latency 500; enqueue 100,000)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each configuration is measured (3)")
    chosen = parser.parse_args()
    logging.getLogger("horsies").setLevel(logging.ERROR)
    url = os.environ.get("DATABASE_URL")
    with nullcontext(url) if url else private_postgres("benchmarks", durable=True) as server:
        prepare(server)
        from benchmarks.scenarios import SCENARIOS

        for name in chosen.names:
            scenario, n = SCENARIOS[name]
            scenario(chosen.n or n, chosen.repeats)


if __name__ == "__main__":
    main()
