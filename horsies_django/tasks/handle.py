"""Handles, which return the results and the states of tasks that were sent."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import queue
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections

from horsies_django.conf import config
from horsies_django.core.codec import ResultCodec
from horsies_django.core.errors import OperationalErrorCode, RetrievalCode, TaskNotCommitted
from horsies_django.core.records import TaskAttemptInfo, TaskInfo
from horsies_django.core.results import TaskError, TaskResult
from horsies_django.core.status import FINAL_STATUSES
from horsies_django.store.tasks import Found, TaskStore
from horsies_django.tasks.operations import cancel, retry
from horsies_django.tasks.result_listener import Update, get_listener

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

# The pauses between polls in seconds, if the listening connection is lost. The last one repeats.
POLL_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


def async_form(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the async form of a method.

    The name of the async form is the name of the method with an "a" before it.
    """

    @wraps(method)
    async def asynchronous(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Looked up by name, because a subclass may override the method.
        bound: Callable[P, T] = getattr(self, method.__name__)
        return await sync_to_async(bound)(*args, **kwargs)

    asynchronous.__name__ = f"a{method.__name__}"
    asynchronous.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asynchronous.__name__}"
    asynchronous.__doc__ = f"Do what ``{method.__name__}`` does, from async code."

    return asynchronous


