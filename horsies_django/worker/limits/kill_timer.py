"""The kill timer, which kills the children of a stopped worker before others run its tasks.

A stopped worker (SIGSTOP, Ctrl-Z, a frozen container) sends no heartbeats, so after the dead-worker
threshold others rescue its tasks and run them again. If the worker is continued, its tasks would
continue as well, and writes of user code are not fenced. No code that runs after SIGCONT could
prevent that in time, and user code may replace signal handlers. Only the kernel can end a stopped
process. So there is a timer (``timer_create``) with SIGKILL as signal, which is re-armed while the
worker is alive.

The timer is not in the children, because re-arming needs Python there, and a task may hold the GIL
for a minute. It is in the process whose death kills the children (``bootstrap.die_with_parent``):

- With the fork server, the timer is in the fork server, which runs no user code. The worker sends
  it each deadline. The worker itself survives, reaps its children and starts others.
- With spawn, and without children (``--processes=0``), the timer is in the worker, which ends with
  its children. With ``--processes=0``, a task that holds the GIL for so long also prevents
  heartbeats, so its tasks are rescued and the worker ends. The kernel does not kill process 1 of a
  container by its own timer; such a worker logs a warning and needs an init.

The deadline counts from just before a heartbeat was sent, so that it is earlier than the time when
others may declare the worker dead. A deadline in the past is never armed: its message may have
waited while the fork server was stopped.

Limits: The timer works on Linux only; elsewhere no timer is armed. Programs that tasks started, and
children that changed their user, do not die with the fork server. The clock is CLOCK_MONOTONIC,
which stops while a machine is suspended.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

logger = logging.getLogger("horsies.worker")

DISARMED = 0.0
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0


class SigEvent(ctypes.Structure):
    """``struct sigevent``: the action of the kernel when the timer expires."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_int * 12),
    )


class TimerSpec(ctypes.Structure):
    """``struct itimerspec``: an interval, which is not used, and an expiry time."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


@cache
def library() -> ctypes.CDLL | None:
    """Return the C library that has POSIX timers, or None.

    Glibc before 2.34 keeps them in librt.
    """
    for name in (None, "librt.so.1") if sys.platform == "linux" else ():
        try:
            found = ctypes.CDLL(name, use_errno=True)
            found.timer_create  # noqa: B018 - raises AttributeError where it is missing
        except (OSError, AttributeError):
            continue
        return found
    return None


class KernelTimer:
    """A kernel timer that kills this process by SIGKILL, whether it runs or is stopped.

    Forked processes do not inherit it. Its methods may be called in any thread and in signal
    handlers. Raises OSError if it is not available.
    """

    def __init__(self) -> None:
        libc = library()
        if libc is None:
            raise OSError("this system has no POSIX timers: the kill timer needs Linux")

        self.libc = libc
        self.id = ctypes.c_void_p()
        event = SigEvent(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._call(
            libc.timer_create,
            ctypes.c_int(time.CLOCK_MONOTONIC),
            ctypes.byref(event),
            ctypes.byref(self.id),
        )

    def arm(self, deadline: float) -> None:
        """Kill this process when ``time.monotonic()`` reaches ``deadline``.

        DISARMED disarms the timer. A deadline in the past is ignored.
        """
        if deadline == DISARMED or deadline > time.monotonic():
            seconds, rest = divmod(deadline, 1.0)
            spec = TimerSpec(0, 0, int(seconds), int(rest * 1e9))
            self._call(self.libc.timer_settime, self.id, TIMER_ABSTIME, ctypes.byref(spec), None)

    def remaining(self) -> float:
        """Return the seconds until this process is killed, or 0 if the timer is not armed."""
        spec = TimerSpec()
        self._call(self.libc.timer_gettime, self.id, ctypes.byref(spec))
        return float(spec.at_s + spec.at_ns / 1e9)

    def _call(self, function: Any, *arguments: Any) -> None:
        if function(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{function.__name__} failed: {os.strerror(number)}")


class KillTimer:
    """The control of the timer; its methods may be called in any thread.

    ``seconds`` is the longest time that the worker may be stopped, less than the dead-worker
    threshold. ``arm`` arms the timer of the fork server; without it, the timer is in this process.
    """

    def __init__(self, seconds: float, arm: Callable[[float], None] | None = None) -> None:
        self.seconds = seconds
        self.deadline = DISARMED
        self.over = False
        self.lock = threading.Lock()
        self.arm = arm or own_timer()

    def rearm(self, since: float) -> None:
        """Set the deadline to ``seconds`` after ``since``, by ``time.monotonic()``.

        ``since`` must be before a heartbeat was sent. If the deadline counted from the reply, it
        could be later than the time when others declare the worker dead.
        """
        with self.lock:
            if not self.over:
                self.deadline = since + self.seconds
                self.arm(self.deadline)

    def disarm(self) -> None:
        """Disarm the timer permanently, when no task runs any more."""
        with self.lock:
            self.over = True
            self.deadline = DISARMED
            self.arm(DISARMED)


def own_timer() -> Callable[[float], None]:
    """Return a function that arms a timer in this process, without effect if there is none."""
    if os.getpid() == 1:
        logger.warning(
            "this worker is process 1 of its container, which the kernel does not kill by a timer: "
            "its tasks continue after the worker was suspended and resumed, even if other workers "
            "have rescued them. Run the worker with an init (docker run --init) or with "
            "--start-method=forkserver and --processes=1 or more"
        )
    return KernelTimer().arm if library() else lambda deadline: None
