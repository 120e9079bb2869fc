"""The fork guard, which keeps copies of a process from running its lanes after ``os.fork``.

If user code calls ``os.fork``, it also returns in the copy, which holds our sockets and is inside
our loops. If the copy continued, it would report the task a second time, take tasks that the
original takes too, and remove the original's sockets from the epoll object that both share.

So a copy does the following:

- Before ``os.fork`` returns there, it closes the sockets of the lanes, and restores the default
  handlers of SIGINT and SIGTERM. Our handlers ignore SIGTERM, so ``multiprocessing`` could not
  terminate the copy. An earlier signal stays pending until then.
- It exits where user code ends: when the function of a sync task returns, or at the next ``await``
  of an async task.

Programs that user code starts are not affected, nor are processes of ``multiprocessing``, which
exit by themselves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from horsies_django.worker.ipc import Channel


class ForkGuard:
    """The channels and loops that copies of this process must not use."""

    guarded = False
    is_copy = False
    channels: WeakSet[Any] = WeakSet()
    loops: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loop -> id of its thread


held = threading.local()  # ``mask``: the signals that were blocked in the thread that forks
ENDING = (signal.SIGINT, signal.SIGTERM)


def keep_from_copies(*channels: Channel) -> None:
    """Close these channels in every copy of this process."""
    ForkGuard.channels.update(channels)
    if not ForkGuard.guarded:
        ForkGuard.guarded = True
        os.register_at_fork(
            before=hold_signals, after_in_parent=let_signals_in, after_in_child=strip
        )


def keep_loop_from_copies(loop: asyncio.AbstractEventLoop) -> None:
    """Prevent copies of this process from continuing the loop that runs in the calling thread."""
    ForkGuard.loops[loop] = threading.get_ident()


def hold_signals() -> None:
    """Block the signals that end a process while this thread forks.

    They stay pending in the copy. The original may signal its copy at once, and with the original's
    handlers the copy would lose the signal.
    """
    held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def let_signals_in() -> None:
    """Restore the signal mask from before the fork."""
    signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)


def strip() -> None:
    """Detach a copy from the original; runs in each copy before ``os.fork`` returns there."""
    ForkGuard.is_copy = True
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    let_signals_in()

    for channel in list(ForkGuard.channels):
        channel.close()
    for loop, thread in list(ForkGuard.loops.items()):
        if thread == threading.get_ident():
            seal(loop)


def seal(loop: Any) -> None:
    """Make a loop exit this process with its next callback.

    A loop runs as many callbacks as were ready when its iteration began, so all of them are
    replaced.
    """
    ready = getattr(loop, "_ready", None)
    if ready is None:
        loop.call_soon(leave)
        return

    places = len(ready) + 1
    ready.clear()
    ready.extend(asyncio.Handle(leave, (), loop) for _ in range(places))


def end_if_copy(succeeded: bool) -> None:
    """Exit if this process is a copy that returned from user code.

    The exit code is 0 if the code succeeded, otherwise 1.
    """
    if ForkGuard.is_copy:
        leave(0 if succeeded else 1)


def leave(code: int = 0) -> None:
    """Exit at once, without exit handlers and destructors, which might affect the original."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
