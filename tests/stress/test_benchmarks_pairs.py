"""Two checkouts are compared in pairs; the figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.pairs import lower_bound
from tests.support.workers import ROOT

ONLY = "--only=drain,caps,workflow,latency,enqueue"
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
    command = [sys.executable, "-m", "benchmarks.pairs", str(ROOT), "--pairs=1", "--rounds=2", "--scale=0.1", ONLY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"].rpartition(", ")[2] for line in lines] == ["before", "now", "ratio", "ratio of CPU time"] * 9
    assert all(line["value"] > 0 for line in lines)
