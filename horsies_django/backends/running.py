"""Runs a task of ``django.tasks`` in a worker: gives it its context, sends Django's signals, and makes its result JSON.

The function in the definition of such a task is a wrapper that does this. So an exception of a signal's receiver never becomes
one of the task, and ``task_finished`` is sent while the exception of the task is handled, so that its traceback can be reported.
"""

from __future__ import annotations

import functools
import inspect
import logging
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async

from horsies_django.backends.api import atell, tell
from horsies_django.backends.options import retries_of
from horsies_django.backends.results import strict
from horsies_django.backends.retries import Retries
from horsies_django.core.errors import OutcomeCode, Skip, TaskCancelled, TaskTimeout
from horsies_django.core.retry import Retry, Snooze, class_name
from horsies_django.tasks.context import CurrentTask, running

logger = logging.getLogger("horsies.task")


# What backoff functions said, until the process asks for it: (task id, attempt) -> seconds or True
_answers: dict[tuple[Any, int], float | bool] = {}


def wrapped(task: Any) -> Callable[..., Any]:
    """Return the function that workers call for a task."""
    return async_wrapper(task) if inspect.iscoroutinefunction(task.func) else sync_wrapper(task)


def sync_wrapper(task: Any) -> Callable[..., Any]:
    @functools.wraps(task.func)
    def call(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        attempt.tell("task_started")
        try:
            value = strict(task.func(*attempt.context, *args, **kwargs))
        except KeyboardInterrupt:  # the process was interrupted, which says nothing about the task
            raise
        except BaseException as error:
            attempt.failed(error, described(error))
            raise
        attempt.succeeded(value)
        attempt.tell("task_finished")
        return value

    return call


def async_wrapper(task: Any) -> Callable[..., Any]:
    @functools.wraps(task.func)
    async def call(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        if task.takes_context:  # its code could not read the row
            await sync_to_async(attempt.read)()
        await attempt.atell("task_started")
        try:
            value = strict(await task.func(*attempt.context, *args, **kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            trace = error.__traceback__
            await sync_to_async(attempt.failed)(error, described(error))  # asgiref raises it once more in its thread
            BaseException.with_traceback(error, trace)
            raise
        attempt.succeeded(value)
        await attempt.atell("task_finished")
        return value

    return call


class Attempt:
    """An attempt of a task in this process; ``result`` is what receivers of signals and the task itself get."""

    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self.backend = task.get_backend()
        self.current = running.get() or CurrentTask()
        worker = self.current.worker_id
        self.result = self.backend.result_class.of_running(
            task, str(self.current.task_id), self.current.attempt, worker, args, kwargs
        )

    @property
    def context(self) -> tuple[Any, ...]:
        """The first argument of a task that takes its context."""
        return (self.backend.api.context(task_result=self.result),) if self.task.takes_context else ()

    def read(self) -> None:
        """Read what only the row of the task tells."""
        _ = self.result.enqueued_at

    def tell(self, name: str) -> None:
        tell(getattr(self.backend.api, name), type(self.backend), self.result)

    async def atell(self, name: str) -> None:
        """Send a signal from async code."""
        await atell(getattr(self.backend.api, name), type(self.backend), self.result)

    def succeeded(self, value: Any) -> None:
        self._end(self.backend.api.status.SUCCESSFUL, value)

    def failed(self, error: BaseException, trace: str) -> None:
        """Add the error to the result; tell the end of the task if this was its last attempt. Called while it is handled."""
        if isinstance(error, Snooze):
            return  # no attempt was used
        try:
            self.result.errors.append(self.backend.api.error(exception_class_path=path_of(error), traceback=trace))
            final = not self._is_retried(error)
        except Exception:  # the errors of earlier attempts cannot be read
            logger.warning("%s: its earlier attempts cannot be read", self.current, exc_info=True)
            final = self.current.attempt >= retries_of(self.task).max_attempts
        if final:
            self._end(self.backend.api.status.FAILED, None)
            self.tell("task_finished")

    def _end(self, status: Any, value: Any) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "_return_value", value)
        object.__delattr__(self.result, "finished_at")  # the database's clock, if anybody wants to know

    def _is_retried(self, error: BaseException) -> bool:
        """Whether another attempt follows, as the statement that settles this one decides it."""
        retries = retries_of(self.task)
        if self.current.attempt >= retries.max_attempts or self.current.cancel_requested:
            return False
        if isinstance(error, Skip | TaskCancelled):
            return False
        if isinstance(error, Retry):
            return True
        if isinstance(error, TaskTimeout) or (isinstance(error, CancelledError) and error.args[:1] == ("timeout",)):
            return OutcomeCode.TASK_TIMEOUT in retries.retry_on
        if not retries.includes(error):
            return False
        return not retries.asks or self._ask(retries, error)

    def _ask(self, retries: Retries, error: BaseException) -> bool:
        answer = retries.ask(error, self.result)
        if answer is not None:
            _answers[self.current.task_id, self.current.attempt] = answer
        return answer is not None


def described(error: BaseException) -> str:
    """Return the traceback of an exception as text; its methods are user code."""
    try:
        return "".join(format_exception(error))
    except Exception as broken:
        return f"{path_of(error)}, whose traceback cannot be formatted: {path_of(broken)}\n"


def path_of(error: BaseException) -> str:
    return class_name(type(error))


def decide(error: BaseException, attempt: int) -> float | bool | None:
    """Return whether the process that ran a task wants another attempt: after how many seconds, or True. ``decide`` of tasks."""
    if isinstance(error, KeyboardInterrupt):
        return 10.0  # before a task whose process was interrupted runs again
    current = running.get()
    return None if current is None else _answers.pop((current.task_id, attempt), None)
