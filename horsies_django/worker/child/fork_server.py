"""The fork server, which forks the children, and its template, which forks the fork server.

The worker forks the template before its first thread and connection. So children share the memory
of the modules that the worker has loaded, and have the same tasks. The template runs no code of the
project, and neither does the fork server, which forks a child for each request, reports how it
ended, and has the kill timer (``process.kill_timer``). Children die with the fork server, which
dies with the template, which dies with the worker. If the fork server is killed, the template forks
another one.

If something in the worker cannot be shared with a fork, a fresh interpreter that loads the project
becomes the template.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import MutableSequence
from contextlib import suppress
from multiprocessing import get_context
from types import ModuleType
from typing import Any, NoReturn

from horsies_django.core.queues import LANES
from horsies_django.worker.child import executor, lifecycle, main, middleware  # noqa: F401 - here, so that no child has to
from horsies_django.worker.child.bootstrap import die_with_parent, keep_out_of_the_way, load_project
from horsies_django.worker.limits.kill_timer import own_timer
from horsies_django.worker.process.options import WorkerOptions

# the format of a request: FORK with the slot of a child, or DEADLINE with that of the kill timer
REQUEST = struct.Struct("=cId")
FORK = b"f"
DEADLINE = b"d"
# the format of a reply: a pid or, negative, an errno; through the last descriptor of a child, its
# exit code
NUMBER = struct.Struct("=i")
# the number of descriptors of a child: the sockets of its lanes and of control, and the pipe for
# its exit code
DESCRIPTORS = len(LANES) + 2
PIPE_ENDS = 4  # how many descriptors multiprocessing opens for each child
LOADED = b"\0"  # the message of a fresh template that is ready; else it sends the reason
PR_SET_CHILD_SUBREAPER = 36


def open_things() -> str | None:
    """Return a text that names what a fork would share or lose, None if there is no such thing.

    These are open connections, connection pools and threads.
    """
    from django.db import connections

    found = [
        f"a connection to the database {connection.alias!r}"
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None
    ]

    for connection in connections.all(initialized_only=True):
        pools = getattr(connection, "_connection_pools", {})
        found += [f"a connection pool for the database {alias!r}" for alias in pools]

    threads = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    found += [f"the thread {name!r}" for name in threads]

    if (
        not threads
        and os.path.isdir("/proc/self/task")
        and (count := len(os.listdir("/proc/self/task"))) > 1
    ):
        found.append(f"{count - 1} thread(s) of a C extension")

    return " and ".join(dict.fromkeys(found)) or None


def fresh_template(
    link: socket.socket, options: WorkerOptions, memory: Any, worker_pid: int, modules: list[str]
) -> None:
    """Load the project in a fresh interpreter, and run as the template.

    If that is not possible, the reason is sent to the worker. ``modules`` are imported besides
    those that each worker imports.
    """
    die_with_parent(worker_pid)
    keep_out_of_the_way()

    try:
        load_project(modules)
        reason = f"importing it opened {holds}" if (holds := open_things()) else ""
    except BaseException:
        reason = traceback.format_exc()

    link.sendall(reason.encode(errors="replace") or LOADED)
    if not reason:
        be_template(link, options, memory, worker_pid)


def be_template(
    link: socket.socket, options: WorkerOptions, memory: Any, worker_pid: int
) -> NoReturn:
    """Fork a fork server for each socket that the worker sends, until the worker is gone.

    The reply is its pid or, negative, an errno.
    """
    try:
        die_with_parent(worker_pid)
        keep_out_of_the_way()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps fork servers and orphans

        # processes that tasks start would run the main module again
        sys.modules["__main__"] = ModuleType("__main__")

        # if the worker is process 1 of a container, no init adopts the orphans of tasks
        if worker_pid == 1 and sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)

        own = os.getpid()
        while True:
            message, descriptors, _, _ = socket.recv_fds(link, 1, 1)
            if not message:
                break

            if not descriptors:  # the limit of open files was reached
                number = -errno.EMFILE
            elif (number := fork()) == 0:
                link.close()
                ForkServer(socket.socket(fileno=descriptors[0]), options, memory, worker_pid).run(
                    own
                )

            for descriptor in descriptors:
                os.close(descriptor)
            link.sendall(NUMBER.pack(number))
    finally:
        os._exit(0)


def fork() -> int:
    """Fork this process; return the pid of the copy, 0 in the copy, or a negative errno."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


