"""Interrupts: the attempts that a process is at, and how another thread breaks into them.

A sync task hears of its timeout as an exception in the middle of its code. On the main thread it comes by a signal, because
only a signal ends a wait inside the kernel; on other threads CPython raises it at the next line of Python, so that a long
call into C keeps it waiting. An async task is cancelled. Either way the code may clean up; if it goes on, its process is
killed after a grace, which is the worker's business (``worker/pool/deadlines.py``), not this module's.

Nothing may break into our own code. So a run is ``active`` only around user code, is broken into at most once, and whoever
calls user code does it between ``begin`` and ``end`` inside a try that treats what comes late like what came in time.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import threading
from types import FrameType

from horsies_django.core.errors import TaskTimeout
from horsies_django.tasks.context import CurrentTask

TIMEOUT, CANCEL = "timeout", "cancel"
CALL_BACK = "call back"  # not to a run, but to all that stand in line
INTERRUPT = signal.SIGRTMIN + 8 if sys.platform == "linux" else signal.SIGUSR2


class Run:
    """One attempt. ``reason`` says why it was broken into, None if it was not."""

    __slots__ = ("active", "current", "reason")

    def __init__(self, task_id: str, name: str, attempt: int, queue_name: str = "") -> None:
        self.current = CurrentTask(task_id, name, attempt, queue_name)
        self.active = False
        self.reason: str | None = None

    def begin(self) -> None:
        """User code starts now."""
        self.active = True

    def end(self) -> None:
        """User code is over."""
        self.active = False

    def interrupt(self, reason: str) -> None:
        """Tell the task that it shall end; safe from any thread, and when it is over already."""
        if reason == CANCEL:
            self.current.cancel_requested = True
        if self.reason is None and self.active:
            self.break_in(reason)

    def expect(self, reason: str) -> None:
        """Tell the task the same before its code begins."""
        if reason == CANCEL:
            self.current.cancel_requested = True

    def break_in(self, reason: str) -> None:
        """Make it hear, if its kind can."""


class SyncRun(Run):
    """A run on a thread of its own; only its timeout breaks in, a cancel is for its code to ask for."""

    __slots__ = ("lock", "thread")

    on_main: SyncRun | None = None  # what the main thread is at, for the handler of the signal

    def __init__(self, task_id: str, name: str, attempt: int, queue_name: str = "") -> None:
        super().__init__(task_id, name, attempt, queue_name)
        self.lock = threading.Lock()
        self.thread = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            SyncRun.on_main = self

    def end(self) -> None:
        with self.lock:
            self.active = False
            if self.reason == TIMEOUT and SyncRun.on_main is not self:
                raise_in(self.thread, None)  # what was not raised yet shall not be

    def break_in(self, reason: str) -> None:
        if reason != TIMEOUT:
            return
        with self.lock:
            if not self.active:
                return
            self.reason = reason
            if SyncRun.on_main is self:
                signal.pthread_kill(self.thread, INTERRUPT)
            else:
                raise_in(self.thread, TaskTimeout)


class AsyncRun(Run):
    """A run that shares an event loop; timeout and cancel both cancel it."""

    __slots__ = ("loop", "task")

    def __init__(self, task_id: str, name: str, attempt: int, queue_name: str = "") -> None:
        super().__init__(task_id, name, attempt, queue_name)
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()

    def break_in(self, reason: str) -> None:
        self.loop.call_soon_threadsafe(self._cancel, reason)

    def expect(self, reason: str) -> None:
        super().expect(reason)
        self.break_in(reason)

    def _cancel(self, reason: str) -> None:
        if self.active and self.reason is None and self.task is not None:
            self.reason = reason
            self.task.cancel(reason)


def on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise in the main thread what its run shall hear; a late signal finds nothing to do."""
    run = SyncRun.on_main
    if run is not None and run.active and run.reason == TIMEOUT:
        run.active = False
        raise TaskTimeout


def listen_for_interrupts() -> None:
    """Install the handler; on the main thread."""
    signal.signal(INTERRUPT, on_interrupt)


def raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Let CPython raise an exception in another thread, or take back one that it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
