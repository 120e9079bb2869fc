"""The kill timer: kills the children of a worker that was stopped for too long, before others run its tasks.

A stopped worker (SIGSTOP, Ctrl-Z, a frozen container) sends no heartbeats, so after the dead-worker threshold others recover its
tasks and run them again. If the worker is continued, its tasks would continue as well, and writes of user code are not fenced. No
code that runs after SIGCONT could prevent that in time, and user code may replace signal handlers. Only the kernel can end a
stopped process: a timer (``timer_create``) with SIGKILL as signal, which is re-armed while the worker is alive.

The timer is not in the children, because re-arming needs Python there, and a task may hold the GIL for a minute. It is in the
process whose death kills the children (``bootstrap.die_with_parent``), and which runs no user code:

- With the fork server, the timer is in the fork server. The worker writes the deadline into a file in memory and sends a signal,
  whose handler arms the timer. The worker itself survives, reaps its children and starts others.
- With spawn, and without children (``--processes=0``), the timer is in the worker, which ends with its children. With
  ``--processes=0``, a task that holds the GIL for so long also prevents heartbeats, so its tasks are recovered and the worker
  ends. The kernel does not kill process 1 of a container by its own timer; such a worker logs a warning and needs an init.

The deadline is in a file because it counts from just before a heartbeat was sent, so that it is earlier than the time when others
may declare the worker dead. A signal alone could arrive late, after the fork server was stopped; the file always has the last
deadline. A deadline in the past is never armed, so that a new fork server is not killed for an old deadline.

Limits: Linux only; elsewhere nothing is armed. Programs started by tasks, and children that changed their user, do not die with
the fork server. The clock is CLOCK_MONOTONIC, which stops while a machine is suspended.
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

RENEW = signal.SIGRTMIN + 7 if sys.platform == "linux" else 0  # tells the fork server to read the deadline again
NEVER = 0.0
DEADLINE = struct.Struct("d")
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0


class SigEvent(ctypes.Structure):
    """``struct sigevent``: what the kernel does when the timer expires."""

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
    """Return whether this is Linux with POSIX timers and /proc."""
    return library() is not None and catches(os.getpid(), signal.SIGKILL) is not None


class KernelTimer:
    """A kernel timer that kills this process by SIGKILL, running or stopped. Raises OSError if it is not available.

    Forked processes do not inherit it. Its methods may be called in any thread and in signal handlers.
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
        """Kill this process when ``time.monotonic()`` reaches ``deadline``; ignore a deadline in the past."""
        if deadline > time.monotonic():
            self._set(deadline)

    def disarm(self) -> None:
        self._set(NEVER)

    def remaining(self) -> float:
        """Return the seconds until this process is killed; 0 if the timer is not armed."""
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

    Called once. The handler is installed before the file is first read: a worker that does not see the handler yet has written
    its deadline before that. Children start without handler and timer.
    """
    descriptor = os.open(path, os.O_RDONLY)
    timer = KernelTimer()

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
    """Return whether a process has a handler for a signal; None if the process is gone or not visible."""
    try:
        with open(f"/proc/{pid}/status", "rb") as lines:
            mask = next(int(line.split()[1], 16) for line in lines if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return None
    return bool(mask >> (number - 1) & 1)


@cache
def deadline_file() -> int:
    """Return the descriptor of the deadline file, which is in memory, so that a killed worker leaves no file behind.

    It is the same for the whole process, because a fork server that was started earlier continues to read it.
    """
    return os.memfd_create("horsies-deadline")


class KillTimer:
    """Controls the timer, in the fork server or in the worker. Its methods may be called in any thread.

    ``seconds``: how long the worker may be stopped; less than the dead-worker threshold.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = NEVER
        self.over = False
        self.warned = False
        self.lock = threading.Lock()
        self.path: str | None = None
        if available():
            self.timer = KernelTimer()
            self.descriptor = deadline_file()
            self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
            os.pwrite(self.descriptor, DEADLINE.pack(NEVER), 0)

    def rearm(self, options: WorkerOptions, since: float | None = None) -> None:
        """Set the deadline to ``seconds`` after ``since`` (by ``time.monotonic()``) or after now.

        ``since`` must be before a heartbeat was sent: counted from its reply, the deadline could be later than the time when
        others declare the worker dead.
        """
        with self.lock:
            if not self.over:
                self.deadline = (time.monotonic() if since is None else since) + self.seconds
                self._apply(options)

    def apply(self, options: WorkerOptions) -> None:
        """Apply the current deadline to a process that was just started."""
        with self.lock:
            self._apply(options)

    def disarm(self) -> None:
        """Disarm the timer permanently, when no task runs any more."""
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
        """Write the deadline and signal the fork server, if there is one with a handler.

        The signal would end a process without a handler: a fork server that is still loading the project, or another program's.
        The lock of multiprocessing prevents that the fork server is reaped and its pid reused meanwhile.
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
