"""The oracle at any size: one storm over queues with caps, one over a cluster with a cap.

See ``tests/stress/oracle``.
"""

from __future__ import annotations

import json

from benchmarks.caps.ratios import Ratio, compare
from benchmarks.machine import empty_tables, raise_storm, versions

CLUSTER_CAP = 12
VARIANTS = {"queue caps": (), "a cluster cap": (f"--cluster-cap={CLUSTER_CAP}",)}


def storm(claims: int, slow: float) -> list[Ratio]:
    """Run both storms; a violation or a leak ends the benchmark with exit code 1."""
    ratios = []
    for name, options in VARIANTS.items():
        empty_tables()
        verdict = raise_storm(
            "tests.stress.oracle", f"--claims={claims}", f"--slow={slow:g}", *options
        )

        print(
            json.dumps({"name": f"caps storm over {name}", **verdict, "versions": versions()}),
            flush=True,
        )
        if verdict["violations"] or verdict["leaks"]:
            raise SystemExit(f"the storm over {name} found violations or leaks: see the line above")

        for queue, used in verdict["usage"].items():
            label = "the cluster's cap" if queue == "*" else f"the cap of queue {queue}"
            ratios.append(
                compare(
                    f"storm: use of {label} over {used['seconds']:,.0f} calm seconds",
                    [used["held"]],
                    [1.0],
                    "",
                    0.95,
                )
            )

    return ratios
