"""Compares an earlier checkout and this one in turns: whether this one has become slower.

The command is ``python -m benchmarks.pairs EARLIER [--only=drain,caps,workflow,latency,enqueue]
[--pairs=20] [--rounds=40] [--scale=1]``, EARLIER being the directory of the other checkout. Each
checkout's code runs with this Python, with a private server and a worker. A round is a fifth of a
second or so on one and then on the other, in alternating order, so that both have the same share of
the machine's better and worse moments. It is a drain, also under a cap of 3; whole runs of the
shapes of ``benchmarks.workflow``; tasks that are each sent after the result of the one before; or
sends in a transaction each, without a worker. A pair is some rounds with the same servers and
workers, which the next pair starts anew: two processes of the same code differ, too.

The ratio of a pair is the other checkout's time over the time of this one; another ratio is that of
the CPU time of worker, children and server, for sends of the sender alone. The bound is the
greatest of the ratios that their median is above with a confidence of 95 %, whatever the
distribution (the sign test): of 20 ratios the sixth from below.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.figures import Figures, Goal, Reading
from benchmarks.machine import ROOT

HARD_4 = "drain sync, hard mode, 4 processes"
ASYNC_2 = "drain async, hard mode, 2 processes x 200"
SHAPES = {  # by name: the kind, the worker's shape, and the tasks per round
    HARD_4: ("drain", HARD_4, 400),
    ASYNC_2: ("drain", ASYNC_2, 4_000),
    "caps, drain sync under a cap of 3": ("caps", HARD_4, 300),
    "workflow, 1 to 100 to 1": ("workflow", "1 to 100 to 1", 204),
    "workflow, 10 nodes": ("workflow", "10 nodes", 200),
    "workflow, 100 to 100": ("workflow", "100 to 100", 200),
    "workflow, map": ("workflow", "map", 1_000),
    "latency, from a send to its result": ("latency", "drain sync, hard mode, 1 process", 40),
    "enqueue, one by one": ("enqueue", HARD_4, 150),
}
CONFIDENCE = 0.95
SHARE = 0.97
ROUNDS = """
import sys
import time
from contextlib import ExitStack

from benchmarks import meters
from benchmarks.machine import ALL_ENDED, completed, drained, own_server, prepare, wait_for, worker

kind, name = sys.argv[1:3]
n = int(sys.argv[3])
with own_server() as url, ExitStack() as stack:
    prepare(url)
    from django.db import connection, transaction
    from benchmarks import drain, workflow
    from benchmarks.caps.running import FREE
    from benchmarks.load import tasks
    from horsies_django.store.queues import QueueStore

    shapes = workflow.SHAPES if kind == "workflow" else drain.SHAPES
    shape = next(shape for shape in shapes if shape.name == name)

    if kind == "workflow":
        # A base from before children kept connections by themselves shall keep them, too.
        task = None
        options = workflow.DEFAULTS
        environment = {"BENCH_CONN_MAX_AGE": "3600"}
    else:
        task = tasks.noop if shape.lane == "sync" else tasks.anoop
        options = shape.options
        environment = shape.environment

    if kind == "caps":
        limits = FREE | {"max_concurrency": 3}
        store = QueueStore(connection)
        store.configure("default", limits, action="queue.set", actor="benchmarks", create=True)

    process = None
    if kind != "enqueue":
        process = stack.enter_context(worker(*options, wait=False, **environment))
    if kind == "latency":
        task.send(0).get(60_000)

    def cpu():
        return meters.read(process.pid) if process else time.process_time()

    def spent(before):
        if not process:
            return time.process_time() - before
        costs = meters.read(process.pid).since(before, 1)
        return sum(cost for name, cost in costs.items() if "CPU" in name) / 1e6

    def runs():
        sent = 0
        while sent < n:
            sent += workflow.sent(shape, n / workflow.ELEMENTS)
        return sent

    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                "TRUNCATE horsies_tasks, horsies_task_attempts, horsies_task_steps, "
                "horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges, "
                "horsies_workflow_signals"
            )
        if kind in ("drain", "caps"):
            # In one transaction: the worker sees all of it at once.
            task.send_many([{"n": number} for number in range(n)])

        before = cpu()
        began = time.perf_counter()
        if kind in ("drain", "caps"):
            wait_for(ALL_ENDED, process=process)
            seconds = drained(n)
        elif kind == "workflow":
            with transaction.atomic():
                sent = runs()
            wait_for(workflow.RUNS_ENDED, process=process)
            seconds = completed(sent, workflow.DRAINED) * n / sent
        else:
            for number in range(n):
                handle = task.send(number)
                if kind == "latency":
                    handle.get(60_000).unwrap()
            seconds = time.perf_counter() - began

        print(seconds, spent(before), flush=True)
        if sys.stdin.readline() != "again\\n":
            break
