"""The benchmarks run and print what they promise; their figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import meters
from benchmarks.against import compare
from benchmarks.figures import LESS_IS_BETTER, Figures, Goal, Reading
from benchmarks.saved import Run, load, save
from benchmarks.tables import verdicts
from tests.support.factories import TaskFactory
from tests.support.workers import ROOT, database_url

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True)]

# The server's processes are not seen where it runs in a container.
COSTS = {"parent CPU, us/task", "children CPU, us/task", "statements/task", "WAL, bytes/task", "connections"}
FLEET = {
    "workers' CPU, ms/send", "server CPU with heartbeats, ms/send", "idle server, CPU %", "idle workers, CPU %", "workers",
}  # fmt: skip
# The reading that is compared, where the first may be negative in a short run: a difference of two, or the time to a start that
# the sender hears of before its own commit.
COMPARED = {
    "bare": "bare lone task, commit to result, p50",
    "fleet": "fleet of 1, commit to user code, p99",
    "latency": "latency idle, commit to result, p50",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def measure(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def a_run(path: Path, *readings: Reading, goals: Sequence[Goal] = ()) -> Path:
    """Write a file as ``--json`` does."""
    figures = Figures()
    for reading in readings:
        figures.keep(reading)
    names = ("horsies_django", "python", "django", "psycopg", "postgresql", "machine")
    save(path, Run(dict.fromkeys(names, "of old"), figures, tuple(goals)))
    return path


def whole(*values: object) -> Any:
    """Describe what only a full ``make stress`` runs, because it takes long."""
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("name", "first", "unit", "details", "readings", "goals"),
    [
        ("drain", "drain sync, hard mode, 1 process", "tasks/s", COSTS, 17, 8),
        ("latency", "latency idle, commit to user code, p50", "ms", set(), 10, 5),
        ("floor", "floor round trip, busy", "us", {"p99"}, 8, 0),
        ("bare", "bare lone task, commit to user code, p50", "ms", set(), 6, 0),
        ("listeners", "listeners idle beside a NOTIFY: 1, server CPU", "us", set(), 3, 0),
        whole("fleet", "fleet of 1, server CPU per send", "ms", FLEET, 15, 2),
        whole("elected", "elected killed: the oldest, next start", "ms", {"workers"}, 6, 5),
        ("enqueue", "enqueue one by one, send", "us", set(), 7, 4),
        whole("recycling", "recycling after every task", "tasks/s", set(), 3, 0),
        whole("projects", "projects, the queue only, start", "s", set(), 8, 0),
        whole("defaults", "defaults sync, hard mode, 4 processes", "tasks/s", set(), 6, 3),
        whole("schedule", "schedule fire time to start of its task, p50", "ms", {"fire times"}, 6, 2),
        ("steps", "steps bare transaction", "us", set(), 3, 1),
        ("priorities", "priorities pass of 8, 1 priority", "ms", {"tasks", "slowest, ms"}, 16, 4),
        whole("large", "large start of a worker, 1 queue", "s", {"queues"}, 15, 8),
    ],
)
def test_a_scenario_prints_its_readings_judges_its_goals_and_is_compared_with_a_file(
    name: str, first: str, unit: str, details: set[str], readings: int, goals: int, tmp_path: Path
) -> None:
    best = 1e-9 if unit in LESS_IS_BETTER else 1e9
    better = COMPARED.get(name, first)
    former = a_run(tmp_path / "former.json", Reading(better, best, unit), Reading(f"{name} gone", 1.0, "s"))
    done = run(name, "--scale=0.002", "--repeats=1", f"--json={tmp_path / 'now.json'}", f"--against={former}")
    assert done.returncode == 0, done.stderr

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    saved = json.loads((tmp_path / "now.json").read_text())
    names = [line["name"] for line in lines]
    assert (names[0], lines[0]["unit"], len(names)) == (first, unit, readings)
    assert lines[0]["details"].keys() - {"server CPU, us/task"} == details
    assert {name_.replace(",", "").split()[0] for name_ in names} == {name}
    assert [(found["name"], found["unit"]) for found in saved["readings"]] == [
        (line["name"], line["unit"]) for line in lines
    ]
    assert all(line["value"] > 0 for line in lines if line["unit"] == "tasks/s")
    assert {"horsies_django", "python", "django", "psycopg", "postgresql", "machine"} == saved["versions"].keys()

    assert len(saved["goals"]) == goals
    for goal in saved["goals"]:
        assert {goal["of"], goal["over"] or goal["of"]} <= set(names)
    table = done.stderr.splitlines()
    assert len([line for line in table if " reached: " in line or " MISSED: " in line]) == goals
    assert all(any(line.startswith(reading) for line in table) for reading in names)
    assert [line.startswith(better) for line in table if "WORSE" in line] == [True]
    assert f"{name} gone" not in done.stderr


def test_the_meters_count_what_ended_processes_used_and_what_was_written() -> None:
    earlier = meters.read(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    TaskFactory.create_batch(20)
    later = meters.read(os.getpid())
    costs = later.since(earlier, 10)
    assert costs["children CPU, us/task"] >= 18_000
    assert costs["parent CPU, us/task"] == pytest.approx((later.parent_seconds - earlier.parent_seconds) * 1e5)
    assert costs["WAL, bytes/task"] > 2 * 100
    assert costs["connections"] == 0


@pytest.mark.parametrize(
    ("unit", "former", "now", "worse"),
    [
        ("tasks/s", 100.0, 89.0, True),
        ("tasks/s", 100.0, 91.0, False),
        ("tasks/s", 100.0, 200.0, False),
        ("ms", 1.0, 1.11, True),
        ("ms", 1.0, 1.09, False),
        ("statements", 0.1, 0.05, False),
    ],
)
def test_a_reading_is_marked_that_is_worse_by_more_than_a_tenth(
    unit: str, former: float, now: float, worse: bool, tmp_path: Path
) -> None:
    baseline = load(a_run(tmp_path / "former.json", Reading("drain", former, unit)))
    figures = load(a_run(tmp_path / "now.json", Reading("drain", now, unit))).figures
    (line,) = compare(figures, baseline.versions, baseline)
    assert ("WORSE" in line) == worse
    assert f"ratio {now / former:.3f}" in line


def test_what_two_runs_were_measured_on_is_told_where_it_differs(tmp_path: Path) -> None:
    baseline = load(a_run(tmp_path / "former.json"))
    lines = list(compare(Figures(), {**baseline.versions, "python": "new"}, baseline))
    assert lines == ["not the same python: new, was of old"]


def test_a_goal_is_a_bound_of_a_median_or_of_the_ratio_of_two() -> None:
    figures = Figures()
    for value in (1.0, 4.0, 100.0):
        figures.keep(Reading("a", value, "ms"))
    figures.keep(Reading("b", 2.0, "ms"))
    goals = [
        Goal("G1", "a", 4.0, at_most=True),
        Goal("G2", "a", 4.1),
        Goal("G3", "a", 2.0, over="b"),
        Goal("G4", "a", 1.9, over="b", at_most=True),
        Goal("G5", "never measured", 1.0),
    ]
    assert [str(verdict).partition("  ")[0] for verdict in verdicts(figures, goals)] == [
        "G1 reached: 4 ms, at most 4",
        "G2 MISSED: 4 ms, at least 4.1",
        "G3 reached: ratio 2, at least 2",
        "G4 MISSED: ratio 2, at most 1.9",
    ]


def test_the_same_file_gives_the_same_pictures_and_a_page_with_all_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the dependency group bench has it")
    file = a_run(
        tmp_path / "run.json",
        Reading("drain sync", 4_000.0, "tasks/s", {"connections": 3.0}),
        Reading("drain sync", 5_000.0, "tasks/s", {"connections": 3.0}),
        Reading("drain sync, statements", 0.05, "statements"),
        Reading("latency idle", 0.8, "ms"),
        goals=[Goal("P1", "drain sync", 4_600)],
    )
    for place in ("one", "two"):
        done = run("plot", str(file), "--into", str(tmp_path / place))
        assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert written == ["drain.svg", "latency.svg", "results.md"]
    for name in written:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

    picture = (tmp_path / "one" / "drain.svg").read_text()
    for text in ("P1 \N{GREATER-THAN OR EQUAL TO} 4,600", "sync, statements", "tasks/s", "4,500", "Python of old"):
        assert text in picture
    page = (tmp_path / "one" / "results.md").read_text()
    assert "| P1 | drain sync | at least 4,600 | 4,500 tasks/s | MISSED |" in page
    assert "| drain sync | tasks/s | 4,500 | 4,000 | 5,000 | 2 |" in page
    assert "![drain](drain.svg)" in page
    assert "| drain sync | 3 |" in page


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["drain", "--against={file}"], "was not written by"),
        (["drain", "--against={file}.gone"], "No such file"),
        (["drain", "--json={file}/x.json"], "no directory"),
        (["drain", "--repeats=0"], "1 or more"),
        (["plot", "{file}"], "was not written by"),
        (["caps", "--only=slow,flut"], "flut"),
        (["dran"], "drain"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    if arguments[0] == "plot":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed: the dependency group bench has it")
    file = tmp_path / "other.json"
    file.write_text("[1]")
    done = run(*(argument.format(file=file) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("part", "measurements", "ratios"),
    [whole("slow", 3, 2), ("bound", 6, 7), whole("flat", 6, 5), whole("counting", 2, 1)],
)
def test_caps_are_measured_in_turns_and_compared_with_their_target(
    part: str, measurements: int, ratios: int, tmp_path: Path
) -> None:
    file = tmp_path / "caps.json"
    printed = measure("caps", f"--only={part}", "--scale=0.005", "--repeats=1", f"--json={file}")
    rates, compared = [line for line in printed if "rate" in line], [line for line in printed if "ratio" in line]
    assert (len(rates), len(compared), len(printed)) == (measurements, ratios, measurements + ratios)
    assert [(found["name"], found["value"]) for found in json.loads(file.read_text())["readings"]] == [
        (f"caps {line['name']}", line["value"]) for line in compared
    ]
    for line in compared:
        assert line["ratio"] == pytest.approx(line["value"] / line["against"], rel=0.01)
        if line["target"] is None:  # there for comparison
            assert line["met"] is None
        else:
            over = line["ratio"] / line["target"]
            assert line["met"] == (over <= 1 if line["at_most"] else over >= 1)


@pytest.mark.thorough
def test_the_storm_prints_its_verdict() -> None:
    (storm,) = measure("chaos", "--tasks=40", "--faults=1", "--scale=0.01")
    assert (storm["tasks"], storm["faults"], storm["lost"], storm["finished twice"]) == (40, 1, 0, 0)
    assert "versions" in storm
