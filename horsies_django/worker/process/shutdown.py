"""Shutdown: what signals ask of a worker, to stop and then to end.

While the worker starts, nothing is claimed yet, and it may be waiting for something slow: an import, a database that does not
answer, the fork server. So a signal interrupts it right there (``StopRequested``). Once it works, a signal is only noted, and
the engine acts on it when it comes round: nothing is ever torn apart in the middle of a pass.

A signal cannot make the engine come round when it is stuck in a statement, on a lock or on a dead link. Therefore a thread
waits beside it. Some seconds after the time for stopping is over it ends the process, whatever hangs. Nothing is half-written
then, because a pass is one transaction: what it did not write stays in the name of a worker that beats no more, and others
look after it.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from horsies_django.worker.ipc.channel import MemoryChannel
from horsies_django.worker.process.logs import end_process

logger = logging.getLogger("horsies.worker")

ALWAYS = (signal.SIGTERM, signal.SIGINT)
UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT)  # nohup, and shells for jobs in the background, ignore them on purpose
WORKER_HANGS = "the worker hangs and is ended without its bookkeeping: other workers find its tasks and look after them"
LAST_RESORT_SECONDS = 15.0  # more than the end takes, also when the database does not answer


class StopRequested(BaseException):
    """A signal came before the worker had started. Not an Exception: no import and no retry may swallow it."""


class Shutdown:
    """Takes the signals of this process while it is entered; on the main thread only.

    ``timeout`` is how many seconds running tasks may take after the first signal, ``on_stop`` is called by each signal, and
    ``wakeup`` becomes readable with it. ``ends_process`` says that nothing comes after it but the exit: then late signals are
    ignored, so that the exit code stays what the worker says. ``last_words`` are for an end that does not wait any longer.
    """

    def __init__(self, *, ends_process: bool = False, last_words: str = WORKER_HANGS) -> None:
        self.ends_process = ends_process
        self.last_words = last_words
        self.timeout = 0.0
        self.on_stop: Callable[[], None] = lambda: None
        self.seen = False
        self.by: float | None = None  # when it has to be over, by the monotonic clock
        self.interrupts = False

    def __enter__(self) -> Shutdown:
        self.wakeup, self.waker = socket.socketpair()
        self.bell, self.ringer = socket.socketpair()
        for end in (self.wakeup, self.waker, self.ringer):
            end.setblocking(False)
        self.thread = threading.Thread(target=self._wait_for_the_end, name="horsies-last-resort", daemon=True)
        self.thread.start()
        self.handlers = take(self._note)
        self.wakeup_before = signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupts = False
        signal.set_wakeup_fd(self.wakeup_before)
        for number, handler in self.handlers.items():
            signal.signal(number, signal.SIG_IGN if self.ends_process else handler)
        self.ringer.close()
        self.thread.join()
        for end in (self.wakeup, self.waker, self.bell):
            end.close()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise StopRequested in this block, at once when it came before.

        One that comes in its very last moment is only noted: look at ``seen`` afterwards.
        """
        self.interrupts = True
        try:
            if self.seen:
                raise StopRequested
            yield
        finally:
            self.interrupts = False

    def pause(self, seconds: float) -> None:
        """Wait, no longer than until a signal: also one that comes in the moment before the wait begins."""
        select.select([self.wakeup], [], [], seconds)

    def deadline(self) -> float | None:
        """Return when it has to be over, or None while nobody asked."""
        return self.by

    def _note(self, number: int, frame: FrameType | None) -> None:
        """First signal: stop. Another, or SIGQUIT: end now.

        A further SIGHUP asks for nothing new: a closing terminal sends one through the shell and one through the kernel.
        """
        again, self.seen = self.seen, True
        if not again or number != signal.SIGHUP:
            self.by = time.monotonic() + (0.0 if again or number == signal.SIGQUIT else self.timeout)
        with suppress(BlockingIOError):  # full of earlier signals, which are as good: nothing here may raise
            self.ringer.send(b".")
        self.on_stop()
        if self.interrupts:
            self.interrupts = False
            raise StopRequested

    def _wait_for_the_end(self) -> None:
        while True:
            patience = None if self.by is None else max(0.0, self.by + LAST_RESORT_SECONDS - time.monotonic())
            if not select.select([self.bell], [], [], patience)[0]:
                break
            if not self.bell.recv(100):
                return  # closed: the worker has ended
        logger.critical(self.last_words)
        end_process(1)


def take(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let ``handler`` have the signals that end a process, and return what had them before."""
    numbers = [*ALWAYS, *(number for number in UNLESS_IGNORED if signal.getsignal(number) != signal.SIG_IGN)]
    return {number: signal.signal(number, handler) for number in numbers}


def send_or_end(channel: MemoryChannel, message: Any) -> None:
    """Send a last message to another thread, and end this process if nobody has taken it some seconds later.

    It says that tasks cannot be run any more. A task may have closed the sockets that wake the other thread.
    """
    channel.send(message)
    timer = threading.Timer(LAST_RESORT_SECONDS, end_if_untaken, [channel, message])
    timer.daemon = True
    timer.start()


def end_if_untaken(channel: MemoryChannel, message: Any) -> None:
    """End this process if a message still waits to be taken."""
    if message in channel.outbox:
        logger.critical(WORKER_HANGS)
        end_process(1)
