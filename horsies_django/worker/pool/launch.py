"""Starts children: forked from the fork server, or as fresh interpreters.

``multiprocessing`` runs the main module of the parent again in every process that it starts, so that functions defined there
can be unpickled. If that is a manage.py without the ``__main__`` guard, or a script that calls ``call_command``, each child
would start a worker of its own. Our children need nothing of the main module, so it is not passed on.

``multiprocessing`` also creates the socket of the fork server in a temporary directory, which a killed worker would leave
behind. Here the socket is reached by a descriptor, and the directory is removed before the first child starts.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection, forkserver, spawn
from multiprocessing.process import BaseProcess
from typing import Any

from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.child import fork_server

TRIES = 5  # fork servers in a row that may end before one has started a child
DESCRIPTORS = "/proc/self/fd"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its owner can open the directory in it

_patching = threading.Lock()
_numbers = itertools.count()
_hidden: list[int] = []  # the descriptor of the socket
_server: Any = forkserver._forkserver


def spawn_child(child: BaseProcess) -> None:
    """Start a child as a fresh interpreter."""
    with main_module_left_out():
        child.start()


def fork_child(child: BaseProcess, modules: list[str], deadline_file: str | None) -> None:
    """Start a child by the fork server, which is started if there is none, and again if it ends meanwhile.

    A fork server imports ``modules`` besides those that each worker imports.

    Raises EOFError or ConnectionError if ``TRIES`` fork servers in a row end.
    """
    forkserver.set_forkserver_preload([fork_server.__name__])
    ordered = fork_server.order(os.getpid(), modules, deadline_file)
    with main_module_left_out(), environment(ordered):
        for tries_left in reversed(range(TRIES)):
            with short_lived_directory() as directory:
                forkserver.ensure_running()  # does not wait until the fork server has loaded the project
                hide_socket(directory)
            try:
                child.start()
                return
            except (EOFError, ConnectionError):
                if not tries_left:
                    raise
                end_fork_server()


def fork_server_pid() -> int | None:
    pid: int | None = _server._forkserver_pid
    return pid


def kill_fork_server() -> bool:
    if (pid := fork_server_pid()) is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def end_fork_server() -> None:
    """Kill the fork server, if there is one, and wait until it is dead and its sockets are closed."""
    if kill_fork_server():
        if str(_server._forkserver_address).startswith(DESCRIPTORS):
            _server._forkserver_address = "\0"  # an abstract name, so that _stop() removes no file
        _server._stop()


@contextmanager
def patched(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace a function of ``multiprocessing`` during the block, only for this thread: others may be using it."""
    before, thread = getattr(module, name), threading.get_ident()
    ours = make(before)

    def choose(*args: Any) -> Any:
        return (ours if threading.get_ident() == thread else before)(*args)

    setattr(module, name, choose)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def main_module_left_out() -> Iterator[None]:
    """During the block, do not pass the main module to processes that this thread starts."""

    def without_main(before: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        return lambda name: {key: value for key, value in before(name).items() if not key.startswith("init_main_")}

    with _patching, patched(spawn, "get_preparation_data", without_main):
        yield


@contextmanager
def short_lived_directory() -> Iterator[str | None]:
    """Provide a directory for the socket of a fork server started in the block; None if the socket must keep its name.

    It is reached by a descriptor, because the path of a socket has at most 107 bytes. Raises WorkerStartError if nothing can be
    written anywhere.
    """
    if not os.path.isdir(DESCRIPTORS):
        yield None
        return
    with temporary_directory() as place:
        descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY)
        directory = f"{DESCRIPTORS}/{descriptor}"

        def address(family: str) -> str:
            return f"{directory}/{next(_numbers)}"

        try:
            with patched(connection, "arbitrary_address", lambda before: address):
                yield directory
        finally:
            os.close(descriptor)


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Create a directory in that of the system, or in shared memory if the system has none that can be written to."""
    try:
        return tempfile.TemporaryDirectory(prefix="horsies-worker-")
    except OSError as error:
        try:
            return tempfile.TemporaryDirectory(prefix="horsies-worker-", dir=SHARED_MEMORY)
        except OSError:
            raise WorkerStartError(
                f"it needs a temporary directory to start its child processes, and none can be written to ({error}): set TMPDIR "
                "to one, mount one, or start it with --start-method=spawn"
            ) from error


def hide_socket(directory: str | None) -> None:
    """Reach the fork server by a descriptor if its socket is in ``directory``, which will be removed."""
    with _server._lock:
        address = _server._forkserver_address
        if directory is None or not str(address).startswith(directory):
            return
        descriptor = os.open(address, os.O_PATH)
        os.unlink(address)
        _server._forkserver_address = f"{DESCRIPTORS}/{descriptor}"
    while _hidden:
        os.close(_hidden.pop())
    _hidden.append(descriptor)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
