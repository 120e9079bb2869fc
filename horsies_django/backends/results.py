"""Results, signals and errors for ``django.tasks`` and for its backport.

The backport has the same classes under other paths, and some under other names. A TaskResult is
made from the row of a task and its attempts. The TaskResult of a running task reads the row when a
field is used that needs it.

A return value is anything that ``normalize_json`` accepts and PostgreSQL can store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Self
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections

from horsies_django.backends.exceptions import CLASSES_BY_CODE
from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.plain import normalized
from horsies_django.core.results import TaskFailed
from horsies_django.core.retry import class_name
from horsies_django.core.status import Status
from horsies_django.store.tasks import StoredTask, TaskStore

logger = logging.getLogger("horsies.task")

# The status of django.tasks for each status of horsies_django; all others are FAILED.
DJANGO_STATUSES: Mapping[str, str] = {
    Status.PENDING: "READY",
    Status.CLAIMED: "READY",
    Status.RUNNING: "RUNNING",
    Status.COMPLETED: "SUCCESSFUL",
}
ENDED_BY_OTHERS = (Status.CANCELLED, Status.EXPIRED)
BACKEND = "backend"  # the key of the backend's alias in the options of a row
# The fields that a process that runs the task has only after it has read the row.
LAZY_FIELDS = (
    "enqueued_at",
    "started_at",
    "last_attempted_at",
    "finished_at",
    "errors",
    "worker_ids",
    BACKEND,
)


class Api:
    """The classes and the signals of one of the packages "django.tasks" and "django_tasks".

    ``refreshed`` are the fields that a refresh of a result reads. Raises ImportError if the package
    is not installed.
    """

    def __init__(self, package: str) -> None:
        base = import_module(f"{package}.base")
        exceptions = import_module(f"{package}.exceptions")

        self.package = package
        self.signals = import_module(f"{package}.signals")
        self.task = base.Task
        self.context = base.TaskContext
        self.error = base.TaskError
        self.status = base.TaskResultStatus
        self.refreshed = frozenset(base.TASK_REFRESH_ATTRS)
        self.invalid_task = backport_exception(exceptions, "InvalidTask")
        self.invalid_backend = backport_exception(exceptions, "InvalidTaskBackend")
        self.does_not_exist: type[Exception] = exceptions.TaskResultDoesNotExist


def backport_exception(exceptions: Any, name: str) -> type[Exception]:
    """Return an exception. Its name in the backport ends with "Error" before version 0.12."""
    found: type[Exception] = getattr(exceptions, name, None) or getattr(exceptions, f"{name}Error")
    return found


def send_task_signal(backend: Any, name: str, result: Any) -> None:
    """Send a signal about a task of a backend. Errors of receivers are logged."""
    log_failures(
        getattr(backend.api.signals, name).send_robust(type(backend), task_result=result), result
    )


async def asend_task_signal(backend: Any, name: str, result: Any) -> None:
    """Send a signal about a task of a backend, as ``send_task_signal`` does, from async code."""
    log_failures(
        await getattr(backend.api.signals, name).asend_robust(type(backend), task_result=result),
        result,
    )


def log_failures(responses: list[tuple[Callable[..., Any], Any]], result: Any) -> None:
    """Log the receivers that raised an error. Django has logged their tracebacks."""
    for receiver, response in responses:
        if isinstance(response, Exception):
            logger.error(
                "the signal receiver %s raised %s for %s %s (%s), which does not change the "
                "outcome of the task",
                getattr(receiver, "__qualname__", receiver),
                type(response).__name__,
                result.task.module_path,
                result.id,
                result.status,
            )


class ResultMixin:
    """The fields of a ``HorsiesTaskResult`` that are read when they are first used.

    It extends the class ``TaskResult`` of either package.
    """

    __slots__ = ()

    @classmethod
    def of_running(
        cls, task: Any, id_: str, attempt: int, worker: str, args: Sequence[Any], kwargs: Any
    ) -> Self:
        """Return the result of a task that is running in this process, without a query."""
        result = object.__new__(cls)
        values = {
            "task": task,
            "id": id_,
            "status": task.get_backend().api.status.RUNNING,
            "finished_at": None,
            "args": list(args),
            "kwargs": dict(kwargs),
            "_return_value": None,
        }

        if attempt == 1:
            values |= {"errors": [], "worker_ids": [worker]}
        if len(settings.TASKS) == 1:  # otherwise the row has the backend of the task
            values[BACKEND] = task.backend

        for name, value in values.items():
            object.__setattr__(result, name, value)

        return result

    def refresh(self) -> None:
        """Read the status, the times, the errors and the return value again.

        Raises TaskResultDoesNotExist if the task was deleted.
        """
        self._take(stored_task(UUID(self.id)))

    async def arefresh(self) -> None:
        """Read the fields again as ``refresh`` does, from async code."""
        self._take(await sync_to_async(stored_task)(UUID(self.id)))

    def _take(self, stored: StoredTask | None) -> None:
        api = self.task.get_backend().api
        if stored is None:
            raise api.does_not_exist(self.id)
        for name, value in fields_of(stored, api).items():
            if name in api.refreshed:
                object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Read the row of a running task for a field that has no value yet.

        Python calls this only for fields without a value.
        """
        if name not in LAZY_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        stored = stored_task(UUID(self.id))
        found: dict[str, Any] = dict.fromkeys(LAZY_FIELDS) | {
            "errors": [],
            "worker_ids": [],
            BACKEND: self.task.backend,
        }
        if stored is not None:  # it is None if the task was deleted
            found |= fields_of(stored, self.task.get_backend().api) | {"finished_at": stored.now}
            found[BACKEND] = alias_of(stored) or self.task.backend

        for lazy in LAZY_FIELDS:
            try:
                object.__getattribute__(self, lazy)
            except AttributeError:
                object.__setattr__(self, lazy, found[lazy])

        return object.__getattribute__(self, name)


