"""The oracle at any size: one storm over queues with caps, one over a cluster with a cap; see ``tests/oracle``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.caps.ratios import Ratio, compare
from benchmarks.machine import ROOT, empty_tables, versions

CLUSTER_CAP = 12
VARIANTS = {"queue caps": (), "a cluster cap": (f"--cluster-cap={CLUSTER_CAP}",)}


def storm(claims: int, slow: float) -> list[Ratio]:
    """Raise both storms; a violation or a leak ends the benchmark with exit code 1."""
    ratios = []
    for name, options in VARIANTS.items():
        empty_tables()
        verdict = raised(f"--claims={claims}", f"--slow={slow:g}", *options)
        print(json.dumps({"name": f"caps storm over {name}", **verdict, "versions": versions()}), flush=True)
        if verdict["violations"] or verdict["leaks"]:
            raise SystemExit(f"the storm over {name} found violations or leaks: see the line above")
        for queue, used in verdict["usage"].items():
            label = "the cluster's cap" if queue == "*" else f"the cap of queue {queue}"
            ratios.append(
                compare(
                    f"storm: use of {label} over {used['seconds']:,.0f} calm seconds", [used["held"]], [1.0], "", 0.95
                )
            )
    return ratios


def raised(*options: str) -> dict[str, Any]:
    """Run one storm in a process with settings of its own and return the verdict. Raises RuntimeError without one."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracle", *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"the storm ended with exit code {done.returncode} and no verdict")
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict
