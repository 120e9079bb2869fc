"""Workflows: the rate of their nodes beside chained tasks, and the times of a hop and a large send.

Four shapes are drained by a worker with ``--processes=4``: 100 runs of 1 to 100 to 1 with values
passed on, 1,000 runs of ten nodes with conditions and joins, one run in which each of 100 nodes
waits for each of 100 others, and a map of 100,000. Each takes turns with the same number of tasks
in chains, in which the code of a task sends the next: the baseline. Time counts from the first
start to the last end, of tasks and runs, by the server's clock.

The runs of ten nodes are drained by two workers as well. Meanwhile the server logs every wait for a
lock of 50 ms, and every deadlock; the goal is that it logs none. The log of a server other than our
private one is not read, and then this reading is left out.

A hop is a 200th of the time from the send of a chain of 200 nodes to the return of ``get()``. It
takes turns with 200 single tasks, each sent after the result of the one before: the machine is kept
busy, unlike in ``latency``. Afterwards a transaction with an id stays open for a minute in which
chains run, and the hop is measured again while it is open. A scale above 1 lengthens only this
minute: ``--scale=10`` makes it ten.

Runs that sleep and signals are measured by ``benchmarks.waits``.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from django.db import DatabaseError, connection

from benchmarks import waits
from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import completed, empty_tables, wait_for, worker
from benchmarks.xmin import pinned
from example_project.postgres import PREFIX
from horsies_django import Workflow

WIDTH = 100
ELEMENTS = 100_000
BLOCKS = 1_000
CHAIN = 200
TURNS = 5
PINNED_SECONDS = 60.0
DEFAULTS = ("--processes=4",)  # of one worker
TWO = ("--processes=2", "--processes=2")  # of two workers
PATIENCE_MS = 600_000

RUNS_ENDED = "SELECT NOT EXISTS (SELECT FROM horsies_workflows WHERE finished_at IS NULL)"
# By the partial indexes, not by a scan: the query runs repeatedly while the history grows.
CHAINS_ENDED = """
SELECT NOT EXISTS (
         SELECT FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND NOT parked
       )
   AND NOT EXISTS (SELECT FROM horsies_tasks WHERE claimed_by IS NOT NULL AND finished_at IS NULL)
"""
DRAINED = """
SELECT count(*),
       extract(
         epoch FROM greatest(max(finished_at), (SELECT max(finished_at) FROM horsies_workflows))
                    - min(started_at)
       )
FROM horsies_tasks WHERE status = 'COMPLETED'
"""
HALVES = """
SELECT extract(epoch FROM middle - first)::float8, extract(epoch FROM last - middle)::float8
FROM (SELECT min(started_at) AS first, max(finished_at) AS last,
             percentile_disc(0.5) WITHIN GROUP (ORDER BY finished_at) AS middle
      FROM horsies_tasks WHERE status = 'COMPLETED') AS moments
