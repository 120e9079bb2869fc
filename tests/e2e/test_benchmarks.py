"""The benchmarks run and print what they promise; their figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)


def measure(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("name", "count", "lines", "percentiles"),
    [("drain", 100, 5, False), ("recycling", 100, 3, False), ("latency", 10, 2, True), ("enqueue", 200, 3, False)],
)
def test_each_scenario_prints_json_lines(name: str, count: int, lines: int, percentiles: bool) -> None:
    printed = measure(name, f"--n={count}", "--repeats=1")
    assert len(printed) == lines
    for line in printed:
        assert line["name"].startswith(name)
        assert line["rate"] == pytest.approx(line["n"] / line["seconds"], rel=0.1)
        assert {"configuration", "versions"} <= line.keys()
        assert {"horsies_django", "python", "django", "psycopg", "postgresql", "machine"} == line["versions"].keys()
        assert {"p50_ms", "p99_ms"} <= line.keys() or not percentiles


@pytest.mark.parametrize(
    ("part", "measurements", "ratios"), [("slow", 3, 2), ("bound", 6, 7), ("flat", 6, 5), ("counting", 2, 1)]
)
def test_caps_are_measured_in_turns_and_compared_with_their_target(part: str, measurements: int, ratios: int) -> None:
    printed = measure("caps", f"--only={part}", "--scale=0.005", "--repeats=1", "--json")
    rates, compared = [line for line in printed if "rate" in line], [line for line in printed if "ratio" in line]
    assert (len(rates), len(compared), len(printed)) == (measurements, ratios, measurements + ratios)
    for line in compared:
        assert line["ratio"] == pytest.approx(line["value"] / line["against"], rel=0.01)
        if line["target"] is None:  # there for comparison
            assert line["met"] is None
        else:
            over = line["ratio"] / line["target"]
            assert line["met"] == (over <= 1 if line["at_most"] else over >= 1)


def test_the_storm_prints_its_verdict() -> None:
    (storm,) = measure("chaos", "--tasks=120", "--faults=3", "--scale=0.01", "--json")
    assert (storm["tasks"], storm["faults"], storm["lost"], storm["finished twice"]) == (120, 3, 0, 0)
    assert "versions" in storm


def test_an_unknown_part_of_caps_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "caps", "--only=slow,flut"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "flut" in done.stderr


def test_an_unknown_scenario_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "dran"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "drain" in done.stderr