def stored_task(task_id: UUID) -> StoredTask | None:
    return TaskStore(connections[config().database]).with_attempts(task_id)


def alias_of(stored: StoredTask) -> str | None:
    """Return the alias of the backend that a task was sent to.

    Returns None if a schedule or a workflow sent the task.
    """
    found = json_of(stored.options).get(BACKEND)
    return found if isinstance(found, str) else None


def fields_of(stored: StoredTask, api: Api) -> dict[str, Any]:
    """Return the fields of a TaskResult, except the task itself, its id and its backend."""
    call = json_of(stored.kwargs)
    attempts = stored.attempts
    args = call.get("args")
    kwargs = call.get("kwargs")
    starts: list[datetime] = [attempt.started_at for attempt in attempts]
    workers = [str(attempt.worker_id) for attempt in attempts]

    if stored.status == Status.RUNNING and stored.started_at is not None:
        starts.append(stored.started_at)
        workers.append(str(stored.claimed_by))

    return {
        "status": api.status(DJANGO_STATUSES.get(stored.status, "FAILED")),
        "enqueued_at": stored.sent_at,
        "started_at": starts[0] if starts else None,
        "last_attempted_at": starts[-1] if starts else None,
        "finished_at": stored.finished_at,
        "args": args if isinstance(args, list) else [],
        "kwargs": kwargs if isinstance(kwargs, dict) else {},
        "errors": [
            api.error(exception_class_path=path, traceback=trace)
            for path, trace in errors_of(stored)
        ],
        "worker_ids": workers,
        "_return_value": json_of(stored.result).get("ok"),
    }


def errors_of(stored: StoredTask) -> Iterator[tuple[str, str]]:
    """Yield a class path and a traceback for each attempt that failed.

    Yields one more pair if the task ended without an attempt of its own.
    """
    for attempt in stored.attempts:
        if attempt.error_code is None:
            continue

        if attempt.exception_class is not None and attempt.traceback is not None:
            yield attempt.exception_class, attempt.traceback
        else:
            yield class_path_and_traceback(attempt.error_code, attempt.error_message)

    last = stored.attempts[-1].outcome if stored.attempts else None
    if stored.error_code is not None and (
        last is None or (stored.status in ENDED_BY_OTHERS and last != "CANCELLED")
    ):
        error = json_of(stored.result).get("err")
        yield class_path_and_traceback(
            stored.error_code, error.get("message") if isinstance(error, dict) else None
        )


def class_path_and_traceback(code: str, message: object) -> tuple[str, str]:
    """Return the class path for an error code, and the last line of a traceback."""
    kind = CLASSES_BY_CODE.get(code, TaskFailed)
    if kind is not TaskFailed:
        text = message
    elif message:
        text = f"{code}: {message}"
    else:
        text = code

    return class_name(kind), f"{kind.__qualname__}: {text}\n" if text else f"{kind.__qualname__}\n"


def json_of(text: str | None) -> dict[str, Any]:
    """Return a stored JSON object.

    The object is empty if the text is something else or cannot be parsed.
    """
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def strict(value: Any) -> Any:
    """Return the return value of a task as JSON data.

    Raises TypeError if a type is not supported, and ValueError if a value is not.
    """
    try:
        return normalized(value)
    except CodecError as error:
        error.subject = "return value"
        if error.kind == "type":
            raise TypeError(f"Unsupported type: {error}") from None
        raise ValueError(str(error)) from None
