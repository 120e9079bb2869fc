"""How a child starts: forked from the fork server, or as a fresh interpreter.

``multiprocessing`` has every process that it starts run the main module of its parent once more, so that functions defined
there can be unpickled. Where that is a manage.py without the ``__main__`` guard, or a script that calls ``call_command``, each
child would start a worker of its own. Ours need nothing of the main module, so they never hear of it.

It also gives the fork server a socket in a temporary directory, which a killed worker would leave behind. Ours is reached by
a descriptor, and the directory is gone before the first child is there.
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

from horsies_django.worker.child import fork_server

TRIES = 5  # how many fork servers in a row may end before they have started a child
DESCRIPTORS = "/proc/self/fd"

_patching = threading.Lock()
_numbers = itertools.count()
_hidden: list[int] = []  # the descriptor of the socket
_server: Any = forkserver._forkserver


def spawn_child(child: BaseProcess) -> None:
    """Start a child as a fresh interpreter."""
    with main_module_left_out():
        child.start()


def fork_child(child: BaseProcess, deadline_file: str | None) -> None:
    """Start a child by the fork server; start that first where there is none, and another when it ends meanwhile.

    Raises EOFError or ConnectionError when one after the other ends.
    """
    forkserver.set_forkserver_preload([fork_server.__name__])
    ordered = fork_server.order(os.getpid(), deadline_file)
    with main_module_left_out(), environment(ordered):
        for tries_left in reversed(range(TRIES)):
            with (
                short_lived_directory() as directory
            ):  # gone before the fork server loads the project, which takes seconds
                forkserver.ensure_running()
                hide_socket(directory)
            try:
                child.start()
                return
            except (EOFError, ConnectionError):
                if not tries_left:
                    raise
                end_fork_server()


def fork_server_pid() -> int | None:
    """Return the process id of the fork server, None when there is none."""
    pid: int | None = _server._forkserver_pid
    return pid


def kill_fork_server() -> bool:
    """Send the fork server to its end, and return whether there was one."""
    if (pid := fork_server_pid()) is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def end_fork_server() -> None:
    """Kill the fork server, if there is one, and wait for its end: its sockets are closed before it counts as dead."""
    if kill_fork_server():
        if str(_server._forkserver_address).startswith(DESCRIPTORS):
            _server._forkserver_address = "\0"  # a name that is not on the disk, so that nobody removes it there
        _server._stop()


@contextmanager
def patched(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace a function of ``multiprocessing`` meanwhile, for this thread only: tasks and scripts may be using it on others."""
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
    """Keep the main module of this process from what this thread starts meanwhile."""

    def without_main(before: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        return lambda name: {key: value for key, value in before(name).items() if not key.startswith("init_main_")}

    with _patching, patched(spawn, "get_preparation_data", without_main):
        yield


@contextmanager
def short_lived_directory() -> Iterator[str | None]:
    """Give a directory for the socket of a fork server that is started meanwhile; None where it cannot do without a name."""
    if not os.path.isdir(DESCRIPTORS):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="horsies-worker-") as directory:

        def address(family: str) -> str:
            return os.path.join(directory, str(next(_numbers)))

        with patched(connection, "arbitrary_address", lambda before: address):
            yield directory


def hide_socket(directory: str | None) -> None:
    """Reach the fork server by a descriptor of its socket from now on, if that is in the directory that will be removed."""
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
    """Set environment variables for a process that is started meanwhile."""
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
