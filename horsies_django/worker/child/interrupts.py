"""Interrupts: how timeouts and cancels stop the running tasks of a process.

A sync task gets its timeout as an exception. In the main thread, a signal raises it, because only a
signal interrupts a system call. In other threads, CPython raises it at the next line of Python, so
a long call into C delays it. An async task is cancelled. Either way the code may clean up. If it
continues, the worker kills the process after a grace period (``worker/pool/timeouts.py``).

Our own code must not be interrupted. So a run is ``active`` only during user code and is
interrupted at most once, and user code is called between ``begin`` and ``end`` in a ``try`` that
handles a late interrupt like any other.

A control thread receives the timeouts and cancels of running tasks from the worker. It has its own
channel, because both lanes may be busy with user code.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from horsies_django.core.errors import TaskTimeout
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker.ipc import Channel, wait_receive

TIMEOUT = "timeout"
CANCEL = "cancel"
CALL_BACK = "call back"  # for the whole run-ahead, not for a run
INTERRUPT = signal.SIGRTMIN + 8 if sys.platform == "linux" else signal.SIGUSR2
LONG_OVER = 1_000  # after so many later runs, a run that has not begun will not begin any more


class Run:
    """One attempt of a task.

    ``reason`` is TIMEOUT or CANCEL after an interrupt, None before.
    """

    __slots__ = ("active", "current", "reason")

    def __init__(self, current: CurrentTask) -> None:
        self.current = current
        self.active = False
        self.reason: str | None = None

    def begin(self) -> None:
        """Record that user code begins."""
        self.active = True

    def end(self) -> None:
        """Record that user code has ended."""
        self.active = False

    def note(self, reason: str) -> None:
        """Record the reason why user code is interrupted."""
        self.reason = self.current.interrupted = reason

    def interrupt(self, reason: str) -> None:
        """Interrupt the task, which may be about to begin; do nothing if it has ended.

        It may be called from any thread.
        """
        if reason == CANCEL:
            self.current.cancel_requested = True
        if self.reason is None:
            self.break_in(reason)

    def break_in(self, reason: str) -> None:
        """Interrupt user code, if this kind of run can be interrupted for the reason."""


class SyncRun(Run):
    """A run in a thread of its own.

    A timeout interrupts it. A cancel does not; the code has to check for it.
    """

    __slots__ = ("lock", "thread")

    on_main: SyncRun | None = None  # the run in the main thread, for the signal handler

    def __init__(self, current: CurrentTask) -> None:
        super().__init__(current)
        self.lock = threading.Lock()
        self.thread = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            SyncRun.on_main = self

    def end(self) -> None:
        with self.lock:
            self.active = False
            if self.reason == TIMEOUT and SyncRun.on_main is not self:
                raise_in(self.thread, None)  # discard an exception that was not raised yet

    def break_in(self, reason: str) -> None:
        if reason != TIMEOUT:
            return

        with self.lock:
            if not self.active:
                return

            self.note(reason)
            if SyncRun.on_main is self:
                signal.pthread_kill(self.thread, INTERRUPT)
            else:
                raise_in(self.thread, TaskTimeout)


class AsyncRun(Run):
    """A run in the shared event ``loop``; a timeout and a cancel both cancel its asyncio task."""

    __slots__ = ("loop", "task")

    def __init__(self, current: CurrentTask, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(current)
        self.loop = loop  # a parameter, because asyncio.get_running_loop() makes a system call
        self.task = asyncio.current_task(loop)

    def break_in(self, reason: str) -> None:
        self.loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str) -> None:
        if self.active and self.reason is None and self.task is not None:
            self.note(reason)
            self.task.cancel(reason)


def on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise TaskTimeout in the run of the main thread, unless the signal arrives too late."""
    run = SyncRun.on_main
    if run is not None and run.active and run.reason == TIMEOUT:
        run.active = False
        raise TaskTimeout


def raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Make CPython raise an exception in another thread.

    None discards an exception that was not raised yet.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


class Control:
    """The receiver of timeouts and cancels.

    ``runs`` are the running tasks by lane and number, which the lanes set. ``early`` are the
    reasons in messages that arrived before their run began.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.runs: dict[tuple[str, int], Run] = {}
        self.early: dict[tuple[str, int], str] = {}
        self.call_back: Callable[[], None] = lambda: None

    def enter(self, lane: str, number: int, run: Run) -> None:
        """Register a run that begins, and deliver earlier messages about it."""
        self.runs[lane, number] = run
        if self.early:
            if reason := self.early.pop((lane, number), None):
                run.interrupt(reason)

            for other in [
                key for key in list(self.early) if key[0] == lane and key[1] + LONG_OVER < number
            ]:
                self.early.pop(other, None)

    def serve(self) -> None:
        """Handle messages until the worker is gone, which also ends the lanes."""
        while True:
            try:
                messages = wait_receive(self.channel)
            except EOFError:
                return

            for reason, lane, number in messages:
                self.handle(reason, lane, number)

    def handle(self, reason: str, lane: str, number: int) -> None:
        if reason == CALL_BACK:
            self.call_back()
        elif run := self.runs.get((lane, number)):
            run.interrupt(reason)
        else:
            # the run is over, has not begun, or begins at this moment
            self.early[lane, number] = reason
            if run := self.runs.get((lane, number)):
                run.interrupt(reason)
