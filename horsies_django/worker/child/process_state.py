"""The cleanup of a process after each task: working directory, signals and database sessions.

A task may change global state and not restore it, which would affect later tasks. Changes of the
working directory and of signals do the most harm: a signal handler or an alarm ends the process,
and relative paths name other files. So they are restored, and the task is logged. A task runs in a
copy of the context, so the active language, the active time zone and context variables need no
restoring. Each task begins with the initial context of ``decimal``. All other state lasts until the
process is replaced, which the worker does soon after such a change; see
``docs/explanation/what-tasks-may-do.md``.

If several sync tasks run in one process (``--threads``), the last of them to end restores the
directory. Signal handlers can be changed only in the main thread.
"""

from __future__ import annotations

import decimal
import faulthandler
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from horsies_django.core.records import Reply
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker.child import db_sessions, fork_guard, interrupts

logger = logging.getLogger("horsies.worker")

# The C functions take a tenth of the time of those in ``signal``, which convert numbers to enums.
fast: Any = importlib.import_module("_signal")
# Signals that end a process, or on which libraries depend. If SIGCHLD is ignored, subprocess loses
# exit codes. The default of SIGPIPE ends a process that writes to a closed connection.
CHECKED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    interrupts.INTERRUPT,
)
NUMBERS = tuple(int(number) for number in CHECKED_SIGNALS)
SET_MASK = int(signal.SIG_SETMASK)


class ProcessState:
    """The initial state of a process, and the code that restores it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0  # how many tasks run in this process
        self.orm = db_sessions.executor()
        self.main_thread = threading.main_thread().ident

        self.directory = current_directory()
        self.decimal = decimal.getcontext().copy()
        self.handlers = [fast.getsignal(number) for number in NUMBERS]
        self.mask = fast.pthread_sigmask(int(signal.SIG_BLOCK), ())

    def enter(self) -> None:
        """Prepare this thread for a task."""
        db_sessions.before_task()
        decimal.setcontext(self.decimal.copy())
        with self.lock:
            self.inside += 1

    def leave(self, current: CurrentTask, reply: Reply) -> bool:
        """Restore the state after a task in this thread; return whether it had changed.

        If the task has forked this process and the copy returns from the task, the copy exits here.
        """
        fork_guard.end_if_copy(reply.status == "COMPLETED")

        db_sessions.after_task()
        if self.orm.connected:
            self.orm.clean_up()
        flush_output()

        found: list[str] = []
        with self.lock:
            self.inside -= 1
            if not self.inside:
                found += self._directory()
            if threading.get_ident() == self.main_thread:
                found += self._signals()

        if found:
            logger.warning(
                "%s %s changed process state: %s; restored",
                current.name,
                current.task_id,
                ", ".join(found),
            )

        return bool(found)

    def _directory(self) -> list[str]:
        if self.directory is None or current_directory() == self.directory:
            return []

        try:
            os.chdir(self.directory)
        except OSError as error:
            return [f"the working directory (which cannot be restored: {error})"]
        return ["the working directory"]

    def _signals(self) -> Iterator[str]:
        """Restore the signal handlers in the main thread, and yield a text for each change."""
        fast.alarm(0)
        faulthandler.cancel_dump_traceback_later()

        for number, handler in zip(NUMBERS, self.handlers, strict=True):
            if fast.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
                # a real-time signal has no name
                shown = getattr(CHECKED_SIGNALS[NUMBERS.index(number)], "name", f"signal {number}")
                yield f"the handler of {shown}"

        if fast.pthread_sigmask(SET_MASK, self.mask) != self.mask:
            yield "blocked signals"


def current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def flush_output() -> None:
    """Flush the standard streams, so that output is visible and no forked copy prints it again."""
    for stream in (sys.stdout, sys.stderr):
        # a task has replaced, removed or closed the stream, or its reader is gone
        with suppress(Exception):
            stream.flush()
