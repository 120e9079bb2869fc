"""Raise one storm on DATABASE_URL and print the verdict as JSON; exit with 1 when something was violated.

The database must hold no unfinished tasks; the queues of ``tests.settings.oracle`` are declared in it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> int:
    """Parse the command line, set Django up, and let it storm."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.oracle", description="Storm over caps.")
    parser.add_argument("--claims", type=int, default=20_000, help="how many tasks (20,000)")
    parser.add_argument("--workers", type=int, default=3, help="how many workers (3)")
    parser.add_argument("--seed", type=int, default=1, help="of the weather and the mix of tasks (1)")
    parser.add_argument("--slow", type=float, default=1.0, help="factor on what the tasks take, 3 ms on average (1)")
    parser.add_argument("--every", type=int, help="tasks between two events (a hundredth of the claims, at least 400)")
    parser.add_argument(
        "--calm", type=float, default=0.0, help="seconds of work at the end in which nothing happens (0)"
    )
    parser.add_argument("--cluster-cap", type=int, help="give the whole cluster a cap")
    chosen = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings.oracle"
    if chosen.cluster_cap:
        os.environ["ORACLE_CLUSTER_CAP"] = str(chosen.cluster_cap)
    import django

    django.setup()
    logging.getLogger("horsies").setLevel(logging.ERROR)
    verdict = storm(**vars(chosen))
    print(json.dumps(verdict, indent=1))
    return 1 if verdict["violations"] or verdict["leaks"] else 0


def storm(**options: Any) -> dict[str, Any]:
    """Raise the storm and have it judged."""
    from horsies_django import queues
    from tests.stress.oracle import evidence
    from tests.stress.oracle.notes import table
    from tests.stress.oracle.report import report
    from tests.stress.oracle.storm import Shape, Storm

    if evidence.unfinished():
        raise SystemExit(
            "python -m tests.stress.oracle: the database holds unfinished tasks; name one of its own in DATABASE_URL"
        )
    queues.sync(actor="storm")
    first, change = evidence.first_rows(), evidence.last_change()
    with tempfile.TemporaryDirectory(prefix="oracle-") as directory, table():
        weather = Storm(Shape(**options), Path(directory))
        try:
            stuck = weather.raise_()
            left = stuck + evidence.leaks(weather.sent, len(weather.fleet))
        finally:
            left_by_workers = weather.ended_badly()
        verdict = report(weather, evidence.chronicles(first, change))
        verdict["leaks"] = left + left_by_workers
        if verdict["violations"] or verdict["leaks"]:
            print(weather.logs(), file=sys.stderr)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
