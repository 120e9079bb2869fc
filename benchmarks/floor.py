"""The best that this machine can do: the parts of each latency, on a busy and an idle machine.

Measured, median and 99th percentile in microseconds: a round trip to the server (``SELECT 1``,
prepared), a commit (an UPDATE of a table's only row), the same without waiting for the disk, and a
hop to another process and back (a byte through a socket pair). *Busy*: right after one another.
*Idle*: one every 20 ms, as in ``latency``. In between a CPU goes to sleep, and its caches lose the
data that is needed next: on many machines, virtual ones above all, the same work then takes several
times as long.

A task that is sent to an idle worker takes the commit of its claim, three hops between processes
(the notification, the worker's connection, the child) and the work of all of them in between,
before its code begins; its result takes one commit more.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.figures import Case, Goal, Reading
from benchmarks.latency import pace
from horsies_django.store.notify import direct_connection

TURNS = 500
IDLE_SECONDS = 0.02
WARM = 20
GOALS: tuple[Goal, ...] = ()
COMMITTED = "UPDATE horsies_floor SET value = value + 1 WHERE id = 1"
ECHO = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
while byte := end.recv(1):
    end.send(byte)
"""


def cases(scale: float) -> Sequence[Case]:
    """Return a case for the busy machine and one for the idle one."""
    turns = max(10, round(TURNS * scale))
    return [
        Case("floor busy", partial(measure, "busy", turns, 0)),
        Case("floor idle", partial(measure, "idle", turns, IDLE_SECONDS)),
    ]


def measure(name: str, turns: int, seconds: float) -> Sequence[Reading]:
    """Measure each part."""
    ours, theirs = socket.socketpair()

    connection = direct_connection("default", application_name="horsies benchmark", prepare=True)
    hasty = direct_connection("default", application_name="horsies benchmark", prepare=True)
    hasty.execute("SET synchronous_commit = off")

    # An interrupted run has left its table.
    connection.execute("DROP TABLE IF EXISTS horsies_floor")
    connection.execute("CREATE TABLE horsies_floor AS SELECT 1 AS id, 0 AS value")

    echo = subprocess.Popen(
        [sys.executable, "-c", ECHO, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )

    try:
        theirs.close()
        parts: dict[str, Callable[[], object]] = {
            "round trip": lambda: connection.execute("SELECT 1"),
            "commit": lambda: connection.execute(COMMITTED),
            "commit that does not wait": lambda: hasty.execute(COMMITTED),
            "hop and back": lambda: ours.send(b".") and ours.recv(1),
        }

        return [timed(f"floor {part}, {name}", act, turns, seconds) for part, act in parts.items()]
    finally:
        ours.close()
        echo.wait()
        connection.execute("DROP TABLE horsies_floor")
        connection.close()
        hasty.close()


def timed(name: str, act: Callable[[], object], turns: int, seconds: float) -> Reading:
    """Call it repeatedly, and return the seconds of each call."""
    for _ in range(WARM):
        act()

    took = []
    for _ in pace(turns, seconds):
        began = time.perf_counter()
        act()
        took.append(1e6 * (time.perf_counter() - began))

    return Reading(
        name, statistics.median(took), "us", {"p99": statistics.quantiles(took, n=100)[98]}
    )
