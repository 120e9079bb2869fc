"""Send: from a call's arguments to rows in the caller's own transaction."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.db import DataError, Error, InterfaceError, OperationalError, connections, transaction
from psycopg import Pipeline
from psycopg.pq import TransactionStatus

from horsies_django import registry
from horsies_django.announcing import announcements
from horsies_django.conf import RANGES, config
from horsies_django.core.codec import CodecError
from horsies_django.core.errors import TaskSendError, TaskSendErrorCode
from horsies_django.core.options import options_text
from horsies_django.core.records import NewTasks
from horsies_django.core.retry import RetryPolicy
from horsies_django.ids import uuid7, uuid7s
from horsies_django.store.tasks import TaskStore

if TYPE_CHECKING:
    from horsies_django.definition import TaskFunction

logger = logging.getLogger("horsies.send")

CHUNK = 5_000  # rows per INSERT of send_many: few round trips, and no statement of a size that hurts
CHUNK_CHARACTERS = 16_777_216  # of arguments: an array of jsonb takes 256 MiB
WARN_BYTES = 1_048_576
LONGEST_DELAY = dt.timedelta(days=36_500)
When = float | dt.timedelta | dt.datetime
_warned: set[str] = set()


class SendOptions(NamedTuple):
    """What a send may choose beside its arguments; None leaves the task's own choice."""

    queue: str | None = None
    priority: int | None = None
    good_until: dt.datetime | None = None
    retry_policy: RetryPolicy | None = None
    timeout_ms: int | dt.timedelta | None = None


def refuse(message: str, code: TaskSendErrorCode = TaskSendErrorCode.VALIDATION_FAILED) -> TaskSendError:
    """Make the error of a send that is refused."""
    return TaskSendError(code, message)


def send_call(
    task: TaskFunction[Any, Any],
    options: SendOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    when: When | None = None,
) -> uuid.UUID:
    """Send one call of ``task`` and return its id. Raises TaskSendError."""
    refuse_suppressed(task)
    new = prepare(task, options, when)
    new.ids.append(uuid7())
    new.kwargs.append(encode(task, args, kwargs))
    write_one(new)
    return new.ids[0]


def send_calls(
    task: TaskFunction[Any, Any], options: SendOptions, calls: Iterable[Mapping[str, Any]]
) -> list[uuid.UUID]:
    """Send one task per mapping of arguments, all or none, and return their ids in order. Raises TaskSendError."""
    refuse_suppressed(task)
    template = prepare(task, options, None)
    # All calls are made before anything is written: what makes them may use the connection, which is a pipeline soon.
    chunks = encoded(task, template, list(calls))
    first, second = next(chunks, None), next(chunks, None)
    if first is None:
        return []
    if second is None:
        with taken():
            TaskStore(connections[config().database]).send(first)
        return first.ids
    return write_many(itertools.chain([first, second], chunks))


def encoded(task: TaskFunction[Any, Any], template: NewTasks, calls: Iterable[Mapping[str, Any]]) -> Iterator[NewTasks]:
    """Encode calls, and give them in portions for one INSERT each. Raises TaskSendError that names the call."""
    texts: list[str] = []
    size = 0
    for position, call in enumerate(calls):
        if type(call) is not dict and not isinstance(call, Mapping):
            raise refuse(
                f"{task.name}.send_many(): item {position} is {type(call).__name__}; each item is a dict of the task's "
                f"arguments by name, as in [{{'user_id': 1}}, {{'user_id': 2}}]"
            )
        try:
            text = encode(task, (), dict(call))
        except TaskSendError as error:
            raise refuse(f"item {position}: {error.message}", error.code) from error
        texts.append(text)
        size += len(text)
        if len(texts) == CHUNK or size > CHUNK_CHARACTERS:
            yield template._replace(ids=uuid7s(len(texts)), kwargs=texts)
            texts, size = [], 0
    if texts:
        yield template._replace(ids=uuid7s(len(texts)), kwargs=texts)


