"""The event loop of a lane, which keeps running even if user code interferes with it.

All async tasks of a process share one loop. What a task may do to it, and what follows:

- It cancels all tasks (``asyncio.all_tasks()``). The lane itself is not a task: callbacks receive jobs and send replies, and a
  private future ends it. Tasks that were cancelled before they began are started again (``executor.AsyncLane``).
- It removes readers or writers of the lane's socket. They are restored every second, even while that task is still running,
  and the child is replaced: other readers, which nobody can restore, may be missing, too.
- It stops the loop, or breaks it by ``SystemExit`` or ``KeyboardInterrupt``. The loop is run again.
- It closes a descriptor that the process requires, or the loop while it is stopped. That cannot be repaired: the lane ends with
  an error, and the child is replaced. A worker without children ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from horsies_django.worker.child import fork_guard
from horsies_django.worker.ipc.channel import Channel

logger = logging.getLogger("horsies.worker")

LOOK_SECONDS = 1.0


class LaneLoop:
    """A loop that calls ``receive`` when the channel has messages, and both ``receive`` and ``send`` every second.

    ``others`` are further channels that this process requires. ``altered`` is called when a task has removed the reader.
    """

    def __init__(
        self,
        channel: Channel,
        others: Sequence[Channel],
        receive: Callable[[], None],
        send: Callable[[], None],
        altered: Callable[[], None],
    ) -> None:
        self.runner = asyncio.Runner()
        self.loop: Any = self.runner.get_loop()
        self.channel = channel
        self.receive = receive
        self.send = send
        self.altered = altered
        self.ended: asyncio.Future[None] = self.loop.create_future()
        # Callbacks added by a task would otherwise run in the context of that task.
        self.context = contextvars.copy_context()
        self.descriptors = {one.fileno(): identity(one.fileno()) for one in (channel, *others)}
        fork_guard.keep_loop_from_copies(self.loop)

    def run(self) -> None:
        """Run until ``end``. Raises the error passed to ``end``, and OSError or RuntimeError if the loop cannot continue."""
        self.context.run(self.loop.add_reader, self.channel.fileno(), self.receive)
        self.context.run(self._watch)
        while not self.ended.done():
            try:
                self.loop.run_until_complete(self.ended)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if self.ended.done() or self.loop.is_closed():
                    raise
                logger.error("a task stopped the event loop with %r; running it again", error)
        self.ended.result()  # raises an error passed to end() before the loop ran
        self.loop.remove_reader(self.channel.fileno())

    def close(self) -> None:
        """Cancel the remaining tasks of the loop, and close it."""
        self.runner.close()

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine in a context of its own, without the task factory that user code may have set."""
        return asyncio.Task(coroutine, loop=self.loop, context=self.context.copy())

    def end(self, error: BaseException | None = None) -> None:
        """Make ``run`` return, or raise ``error``."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call something in the next iteration of the loop."""
        self.loop.call_soon(call, context=self.context)

    def _watch(self) -> None:
        self.loop.call_later(LOOK_SECONDS, self._watch)
        if any(identity(number) != known for number, known in self.descriptors.items()):
            self.end(OSError("a task closed a file descriptor that this process requires"))
            return
        try:
            if not self.loop.remove_reader(self.channel.fileno()):
                self.altered()
            self.loop.add_reader(self.channel.fileno(), self.receive)
        except (OSError, ValueError) as error:
            self.end(error)
            return
        self.receive()
        self.send()


def identity(number: int) -> tuple[int, int] | None:
    """Return device and inode of a descriptor, None if it is closed."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
