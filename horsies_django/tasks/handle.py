"""Handles: results and states of tasks that were sent."""

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
from horsies_django.core.status import FINAL
from horsies_django.store.tasks import Found, TaskStore
from horsies_django.tasks.operations import cancel, retry
from horsies_django.tasks.result_listener import Update, get_listener

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

# The pauses between polls if the listening connection is lost; the last one repeats.
POLL_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


def async_form(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the form of a method for async code, whose name begins with an "a"."""

    @wraps(method)
    async def asynchronous(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)  # a subclass may have another
        return await sync_to_async(bound)(*args, **kwargs)

    asynchronous.__name__ = f"a{method.__name__}"
    asynchronous.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asynchronous.__name__}"
    asynchronous.__doc__ = f"Do what ``{method.__name__}`` does, from async code."

    return asynchronous


class TaskHandle(Generic[T]):
    """A task that was sent. ``task_id`` is its UUID. Raises ValueError for an id that is not a
    UUID.

    A final result is cached: later calls return it without a query. ``is_new`` is False if a send
    with a key found the task of an earlier one.
    """

    noun = "task"  # for messages
    is_new = True

    def __init__(self, task_id: uuid.UUID | str, codec: ResultCodec | None = None) -> None:
        self.task_id = id_of(task_id, "task")
        self._codec = codec
        self._final: TaskResult[T] | None = None

    def get(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait for the result and return it. A failed task does not raise; its error is in the
        result.

        ``timeout_ms`` is in milliseconds (or a timedelta); 0 looks once, None waits without limit.
        After the timeout the error is WAIT_TIMEOUT, for an unknown id TASK_NOT_FOUND; neither is
        cached. Raises TaskNotCommitted if the task was sent in a transaction that is still open
        here, RuntimeError in a running event loop (use aget() there).
        """
        refuse_loop("get")
        deadline = deadline_of(timeout_ms)
        if self._final is not None:
            return self._final

        seen = look(self.task_id)
        if (seen is not None and seen.status in FINAL) or deadline == 0.0:
            return self._tell(seen)

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
                    return self._tell(self._visible_here_only())
                if item.status in FINAL:
                    return self._tell(item)

        for seconds in poll_intervals(deadline):
            time.sleep(seconds)
            if (result := self._poll()) is not None:
                return result

        return self._timed_out()

    async def aget(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait as ``get`` does, without blocking the event loop."""
        deadline = deadline_of(timeout_ms)
        if self._final is not None:
            return self._final

        seen = await sync_to_async(look)(self.task_id)
        if (seen is not None and seen.status in FINAL) or deadline == 0.0:
            return self._tell(seen)

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
                    return self._tell(await sync_to_async(self._visible_here_only)())
                if item.status in FINAL:
                    return self._tell(item)

        for seconds in poll_intervals(deadline):
            await asyncio.sleep(seconds)
            if (result := await sync_to_async(self._poll)()) is not None:
                return result

        return self._timed_out()

    def cancel(self, *, terminate: bool = False) -> str:
        """Cancel the task, in the open transaction, if any, and return the outcome.

        "CANCELLED": it had not started and never will. "REQUESTED": it is running and was asked to
        stop; with ``terminate`` its process is killed if it is still running after KILL_GRACE_MS.
        "FINISHED": it had already finished. Raises LookupError if there is no such task.
        """
        verdict = cancel([self.task_id], terminate=terminate).get(self.task_id)
        if verdict is None:
            raise LookupError(
                f"there is no task {self.task_id}: never sent, rolled back, or deleted since"
            )
        return verdict

    acancel = async_form(cancel)

    def retry(self) -> None:
        """Let the task run again, in the open transaction, if any, if it failed, expired or was
        cancelled.

        It keeps its id and its attempts, is due now, and its retry policy begins anew. A task that
        waits for a retry is due now. Raises LookupError if there is no such task, TaskNotRetryable
        for one that completed, has not finished, was redacted, belongs to a workflow run, or is
        unique while another one is the same work.
        """
        retry(self.task_id)
        self._final = None

    aretry = async_form(retry)

    def info(self) -> TaskInfo | None:
        """Return the row of the task and its attempts as plain values, or None if there is no such
        task.
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
        """Return the result, None if there is none yet.

        A lost connection is replaced: during an outage the wait continues.
        """
        connection = connections[config().database]
        try:
            seen = look(self.task_id)
        except (OperationalError, InterfaceError):
            if connection.in_atomic_block:
                raise  # the caller's transaction is lost
            connection.close()
            return None

        return self._tell(seen) if seen is None or seen.status in FINAL else None

    def _visible_here_only(self) -> Found | None:
        """Look up a task that the listening connection cannot see.

        Raises TaskNotCommitted if this connection can.
        """
        seen = look(self.task_id)
        if seen is not None and seen.status not in FINAL:
            raise TaskNotCommitted(
                f"{self.noun} {self.task_id} was sent in the transaction that is still open here: "
                "no worker can see it before "
                "the commit, so its result cannot arrive. Wait after the transaction.atomic() "
                "block; in a TestCase run the task "
                "with horsies_django.testing.drain() first"
            )
        return seen

    def _timed_out(self) -> TaskResult[T]:
        message = (
            f"{self.noun} {self.task_id} has not finished in the time allowed; it may still do so"
        )
        return TaskResult(err=TaskError.built_in(RetrievalCode.WAIT_TIMEOUT, message))

    def _tell(self, found: Found | None) -> TaskResult[T]:
        if found is None:
            message = (
                f"there is no {self.noun} {self.task_id}: never sent, rolled back, or deleted since"
            )
            return TaskResult(err=TaskError.built_in(RetrievalCode.TASK_NOT_FOUND, message))

        if found.status not in FINAL:
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
    """Return an id as a UUID. Raises ValueError if it is none."""
    try:
        return given if isinstance(given, uuid.UUID) else uuid.UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(
            f"{str(given)[:100]!r} is not a {noun} id: pass the UUID in handle.{noun}_id"
        ) from None


def get_handle(task_id: uuid.UUID | str) -> TaskHandle[Any]:
    """Return a handle without types: its ok value is plain JSON.

    Raises ValueError for an id that is not a UUID.
    """
    return TaskHandle(task_id)


def cancel_many(
    task_ids: Iterable[uuid.UUID | str], *, terminate: bool = False
) -> dict[uuid.UUID, str]:
    """Cancel tasks with one statement, in the open transaction, if any; return the outcome of each,
    as ``TaskHandle.cancel``.

    Ids of tasks that do not exist are left out. Raises ValueError for an id that is not a UUID.
    """
    return cancel([id_of(each, "task") for each in task_ids], terminate=terminate)


def decode(codec: ResultCodec | None, text: str | None) -> TaskResult[Any]:
    """Decode a stored envelope. The result is RESULT_DESERIALIZATION_ERROR if that fails."""
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


def look(task_id: uuid.UUID) -> Found | None:
    """Look up a task on the caller's connection."""
    return TaskStore(connections[config().database]).find([task_id]).get(task_id)


def deadline_of(timeout_ms: int | dt.timedelta | None) -> float | None:
    """Return the end of the wait by the monotonic clock; None: no limit, 0.0: at once.

    Raises ValueError, TypeError.
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
    """Return the seconds until the deadline, None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def poll_intervals(deadline: float | None) -> Iterator[float]:
    """Yield the seconds to sleep before each poll until the deadline."""
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
