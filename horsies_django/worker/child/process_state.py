"""Restores the state of a process after each task to the state before the first one.

A task may change global state and not restore it, which would affect later tasks. State that is cheap to check is restored, and
the task is logged. A task runs in a copy of the context, so the active language, the active time zone and context variables need
no restoring. State that cannot be restored reliably is left; see ``docs/explanation/what-tasks-may-do.md``.

If several sync tasks run in one process (``--threads``), the last of them to end restores the state. Signal handlers can be
changed only in the main thread.
"""

from __future__ import annotations

import decimal
import faulthandler
import gc
import importlib
import io
import locale
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from horsies_django.worker.child import (
    async_thread,
    db_sessions,
    fork_guard,
    interrupts,
)
from horsies_django.worker.child.run_task import Reply

logger = logging.getLogger("horsies.worker")

STANDARD = (0, 1, 2)
# The C functions, which cost a tenth of those in ``signal``: these convert each number to an enum.
fast: Any = importlib.import_module("_signal")
# Signals that end a process, or on which libraries depend: if SIGCHLD is ignored, subprocess loses exit codes; the default of
# SIGPIPE ends a process that writes to a closed connection.
SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2, interrupts.INTERRUPT,
)  # fmt: skip
NUMBERS = tuple(int(number) for number in SIGNALS)
SET_MASK = int(signal.SIG_SETMASK)


class ProcessState:
    """The initial state of a process, and the code that restores it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.orm = async_thread.executor()
        self.main_thread = threading.main_thread().ident
        self.directory = current_directory()
        self.decimal = decimal.getcontext().copy()
        self.umask = os.umask(0o022)
        os.umask(self.umask)
        self.recursion_limit = sys.getrecursionlimit()
        self.collects = gc.isenabled()
        self.locale = locale.setlocale(locale.LC_ALL)
        self.handlers = [fast.getsignal(number) for number in NUMBERS]
        self.mask = fast.pthread_sigmask(int(signal.SIG_BLOCK), ())
        self.streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self.texts = {name: text_of(stream) for name, stream in self.streams.items()}
        self.spares = [kept for kept in map(spare, STANDARD) if kept is not None]

    def enter(self) -> None:
        """Prepare for a task on this thread."""
        db_sessions.before_task()
        decimal.setcontext(self.decimal.copy())
        with self.lock:
            self.inside += 1

    def leave(self, task: str, task_id: str, reply: Reply) -> None:
        """Restore the state after a task has ended in this thread. A forked copy of the process exits here."""
        fork_guard.end_if_copy(reply.status == "COMPLETED")
        db_sessions.after_task()
        if self.orm.connected:
            self.orm.look_after()
        found = []
        with self.lock:
            self.inside -= 1
            if not self.inside:
                found = [name for look in (self._process, self._streams) for name in look()]
            if threading.get_ident() == self.main_thread:
                found += self._signals()
        if found:
            logger.warning("%s %s changed process state: %s; restored", task, task_id, ", ".join(found))

    def _process(self) -> Iterator[str]:
        if self.directory is not None and current_directory() != self.directory:
            yield from attempt("the working directory", partial(os.chdir, self.directory))
        if os.umask(self.umask) != self.umask:
            yield "the umask"
        if sys.getrecursionlimit() != self.recursion_limit:
            yield from attempt("the recursion limit", partial(sys.setrecursionlimit, self.recursion_limit))
        if gc.isenabled() != self.collects:
            (gc.enable if self.collects else gc.disable)()
            yield "the garbage collector"
        if locale.setlocale(locale.LC_ALL) != self.locale:
            yield from attempt("the locale", partial(locale.setlocale, locale.LC_ALL, self.locale))
        faulthandler.cancel_dump_traceback_later()

    def _streams(self) -> Iterator[str]:
        for number, copy, known in self.spares:
            if identity(number) != known:
                yield from attempt(f"file descriptor {number}", partial(os.dup2, copy, number))
        for name, stream in self.streams.items():
            if getattr(sys, name) is not stream:
                setattr(sys, name, stream)
                yield f"sys.{name}"
            if stream is None:
                continue
            if stream.closed:
                yield from attempt(f"a closed sys.{name}", partial(reopen, name, stream, self.texts[name]))
            if name != "stdin":
                flush(stream)

    def _signals(self) -> Iterator[str]:
        """Restore signal handlers; in the main thread."""
        fast.alarm(0)
        for number, handler in zip(NUMBERS, self.handlers, strict=True):
            if fast.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
                yield f"the handler of {name_of(number)}"
        if fast.pthread_sigmask(SET_MASK, self.mask) != self.mask:
            yield "blocked signals"


def name_of(number: int) -> str:
    """Return the name of a signal; real-time signals only have numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def own_decimals() -> None:
    """Give a coroutine its own decimal context, because a copied context shares the object of ``getcontext()``."""
    decimal.setcontext(decimal.getcontext().copy())


def attempt(what: str, act: Callable[[], Any]) -> Iterator[str]:
    """Restore one item and yield its name, with the error if that fails."""
    try:
        act()
    except Exception as error:
        yield f"{what} (which cannot be restored: {error})"
    else:
        yield what


def current_directory() -> str | None:
    """Return the working directory, None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def identity(number: int) -> tuple[int, int] | None:
    """Return device and inode of a descriptor, None if it is closed."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def spare(number: int) -> tuple[int, int, tuple[int, int]] | None:
    """Return a descriptor, a duplicate of it, and its identity; None if it is closed."""
    known = identity(number)
    return None if known is None else (number, os.dup(number), known)


def text_of(stream: Any) -> dict[str, Any]:
    """Return the options of a text stream."""
    return {name: getattr(stream, name, None) for name in ("encoding", "errors", "line_buffering", "write_through")}


def reopen(name: str, stream: Any, text: dict[str, Any]) -> None:
    """Reopen a closed standard stream, keeping the object, to which log handlers refer."""
    if not isinstance(stream, io.TextIOWrapper):
        raise TypeError(f"it is a {type(stream).__name__}")
    number = ("stdin", "stdout", "stderr").index(name)
    raw = io.FileIO(number, "r" if name == "stdin" else "w", closefd=False)
    buffer: Any = io.BufferedReader(raw) if name == "stdin" else io.BufferedWriter(raw)
    stream.__init__(buffer, **text)  # type: ignore[misc]


def flush(stream: Any) -> None:
    """Flush a stream, so that output is visible and not printed again by a forked copy."""
    try:
        stream.flush()
    except (OSError, ValueError):
        return  # the reader is gone
