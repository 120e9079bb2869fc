"""Points at which a test stops a worker: before a commit, at an unread reply, at a silent link.

None of them changes the worker: a trigger of the test waits inside the worker's transaction, and
signals stop its processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.db import transaction
from django.db.models.functions import Now

from horsies_django import TaskHandle
from horsies_django.models import Task, TaskAttempt
from tests.apps.project import points
from tests.conftest import Connect, wait_until
from tests.support.workers import WorkerProcess

KEY = 6_180_339
WAITS_AT_THE_GATE = f"""
CREATE FUNCTION waits_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({KEY}); RETURN NULL; END $$
""".encode()
PIDFD_GETFD = 438  # the system call has this number on every architecture
RAN = b"\x03ran"  # the first bytes of a reply's pickle: a short text with its length
DEFERRED = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
MOVES = {
    "claim": "OLD.status = 'PENDING' AND NEW.status = 'RUNNING'",
    "take ahead": "OLD.status = 'PENDING' AND NEW.status = 'CLAIMED'",
    "start": "OLD.status = 'CLAIMED' AND NEW.status = 'RUNNING'",
    "settle": "OLD.status = 'RUNNING' AND NEW.status <> 'RUNNING'",
}
PLACES = {
    **{
        move: f"UPDATE ON horsies_tasks {DEFERRED} WHEN ({condition})"
        for move, condition in MOVES.items()
    },
    "record": f"INSERT ON horsies_task_steps {DEFERRED.replace('DEFERRED', 'IMMEDIATE')}",
    "commit": f"INSERT ON horsies_task_steps {DEFERRED}",
}


class Fate(NamedTuple):
    """The end of a task, and how often its code came to its first and its last line."""

    status: str
    error_code: str | None
    attempts: list[str]
    retry_count: int
    began: int
    ended: int


class Walker:
    """A ``walks`` or ``walks_again`` task and the file that it writes to."""

    def __init__(self, path: Path, handle: TaskHandle[int]) -> None:
        self.path = path
        self.handle = handle

    def wrote(self, line: str) -> list[int]:
        """Return the processes that wrote that line."""
        lines = (
            [text.split() for text in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )
        return [int(pid) for word, pid in lines if word == line]

    def stands(self, line: str) -> int:
        """Wait until it has reached its first line ("began") or its last one ("ended").

        Return its process.
        """
        return int(wait_until(lambda: self.wrote(line), f"{self.path.name} has {line}")[0])

    def may(self, *gates: str) -> None:
        """Signal it to go on to its last line ("go"), or to return ("out")."""
        for gate in gates:
            Path(f"{self.path}.{gate}").touch()

    def fate(self) -> Fate:
        """Wait for its end and return its fate."""
        self.handle.get(timeout_ms=30_000)
        task = Task.objects.get(pk=self.handle.task_id)
        attempts = (
            TaskAttempt.objects.filter(task_id=task.id)
            .order_by("attempt")
            .values_list("outcome", flat=True)
        )
        began, ended = (len(self.wrote(line)) for line in ("began", "ended"))
        return Fate(task.status, task.error_code, list(attempts), task.retry_count, began, ended)


def send_walkers(folder: Path) -> list[Walker]:
    """Send one task that may run twice and one that may not, in one transaction.

    A worker with two slots claims both at once. Both become due at one time: the clock of a pass
    that has just begun cannot lie between them.
    """
    with transaction.atomic():
        walkers = [
            Walker(folder / "once", points.walks.send(str(folder / "once"))),
            Walker(folder / "again", points.walks_again.send(str(folder / "again"))),
        ]
        Task.objects.filter(pk__in=[walker.handle.task_id for walker in walkers]).update(
            enqueued_at=Now()
        )
    return walkers


class Gate:
    """Holds every transaction that makes a given move of a task just before its commit.

    A step is held at its record, which is not confirmed yet, or within its commit.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def close(self, place: str) -> None:
        """Hold the transactions that come to that point from now on."""
        self.connection.execute("SELECT pg_advisory_lock(%s)", [KEY])
        self.connection.execute(WAITS_AT_THE_GATE)
        trigger = (
            f"CREATE CONSTRAINT TRIGGER gate AFTER {PLACES[place]} EXECUTE FUNCTION "
            "waits_at_the_gate()"
        )
        self.connection.execute(trigger.encode())

    def held(self) -> int:
        """Wait until a transaction is held at the gate, and return its server process."""
        query = (
            "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
            "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objid = %s AND "
            "NOT l.granted"
        )
        row = wait_until(
            lambda: self.connection.execute(query, [KEY]).fetchone(),
            "a transaction stands at the gate",
        )
        return int(row[0])

    def open(self, *, kill: int | None = None) -> None:
        """Release all transactions; ``kill`` first ends a session and undoes its transaction.

        Return when it is over.
        """
        if kill is not None:
            self.connection.execute("SELECT pg_terminate_backend(%s)", [kill])
            self._gone(kill)
        self.connection.execute("SELECT pg_advisory_unlock(%s)", [KEY])

    def pass_on(self, pid: int) -> None:
        """Release all transactions, and wait until a session without a client commits and ends."""
        self.open()
        self._gone(pid)

    def _gone(self, pid: int) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        wait_until(
            lambda: self.connection.execute(query, [pid]).fetchone() == (0,), "the session is gone"
        )

    def remove(self) -> None:
        """Remove the trigger and the lock."""
        self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.execute("DROP FUNCTION IF EXISTS waits_at_the_gate CASCADE")


StepGate = Gate


@pytest.fixture
def gate(connect: Connect) -> Iterator[Gate]:
    made = Gate(connect())
    yield made
    made.remove()


def kill_machine(worker: WorkerProcess) -> None:
    """Kill a worker with all its processes at once."""
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()


@contextmanager
def standing_still(worker: WorkerProcess) -> Iterator[None]:
    """Stop a worker's parent during the block; its children go on."""
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(worker.process.pid), "every thread of it stands still")

    try:
        yield
    finally:
        if worker.process.poll() is None:
            worker.signal(signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped: a running one may still read new data."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all(
        (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads
    )


def replies_in_the_pipe(worker: WorkerProcess) -> int:
    """Return the number of children's replies that are unread in sockets of a stopped worker."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(worker.process.pid)
    found = 0

    try:
        for entry in Path(f"/proc/{worker.process.pid}/fd").iterdir():
            if not os.readlink(entry).startswith("socket:"):
                continue

            copy = libc.syscall(PIDFD_GETFD, pidfd, int(entry.name), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "a descriptor of the worker cannot be looked at")

            with socket.socket(fileno=copy) as end, contextlib.suppress(OSError):
                found += RAN in end.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    finally:
        os.close(pidfd)

    return found