class TaskHandle(Generic[T]):
    """A task that was sent.

    ``task_id`` is the UUID of the task. ``is_new`` is False if nothing was sent, because an earlier
    send had the same key or, for a unique task, sent the same work. A final result is cached, so
    later calls return it without a query. Raises ValueError if the id is not a UUID.
    """

    noun = "task"  # the name of the thing in messages
    is_new = True

    def __init__(self, task_id: uuid.UUID | str, codec: ResultCodec | None = None) -> None:
        self.task_id = id_of(task_id, "task")
        self._codec = codec
        self._final: TaskResult[T] | None = None

    def get(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait for the result and return it.

        If the task failed, nothing is raised, and the error is in the result. ``timeout_ms`` is a
        number of milliseconds or a timedelta. With 0, the task is read once without waiting. With
        None, the wait has no limit. The result has the error WAIT_TIMEOUT if the task has not
        finished in time, and TASK_NOT_FOUND if there is no such task. Neither is cached.

        Raises TaskNotCommitted if the task was sent in a transaction that is still open on this
        connection. Raises RuntimeError in a running event loop, where aget() must be used.
        """
        refuse_loop("get")
        deadline = deadline_of(timeout_ms)
        if self._final is not None:
            return self._final

        found = find_task(self.task_id)
        if (found is not None and found.status in FINAL_STATUSES) or deadline == 0.0:
            return self._result_of(found)

        updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        with get_listener().expecting(self.task_id, updates.put):
            while True:
                try:
                    item = updates.get(timeout=remaining(deadline))
                except queue.Empty:
                    return self._timed_out()

                if isinstance(item, Exception):
                    break
                if item is None:
                    return self._result_of(self._visible_here_only())
                if item.status in FINAL_STATUSES:
                    return self._result_of(item)

        for seconds in poll_intervals(deadline):
            time.sleep(seconds)
            if (result := self._poll()) is not None:
                return result

        return self._timed_out()

    async def aget(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait for the result without blocking the event loop, and return it.

        See ``get`` for the timeout, the errors and the exceptions.
        """
        deadline = deadline_of(timeout_ms)
        if self._final is not None:
            return self._final

        found = await sync_to_async(find_task)(self.task_id)
        if (found is not None and found.status in FINAL_STATUSES) or deadline == 0.0:
            return self._result_of(found)

        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update] = asyncio.Queue()

        def deliver(item: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, item)

        with get_listener().expecting(self.task_id, deliver):
            while True:
                try:
                    item = await asyncio.wait_for(updates.get(), remaining(deadline))
                except TimeoutError:
                    return self._timed_out()

                if isinstance(item, Exception):
                    break
                if item is None:
                    return self._result_of(await sync_to_async(self._visible_here_only)())
                if item.status in FINAL_STATUSES:
                    return self._result_of(item)

        for seconds in poll_intervals(deadline):
            await asyncio.sleep(seconds)
            if (result := await sync_to_async(self._poll)()) is not None:
                return result

        return self._timed_out()

    def cancel(self, *, terminate: bool = False) -> str:
        """Cancel the task, and return the verdict.

        The cancellation is part of the open transaction, if there is one. Returns "CANCELLED" if
        the task had not started. It will never start. Returns "REQUESTED" if the task is running
        and was requested to stop. With ``terminate``, its process is killed if the task is still
        running after KILL_GRACE_MS. Returns "FINISHED" if the task had already finished. Raises
        LookupError if there is no such task.
        """
        verdict = cancel([self.task_id], terminate=terminate).get(self.task_id)
        if verdict is None:
            raise LookupError(
                f"there is no task {self.task_id}: it was deleted, rolled back, or never sent"
            )
        return verdict

    acancel = async_form(cancel)

    def retry(self) -> None:
        """Run the task again if it failed, expired or was cancelled.

        The change is part of the open transaction, if there is one. The task keeps its id and its
        attempts, it is due now, and its retry policy begins anew. If the task waits for a retry,
        the retry is due now. Raises LookupError if there is no such task.

        Raises TaskNotRetryable if the task completed, has not finished, was redacted or merged into
        another task, or belongs to a workflow run. It is also raised if the task is unique and
        another task is the same work, and if another transaction locks the task for too long.
        """
        retry(self.task_id)
        self._final = None

    aretry = async_form(retry)

    def info(self) -> TaskInfo | None:
        """Return the row of the task and its attempts as plain values.

        Return None if there is no such task.
        """
        from horsies_django.models import Task, TaskAttempt

        alias = config().database
        task = Task.objects.using(alias).filter(pk=self.task_id).first()
        if task is None:
            return None

        rows = (
            TaskAttempt.objects.using(alias)
            .filter(task_id=self.task_id)
            .order_by("attempt", "claim_generation")
        )
        attempts = tuple(
            TaskAttemptInfo(*row) for row in rows.values_list(*TaskAttemptInfo._fields)
        )

        others: dict[str, Any] = {
            "task_id": task.id,
            "worker_id": task.claimed_by,
            "attempts": attempts,
        }

        return TaskInfo(
            **{name: getattr(task, name) for name in TaskInfo._fields if name not in others},
            **others,
        )

    ainfo = async_form(info)

    def _poll(self) -> TaskResult[T] | None:
        """Return the result, or None if there is none yet.

        If the connection is lost, it is closed, so that the next poll opens another one. So the
        wait continues during an outage.
        """
        connection = connections[config().database]
        try:
            found = find_task(self.task_id)
        except (OperationalError, InterfaceError):
            if connection.in_atomic_block:
                raise  # the caller's transaction is lost
            connection.close()
            return None

        return self._result_of(found) if found is None or found.status in FINAL_STATUSES else None

    def _visible_here_only(self) -> Found | None:
        """Return the task, which the listening connection cannot see, or None if it does not exist.

        Raises TaskNotCommitted if the connection of the caller can see the task and it has not
        finished.
        """
        found = find_task(self.task_id)
        if found is not None and found.status not in FINAL_STATUSES:
            raise TaskNotCommitted(
                f"{self.noun} {self.task_id} was sent in the transaction that is still open here: "
                "no worker can see it before "
                "the commit, so its result cannot arrive. Wait after the transaction.atomic() "
                "block; in a TestCase run the task "
                "with horsies_django.testing.drain() first"
            )
        return found

    def _timed_out(self) -> TaskResult[T]:
        message = (
            f"{self.noun} {self.task_id} has not finished within the timeout; it may finish later"
        )
        return TaskResult(err=TaskError.built_in(RetrievalCode.WAIT_TIMEOUT, message))

    def _result_of(self, found: Found | None) -> TaskResult[T]:
        if found is None:
            message = (
                f"there is no {self.noun} {self.task_id}: it was deleted, rolled back, or "
                "never sent"
            )
            return TaskResult(err=TaskError.built_in(RetrievalCode.TASK_NOT_FOUND, message))

        if found.status not in FINAL_STATUSES:
            return self._timed_out()

        self._final = decode(self._codec, found.result)
        return self._final

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and self.task_id == other.task_id

    def __hash__(self) -> int:
        return hash(self.task_id)

    def __repr__(self) -> str:
        return f"<TaskHandle {self.task_id}>"