def refuse_suppressed(task: TaskFunction[Any, Any]) -> None:
    """Raise TaskSendError when this is no time to send."""
    if not apps.ready or registry.discovering():
        raise refuse(
            f"{task.name} was sent while Django was still loading, or while task modules were being imported. Code at the top "
            "of a module runs again in every process that imports it: send from a view, a signal or a command instead",
            TaskSendErrorCode.SEND_SUPPRESSED,
        )


def refuse_running_loop(task: TaskFunction[Any, Any], verb: str) -> None:
    """Raise TaskSendError when a sync verb is called on a running event loop, which it would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise refuse(
            f"{task.name}.{verb}() was called on a running event loop: use 'await {task.name.rpartition('.')[2]}.a{verb}(...)'",
            TaskSendErrorCode.ASYNC_CONTEXT,
        )


def prepare(task: TaskFunction[Any, Any], options: SendOptions, when: When | None) -> NewTasks:
    """Check what is common to all calls of a send and return them with no call in them yet."""
    conf = config()
    queue = options.queue or task.queue or "default"
    if queue not in conf.queues:
        raise refuse(
            f"{task.name}: queue {queue[:100]!r} is not declared. HORSIES['QUEUES'] has: {', '.join(sorted(conf.queues))}"
        )
    priority = task.priority if options.priority is None else options.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= 100:
        raise refuse(f"{task.name}: priority must be an int from 1 (first) to 100, not {priority!r}")
    if options.good_until is not None:
        refuse_naive(task, "good_until", options.good_until)
    policy = task.retry_policy if options.retry_policy is None else options.retry_policy
    timeout = task.timeout_ms if options.timeout_ms is None else options.timeout_ms
    if problem := policy_problem(policy) or timeout_problem(timeout):
        raise refuse(f"{task.name}: {problem}")
    delay, due_at = due(task, when)
    return NewTasks(
        task.name, queue, task.lane, priority, [], [], delay, due_at, options.good_until,
        0 if policy is None else policy.max_retries, options_text(policy, milliseconds(timeout)),
    )  # fmt: skip


def policy_problem(policy: object) -> str | None:
    """Return what is wrong with a retry policy, or None."""
    if policy is None or isinstance(policy, RetryPolicy):
        return None
    return f"retry_policy is made by RetryPolicy.fixed() or RetryPolicy.exponential(), not {policy!r:.100}"


def timeout_problem(timeout: object) -> str | None:
    """Return what is wrong with a timeout, or None."""
    low, high = RANGES["TASK_TIMEOUT_MS"]
    span = milliseconds(timeout) if isinstance(timeout, dt.timedelta) else timeout
    if span is None or (isinstance(span, int) and not isinstance(span, bool) and low <= span <= (high or span)):
        return None
    return f"timeout_ms is an int of milliseconds or a timedelta, from {low:_} to {high:_} ms, not {timeout!r}"


def milliseconds(span: int | dt.timedelta | None) -> int | None:
    """Return a span in whole milliseconds."""
    return span // dt.timedelta(milliseconds=1) if isinstance(span, dt.timedelta) else span


def due(task: TaskFunction[Any, Any], when: When | None) -> tuple[dt.timedelta | None, dt.datetime | None]:
    """Return the delay or the moment that ``when`` means."""
    if when is None:
        return None, None
    if isinstance(when, dt.datetime):
        refuse_naive(task, "when", when)
        return None, when
    if isinstance(when, int | float) and not isinstance(when, bool):
        try:
            when = dt.timedelta(seconds=when)
        except (OverflowError, ValueError) as error:
            raise refuse(f"{task.name}: when={when!r} is not a number of seconds that can be waited") from error
    if not isinstance(when, dt.timedelta):
        raise refuse(f"{task.name}: when must be seconds, a timedelta or an aware datetime, not {type(when).__name__}")
    if not dt.timedelta(0) <= when <= LONGEST_DELAY:
        raise refuse(f"{task.name}: when={when!s} must be from 0 seconds to 100 years in the future")
    return when, None


def refuse_naive(task: TaskFunction[Any, Any], name: str, moment: object) -> None:
    """Raise TaskSendError unless ``moment`` is a datetime that knows its time zone."""
    if not isinstance(moment, dt.datetime):
        raise refuse(f"{task.name}: {name} must be an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise refuse(
            f"{task.name}: {name}={moment.isoformat()} has no time zone, so it could mean several moments. "
            "Pass an aware datetime, as django.utils.timezone.now() gives when USE_TZ is on"
        )
    if not 2 < moment.year < 9999:
        raise refuse(f"{task.name}: {name}={moment.isoformat()} is not between the years 3 and 9998")


def encode(task: TaskFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a call's arguments as JSON text, checked against the task's signature and the size limit."""
    try:
        text = task.arguments.encode(args, kwargs)
    except CodecError as error:
        raise refuse(f"{task.name}: {error}") from error
    if len(text) > WARN_BYTES // 4:
        size, limit = len(text.encode()), config().max_payload_bytes
        if size > limit:
            raise refuse(
                f"{task.name}: the arguments take {size:,} bytes of JSON; HORSIES['MAX_PAYLOAD_BYTES'] allows {limit:,}. "
                "Store the data and pass its key",
                TaskSendErrorCode.PAYLOAD_TOO_LARGE,
            )
        if size > WARN_BYTES and task.name not in _warned:
            _warned.add(task.name)
            logger.warning(
                "%s was sent with %s bytes of arguments; better store the data and pass its key", task.name, size
            )
    return text