"""
FORGET_STATEMENTS = """
SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = current_database()
"""
SLOWEST = """
SELECT max(max_exec_time) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND query NOT LIKE 'VACUUM%'
"""
WATCHED = {"deadlock_timeout": "50ms", "log_lock_waits": "on"}
WAIT = re.compile(
    rb"LOG:  process \d+ (still waiting|acquired|detected deadlock|avoided deadlock)"
    rb"|ERROR:  deadlock detected"
)


@dataclass(frozen=True)
class Shape:
    """A kind of runs to drain.

    ``build`` adds the nodes of one run and returns the number of its tasks, ``chains`` is the
    number of chains of the baseline.
    """

    name: str
    build: Callable[[Workflow, float], int]
    runs: int
    chains: int

    @property
    def reading(self) -> str:
        return f"workflow {self.name}"

    @property
    def baseline(self) -> str:
        return f"{self.reading}, baseline"


def fan(flow: Workflow, scale: float) -> int:
    """Add one node, a hundred that take its value, and one that takes their values."""
    first = flow.add(tasks.same, 1)
    flow.add(tasks.total, [flow.add(tasks.same, first) for _ in range(WIDTH)])
    return WIDTH + 2


def ten(flow: Workflow, scale: float) -> int:
    """Add ten nodes.

    Among them are values, a list of them, a condition, a quorum, and a node that runs after
    failures, too.
    """
    first = flow.add(tasks.same, 1)
    parts = [flow.add(tasks.same, first) for _ in range(3)]
    summed = flow.add(tasks.total, parts)

    early = flow.add(tasks.noop, 0, after=parts, join="any")
    checked = flow.add(tasks.same, summed, when=summed.matches("$ > 0"))
    late = flow.add(tasks.noop, 0, after=[early, checked], allow_failed=True)

    flow.add(tasks.noop, 0, after=late)
    flow.add(tasks.total, [summed, checked], after=late)

    return 10


def dense(flow: Workflow, scale: float) -> int:
    """Add a hundred nodes, and a hundred more that wait for all of them."""
    first = [flow.add(tasks.noop, number) for number in range(WIDTH)]
    for number in range(WIDTH):
        flow.add(tasks.noop, number, after=first)
    return 2 * WIDTH


def mapped(flow: Workflow, scale: float) -> int:
    """Add one map."""
    n = max(20, round(ELEMENTS * scale))
    flow.map(tasks.noop, n=list(range(n)))
    return n


FAN = Shape("1 to 100 to 1", fan, 100, 100)
TEN = Shape("10 nodes", ten, 1_000, 1_000)
MAP = Shape("map", mapped, 1, 100)
SHAPES = (FAN, TEN, Shape("100 to 100", dense, 1, 100), MAP)
TEN_BY_TWO = f"{TEN.reading}, 2 workers x 2 processes"
LINES = "lines about locks"
FIRST_HALF, SECOND_HALF, STATEMENT = (
    f"{MAP.reading}, {part}" for part in ("first half", "second half", "slowest statement")
)
PLAIN = "workflow plain send to result"
HOP = "workflow chain, hop"
PINNED = "workflow chain, hop with xmin pinned"
SEND = "workflow send of 10,000 nodes"
GOALS = (
    Goal("workflow", FAN.reading, 0.6, over=FAN.baseline),
    Goal("workflow", TEN.reading, 0.6, over=TEN.baseline),
    Goal("workflow", f"{TEN.reading}, {LINES}", 0, at_most=True),
    Goal("workflow", f"{TEN_BY_TWO}, {LINES}", 0, at_most=True),
    Goal("workflow", MAP.reading, 0.3, over=MAP.baseline),
    Goal("workflow", STATEMENT, 250, at_most=True),
    Goal("workflow", SECOND_HALF, 0.9, over=FIRST_HALF),
    Goal("workflow", HOP, 2.5, over=PLAIN, at_most=True),
    Goal("workflow", PINNED, 1.3, over=HOP, at_most=True),
    Goal("workflow", SEND, 1, at_most=True),
    *waits.GOALS,
)


def cases(scale: float) -> Sequence[Case]:
    """Return each shape before its baseline, the shape of two workers, the chain, the send."""
    size = min(scale, 1.0)
    found = []
    for shape in SHAPES:
        found.append(Case(shape.reading, partial(drain, shape, size)))
        found.append(Case(shape.baseline, partial(baseline, shape, size)))

    return [
        *found,
        Case(TEN_BY_TWO, partial(drain, TEN, size, TEN_BY_TWO, TWO)),
        Case("workflow chain", partial(chain, max(2, round(CHAIN * size)), PINNED_SECONDS * scale)),
        Case(SEND, partial(send, max(2, round(BLOCKS * size)))),
        *waits.cases(scale),
    ]


def drain(
    shape: Shape, scale: float, name: str | None = None, workers: Sequence[str] = DEFAULTS
) -> list[Reading]:
    """Measure workers with these options on all runs of a shape."""
    name = name or shape.reading
    empty_tables()

    with ExitStack() as stack:
        lock_lines = stack.enter_context(locks_logged()) if shape is TEN else lambda: None
        counted = shape is MAP and forget_statements()
        n = sum(sent(shape, scale) for _ in range(runs(shape, scale)))

        tidy_up()
        processes = [stack.enter_context(worker(options, wait=False)) for options in workers]
        wait_for(RUNS_ENDED, process=processes[0])
        slowest = asked(SLOWEST)[0] if counted else None
        lines = lock_lines()

    readings = [Reading(name, n / completed(n, DRAINED), "tasks/s")]
    if lines is not None:
        readings.append(Reading(f"{name}, {LINES}", lines, "lines"))

    if shape is MAP:
        halves = zip((FIRST_HALF, SECOND_HALF), asked(HALVES), strict=True)
        readings += [
            Reading(half, n / 2 / max(seconds, 1e-6), "tasks/s") for half, seconds in halves
        ]

    if slowest is not None:
        readings.append(Reading(STATEMENT, slowest, "ms"))
    return readings


def runs(shape: Shape, scale: float) -> int:
    """Return the number of runs of a shape."""
    return min(shape.runs, max(2, round(shape.runs * scale)))


def sent(shape: Shape, scale: float) -> int:
    """Send one run, and return the number of its tasks."""
    flow = Workflow(shape.name)
    n = shape.build(flow, scale)
    flow.send()
    return n


def baseline(shape: Shape, scale: float) -> list[Reading]:
    """Measure a worker on as many tasks as the shape has, in chains of sends."""
    n = runs(shape, scale) * shape.build(Workflow(shape.name), scale)
    count = min(shape.chains, n // 2)

    empty_tables()
    tasks.relay.send_many(
        [{"left": n // count + (place < n % count) - 1} for place in range(count)]
    )
    tidy_up()

    with worker(*DEFAULTS, wait=False) as process:
        set_seqscan("off")
        wait_for(CHAINS_ENDED, process=process)
        set_seqscan("on")

    return [Reading(shape.baseline, n / completed(n, DRAINED), "tasks/s")]


def chain(length: int, pinned_seconds: float) -> list[Reading]:
    """Measure the hop beside the plain latency, in turns, and again under an old transaction."""
    empty_tables()
    with worker(*DEFAULTS, wait=False):
        hop(length), plain(length)  # the first ones wait for the worker's start
        turns = [(hop(length), plain(length)) for _ in range(TURNS)]

        with pinned():
            end = time.monotonic() + pinned_seconds
            while time.monotonic() < end:
                hop(length)
            later = [(hop(length), plain(length)) for _ in range(TURNS)]

    (hops, plains) = zip(*turns, strict=True)
    (hops_pinned, plains_pinned) = zip(*later, strict=True)
    beside = {
        "pinned before, s": pinned_seconds,
        "plain send to result, ms": 1_000 * statistics.median(plains_pinned),
    }

    return [
        Reading(PLAIN, 1_000 * statistics.median(plains), "ms"),
        Reading(HOP, 1_000 * statistics.median(hops), "ms"),
        Reading(PINNED, 1_000 * statistics.median(hops_pinned), "ms", beside),
    ]


def hop(length: int) -> float:
    """Return the seconds per node from the commit of a chain to its result."""
    flow = Workflow("chain")
    node = flow.add(tasks.noop, 0)
    for number in range(1, length):
        node = flow.add(tasks.noop, number, after=node)

    handle = flow.send()
    began = time.perf_counter()
    handle.get(PATIENCE_MS).unwrap()
    return (time.perf_counter() - began) / length


def plain(n: int) -> float:
    """Return the mean seconds from the commit of a single task to its result."""
    waited = 0.0
    for number in range(n):
        handle = tasks.noop.send(number)
        began = time.perf_counter()
        handle.get(PATIENCE_MS).unwrap()
        waited += time.perf_counter() - began

    return waited / n


def send(blocks: int) -> list[Reading]:
    """Build one graph of so many blocks of ten nodes, and send it."""
    empty_tables()
    began = time.perf_counter()
    flow = Workflow("large")
    for _ in range(blocks):
        ten(flow, 1.0)
    built = time.perf_counter()

    flow.send()
    seconds = time.perf_counter() - built

    edges = sum(len(node.upstream) for node in flow.nodes)
    return [Reading(SEND, seconds, "s", {"building it, s": built - began, "edges": edges})]


def tidy_up() -> None:
    """Vacuum the tables after the sends, as autovacuum would."""
    with connection.cursor() as cursor:
        cursor.execute(
            "VACUUM ANALYZE horsies_tasks, horsies_workflows, horsies_workflow_nodes, "
            "horsies_workflow_edges"
        )


def set_seqscan(value: str) -> None:
    """Set whether this session may scan whole tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET enable_seqscan = {value}")


