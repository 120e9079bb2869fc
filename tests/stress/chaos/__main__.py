"""Raise one storm on a PostgreSQL server of its own and print the verdict as JSON; exit with 1 when something was violated."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from example_project.postgres_binaries import PostgresError
from tests.support.server import Server, private_server
from tests.support.standby import Pair, private_pair

NO_SERVER = 3


def main() -> int:
    """Parse the command line, start the server, set Django up, and let it storm."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.chaos", description="Storm over workers and their database."
    )
    parser.add_argument("--tasks", type=int, default=3_000, help="how many tasks (3,000)")
    parser.add_argument("--faults", type=int, default=40, help="how many faults (40)")
    parser.add_argument("--workers", type=int, default=3, help="how many workers (3)")
    parser.add_argument("--seed", type=int, default=1, help="of the weather and of the mix of tasks (1)")
    parser.add_argument("--failovers", type=int, default=0, help="no other faults: so many times a standby is promoted")
    parser.add_argument("--measure", action="store_true", help="no storm: how long it takes until a task comes back")
    parser.add_argument("--rounds", type=int, default=3, help="with --measure: how often machines die (3)")
    parser.add_argument("--json", action="store_true", help="print nothing else, also not why a storm failed")
    chosen = parser.parse_args()
    try:
        found = on_a_server(chosen)
    except PostgresError as error:
        print(f"python -m tests.stress.chaos: no PostgreSQL server can be started here: {error}", file=sys.stderr)
        return NO_SERVER
    print(json.dumps(found, indent=1), flush=True)
    return 1 if found.get("violations") or found.get("leaks") else 0


def on_a_server(chosen: argparse.Namespace) -> dict[str, Any]:
    """Start a server, with a standby for failovers, and storm or measure on it. Raises PostgresError."""
    servers = private_pair() if chosen.failovers else private_server()
    with servers as server, tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        server.refresh()
        set_up(server, usual=chosen.measure)
        if chosen.measure:
            return measured(server, Path(directory), chosen.rounds)
        return raised(server, Path(directory), chosen)


def set_up(server: Server, *, usual: bool) -> None:
    """Set Django up on the server; workers inherit the environment."""
    os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "tests.settings.chaos"}
    if usual:
        os.environ["CHAOS_USUAL"] = "1"
    import django

    django.setup()
    logging.getLogger("horsies").setLevel(logging.CRITICAL)
    from horsies_django import queues

    queues.sync(actor="storm")


def raised(server: Server, directory: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Raise the storm and have it judged."""
    from horsies_django.conf import config
    from tests.stress.chaos import evidence
    from tests.stress.chaos.failover import FailoverStorm
    from tests.stress.chaos.report import report
    from tests.stress.chaos.storm import Shape, Storm
    from tests.stress.oracle.evidence import chronicles, first_rows, last_change

    first, change = first_rows(), last_change()
    storm: Storm
    if isinstance(server, Pair):
        storm = FailoverStorm(Shape(chosen.tasks, chosen.failovers, chosen.workers, chosen.seed), server, directory)
    else:
        storm = Storm(Shape(chosen.tasks, chosen.faults, chosen.workers, chosen.seed), server, directory)
    try:
        leaks = storm.raise_()
    finally:
        left = storm.end()
    leaks += left + evidence.left_behind()
    verdict = report(storm, chronicles(first, change), leaks, config().recovery.max_crashes)
    if (verdict["violations"] or leaks) and not chosen.json:
        print(storm.logs(), file=sys.stderr)
    return verdict


def measured(server: Server, directory: Path, rounds: int) -> dict[str, Any]:
    """Measure recovery with the times that are the default."""
    from tests.stress.chaos.measure import measure

    return measure(server, directory, rounds)


if __name__ == "__main__":
    sys.exit(main())
