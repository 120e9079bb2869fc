"""The event loop of a lane, which goes on whatever the coroutines on it do to the loop.

All async tasks of a process share one loop, and any of them can reach it. What it can do there, and what follows:

- It cancels every task that it finds (``asyncio.all_tasks()``). The lane itself is none: callbacks receive jobs and send replies,
  and a future that nobody can find ends it. What was cancelled too early to begin is begun again (``executor.AsyncLane``).
- It takes readers or writers away, of the lane's socket or of the one through which other threads wake the loop. They are put
  back after each task, and every second, so that it is also seen while the task that did it goes on.
- It stops the loop, or breaks it by ``SystemExit`` or ``KeyboardInterrupt``. The loop takes up where it was.
- It closes a descriptor that the process lives by, or the loop while that stands still. That cannot be mended: the lane ends with
  an error, and the child is replaced. Without children, the worker ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from typing import Any

from horsies_django.worker.child import fork_guard
from horsies_django.worker.child.process_state import identity
from horsies_django.worker.ipc.channel import Channel

logger = logging.getLogger("horsies.worker")

LOOK_SECONDS = 1.0


class LaneLoop:
    """A loop that calls ``receive`` when the channel has something to say and ``send`` while something is left to send.

    Both are called every second as well. ``others`` are further channels that this process cannot go on without.
    """

    def __init__(
        self, channel: Channel, others: Sequence[Channel], receive: Callable[[], None], send: Callable[[], None]
    ) -> None:
        self.runner = asyncio.Runner()
        self.loop: Any = self.runner.get_loop()
        self.channel = channel
        self.receive = receive
        self.send = send
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.context = (
            contextvars.copy_context()
        )  # no task's: a callback that is added in a task keeps that task's context
        wake = [getattr(self.loop, name, None) for name in ("_ssock", "_csock")]
        self.wake = wake[0]
        self.readers: list[asyncio.Handle] = []
        descriptors = [one.fileno() for one in (channel, *others, *wake) if one is not None]
        self.descriptors = {number: identity(number) for number in descriptors}
        fork_guard.keep_loop_from_copies(self.loop)

    def run(self) -> None:
        """Run until ``end``. Raises what ``end`` is given, and OSError or RuntimeError when the loop cannot go on."""
        self.context.run(self._watch)
        while not self.ended.done():
            try:
                self.loop.run_until_complete(self.ended)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if self.ended.done() or self.loop.is_closed():
                    raise
                logger.error("a task stopped the event loop with %r; running it again", error)
        self.ended.result()  # raises what ended it before the loop ran
        self.loop.remove_reader(self.channel.fileno())

    def close(self) -> None:
        """Cancel what tasks left behind on the loop, and close it."""
        self.runner.close()

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine in a context of its own; a task factory is user code's to set, and no concern of ours."""
        return asyncio.Task(coroutine, loop=self.loop, context=self.context.copy())

    def end(self, error: BaseException | None = None) -> None:
        """Let ``run`` return, or raise ``error``."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def mend(self) -> None:
        """Put readers back that a task took away; costs next to nothing where none is missing."""
        if any(handle.cancelled() for handle in self.readers):
            self.add_readers()

    def add_readers(self) -> None:
        """Have the loop read what it lives by, in a context that is no task's."""
        try:
            self.context.copy().run(self._add_readers)
        except (OSError, ValueError) as error:
            self.end(error)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call something at the next turn of the loop."""
        self.loop.call_soon(call, context=self.context)

    def _add_readers(self) -> None:
        number = self.channel.fileno()
        if self.wake is None:  # a loop that is not Python's own
            self.loop.add_reader(number, self.receive)
            return
        self.readers = [
            self.loop._add_reader(number, self.receive),
            self.loop._add_reader(self.wake.fileno(), self.loop._read_from_self),
        ]

    def _watch(self) -> None:
        self.loop.call_later(LOOK_SECONDS, self._watch)
        if any(identity(number) != known for number, known in self.descriptors.items()):
            self.end(OSError("a task closed a descriptor that this process lives by"))
            return
        self.add_readers()
        self.receive()
        self.send()
