"""The shutdown: the handling of signals that stop a worker.

While the worker starts, it has not claimed any task and may be waiting for an import, the database
or the fork server. So a signal interrupts the start (``StopRequested``). Afterwards a signal is
only recorded, and the engine stops between two passes.

A signal cannot stop an engine that is stuck in a statement, on a lock or on a dead connection. So a
thread waits in the background, and ends the process some seconds after the shutdown timeout. No
outcome is half-written then, because a pass is one transaction. Other workers rescue the remaining
tasks, because the heartbeats have ended.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from horsies_django.core.errors import StopRequested
from horsies_django.worker.ipc import wait_readable
from horsies_django.worker.logs.relay import end_process

logger = logging.getLogger("horsies.worker")

ALWAYS = (signal.SIGTERM, signal.SIGINT)
# nohup and shells with background jobs ignore them on purpose
UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT)
WORKER_HANGS = (
    "the worker hangs, so its process exits without releasing its tasks: other workers rescue them"
)
# Several SIGTERM within this time count as one: a platform signals all processes of a container,
# and a wrapper process forwards its own signal.
SAME_STOP_SECONDS = 1.0
STOP_SECONDS = 5.0  # for the end of a child, a thread, or the receivers of signals
LAST_RESORT_SECONDS = 15.0  # longer than a shutdown takes, even if the database does not respond

Signal = tuple[int, float]  # its number, and when it arrived by the monotonic clock


class Shutdown:
    """A context manager that handles the signals of this process, for the main thread only.

    Running tasks may take ``timeout`` seconds after the first signal. Each signal calls ``on_stop``
    and makes ``wakeup`` readable. With ``ends_process`` the process exits afterwards, so late
    signals are ignored and do not change the exit code. ``final_message`` is logged if the process
    is ended because it hangs.
    """

    def __init__(self, *, ends_process: bool = False, final_message: str = WORKER_HANGS) -> None:
        self.ends_process = ends_process
        self.final_message = final_message
        self.timeout = 0.0
        self.on_stop: Callable[[], None] = lambda: None

        # The next signal may interrupt a handler at any instruction, so a handler must not read a
        # value and then write it back.
        self.signals: list[Signal] = []  # that arrived in this process, without repetitions
        # urgency -> deadline by the monotonic clock, set by the first signal of that urgency
        self.deadlines: dict[int, float] = {}
        self.interrupts = False

    def __enter__(self) -> Shutdown:
        self.wakeup, self.waker = socket.socketpair()
        for end in (self.wakeup, self.waker):
            end.setblocking(False)

        self.over = threading.Event()
        self.thread: threading.Thread | None = None

        self.handlers = take(self._note)
        self.wakeup_before = signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.interrupts = False
        signal.set_wakeup_fd(self.wakeup_before)
        for number, handler in self.handlers.items():
            signal.signal(number, signal.SIG_IGN if self.ends_process else handler)

        self.over.set()
        if self.thread is not None:
            self.thread.join()

        for end in (self.wakeup, self.waker):
            end.close()

    def end_if_it_hangs(self) -> None:
        """Start the thread that ends this process if it does not stop.

        Call it after the fork of the template, because a fork does not copy threads.
        """
        self.thread = threading.Thread(
            target=self._wait_for_the_end, name="horsies-last-resort", daemon=True
        )
        self.thread.start()

    def forget(self) -> None:
        """Close the sockets of the original process; called in a forked copy."""
        signal.set_wakeup_fd(-1)
        for end in (self.wakeup, self.waker):
            end.close()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise StopRequested in this block if a signal arrives, or at once if one has arrived.

        A signal at the very end of the block may only be recorded. So check ``seen`` afterwards.
        """
        self.interrupts = True
        try:
            if self.seen:
                raise StopRequested
            yield
        finally:
            self.interrupts = False

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives, at most ``seconds``.

        A signal just before the wait also ends it.
        """
        wait_readable([self.wakeup], seconds)

    @property
    def seen(self) -> bool:
        """True if a signal has arrived, so that the process should stop."""
        return bool(self.deadlines)

    @property
    def urgency(self) -> int:
        """The urgency of the shutdown: 1 to stop in order, 2 to end now, 0 before a signal."""
        return max(self.deadlines, default=0)

    def deadline(self) -> float | None:
        """Return the deadline of the shutdown, by the monotonic clock, or None before a signal."""
        return self.deadlines.get(self.urgency)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Record a signal: the first one stops the process, SIGQUIT or another one ends it now.

        A SIGTERM within a second of the first does not count as another one, see
        ``SAME_STOP_SECONDS``. A further SIGHUP is ignored, because a closing terminal sends one
        through the shell and one through the kernel. Once the process has to end now, all these
        signals are ignored. Otherwise many of them could keep the main thread in this handler.
        """
        noted = (number, time.monotonic())
        if not self.signals or urgency_after([*self.signals, noted]) > 1:
            self.signals.append(noted)

        urgency = urgency_after(self.signals)
        if urgency > 1:
            take(signal.SIG_IGN)

        self.deadlines.setdefault(
            urgency, time.monotonic() + (0.0 if urgency > 1 else self.timeout)
        )
        self.on_stop()

        if self.interrupts:
            self.interrupts = False
            raise StopRequested

    def _wait_for_the_end(self) -> None:
        while not self.over.wait(1.0):
            deadline = self.deadline()
            if deadline is not None and time.monotonic() >= deadline + LAST_RESORT_SECONDS:
                end_hanging(self.final_message)


def urgency_after(signals: Iterable[Signal]) -> int:
    """Return the urgency of a shutdown after these signals.

    It is 1 to stop in order, 2 to end now, and 0 if there are no signals.
    """
    terminated_at = -math.inf  # the time of the first SIGTERM
    urgency = 0

    for number, at in signals:
        same = number == signal.SIGTERM and at - terminated_at < SAME_STOP_SECONDS
        if number == signal.SIGQUIT or (urgency and number != signal.SIGHUP and not same):
            return 2

        if number == signal.SIGTERM and terminated_at == -math.inf:
            terminated_at = at
        urgency = 1

    return urgency


def take(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> dict[int, Any]:
    """Install ``handler`` for the signals that end a process; return the previous handlers."""
    numbers = [
        *ALWAYS,
        *(number for number in UNLESS_IGNORED if signal.getsignal(number) != signal.SIG_IGN),
    ]
    return {number: signal.signal(number, handler) for number in numbers}


def end_hanging(message: str = WORKER_HANGS) -> NoReturn:
    """Log a message and end this process, which hangs."""
    logger.critical(message)
    end_process(1)
