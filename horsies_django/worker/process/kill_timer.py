"""The kill timer: a worker that stands still too long loses its children before others take its tasks over.

The danger. A stopped worker (SIGSTOP, Ctrl-Z, a frozen container) sends no heartbeat, so after the dead-worker threshold
others rescue its tasks and run them again. When it is continued, its user code would go on in the middle of a line. No write
of that code is fenced, so nothing of it may run any more, not one instruction. Code that runs at waking comes too late, and a
handler of a catchable signal may be replaced by user code. SIGKILL ends a process without waking it, so the kernel has to send
it, and has to have been told beforehand: ``timer_create`` with SIGKILL as the signal, re-armed while the worker lives.

Where the timer lies. Not in the children: re-arming needs Python there, and a task that holds the GIL for a minute, healthy
as it is, would let it run out. One timer lies in the process whose death the kernel passes on to the children
(``bootstrap.die_with_parent``), and no user code runs in that process:

- *fork server*: the timer is the fork server's. The worker writes the deadline into a small file in memory and sends a signal;
  the handler arms the timer with what the file says. The worker itself survives, buries its children and starts anew.
- *spawn*, and no children at all (``--processes=0``): the timer is the worker's own, and the worker ends with its children.
  With ``--processes=0`` a task that holds the GIL so long silences the heartbeat too, its tasks are given away, and the worker
  ends. The kernel spares process 1 of a container from its own timer: such a worker warns; it needs an init in front of it.

Why a file and a signal. A deadline counts from just before a heartbeat was sent, so that it lies before the moment at which
others may call the worker dead. A bare signal says "from now on", and one that was pending while the fork server was stopped
would say so too late. The file always holds the last deadline, whenever it is read. A deadline in the past is never armed:
a timer armed earlier ends this life if it has to, and a fork server started later does not inherit the guilt of the last one.

Limits. Linux only: elsewhere nothing is armed. Programs that a task started, and children that changed their user, do not
die with the fork server. The clock is CLOCK_MONOTONIC: a machine that is suspended stands still with it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import struct
import sys
import threading
import time
from functools import cache
from multiprocessing import forkserver
from types import FrameType
from typing import Any

from horsies_django.worker.process.options import WorkerOptions

logger = logging.getLogger("horsies.worker")

RENEW = signal.SIGRTMIN + 7 if sys.platform == "linux" else 0  # tells the fork server to look at the deadline again
NEVER = 0.0
DEADLINE = struct.Struct("d")
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0


class SigEvent(ctypes.Structure):
    """``struct sigevent``: what the kernel does when the timer runs out."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_int * 12),
    )


