"""Soak, and judge: ``python -m tests.stress.soak [--minutes 60]``; exit with 1 when something was lost, happened twice, or grew.

The verdict goes to the standard output as JSON; with the samples it is also written into ``soak.json``, beside pictures in
``soak.svg``.
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

from benchmarks.machine import own_server, versions
from example_project.postgres_binaries import PostgresError
from tests.stress.chaos.__main__ import NO_SERVER

INTO = Path(__file__).parents[3] / "build" / "soak"


def main() -> int:
    """Parse the command line, start the server, and soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.soak", description="Mixed work for an hour.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, beside the start and the end (60)")
    parser.add_argument("--load", type=float, default=0.6, help="share of what the workers can do (0.6)")
    parser.add_argument(
        "--drain", type=int, default=5_000, help="tasks of the drain that measures what they can do (5,000)"
    )
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the weather and of the mix of tasks (1)")
    parser.add_argument(
        "--calm",
        action="store_true",
        help="no faults, only deploys: whatever the status calls a problem is a violation",
    )
    parser.add_argument("--into", type=Path, default=INTO, metavar="DIR", help="where to write (build/soak)")
    chosen = parser.parse_args()
    chosen.into.mkdir(parents=True, exist_ok=True)
    try:
        verdict = soaked(chosen)
    except PostgresError as error:
        print(f"python -m tests.stress.soak: no PostgreSQL server can be started here: {error}", file=sys.stderr)
        return NO_SERVER
    print(json.dumps(verdict, indent=1), flush=True)
    return 1 if verdict["violations"] or verdict["grown"] else 0


def soaked(chosen: argparse.Namespace) -> dict[str, Any]:
    """Soak on a server of its own, and write and draw what was measured. Raises PostgresError."""
    with own_server() as url, tempfile.TemporaryDirectory(prefix="soak-") as directory:
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings.soak"}
        import django
        from django.core.management import call_command

        django.setup()
        logging.getLogger("horsies").setLevel(logging.CRITICAL)
        call_command("migrate", verbosity=0)
        from horsies_django.conf import config
        from tests.stress.soak.plot import draw
        from tests.stress.soak.run import Plan, Soak

        plan = Plan(chosen.minutes * 60, chosen.load, chosen.drain, chosen.every, chosen.seed, chosen.calm)
        soak = Soak(plan, Path(directory), config().recovery.max_crashes)
        verdict = {**soak.run(), "versions": versions()}
    saved = {"verdict": verdict, "deploys": soak.deploys, "samples": soak.sampler.samples}
    (chosen.into / "soak.json").write_text(json.dumps(saved, indent=1) + "\n")
    draw(saved, chosen.into / "soak.svg")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
