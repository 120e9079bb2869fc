"""The fork guard: copies of a process that runs tasks; what ``os.fork`` in user code makes never runs our lanes.

The danger. ``os.fork`` returns twice. The second time it returns in a copy that holds our sockets and stands in the middle of our
loops. A copy that went on would report the task a second time, take tasks that the original takes as well, and, on the event
loop, take the original's sockets off the epoll object that both share.

So a copy loses the lanes' sockets at its birth, gets the default signal handlers back (ours ignore SIGTERM, so that
``multiprocessing`` could not end it; a signal that comes before it has them waits), and ends where user code ends: when the
function of a sync task returns, and at the next ``await`` of an async one. A program that user code starts is no copy, and
neither is a process of ``multiprocessing``, which ends by itself; both pass through here unharmed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from horsies_django.worker.ipc.channel import Channel


class State:
    """What this process has to hide from its copies."""

    guarded = False
    is_copy = False
    channels: WeakSet[Any] = WeakSet()
    loops: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # and the threads that run them


state = State()
held = threading.local()  # its mask: the signals that were blocked on the thread that forks
ENDING = (signal.SIGINT, signal.SIGTERM)


def keep_from_copies(*channels: Channel) -> None:
    """Take these channels away from every copy of this process."""
    state.channels.update(channels)
    if not state.guarded:
        state.guarded = True
        os.register_at_fork(before=hold_signals, after_in_parent=let_signals_in, after_in_child=strip)


def keep_loop_from_copies(loop: asyncio.AbstractEventLoop) -> None:
    """Let no copy of this process go on with the loop that runs on the calling thread."""
    state.loops[loop] = threading.get_ident()


def hold_signals() -> None:
    """Keep the signals that end a process away from this thread while it forks, so that the copy finds them waiting.

    The original may end its copy before that has run a line; with the original's handlers, the copy would lose the signal.
    """
    held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def let_signals_in() -> None:
    """Block no more than before the fork."""
    signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)


def strip() -> None:
    """Make a copy harmless; runs in each copy before ``os.fork`` returns there."""
    state.is_copy = True
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    let_signals_in()
    for channel in list(state.channels):
        channel.close()
    for loop, thread in list(state.loops.items()):
        if thread == threading.get_ident():
            seal(loop)


def seal(loop: Any) -> None:
    """Let the next thing that a loop does be the end of this process.

    A loop runs as many callbacks as were ready when its round began, so each place in its queue is taken.
    """
    ready = getattr(loop, "_ready", None)
    if ready is None:
        loop.call_soon(leave)
        return
    places = len(ready) + 1
    ready.clear()
    ready.extend(asyncio.Handle(leave, (), loop) for _ in range(places))


def end_if_copy(succeeded: bool) -> None:
    """End this process if it is a copy that came back from user code; its exit code says how that ended."""
    if state.is_copy:
        leave(0 if succeeded else 1)


def leave(code: int = 0) -> None:
    """End this process at once: no handlers, no destructors, nothing of the original is touched."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
