"""What the backend uses of ``django.tasks``, or of its backport, which has the same under other paths and some other names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("horsies.task")


@dataclass(frozen=True, slots=True)
class Api:
    """The classes and the signals of one of both packages; ``refreshed`` are the fields that a refresh of a result reads."""

    package: str
    task: type[Any]
    error: type[Any]
    context: type[Any]
    status: Any
    refreshed: frozenset[str]
    task_enqueued: Signal
    task_started: Signal
    task_finished: Signal
    invalid_task: type[Exception]
    invalid_backend: type[Exception]
    does_not_exist: type[Exception]


def api_of(package: str) -> Api:
    """Return what ``package`` has: "django.tasks" or "django_tasks". Raises ImportError if it is not installed."""
    base, exceptions = import_module(f"{package}.base"), import_module(f"{package}.exceptions")
    signals = import_module(f"{package}.signals")
    return Api(
        package, base.Task, base.TaskError, base.TaskContext, base.TaskResultStatus, frozenset(base.TASK_REFRESH_ATTRS),
        signals.task_enqueued, signals.task_started, signals.task_finished,
        named(exceptions, "InvalidTask"), named(exceptions, "InvalidTaskBackend"), exceptions.TaskResultDoesNotExist,
    )  # fmt: skip


def named(exceptions: Any, name: str) -> type[Exception]:
    """Return an exception, whose name in the backport ends with "Error" until version 0.12."""
    found: type[Exception] = getattr(exceptions, name, None) or getattr(exceptions, f"{name}Error")
    return found


def tell(signal: Signal, sender: type[Any], result: Any) -> None:
    """Send a signal about a task; a receiver that raises is logged."""
    log_failures(signal.send_robust(sender, task_result=result), result)


async def atell(signal: Signal, sender: type[Any], result: Any) -> None:
    """Do the same from async code."""
    log_failures(await signal.asend_robust(sender, task_result=result), result)


def log_failures(responses: list[tuple[Callable[..., Any], Any]], result: Any) -> None:
    """Log the receivers that raised; Django has logged their tracebacks."""
    for receiver, response in responses:
        if isinstance(response, Exception):
            logger.error(
                "the signal receiver %s raised %s for %s %s (%s), which does not change the outcome of the task",
                getattr(receiver, "__qualname__", receiver), type(response).__name__, result.task.module_path, result.id,
                result.status,
            )  # fmt: skip
