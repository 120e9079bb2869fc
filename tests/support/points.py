"""Places to stop a worker at: a pass just before its commit, a reply in the pipe, a link that keeps
the server's answers.

None of them changes the worker: a trigger of the test's own waits inside the worker's transaction,
signals hold its processes.
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
RAN = b"\x03ran"  # how a reply begins, in the bytes of its pickle: a short text with its length
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
    """What became of a task, and how often its code came to its first and to its last line."""

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
        """Wait until it stands at its first line ("began") or its last one ("ended"), and return
        its process.
        """
        return int(wait_until(lambda: self.wrote(line), f"{self.path.name} has {line}")[0])

    def may(self, *gates: str) -> None:
        """Let it go on to its last line ("go"), or return ("out")."""
        for gate in gates:
            Path(f"{self.path}.{gate}").touch()

    def fate(self) -> Fate:
        """Wait for its end and say what became of it."""
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
    """Send one task that may run twice and one that may not, in one transaction: a worker with two
    slots claims both at once.

    Both become due at one time: the clock of a pass that has just begun cannot lie between them.
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
    """Holds every transaction that makes a given move of a task at its very end: all is done,
    nothing is committed.

    A step is held at its record, which is not confirmed yet, or within its commit.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def close(self, place: str) -> None:
        """Hold what comes to that place from now on."""
        self.connection.execute("SELECT pg_advisory_lock(%s)", [KEY])
        self.connection.execute(WAITS_AT_THE_GATE)
        trigger = (
            f"CREATE CONSTRAINT TRIGGER gate AFTER {PLACES[place]} EXECUTE FUNCTION "
            "waits_at_the_gate()"
        )
        self.connection.execute(trigger.encode())

    def held(self) -> int:
        """Wait until a session stands at the gate, and return its process."""
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
        """Let all pass; ``kill`` ends a session before, whose transaction then never was.

        Returns when it is over.
        """
        if kill is not None:
            self.connection.execute("SELECT pg_terminate_backend(%s)", [kill])
            self._gone(kill)
        self.connection.execute("SELECT pg_advisory_unlock(%s)", [KEY])

    def pass_on(self, pid: int) -> None:
        """Let all pass, and wait until a session whose client is gone ends: it commits first."""
        self.open()
        self._gone(pid)

    def _gone(self, pid: int) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        wait_until(
            lambda: self.connection.execute(query, [pid]).fetchone() == (0,), "the session is gone"
        )

    def remove(self) -> None:
        """Leave nothing behind."""
        self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.execute("DROP FUNCTION IF EXISTS waits_at_the_gate CASCADE")


StepGate = Gate


@pytest.fixture
def gate(connect: Connect) -> Iterator[Gate]:
    made = Gate(connect())
    yield made
    made.remove()


def kill_machine(worker: WorkerProcess) -> None:
    """Kill a worker with all its processes, in one blow."""
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()


@contextmanager
def standing_still(worker: WorkerProcess) -> Iterator[None]:
    """Hold a worker's parent still; its children go on."""
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(worker.process.pid), "every thread of it stands still")

    try:
        yield
    finally:
        if worker.process.poll() is None:
            worker.signal(signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process stand still: one that has not noticed yet may still take in
    what comes.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all(
        (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads
    )


def replies_in_the_pipe(worker: WorkerProcess) -> int:
    """How many children's replies lie unread in sockets of a worker, which has to stand still
    meanwhile.
    """
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
