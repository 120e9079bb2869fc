"""Run one storm on a PostgreSQL server of its own and print the verdict as JSON.

The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.stress import programs
from tests.support.server import Server
from tests.support.standby import Pair


def main() -> int:
    """Parse the command line, and run the storm."""
    parser = programs.parser("tests.stress.chaos", "Storm over workers and their database.")
    parser.add_argument("--tasks", type=int, default=3_000, help="how many tasks (3,000)")
    parser.add_argument("--faults", type=int, default=40, help="how many faults (40)")
    parser.add_argument("--workers", type=int, default=3, help="how many workers (3)")
    parser.add_argument(
        "--failovers",
        type=int,
        default=0,
        help="no other faults: so many times a standby is promoted",
    )
    parser.add_argument(
        "--measure", action="store_true", help="no storm: how long it takes until a task comes back"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="with --measure: how often machines die (3)"
    )

    chosen = parser.parse_args()
    if chosen.measure:
        os.environ["CHAOS_USUAL"] = "1"

    def judged(server: Server, directory: Path) -> dict[str, Any]:
        from tests.stress.chaos.failover import FailoverStorm
        from tests.stress.chaos.faults import Faults
        from tests.stress.chaos.measure import measure
        from tests.stress.chaos.report import raised
        from tests.stress.chaos.sending import Sender
        from tests.stress.chaos.storm import Shape, Storm

        if chosen.measure:
            return measure(directory, chosen.rounds)

        shape = Shape(chosen.tasks, chosen.failovers or chosen.faults, chosen.workers, chosen.seed)
        if isinstance(server, Pair):
            return raised(FailoverStorm(shape, server, directory))
        return raised(Storm(shape, Faults(server, shape.seed), Sender(shape.seed), directory))

    return programs.run(parser.prog, "tests.settings.chaos", judged, pair=bool(chosen.failovers))


if __name__ == "__main__":
    sys.exit(main())
