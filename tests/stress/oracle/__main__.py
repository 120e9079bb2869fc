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


def main() -> int:
    """Parse the command line, and run the storm."""
    parser = programs.parser("tests.stress.oracle", "Storm over caps.")
    parser.add_argument("--claims", type=int, default=20_000, help="how many tasks (20,000)")
    parser.add_argument("--workers", type=int, default=3, help="how many workers (3)")
    parser.add_argument(
        "--slow", type=float, default=1.0, help="factor on what the tasks take, 3 ms on average (1)"
    )
    parser.add_argument(
        "--every",
        type=int,
        help="tasks between two events (a hundredth of the claims, at least 400)",
    )
    parser.add_argument(
        "--calm", type=float, default=0.0, help="seconds of work at the end without any event (0)"
    )
    parser.add_argument("--cluster-cap", type=int, help="give the whole cluster a cap")

    chosen = parser.parse_args()
    if chosen.cluster_cap:
        os.environ["ORACLE_CLUSTER_CAP"] = str(chosen.cluster_cap)

    def judged(server: Server, directory: Path) -> dict[str, Any]:
        from tests.stress.chaos.report import raised
        from tests.stress.chaos.storm import Shape
        from tests.stress.oracle.storm import LEAST_EVENTS, LimitStorm

        every = chosen.every or max(400, chosen.claims // 100)
        shape = Shape(
            chosen.claims, max(LEAST_EVENTS, chosen.claims // every), chosen.workers, chosen.seed
        )
        options = {"slow": chosen.slow, "calm": chosen.calm, "cluster_cap": chosen.cluster_cap}
        return raised(LimitStorm(shape, server, directory, **options))

    return programs.run(parser.prog, "tests.settings.oracle", judged)


if __name__ == "__main__":
    sys.exit(main())
