"""The costs of a measurement besides time, read before and after it, while the worker still runs.

CPU seconds are those that the kernel has booked. The parent of the worker counts its own; its
children count those of all its descendants, including the ones that were replaced and waited for,
which the kernel adds to the process that waited; the server counts those of the postmaster and all
its descendants. A server on another machine or in a container is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
from django.db import DatabaseError, connection

# Plain statements if the extension is loaded. Otherwise transactions, which PostgreSQL reports with
# a delay of some seconds.
STATEMENTS = (
    "SELECT sum(calls)::float8 FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid WHERE "
    "d.datname = current_database()",
    "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = "
    "current_database()",
)
WAL_AND_CONNECTIONS = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
       (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'horsies%')::float8,
       pg_backend_pid()
"""


@dataclass(frozen=True)
class Meters:
    """Counters since the start of each process, and the number of the queue's open connections."""

    parent_seconds: float
    children_seconds: float
    server_seconds: float | None
    statements: float
    wal_bytes: float
    connections: float

    def since(self, earlier: Meters, tasks: int) -> dict[str, float]:
        """Return the costs of each of ``tasks`` since a reading, and the open connections."""
        each = 1 / max(1, tasks)
        costs = {
            "parent CPU, us/task": (self.parent_seconds - earlier.parent_seconds) * each * 1e6,
            "children CPU, us/task": (self.children_seconds - earlier.children_seconds)
            * each
            * 1e6,
        }

        if self.server_seconds is not None and earlier.server_seconds is not None:
            costs["server CPU, us/task"] = (
                (self.server_seconds - earlier.server_seconds) * each * 1e6
            )

        return costs | {
            "statements/task": (self.statements - earlier.statements) * each,
            "WAL, bytes/task": (self.wal_bytes - earlier.wal_bytes) * each,
            "connections": self.connections,
        }


def read(worker: int) -> Meters:
    """Read all counters; ``worker`` is the process id of the worker's parent."""
    with connection.cursor() as cursor:
        cursor.execute(WAL_AND_CONNECTIONS)
        wal, connections, backend = cursor.fetchone()
    parent = psutil.Process(worker)
    return Meters(
        own(parent), below(parent), server_seconds(backend), statements(), wal, connections
    )


def own(process: psutil.Process) -> float:
    """Return the CPU seconds of one process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def below(process: psutil.Process) -> float:
    """Return the CPU seconds of all descendants of a process, including those it waited for."""
    total = waited_for(process)
    for child in process.children(recursive=True):
        try:
            total += own(child) + waited_for(child)
        except psutil.NoSuchProcess:
            continue  # it ended between the two reads: counted by the process that waits for it

    return total


def waited_for(process: psutil.Process) -> float:
    """Return the CPU seconds of the ended descendants of a process."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def server_seconds(backend: int) -> float | None:
    """Return the CPU seconds of the server of this backend; None if it runs elsewhere."""
    try:
        found = psutil.Process(backend)
        postmaster = found.parent()
    except psutil.NoSuchProcess:
        return None

    if postmaster is None or not (
        found.name().startswith("postgres") and postmaster.name().startswith("postgres")
    ):
        return None

    return own(postmaster) + below(postmaster)


def statements() -> float:
    """Return the number of statements that this database has run."""
    exact, coarse = STATEMENTS

    with connection.cursor() as cursor:
        try:
            cursor.execute(exact)
        except DatabaseError:
            cursor.execute(coarse)

        return float(cursor.fetchone()[0])