class ForkServer:
    """The process that forks children at the requests of the worker, and sends their exit codes."""

    def __init__(
        self, link: socket.socket, options: WorkerOptions, memory: Any, worker_pid: int
    ) -> None:
        self.link = link
        self.options = options
        self.memory = memory
        self.worker_pid = worker_pid

        self.arm = own_timer()
        self.children: dict[Any, int] = {}  # child -> the descriptor for its exit code

        self.wakeup, self.waker = socket.socketpair()
        self.poll = select.poll()
        for end in (link, self.wakeup):
            self.poll.register(end, select.POLLIN)

    def run(self, template_pid: int) -> NoReturn:
        """Serve until the worker is gone."""
        try:
            die_with_parent(template_pid)
            self.wakeup.setblocking(False)
            self.waker.setblocking(False)
            signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda number, frame: None)

            while self._serve():
                pass
        finally:
            os._exit(0)

    def _serve(self) -> bool:
        ready = dict(self.poll.poll())
        if self.wakeup.fileno() in ready:
            self.wakeup.recv(1_000)
            self._reap()

        if self.link.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(
                self.link, REQUEST.size, DESCRIPTORS, socket.MSG_WAITALL
            )
            if not request:
                return False

            kind, slot, deadline = REQUEST.unpack(request)
            if kind == FORK:
                self._fork(slot, descriptors)
            else:
                self.arm(deadline)

        return True

    def _fork(self, slot: int, descriptors: list[int]) -> None:
        """Fork a child that gets ``descriptors``; send its pid or, negative, an errno."""
        done_with = list(descriptors)
        try:
            child = self._start(slot, descriptors)
        except OSError as error:
            number = -(error.errno or errno.EAGAIN)
        else:
            self.children[child] = done_with.pop()
            number = child.pid

        for descriptor in done_with:
            os.close(descriptor)
        self.link.sendall(NUMBER.pack(number))

    def _start(self, slot: int, descriptors: list[int]) -> Any:
        """Start and return a child.

        Raises OSError if the system has no room for it; then no descriptor stays open.
        """
        if len(descriptors) < DESCRIPTORS:
            raise OSError(errno.EMFILE, "this process cannot hold the descriptors of another child")

        ends = self._next_descriptors()
        arguments = (counters(self.memory, slot), descriptors, os.getpid())
        child: Any = get_context("fork").Process(
            target=self._be_child, args=arguments, name="horsies-child"
        )

        try:
            child.start()
        except OSError:
            for end in ends:  # multiprocessing does not close its pipes if the fork fails
                with suppress(OSError):
                    os.close(end)
            raise

        return child

    def _next_descriptors(self) -> list[int]:
        """Return the numbers of the descriptors that are opened next, for the pipes of a child.

        Raises OSError if there is no room for them.
        """
        copies: list[int] = []
        try:
            while len(copies) < PIPE_ENDS:
                copies.append(os.dup(self.link.fileno()))
        finally:
            for copy in copies:
                os.close(copy)

        return copies

    def _be_child(
        self, started: MutableSequence[int], descriptors: list[int], server_pid: int
    ) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.link, self.wakeup, self.waker):
            end.close()

        *sockets, ended = descriptors
        for descriptor in (ended, *self.children.values()):
            os.close(descriptor)

        die_with_parent(server_pid)
        if (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.seed()  # Python reseeds its own generator after a fork

        sync, async_, control = (socket.socket(fileno=each) for each in sockets)
        main.main(self.options, None, sync, async_, control, started, self.worker_pid)

    def _reap(self) -> None:
        for child in [each for each in self.children if each.exitcode is not None]:
            ended = self.children.pop(child)
            with suppress(BrokenPipeError):
                os.write(ended, NUMBER.pack(child.exitcode))
            os.close(ended)
            child.close()


def counters(memory: Any, slot: int) -> MutableSequence[int]:
    """Return the counters of one child in shared memory, one per lane.

    A counter is the number of the last task that the child has started.
    """
    numbers: Any = (
        memoryview(memory).cast("B").cast("Q")[slot * len(LANES) : (slot + 1) * len(LANES)]
    )
    return numbers  # type: ignore[no-any-return]
