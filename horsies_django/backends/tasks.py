"""Tasks of ``django.tasks`` in a worker: their definitions, and the attempts to run them.

A definition is registered by the dotted path of the function. Its function is a wrapper, which
gives the task its context, sends Django's signals, and converts the return value to JSON. An
exception in the receiver of a signal therefore never becomes an exception of the task. The signal
``task_finished`` is sent while the exception of the task is handled, so that its traceback can be
reported.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async

from horsies_django.backends.options import BackoffSetting, hashable, retries_of, timeout_of
from horsies_django.backends.results import asend_task_signal, send_task_signal, strict
from horsies_django.core.errors import (
    OperationalErrorCode,
    OutcomeCode,
    Skip,
    TaskCancelled,
    TaskDefinitionError,
    TaskTimeout,
)
from horsies_django.core.queues import stored_priority
from horsies_django.core.retry import FailureKind, Retry, Snooze, class_name
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask, running_task
from horsies_django.tasks.definition import TaskDefinition, define_plain
from horsies_django.tasks.options import SendOptions

logger = logging.getLogger("horsies.task")

# An interruption of the process is no failure of the task: the attempt ends as if it had crashed.
INTERRUPTED: Mapping[type[BaseException], str] = {
    KeyboardInterrupt: OperationalErrorCode.WORKER_CRASHED.value
}

declared: dict[str, Any] = {}  # dotted path -> the Task that was declared first
# Return values of backoff functions, until ``decide_retry`` takes them:
# (task id, attempt) -> seconds or True
_retry_decisions: dict[tuple[Any, int], float | bool] = {}


@dataclass(frozen=True, kw_only=True)
class TaskMixin:
    """The options that ``HorsiesTask`` adds to the class ``Task`` of either package.

    An option that is None has its value in the OPTIONS of the backend.
    """

    __slots__ = ()

    max_attempts: int | None = None
    backoff: BackoffSetting | None = None
    retry_on: FailureKind | Iterable[FailureKind] | None = None
    timeout_ms: int | dt.timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("backoff", "retry_on"):
            object.__setattr__(self, name, hashable(getattr(self, name)))
        super().__post_init__()  # type: ignore[misc]
        # Only a HorsiesBackend has these options.
        if hasattr(self.get_backend(), "horsies_options"):  # type: ignore[attr-defined]
            register_definition(self)

    @property
    def definition(self) -> TaskDefinition:
        """The definition for workers, which workflows also use."""
        return register_definition(self)

    @property
    def send_options(self) -> SendOptions:
        """The options of this Task object, for workflows."""
        options = sending_options(self)
        return SendOptions(**options, delay=self.run_after)  # type: ignore[attr-defined]


def register_definition(task: Any) -> TaskDefinition:
    """Register the definition of a task for the workers of this process, and return it.

    A definition that its function has already is returned. Raises InvalidTask if the function
    cannot be a task, or if another function has its dotted path.
    """
    name = task.module_path
    known = registry.find(name)

    if known is not None:
        function = getattr(known.function, "__wrapped__", known.function)
        if known.codec is not None and function is task.func:
            return known

        # A function that was defined again, as by a reload of its module, is in the same file.
        if known.codec is None or function.__code__.co_filename != task.func.__code__.co_filename:
            raise task.get_backend().api.invalid_task(
                f"Two functions are tasks named {name}: one in {place(function)} and one in "
                f"{place(task.func)}. "
                "Workers find a task by its name. Give one of the functions another name."
            )

    try:
        definition = define_backend_task(task)
    except TaskDefinitionError as error:
        raise task.get_backend().api.invalid_task(str(error)) from error

    registry.register(definition)
    declared[name] = task
    return definition


def define_backend_task(task: Any) -> TaskDefinition:
    """Return the definition of a task with its own options and those of its backend.

    Raises TaskDefinitionError if the function cannot be a task or an option is invalid.
    """
    if inspect.isgeneratorfunction(task.func) or inspect.isasyncgenfunction(task.func):
        raise TaskDefinitionError(
            f"{task.module_path} is a generator: a task returns one value, so it cannot yield"
        )
    definition = define_plain(
        wrapped(task),
        takes_context=task.takes_context,
        decide=decide_retry,
        **sending_options(task),
    )
    return dataclasses.replace(definition, exception_mapper=INTERRUPTED)


def sending_options(task: Any) -> dict[str, Any]:
    return {
        "queue": task.queue_name,
        "priority": stored_priority(int(task.priority)),
        "retry_policy": retries_of(task).policy(),
        "timeout_ms": timeout_of(task),
    }


def place(function: Any) -> str:
    return f"{function.__code__.co_filename}, line {function.__code__.co_firstlineno}"


def rebuilt(task: Any, **changes: Any) -> Any:
    """Return a copy of a task with other values.

    The values are not validated, because the settings may have changed since the task was sent.
    """
    copy = object.__new__(type(task))
    for field in dataclasses.fields(task):
        value = changes[field.name] if field.name in changes else getattr(task, field.name)
        object.__setattr__(copy, field.name, value)
    return copy


def find_or_placeholder(name: str, task_class: Any) -> Any:
    """Return the task with this dotted path, or a placeholder if there is none any more.

    A call of the placeholder raises LookupError.
    """
    if registry.find_or_import(name) is not None and name in declared:
        return declared[name]

    placeholder = object.__new__(task_class)
    values: dict[str, Any] = {
        "func": missing_function(name),
        "backend": "default",
        "takes_context": False,
    }
    for field in dataclasses.fields(task_class):
        object.__setattr__(placeholder, field.name, values.get(field.name))
    return placeholder


def missing_function(name: str) -> Any:
    """Return a function that stands for one that does not exist, and raises LookupError."""

    def missing(*args: Any, **kwargs: Any) -> None:
        raise LookupError(
            f"there is no task {name!r}: its function was renamed or removed, or its module is not "
            "imported"
        )

    missing.__module__, _, missing.__qualname__ = name.rpartition(".")
    missing.__name__ = missing.__qualname__
    return missing


def wrapped(task: Any) -> Callable[..., Any]:
    """Return the function that workers call for a task."""
    return async_wrapper(task) if inspect.iscoroutinefunction(task.func) else sync_wrapper(task)


def sync_wrapper(task: Any) -> Callable[..., Any]:
    @functools.wraps(task.func)
    def call(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        send_task_signal(attempt.backend, "task_started", attempt.result)

        try:
            value = strict(task.func(*attempt.context, *args, **kwargs))
        except KeyboardInterrupt:  # the process was interrupted, which is no failure of the task
            raise
        except BaseException as error:
            attempt.failed(error, formatted_traceback(error))
            raise

        attempt.end("SUCCESSFUL", value)
        send_task_signal(attempt.backend, "task_finished", attempt.result)
        return value

    return call


def async_wrapper(task: Any) -> Callable[..., Any]:
    @functools.wraps(task.func)
    async def call(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        if task.takes_context:  # async code of the task could not read the row
            await sync_to_async(getattr)(attempt.result, "enqueued_at")  # reads the row
        await asend_task_signal(attempt.backend, "task_started", attempt.result)

        try:
            value = strict(await task.func(*attempt.context, *args, **kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            trace = error.__traceback__
            # asgiref raises the error again in its thread, which changes its traceback.
            await sync_to_async(attempt.failed)(error, formatted_traceback(error))
            BaseException.with_traceback(error, trace)
            raise

        attempt.end("SUCCESSFUL", value)
        await asend_task_signal(attempt.backend, "task_finished", attempt.result)
        return value

    return call


class Attempt:
    """An attempt of a task in this process.

    ``result`` is the TaskResult that receivers of signals and the task itself get.
    """

    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self.backend = task.get_backend()
        self.current = running_task.get() or CurrentTask()
        worker = self.current.worker_id
        self.result = self.backend.result_class.of_running(
            task, str(self.current.task_id), self.current.attempt, worker, args, kwargs
        )

    @property
    def context(self) -> tuple[Any, ...]:
        """The leading arguments of a task: its context, or nothing if it does not take it."""
        return (
            (self.backend.api.context(task_result=self.result),) if self.task.takes_context else ()
        )

    def failed(self, error: BaseException, trace: str) -> None:
        """Add the error to the result, and send ``task_finished`` if this was the last attempt.

        It must be called while the error is handled.
        """
        if isinstance(error, Snooze):
            return  # no attempt was used

        try:
            self.result.errors.append(
                self.backend.api.error(exception_class_path=path_of(error), traceback=trace)
            )
            final = not self._is_retried(error)
        except Exception:  # the errors of earlier attempts cannot be read
            logger.warning("the earlier attempts of %s cannot be read", self.current, exc_info=True)
            final = self.current.attempt >= retries_of(self.task).max_attempts

        if final:
            self.end("FAILED", None)
            send_task_signal(self.backend, "task_finished", self.result)

    def end(self, status: str, value: Any) -> None:
        object.__setattr__(self.result, "status", self.backend.api.status[status])
        object.__setattr__(self.result, "_return_value", value)
        # A later access reads it from the row, by the database's clock.
        object.__delattr__(self.result, "finished_at")

    def _is_retried(self, error: BaseException) -> bool:
        """Return whether another attempt follows.

        The statement that settles this attempt has the same rules.
        """
        retries = retries_of(self.task)
        if self.current.attempt >= retries.max_attempts or self.current.cancel_requested:
            return False

        if isinstance(error, Skip):
            return False
        if isinstance(error, Retry):
            return True
        if isinstance(error, TaskTimeout) or self.current.interrupted == "timeout":
            return OutcomeCode.TASK_TIMEOUT in retries.retry_on
        if isinstance(error, TaskCancelled):
            return False

        if not retries.includes(error):
            return False
        if not retries.has_backoff_function:
            return True

        if (decision := retries.call_backoff(error, self.result)) is not None:
            _retry_decisions[self.current.task_id, self.current.attempt] = decision
        return decision is not None


def formatted_traceback(error: BaseException) -> str:
    """Return the traceback of an exception as text. The methods of an exception are user code."""
    try:
        return "".join(format_exception(error))
    except Exception as broken:
        return f"{path_of(error)}, whose traceback cannot be formatted: {path_of(broken)}\n"


def path_of(error: BaseException) -> str:
    return class_name(type(error))


def decide_retry(error: BaseException, attempt: int) -> float | bool | None:
    """Return the seconds until another attempt, True for the usual delay, or None.

    None means that the retry policy in the row decides. This is the ``decide`` of a TaskDefinition.
    """
    if isinstance(error, KeyboardInterrupt):
        return 10.0  # seconds until a task runs again whose process was interrupted
    current = running_task.get()
    return None if current is None else _retry_decisions.pop((current.task_id, attempt), None)