class TimerSpec(ctypes.Structure):
    """``struct itimerspec``: an interval, which we do not use, and a moment."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


@cache
def library() -> ctypes.CDLL | None:
    """Return the C library that has POSIX timers, or None; glibc before 2.34 keeps them in librt."""
    for name in (None, "librt.so.1") if sys.platform == "linux" else ():
        try:
            found = ctypes.CDLL(name, use_errno=True)
            found.timer_create  # noqa: B018 - raises AttributeError where it is missing
        except (OSError, AttributeError):
            continue
        return found
    return None


def available() -> bool:
    """Return whether this system can guard: it is Linux, has POSIX timers, and shows its processes in /proc."""
    return library() is not None and catches(os.getpid(), signal.SIGKILL) is not None


class DeadMan:
    """A kernel timer that ends this very process by SIGKILL, running or stopped. Raises OSError when it cannot be had.

    A fork does not inherit the timer. All its methods are safe on any thread and in a signal handler.
    """

    def __init__(self) -> None:
        libc = library()
        if libc is None:
            raise OSError("this system has no POSIX timers: the kill timer needs Linux")
        self.libc = libc
        self.id = ctypes.c_void_p()
        event = SigEvent(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._call(libc.timer_create, ctypes.c_int(time.CLOCK_MONOTONIC), ctypes.byref(event), ctypes.byref(self.id))

    def arm(self, deadline: float) -> None:
        """End this process when ``time.monotonic()`` reaches ``deadline``; one in the past changes nothing."""
        if deadline > time.monotonic():
            self._set(deadline)

    def disarm(self) -> None:
        """Let this process live."""
        self._set(NEVER)

    def remaining(self) -> float:
        """Return in how many seconds this process ends; 0 when the timer is not armed."""
        spec = TimerSpec()
        self._call(self.libc.timer_gettime, self.id, ctypes.byref(spec))
        return float(spec.at_s + spec.at_ns / 1e9)

    def _set(self, deadline: float) -> None:
        seconds, rest = divmod(deadline, 1.0)
        spec = TimerSpec(0, 0, int(seconds), int(rest * 1e9))
        self._call(self.libc.timer_settime, self.id, TIMER_ABSTIME, ctypes.byref(spec), None)

    def _call(self, function: Any, *arguments: Any) -> None:
        if function(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{function.__name__} failed: {os.strerror(number)}")


def follow(path: str) -> None:
    """Make this process, a fork server with the project loaded, end at the deadline in the file ``path``.

    Called once, by a process that then serves as fork server. The handler comes before the first look at the file: a worker
    that does not see the handler yet has written its deadline before that look. Children start without handler and timer.
    """
    descriptor = os.open(path, os.O_RDONLY)
    timer = DeadMan()

    def look(number: int, frame: FrameType | None) -> None:
        deadline = DEADLINE.unpack(os.pread(descriptor, DEADLINE.size, 0))[0]
        if deadline == NEVER:
            timer.disarm()
        else:
            timer.arm(deadline)

    before = signal.signal(RENEW, look)

    def forget() -> None:
        signal.signal(RENEW, signal.SIG_DFL if before is None else before)
        os.close(descriptor)

    os.register_at_fork(after_in_child=forget)
    look(RENEW, None)


def catches(pid: int, number: int) -> bool | None:
    """Return whether a process has a handler for a signal; None when it is gone or cannot be seen."""
    try:
        with open(f"/proc/{pid}/status", "rb") as lines:
            mask = next(int(line.split()[1], 16) for line in lines if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return None
    return bool(mask >> (number - 1) & 1)


@cache
def deadline_file() -> int:
    """Return the file of this process for the deadline, in memory: a killed worker leaves none behind.

    It is always the same: a fork server that was started in an earlier life of this worker goes on reading it.
    """
    return os.memfd_create("horsies-deadline")


class KillTimer:
    """The worker's hand on the timer, wherever that lies now. Its methods are safe on any thread.

    ``seconds`` is how long the worker may stand still: less than the dead-worker threshold.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = NEVER
        self.over = False
        self.warned = False
        self.lock = threading.Lock()
        self.path: str | None = None
        if available():
            self.timer = DeadMan()
            self.descriptor = deadline_file()
            self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
            os.pwrite(self.descriptor, DEADLINE.pack(NEVER), 0)

    def rearm(self, options: WorkerOptions, since: float | None = None) -> None:
        """Let the worker's children live for ``seconds`` more, counted from ``since`` (of ``time.monotonic()``) or from now.

        Call it before a heartbeat is sent, or afterwards with the moment before: counted from the answer, the deadline
        could lie behind the moment at which others call the worker dead.
        """
        with self.lock:
            if not self.over:
                self.deadline = (time.monotonic() if since is None else since) + self.seconds
                self._apply(options)

    def apply(self, options: WorkerOptions) -> None:
        """Hold a process that has just appeared to the deadline that the others have."""
        with self.lock:
            self._apply(options)

    def disarm(self) -> None:
        """End the watch for good: nothing runs any more that could outlive its claim."""
        with self.lock:
            self.over = True
            self.deadline = NEVER
            if self.path is not None:
                self.timer.disarm()
                self._tell_fork_server()

    def _apply(self, options: WorkerOptions) -> None:
        if self.path is None or self.deadline == NEVER:
            return
        if options.start_method == "forkserver" and options.processes:
            self._tell_fork_server()
        else:
            self._warn_process_one()
            self.timer.arm(self.deadline)

    def _tell_fork_server(self) -> None:
        """Write the deadline down and wake the fork server, if there is one and it listens.

        The signal would end a process that has no handler for it: a fork server that still loads the project, or one that
        is not ours. The lock of multiprocessing keeps the fork server from being reaped, and its pid from being taken.
        """
        os.pwrite(self.descriptor, DEADLINE.pack(self.deadline), 0)
        server: Any = forkserver._forkserver
        with server._lock:
            if server._forkserver_pid is not None and catches(server._forkserver_pid, RENEW):
                os.kill(server._forkserver_pid, RENEW)

    def _warn_process_one(self) -> None:
        if os.getpid() == 1 and not self.warned:
            self.warned = True
            logger.warning(
                "this worker is process 1 of its container, which the kernel does not end by a timer: if it is stopped and "
                "continued later, its tasks go on although others have taken them over. Run it with an init (docker run "
                "--init) or with --start-method=forkserver and --processes=1 or more"
            )
