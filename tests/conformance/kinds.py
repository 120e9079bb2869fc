"""The backends of the suites: tasks stay in the queue, run at once, or run in a real worker."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from conformance import relay
from conformance.settings import KIND

from horsies_django.testing import drain
from tests.support.deadlines import wait_until

Queued: Any = import_module(f"horsies_django.backends.{KIND}").HorsiesBackend


class Inline(Queued):
    """Runs a task as soon as it is sent, by the statements and the code of a worker."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send the task, run it and return its result."""
        return self.settled(super().enqueue(task, args, kwargs))

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Return the same from async code."""
        result = await super().aenqueue(task, args, kwargs)
        return await sync_to_async(self.settled, thread_sensitive=True)(result)

    def settled(self, result: Any) -> Any:
        """Run the task and return its result."""
        self.run(result)
        result.refresh()
        if not result.is_finished and result.errors[-1].exception_class is KeyboardInterrupt:
            # the task was given back because its process was interrupted
            raise KeyboardInterrupt
        return result

    def run(self, result: Any) -> None:
        """Run the due tasks."""
        drain(raise_errors=False)


class Served(Inline):
    """Waits until a worker has run the task, and until its log lines have arrived."""

    def run(self, result: Any) -> None:
        """Wait until the task has ended an attempt."""
        wait_until(lambda: self.ended(result), f"{result.id} ran")
        if result.is_finished:
            wait_until(lambda: relay.has_ended(result.id), f"the log of {result.id} is here")
        relay.flush(result.id)

    def ended(self, result: Any) -> bool:
        """Whether an attempt of the task has ended."""
        result.refresh()
        return bool(result.is_finished or result.errors)
