"""Process state: what a process must look like between tasks: a picture taken before the first task, put back after each.

A task may change what belongs to the whole process and forget to change it back; the next task, somebody else's, would find
a strange house. What costs next to nothing to look at is put back, and the log names the task. Some things put themselves back:
a task runs in a copy of the context, so the active language, the active time zone and all context variables end with it. What
nobody can put back, or only by guessing, stays as it is: ``docs/explanation/what-tasks-may-do.md`` has the list.

Several sync tasks may run in one process (``--threads``). What they change together cannot be told apart, so the last of them
to end puts it back. Signal handlers belong to the main thread: only a task that runs there can change them.
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
# The functions below ``signal``'s own, which cost a tenth: those turn each number that passes into an enum.
fast: Any = importlib.import_module("_signal")
# Those that end a process, or that libraries and the interpreter live by: SIGCHLD ignored makes subprocess lose exit codes,
# SIGPIPE by default ends a process that writes to a closed connection.
SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2, interrupts.INTERRUPT,
)  # fmt: skip
NUMBERS = tuple(int(number) for number in SIGNALS)
SET_MASK = int(signal.SIG_SETMASK)


class ProcessState:
    """The picture of a process, and the hand that puts things back."""

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
        """Put back what a task changed, when it has ended on this thread. A copy of the process ends here."""
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
            logger.warning("%s %s left behind: %s; put back", task, task_id, ", ".join(found))

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
        """Put handlers back; on the main thread."""
        fast.alarm(0)
        for number, handler in zip(NUMBERS, self.handlers, strict=True):
            if fast.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
                yield f"the handler of {name_of(number)}"
        if fast.pthread_sigmask(SET_MASK, self.mask) != self.mask:
            yield "blocked signals"


def name_of(number: int) -> str:
    """Return the name of a signal; those for real time have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def own_decimals() -> None:
    """Give a coroutine decimals of its own: a copied context still shares the one object that ``getcontext()`` returns."""
    decimal.setcontext(decimal.getcontext().copy())


def attempt(what: str, act: Callable[[], Any]) -> Iterator[str]:
    """Put one thing back and name it; what cannot be put back is named as well, and does not keep the rest from it."""
    try:
        act()
    except Exception as error:
        yield f"{what} (which cannot be put back: {error})"
    else:
        yield what


def current_directory() -> str | None:
    """Return the working directory, None when it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def identity(number: int) -> tuple[int, int] | None:
    """Return what tells one open file from another, None for a descriptor that is closed."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def spare(number: int) -> tuple[int, int, tuple[int, int]] | None:
    """Return a descriptor with a second one of the same file, and its identity; None when it is closed."""
    known = identity(number)
    return None if known is None else (number, os.dup(number), known)


def text_of(stream: Any) -> dict[str, Any]:
    """Return how a text stream was opened."""
    return {name: getattr(stream, name, None) for name in ("encoding", "errors", "line_buffering", "write_through")}


def reopen(name: str, stream: Any, text: dict[str, Any]) -> None:
    """Open a closed standard stream again, the very object: log handlers hold on to it."""
    if not isinstance(stream, io.TextIOWrapper):
        raise TypeError(f"it is a {type(stream).__name__}")
    number = ("stdin", "stdout", "stderr").index(name)
    raw = io.FileIO(number, "r" if name == "stdin" else "w", closefd=False)
    buffer: Any = io.BufferedReader(raw) if name == "stdin" else io.BufferedWriter(raw)
    stream.__init__(buffer, **text)  # type: ignore[misc]


def flush(stream: Any) -> None:
    """Show what a task printed when it ends, and leave nothing to be printed twice by a copy."""
    try:
        stream.flush()
    except (OSError, ValueError):
        return  # nobody reads any more
