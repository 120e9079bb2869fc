"""The start of children, which the fork server forks or which are fresh interpreters.

``multiprocessing`` runs the main module of a process again in every interpreter that it starts, so
that functions defined there can be unpickled. If that is a manage.py without the ``__main__``
guard, or a script that calls ``call_command``, each child would start a worker of its own. Our
children need nothing of the main module, so an empty one is passed on.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from horsies_django.core.errors import HorsiesError, WorkerStartError
from horsies_django.core.queues import LANES
from horsies_django.tasks import registry
from horsies_django.worker.child import fork_server
from horsies_django.worker.child.fork_server import NUMBER, REQUEST
from horsies_django.worker.child.process_state import flush_output
from horsies_django.worker.ipc import wait_readable
from horsies_django.worker.limits.kill_timer import DISARMED
from horsies_django.worker.process.options import WorkerOptions

logger = logging.getLogger("horsies.worker")

FORK_SERVER_TRIES = 5  # how many fork servers in a row may end without having started a child


class CannotFork(HorsiesError):
    """The project cannot be loaded in a process that is to be forked.

    When it is imported, it opens something that a fork would share or lose, or it cannot be
    imported again.
    """


class TemplateKilled(HorsiesError):
    """The process that forks the fork servers has ended.

    The worker cannot have children any more.
    """


class Forker:
    """The worker's side of the fork server and its template.

    Only ``arm`` may be called in any thread.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.template: socket.socket | None = None
        self.link: socket.socket | None = None  # to the present fork server

        # The free slots. Besides the children of --processes, as many and ten more may be ending,
        # see ``recycling``.
        self.slots = list(range(2 * options.processes + 10))
        self.memory: Any = None
        self.deadline = DISARMED

        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []  # how the template is ended

    def prepare(self, forget: Callable[[], None] = lambda: None) -> None:
        """Fork the template, which calls ``forget``, or load the project in a fresh one.

        A fresh interpreter becomes the template if this process cannot be forked. Raises CannotFork
        if that one cannot be forked either.
        """
        if self.template is not None:
            return

        self.memory = get_context("spawn").RawArray("Q", len(self.slots) * len(LANES))
        self.template, theirs = socket.socketpair()

        with theirs:
            if (holds := fork_server.open_things()) is None:
                self._fork_template(self.template, theirs, forget)
            else:
                logger.warning(
                    "this process cannot be forked, because it holds %s: the project is loaded "
                    "again, in a fresh process",
                    holds,
                )
                self._load_again(self.template, theirs)

    def _fork_template(
        self, ours: socket.socket, theirs: socket.socket, forget: Callable[[], None]
    ) -> None:
        flush_output()
        worker_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise WorkerStartError(f"this process cannot be forked: {error.strerror}") from error

        if pid == 0:
            try:
                ours.close()
                forget()
                fork_server.be_template(theirs, self.options, self.memory, worker_pid)
            finally:
                os._exit(1)

        self._ends = [partial(os.kill, pid, signal.SIGKILL), partial(os.waitpid, pid, 0)]

    def _load_again(self, ours: socket.socket, theirs: socket.socket) -> None:
        arguments = (theirs, self.options, self.memory, os.getpid(), registry.other_modules())
        process = get_context("spawn").Process(target=fork_server.fresh_template, args=arguments)
        start_interpreter(process)
        theirs.close()
        self._ends = [process.kill, process.join]

        if (first := ours.recv(1)) != fork_server.LOADED:
            with ours.makefile("rb") as rest:
                raise CannotFork(
                    (first + rest.read()).decode() or "the process that imported it was killed"
                )

    def start(self, slot: int, descriptors: list[int]) -> int:
        """Start a child that gets ``descriptors``, and return its pid.

        The last descriptor is for the exit code. If the fork server ends meanwhile, another one
        starts the child. Raises OSError if the system has no room for a child, and TemplateKilled.
        """
        for _ in range(FORK_SERVER_TRIES):
            with suppress(EOFError, ConnectionError):
                link = self.link or self._start_server()
                with self._lock:
                    socket.send_fds(link, [REQUEST.pack(fork_server.FORK, slot, 0.0)], descriptors)
                if not (reply := link.recv(NUMBER.size, socket.MSG_WAITALL)):
                    raise EOFError

                (pid,) = NUMBER.unpack(reply)
                if pid < 0:
                    raise OSError(-pid, os.strerror(-pid))
                return int(pid)

            self._lose_server()

        raise OSError(
            errno.ECHILD,
            f"{FORK_SERVER_TRIES} fork servers in a row ended before they could start a child",
        )

    def arm(self, deadline: float) -> None:
        """Set the deadline of the kill timer in this fork server and the next ones.

        ``deadline`` is a time by ``time.monotonic()``.
        """
        self.deadline = deadline
        # the fork server has ended, or it was stopped for so long that the socket is full
        with self._lock, suppress(OSError):
            if self.link is not None:
                self.link.send(REQUEST.pack(fork_server.DEADLINE, 0, deadline), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the template and the fork server, and with them the remaining children."""
        self._lose_server()
        if self.template is not None:
            self.template.close()
            self.template = None

        while self._ends:
            self._ends.pop(0)()

    def _start_server(self) -> socket.socket:
        assert self.template is not None
        with ExitStack() as failing:
            ours, theirs = socket.socketpair()
            failing.enter_context(ours)
            with theirs:
                self._request_fork(theirs)
            failing.pop_all()

        with self._lock:
            self.link = ours
        self.arm(self.deadline)
        return ours

    def _request_fork(self, theirs: socket.socket) -> None:
        """Send this socket to the template, which forks a fork server with it.

        Raises OSError if the template cannot fork, and TemplateKilled.
        """
        assert self.template is not None
        try:
            socket.send_fds(self.template, [b"s"], [theirs.fileno()])
            reply = self.template.recv(NUMBER.size, socket.MSG_WAITALL)
        except ConnectionError:
            reply = b""

        if not reply:
            raise TemplateKilled("the process from which children are forked was killed")

        (pid,) = NUMBER.unpack(reply)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))

    def _lose_server(self) -> None:
        with self._lock:
            if self.link is not None:
                self.link.close()
                self.link = None


class ForkedProcess:
    """A child of the fork server, with the part of ``multiprocessing.Process`` that is needed."""

    def __init__(self, forker: Forker, sockets: list[socket.socket]) -> None:
        self.forker = forker
        self.exitcode: int | None = None
        forker.prepare()

        with ExitStack() as failing:
            self.slot = forker.slots.pop()
            failing.callback(forker.slots.append, self.slot)
            self.started = fork_server.counters(forker.memory, self.slot)
            for lane in range(len(LANES)):
                self.started[lane] = 0

            self.sentinel, ended = os.pipe()
            failing.callback(os.close, self.sentinel)
            try:
                self.pid = forker.start(self.slot, [*(each.fileno() for each in sockets), ended])
            finally:
                os.close(ended)

            failing.pop_all()

    def join(self) -> None:
        """Read the exit code of the process, which has ended, from its fork server.

        The code stays None if the fork server has ended, too.
        """
        if self.exitcode is None and wait_readable([self.sentinel], 2.0):
            code = os.read(self.sentinel, NUMBER.size)
            self.exitcode = NUMBER.unpack(code)[0] if code else None

    def close(self) -> None:
        os.close(self.sentinel)
        self.forker.slots.append(self.slot)


def start_interpreter(process: BaseProcess) -> None:
    """Start a process of the method spawn, with an empty module as its main module."""
    own = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = own
