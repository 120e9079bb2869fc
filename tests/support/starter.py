"""Starts Django commands as forks of one process that has imported the libraries.

A worker's start is mostly imports, and the tests start hundreds of workers. Each is a process in a
session of its own, and works like ``python -m django`` with its own environment and settings, but
with Django, psycopg and the pure part of the app already imported. The start of the interpreter
itself is covered by the tests that run ``manage.py`` and scripts.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from horsies_django.worker.ipc import wait_readable

# These modules read no settings and need no registry of apps.
LIBRARIES = (
    "asyncio",
    "environ",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
    "psutil",
    "django.core.management.base",
    "django.core.checks.urls",
    "django.contrib.auth.checks",
    "django.contrib.auth.hashers",
    "django.contrib.auth.password_validation",
    "django.contrib.contenttypes.checks",
    "django.contrib.postgres.indexes",
    "django.contrib.postgres.operations",
    "django.db.backends.postgresql.base",
    "django.db.migrations.executor",
    "django.db.models",
    "django.forms",
    "django.views",
    "horsies_django.core.reasoning",
    "horsies_django.store.passes",
    "horsies_django.worker.ipc",
    "horsies_django.worker.logs.console",
    "horsies_django.worker.logs.relay",
)
MOST = 1 << 20  # bytes of an order


class Starter:
    """The process that forks; it ends with the process that made it."""

    def __init__(self, flags: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        self.socket = ours

        with theirs:
            command = [sys.executable, *flags, "-m", "tests.support.starter", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: Path, log: int
    ) -> Started:
        """Run ``python -m django`` with these arguments; it prints to the descriptor ``log``."""
        order = json.dumps([list(argv), dict(environment), str(directory)]).encode()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self.socket, [order], [log, writing])
        finally:
            os.close(writing)

        return Started(argv, reading)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(30)


class Started:
    """A process that was started, with the parts of ``subprocess.Popen`` that tests use."""

    def __init__(self, args: Sequence[str], report: int) -> None:
        self.args = args
        self.returncode: int | None = None
        self.report = os.fdopen(report, "r")
        self.pid = int(self.report.readline())

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, None while the process runs."""
        if self.returncode is None and wait_readable([self.report], 0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not wait_readable([self.report], timeout):
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self._end()

        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        with self.report:
            self.returncode = int(self.report.readline())

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(orders: socket.socket) -> bytes | None:
    """Fork for each order.

    Return None when there are no more orders, and, in a forked process, its order.
    """
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the end of the tests ends it

    while True:
        order, descriptors, _flags, _address = socket.recv_fds(orders, MOST, 2)
        if not order:
            return None

        if os.fork() == 0:
            orders.close()
            keep(*descriptors)
            return order

        for descriptor in descriptors:
            os.close(descriptor)


def keep(log: int, report: int) -> None:
    """Fork once more, and return in that process, which writes to ``log``.

    This process reports the id of the other, and how it ends.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    if pid := os.fork():
        os.close(log)
        os.write(report, b"%d\n" % pid)
        _pid, status = os.waitpid(pid, 0)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)

    os.close(report)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def run(order: bytes) -> None:
    """Work like ``python -m django`` with these arguments."""
    arguments, environment, directory = json.loads(order)

    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)

    sys.argv = ["django", *arguments]
    runpy.run_module("django", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        run(given)
