"""The benchmarks run and print the promised lines; their figures are not judged here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks import meters, workflow
from benchmarks.against import compare
from benchmarks.figures import Figures, Goal, Reading
from benchmarks.link import far_away
from benchmarks.pairs import SHAPES, lower_bound
from benchmarks.saved import Run, load, save
from benchmarks.tables import verdicts
from tests.conftest import Connect, wait_until
from tests.support.factories import TaskFactory
from tests.support.sites import python
from tests.support.sizes import STRESS
from tests.support.workers import ROOT, database_url

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "benchmarks", *arguments, timeout=110, DATABASE_URL=database_url())


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
    """Return a case that only a full ``make stress`` runs, because it takes long."""
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("name", "first", "unit", "readings", "goals"),
    [
        ("drain", "drain sync, hard mode, 1 process", "tasks/s", 17, 8),
        ("latency", "latency idle, commit to user code, p50", "ms", 10, 5),
        ("floor", "floor round trip, busy", "us", 8, 0),
        ("bare", "bare lone task, commit to user code, p50", "ms", 6, 0),
        ("listeners", "listeners idle beside a NOTIFY: 1, server CPU", "us", 3, 0),
        whole("fleet", "fleet of 1, server CPU per send", "ms", 15, 2),
        whole("elected", "elected killed: the oldest, next start", "ms", 6, 5),
        ("enqueue", "enqueue one by one, send", "us", 7, 4),
        whole("recycling", "recycling after every task", "tasks/s", 3, 0),
        whole("projects", "projects, the queue only, start", "s", 8, 0),
        whole("defaults", "defaults sync, hard mode, 4 processes", "tasks/s", 6, 3),
        whole("schedule", "schedule fire time to start of its task, p50", "ms", 6, 2),
        ("steps", "steps bare transaction", "us", 3, 1),
        ("priorities", "priorities pass of 8, 1 priority", "ms", 16, 4),
        whole("large", "large start of a worker, 1 queue", "s", 15, 8),
        ("growth", "growth drain, empty table", "tasks/s", 4, 3),
        ("xmin", "xmin first tenth", "tasks/s", 4, 2),
        ("rtt", "rtt drain sync, soft mode, 2 processes", "tasks/s", 2, 2),
        whole("memory", "memory parent", "MB", 3, 3),
        whole("mixed", "mixed wait, with tasks of 1 s", "ms", 2, 1),
    ],
)
def test_a_scenario_prints_its_readings_and_checks_its_goals(
    name: str, first: str, unit: str, readings: int, goals: int, tmp_path: Path
) -> None:
    """A scenario prints its readings, judges its goals, and is compared with an earlier file."""
    former = a_run(
        tmp_path / "former.json", Reading(first, 1.0, unit), Reading(f"{name} gone", 1.0, "s")
    )

    done = run(
        name,
        "--scale=0.002",
        "--repeats=1",
        f"--json={tmp_path / 'now.json'}",
        f"--against={former}",
    )

    assert done.returncode == 0, done.stderr

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["name"] for line in lines]

    assert (names[0], lines[0]["unit"], len(names)) == (first, unit, readings)
    assert {each.replace(",", "").split()[0] for each in names} == {name}
    assert all(line["value"] > 0 for line in lines if line["unit"] == "tasks/s")

    saved = json.loads((tmp_path / "now.json").read_text())
    assert [found["name"] for found in saved["readings"]] == names
    assert {"horsies_django", "python", "django", "psycopg", "postgresql", "machine"} == saved[
        "versions"
    ].keys()
    assert len(saved["goals"]) == goals
    assert {
        of for goal in saved["goals"] for of in (goal["of"], goal["over"] or goal["of"])
    } <= set(names)

    table = done.stderr.splitlines()
    assert len([line for line in table if " reached: " in line or " MISSED: " in line]) == goals
    assert all(any(line.startswith(reading) for line in table) for reading in names)
    assert [line.startswith(first) for line in table if " against " in line] == [True]


def test_the_meters_include_the_usage_of_ended_processes() -> None:
    """The meters count the CPU time of ended processes and the written WAL."""
    earlier = meters.read(os.getpid())

    subprocess.run(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True
    )
    TaskFactory.create_batch(20)

    later = meters.read(os.getpid())
    costs = later.since(earlier, 10)

    assert costs["children CPU, us/task"] >= 18_000
    assert costs["parent CPU, us/task"] == pytest.approx(
        (later.parent_seconds - earlier.parent_seconds) * 1e5
    )
    assert costs["WAL, bytes/task"] > 2 * 100
    assert costs["connections"] == 0


@pytest.mark.parametrize(
    ("unit", "now", "worse"),
    [
        ("tasks/s", 89.0, True),
        ("tasks/s", 91.0, False),
        ("tasks/s", 200.0, False),
        ("ms", 111.0, True),
        ("ms", 109.0, False),
    ],
)
def test_a_reading_is_marked_that_is_worse_by_more_than_a_tenth(
    unit: str, now: float, worse: bool, tmp_path: Path
) -> None:
    former = load(a_run(tmp_path / "former.json", Reading("drain", 100.0, unit)))
    figures = load(a_run(tmp_path / "now.json", Reading("drain", now, unit))).figures

    other, line = compare(figures, {**former.versions, "python": "new"}, former)

    assert other == "not the same python: new, was of old"
    assert ("WORSE" in line, f"ratio {now / 100:.3f}" in line) == (worse, True)


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


def test_the_same_file_produces_the_same_pictures(tmp_path: Path) -> None:
    """The same file produces the same pictures twice, and a page with all figures."""
    pytest.importorskip(
        "matplotlib", reason="matplotlib is not installed: the dependency group bench has it"
    )

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

    assert "4,500" in (tmp_path / "one" / "drain.svg").read_text()
    page = (tmp_path / "one" / "results.md").read_text()
    assert "| P1 | drain sync | at least 4,600 | 4,500 tasks/s | MISSED |" in page
    assert "| drain sync | tasks/s | 4,500 | 4,000 | 5,000 | 2 |" in page


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
def test_an_impossible_request_is_refused_before_measuring(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    """An impossible request is refused before anything is measured."""
    if arguments[0] == "plot":
        pytest.importorskip(
            "matplotlib", reason="matplotlib is not installed: the dependency group bench has it"
        )

    file = tmp_path / "other.json"
    file.write_text("[1]")

    done = run(*(argument.format(file=file) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("part", "measurements", "ratios"),
    [whole("slow", 3, 2), ("bound", 6, 7), whole("flat", 6, 5), whole("counting", 2, 1)],
)
def test_caps_are_measured_in_turns_and_compared_with_a_target(
    part: str, measurements: int, ratios: int, tmp_path: Path
) -> None:
    """Caps are measured in turns and compared with their targets."""
    file = tmp_path / "caps.json"
    printed = measure("caps", f"--only={part}", "--scale=0.005", "--repeats=1", f"--json={file}")
    rates = [line for line in printed if "rate" in line]
    compared = [line for line in printed if "ratio" in line]

    assert (len(rates), len(compared), len(printed)) == (
        measurements,
        ratios,
        measurements + ratios,
    )

    assert [
        (found["name"], found["value"]) for found in json.loads(file.read_text())["readings"]
    ] == [(f"caps {line['name']}", line["value"]) for line in compared]

    for line in compared:
        assert line["ratio"] == pytest.approx(line["value"] / line["against"], rel=0.01)
        if line["target"] is None:  # only for comparison
            assert line["met"] is None
        else:
            over = line["ratio"] / line["target"]
            assert line["met"] == (over <= 1 if line["at_most"] else over >= 1)


@pytest.mark.thorough
def test_the_storm_prints_its_verdict() -> None:
    (storm,) = measure("chaos", "--tasks=40", "--faults=1", "--scale=0.01")

    assert (storm["tasks"], storm["faults"], storm["lost"], storm["finished twice"]) == (
        40,
        1,
        0,
        0,
    )
    assert "versions" in storm


# The link that delays


def door_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def test_the_link_passes_on_every_byte_in_order_with_its_delay() -> None:
    """The link delays both directions, passes on every byte in order, and passes on the end."""
    sent = os.urandom(20 * 1_048_576)

    def answer() -> None:
        client, _ = door.accept()
        with client:
            while data := client.recv(65_536):
                client.sendall(data)

    def send() -> None:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(2) as aside:
        url = f"postgresql://user:secret@127.0.0.1:{door.getsockname()[1]}/name?sslmode=disable"
        with (
            far_away(url, 5) as further,
            socket.create_connection(door_of(further), timeout=60) as client,
        ):
            echo = aside.submit(answer)
            began = time.monotonic()
            client.sendall(b"?")
            assert client.recv(1) == b"?"
            assert time.monotonic() - began >= 0.01

            sending = aside.submit(send)
            received = b"".join(iter(lambda: client.recv(1_048_576), b""))
            sending.result()
            echo.result()

    assert received == sent
    assert further == url.replace(f":{door_of(url)[1]}/", f":{door_of(further)[1]}/")

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(door_of(further))

    with (
        far_away(url, 1) as further,
        socket.create_connection(door_of(further), timeout=60) as client,
    ):
        assert client.recv(1) == b"", "who comes while the server is away is turned away"


# Two checkouts in pairs

KINDS = ("latency",) if STRESS == "short" else ("drain", "caps", "workflow", "latency", "enqueue")


@pytest.mark.parametrize(
    ("ratios", "bound"),
    [
        ([1.0] * 4, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 1.0),
        ([place / 20 for place in range(20, 0, -1)], 6 / 20),
    ],
)
def test_the_lower_bound_of_pairs_is_that_of_the_sign_test(
    ratios: list[float], bound: float | None
) -> None:
    """The lower bound of pairs is the order statistic of the sign test."""
    assert lower_bound(ratios) == bound


def test_a_checkout_is_compared_with_itself() -> None:
    options = ("--pairs=1", "--rounds=2", "--scale=0.1", f"--only={','.join(KINDS)}")
    done = python("-m", "benchmarks.pairs", str(ROOT), *options, timeout=290)

    assert done.returncode == 0, done.stderr

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["name"].rpartition(", ")[2] for line in lines]
    shapes = sum(kind in KINDS for kind, _, _ in SHAPES.values())

    assert names == ["before", "now", "ratio", "ratio of CPU time"] * shapes
    assert all(line["value"] > 0 for line in lines)


# Workflows


@pytest.mark.thorough
def test_every_workflow_shape_is_compared_with_its_goals() -> None:
    """Each shape of workflows, its baseline, the chain and the send are measured and judged.

    It runs on a private server, whose log is readable and which counts statements.
    """
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    words = ("-m", "benchmarks", "workflow", "--scale=0.001", "--repeats=1")
    done = python(*words, timeout=170, environment=environment)

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["name"] for line in lines}) == len(lines) == 23
    assert all(line["value"] > 0 for line in lines if line["unit"] != "lines")

    judged = [
        line
        for line in done.stderr.splitlines()
        if line.startswith(("workflow reached: ", "workflow MISSED: "))
    ]
    assert len(judged) == len(workflow.GOALS)


def test_a_lock_wait_is_counted_only_while_the_log_is_watched(
    connect: Connect,
) -> None:
    """A wait for a lock is counted in a private server's log only while the log is watched."""
    if workflow.server_log() is None:
        pytest.skip("the test database is on a server whose log cannot be read")

    update = "UPDATE horsies_tasks SET priority = priority WHERE id = %s"
    task = [TaskFactory().pk]

    with workflow.locks_logged() as lines, ThreadPoolExecutor(1) as aside:
        before = lines()
        holder = connect()
        waiter = connect()

        with holder.transaction():
            holder.execute(update, task)
            waiting = aside.submit(waiter.execute, update, task)
            wait_until(lambda: lines() != before, "the wait is logged")

        waiting.result()
        assert lines() >= before + 2  # "still waiting" and "acquired"

    (level,) = workflow.asked("SELECT current_setting('deadlock_timeout')")
    assert level != workflow.WATCHED["deadlock_timeout"]