"""


def main() -> None:
    """Measure the pairs of the command line, and judge them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pairs", description="Compare two checkouts."
    )
    parser.add_argument("earlier", type=Path, help="the directory of the other checkout")
    kinds = sorted({kind for kind, _, _ in SHAPES.values()})
    parser.add_argument(
        "--only", default="drain", help=f"kinds of rounds, out of {', '.join(kinds)} (drain)"
    )
    parser.add_argument(
        "--pairs", type=int, default=20, help="how many; fewer than 5 have no bound (20)"
    )
    parser.add_argument(
        "--rounds", type=int, default=40, help="rounds of each checkout per pair (40)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor on the number of tasks (1)"
    )

    chosen = parser.parse_args()
    if not (chosen.earlier / "benchmarks" / "drain.py").is_file():
        parser.error(f"{chosen.earlier} is no checkout with benchmarks")

    figures = Figures()
    goals = []
    asked = set(chosen.only.split(","))
    if unknown := asked.difference(kinds):
        parser.error(f"--only: no kind of rounds is named {', '.join(sorted(unknown))}")

    for shape, (kind, worker, n) in SHAPES.items():
        if kind not in asked:
            continue

        name = f"pairs {shape}"
        arguments = (kind, worker, str(max(20, round(n * chosen.scale))))

        for what, ratios in compared(chosen, name, arguments, figures).items():
            if (bound := lower_bound(ratios)) is not None:
                figures.add(Reading(f"{name}, lower bound of the ratio{what}", bound, "share"))
                goals.append(Goal("pairs", f"{name}, lower bound of the ratio{what}", SHARE))

    print(
        "\n".join([*tables.table(figures), *map(str, tables.verdicts(figures, goals))]),
        file=sys.stderr,
    )


def compared(
    chosen: argparse.Namespace, name: str, arguments: tuple[str, str, str], figures: Figures
) -> dict[str, list[float]]:
    """Measure the pairs of one shape; return their ratios of time and of CPU time."""
    n = int(arguments[-1])
    ratios: dict[str, list[float]] = {"": [], " of CPU time": []}

    for _ in range(chosen.pairs):
        with (
            checkout(chosen.earlier.resolve(), arguments) as earlier,
            checkout(ROOT, arguments) as this,
        ):
            costs(earlier), costs(this)  # the first round waits for the worker's start
            spent = {earlier: (0.0, 0.0), this: (0.0, 0.0)}

            for turn in range(chosen.rounds):
                for side in (earlier, this) if turn % 2 == 0 else (this, earlier):
                    side.stdin.write("again\n")
                    side.stdin.flush()
                    seconds, cpu = costs(side)
                    spent[side] = spent[side][0] + seconds, spent[side][1] + cpu

        figures.add(Reading(f"{name}, before", chosen.rounds * n / spent[earlier][0], "tasks/s"))
        figures.add(Reading(f"{name}, now", chosen.rounds * n / spent[this][0], "tasks/s"))
        for what, before, now in zip(ratios, spent[earlier], spent[this], strict=True):
            ratios[what].append(before / now)
            figures.add(Reading(f"{name}, ratio{what}", before / now, "share"))

    return ratios


@contextmanager
def checkout(path: Path, arguments: Sequence[str]) -> Iterator[Any]:
    """Run a checkout's server and worker during the block.

    They are in a process that runs a round for each line that it reads.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "PYTHONPATH")
    }
    # With -c the working directory is searched first.
    command = [sys.executable, "-c", ROUNDS, *arguments]

    process = subprocess.Popen(
        command, cwd=path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    try:
        yield process
    finally:
        process.communicate("enough\n")


def costs(side: Any) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a checkout's round.

    Raises RuntimeError if it failed.
    """
    line = side.stdout.readline()
    if not line:
        raise RuntimeError(f"the checkout's round ended with exit code {side.wait()}")
    seconds, cpu = map(float, line.split())
    return seconds, cpu


def lower_bound(ratios: Sequence[float]) -> float | None:
    """Return the greatest of the ratios that their median is above with a confidence of 95 %.

    None if there are too few.
    """
    n = len(ratios)
    chance = 0.0
    bound = None

    for below, ratio in enumerate(sorted(ratios)):
        # The probability that so many or fewer of the ratios are below the median.
        chance += math.comb(n, below) / 2**n
        if chance > 1 - CONFIDENCE:
            break
        bound = ratio

    return bound


if __name__ == "__main__":
    main()
