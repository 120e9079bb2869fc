"""Two checkouts are compared in pairs; the figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.pairs import SHAPES, lower_bound
from tests.support.sizes import STRESS
from tests.support.workers import ROOT

KINDS = ("latency",) if STRESS == "short" else ("drain", "caps", "workflow", "latency", "enqueue")
pytestmark = pytest.mark.stress


@pytest.mark.parametrize(
    ("ratios", "bound"),
    [
        ([1.0] * 4, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 1.0),
        ([place / 20 for place in range(20, 0, -1)], 6 / 20),
    ],
)
def test_the_lower_bound_of_pairs_is_the_order_statistic_of_the_sign_test(
    ratios: list[float], bound: float | None
) -> None:
    assert lower_bound(ratios) == bound


@pytest.mark.timeout(300)
def test_a_checkout_is_compared_with_itself() -> None:
    command = [sys.executable, "-m", "benchmarks.pairs", str(ROOT), "--pairs=1", "--rounds=2", "--scale=0.1"]
    done = subprocess.run(
        [*command, f"--only={','.join(KINDS)}"], cwd=ROOT, capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["name"].rpartition(", ")[2] for line in lines]
    shapes = sum(kind in KINDS for kind, _, _ in SHAPES.values())
    assert names == ["before", "now", "ratio", "ratio of CPU time"] * shapes
    assert all(line["value"] > 0 for line in lines)
