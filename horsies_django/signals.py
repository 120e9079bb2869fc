"""Django signals about tasks and about the processes that run them.

``docs/howto/hooks.md`` describes in which process and when the receivers run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

__all__ = [
    "child_started",
    "child_stopping",
    "order_stopped",
    "task_failed",
    "task_finished",
    "task_rescued",
    "task_retried",
    "task_sent",
    "task_started",
    "worker_stopping",
]

logger = logging.getLogger("horsies.signals")


class HorsiesSignal(Signal):
    """A signal with a name.

    A task can be passed as ``sender``. The receivers get its TaskDefinition.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: object | None = None,
        weak: bool = True,
        dispatch_uid: Any | None = None,
    ) -> None:
        """Connect a receiver. The arguments are those of Django's ``Signal.connect``."""
        super().connect(receiver, getattr(sender, "definition", sender), weak, dispatch_uid)

    def disconnect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: object | None = None,
        dispatch_uid: Any | None = None,
    ) -> bool:
        """Disconnect a receiver, and return whether it was connected."""
        return super().disconnect(receiver, getattr(sender, "definition", sender), dispatch_uid)

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        """Log an exception of a receiver for ``send_robust``.

        Django's own method raises an error if the receiver has no ``__qualname__``.
        """
        name = getattr(receiver, "__qualname__", type(receiver).__qualname__)
        name = f"{receiver.__module__}.{name}"
        logger.error("the receiver %s of %s raised %r", name, self.name, err, exc_info=err)

    def __repr__(self) -> str:
        return f"<signal {self.name}>"


task_sent = HorsiesSignal("task_sent")
task_started = HorsiesSignal("task_started")
task_retried = HorsiesSignal("task_retried")
task_finished = HorsiesSignal("task_finished")
task_failed = HorsiesSignal("task_failed")
task_rescued = HorsiesSignal("task_rescued")
order_stopped = HorsiesSignal("order_stopped")
child_started = HorsiesSignal("child_started")
child_stopping = HorsiesSignal("child_stopping")
worker_stopping = HorsiesSignal("worker_stopping")

# The dotted paths of middleware that integrations add. It runs inside HORSIES["MIDDLEWARE"].
added_middleware: list[str] = []