def id_of(given: uuid.UUID | str, noun: str) -> uuid.UUID:
    """Return an id as a UUID. Raises ValueError if it is not a UUID."""
    try:
        return given if isinstance(given, uuid.UUID) else uuid.UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(
            f"{str(given)[:100]!r} is not a {noun} id: pass the UUID in handle.{noun}_id"
        ) from None


def get_handle(task_id: uuid.UUID | str) -> TaskHandle[Any]:
    """Return a handle of a task whose ok value is plain JSON, because its type is unknown.

    Raises ValueError if the id is not a UUID.
    """
    return TaskHandle(task_id)


def cancel_many(
    task_ids: Iterable[uuid.UUID | str], *, terminate: bool = False
) -> dict[uuid.UUID, str]:
    """Cancel tasks with one statement, and return the verdicts by id.

    For the verdicts, see ``TaskHandle.cancel``. Ids of tasks that do not exist are not in the dict.
    The cancellation is part of the open transaction, if there is one. Raises ValueError if an id is
    not a UUID.
    """
    return cancel([id_of(each, "task") for each in task_ids], terminate=terminate)


def decode(codec: ResultCodec | None, text: str | None) -> TaskResult[Any]:
    """Return the result that is stored in an envelope.

    The result has the error RESULT_DESERIALIZATION_ERROR if the envelope cannot be decoded.
    """
    try:
        envelope = json.loads(text or "null")
        if envelope.get("kept") is False:
            return TaskResult(ok=None)

        if codec is None:
            return (
                TaskResult(ok=envelope["ok"])
                if "ok" in envelope
                else ResultCodec.decode_error(envelope)
            )
        return codec.decode(envelope)
    except Exception as error:
        message = f"the stored result does not fit the current annotation of the task: {error}"
        return TaskResult(
            err=TaskError.built_in(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, message)
        )


def find_task(task_id: uuid.UUID) -> Found | None:
    """Return the task as the caller's connection sees it, or None if there is no such task."""
    return TaskStore(connections[config().database]).find([task_id]).get(task_id)


def deadline_of(timeout_ms: int | dt.timedelta | None) -> float | None:
    """Return the end of a wait, in seconds of the monotonic clock.

    Return None for a wait without a limit, and 0.0 if there is no wait. Raises TypeError if the
    timeout is not a number, a timedelta or None, and ValueError if it is negative or too long.
    """
    if timeout_ms is None:
        return None
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float | dt.timedelta):
        raise TypeError(
            f"timeout_ms takes milliseconds, a timedelta or None, not {type(timeout_ms).__name__}"
        )

    seconds = (
        timeout_ms.total_seconds() if isinstance(timeout_ms, dt.timedelta) else timeout_ms / 1000
    )
    if not 0 <= seconds < 1e9:
        raise ValueError(
            f"timeout_ms={timeout_ms!r} is not a valid timeout: pass 0 or more, or None to wait "
            "without limit"
        )

    return time.monotonic() + seconds if seconds else 0.0


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until the deadline, or None if there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def poll_intervals(deadline: float | None) -> Iterator[float]:
    """Yield the seconds to sleep before each poll, until the deadline has passed."""
    step = 0
    while deadline is None or time.monotonic() < deadline:
        seconds = POLL_SECONDS[min(step, len(POLL_SECONDS) - 1)]
        left = remaining(deadline)
        yield seconds if left is None else min(seconds, left)
        step += 1


def refuse_loop(verb: str) -> None:
    """Raise RuntimeError in a running event loop, which a sync method would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"handle.{verb}() was called on a running event loop: use 'await handle.a{verb}()'"
    )
