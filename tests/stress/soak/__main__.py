"""Soak and judge: ``python -m tests.stress.soak [--minutes 60]``.

The exit code is 1 if a task was lost, ran twice, or a figure grew. The verdict goes to the standard
output as JSON; with the samples it is also written into ``soak.json``, beside pictures in
``soak.svg``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.stress import programs
from tests.support.server import Server

INTO = Path(__file__).parents[3] / "build" / "soak"


def main() -> int:
    """Parse the command line, and soak."""
    parser = programs.parser("tests.stress.soak", "Mixed work for an hour.")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="how long, beside the start and the end (60)"
    )
    parser.add_argument(
        "--load", type=float, default=0.6, help="share of what the workers can do (0.6)"
    )
    parser.add_argument(
        "--drain", type=int, default=5_000, help="tasks with which that is measured (5,000)"
    )
    parser.add_argument(
        "--every", type=float, default=10.0, help="seconds between two samples (10)"
    )
    parser.add_argument(
        "--calm",
        action="store_true",
        help="only deploys: what the status calls a problem is a violation",
    )
    parser.add_argument(
        "--into", type=Path, default=INTO, metavar="DIR", help="where to write (build/soak)"
    )

    chosen = parser.parse_args()
    chosen.into.mkdir(parents=True, exist_ok=True)

    def judged(server: Server, directory: Path) -> dict[str, Any]:
        from benchmarks.machine import versions
        from tests.stress.soak.plot import draw
        from tests.stress.soak.run import Soak

        soak = Soak(chosen, server, directory)
        verdict = {**soak.soaked(), "versions": versions()}
        saved = {"verdict": verdict, "deploys": soak.deploys, "samples": soak.sampler.samples}
        (chosen.into / "soak.json").write_text(json.dumps(saved, indent=1) + "\n")
        draw(saved, chosen.into / "soak.svg")
        return verdict

    return programs.run(parser.prog, "tests.settings.soak", judged)


if __name__ == "__main__":
    sys.exit(main())