def asked(query: str) -> tuple[float, ...]:
    """Return the row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        found: tuple[float, ...] = cursor.fetchone()
    return found


def forget_statements() -> bool:
    """Reset the times of statements; return whether the server counts them."""
    try:
        asked(FORGET_STATEMENTS)
    except DatabaseError:
        return False
    return True


@contextmanager
def locks_logged() -> Iterator[Callable[[], int | None]]:
    """Log waits for locks in sessions that begin in the block; yield a counter of new lines.

    The counter returns None for a server that is not one of our private ones.
    """
    log = server_log()
    if log is None:
        yield lambda: None
        return

    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    begin = log.stat().st_size

    with connection.cursor() as cursor:
        for setting, value in WATCHED.items():
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    connection.close()  # the sender must get a new session

    try:
        yield lambda: lock_lines(log, begin)
    finally:
        with connection.cursor() as cursor:
            for setting in WATCHED:
                cursor.execute(f"ALTER DATABASE {name} RESET {setting}")
        connection.close()


def server_log() -> Path | None:
    """Return the log of a private server, or None for any other server."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
        found = cursor.fetchone()  # None if this user may not read it

    home = Path(found[0]).parent if found else Path()
    log = home / "log"
    return log if home.name.startswith(PREFIX) and os.access(log, os.R_OK) else None


def lock_lines(log: Path, begin: int) -> int:
    """Count the lines about waits for locks and deadlocks after a position in a log."""
    with log.open("rb") as file:
        file.seek(begin)
        return sum(1 for line in file if WAIT.search(line))