def write_one(new: NewTasks) -> None:
    """Insert a single task on the caller's connection, in its transaction if it has one. Raises TaskSendError."""
    connection = connections[config().database]
    store = TaskStore(connection)
    with taken():
        if in_transaction(connection):
            store.send(new)
            return
        turn = announcements.begin(new.queue_name, new.lane)
        table = store.send(new, turn.told)
    if announcements.end(turn, table):
        announce(store, new.queue_name, table)


def in_transaction(connection: Any) -> bool:
    """Return whether the next statement does not commit by itself; the driver also knows of a BEGIN that Django did not send."""
    return not connection.get_autocommit() or connection.connection.pgconn.transaction_status != TransactionStatus.IDLE


def announce(store: TaskStore, queue: str, table: int) -> None:
    """Announce a task that is committed. Without that it waits for the next poll: no reason to tell its sender of a failure."""
    try:
        store.announce(queue, table)
    except Error as error:
        logger.warning("a task in queue %r was sent, but could not be announced: %s", queue, error)


def write_many(chunks: Iterable[NewTasks]) -> list[uuid.UUID]:
    """Insert tasks on the caller's connection, in its transaction if it has one, and return their ids. Raises TaskSendError.

    While the server inserts one portion, the next one is encoded.
    """
    alias = config().database
    connection, ids = connections[alias], list[uuid.UUID]()
    store = TaskStore(connection)
    with taken(), transaction.atomic(using=alias), connection.wrap_database_errors, pipelined(connection):
        for chunk in chunks:
            store.send_on(chunk)
            ids += chunk.ids
    return ids


def pipelined(connection: Any) -> Any:
    """Return what has a connection take statements without waiting for what becomes of them; a libpq too old for it waits."""
    return connection.connection.pipeline() if Pipeline.is_supported() else nullcontext()


@contextmanager
def taken() -> Iterator[None]:
    """Turn what the database has against the tasks into a TaskSendError."""
    try:
        yield
    except (OperationalError, InterfaceError, DataError) as error:
        raise refuse(f"the database did not take the task: {said(error)}", TaskSendErrorCode.ENQUEUE_FAILED) from error


def said(error: Error) -> str:
    """Return what the database said, without where: that is the text of the function that sends, and may be the arguments."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "message_primary", None) or str(error)
