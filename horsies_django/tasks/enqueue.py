"""Sending of tasks: arguments are encoded, and rows are inserted in the caller's transaction."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from django.apps import apps
from django.db import (
    DataError,
    Error,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from psycopg import Pipeline
from psycopg.pq import TransactionStatus

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.errors import TaskSendError, TaskSendErrorCode
from horsies_django.core.metadata import read_metadata
from horsies_django.core.options import with_unique
from horsies_django.core.records import NewTasks
from horsies_django.core.unique import arguments_digest, key_digest
from horsies_django.signals import task_sent
from horsies_django.store.base import NotMigrated, error_text, not_migrated
from horsies_django.store.tasks import CHUNK_ROWS, Sent, TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.ids import uuid7, uuid7s
from horsies_django.tasks.notify_throttle import throttle
from horsies_django.tasks.options import (
    SendOptions,
    When,
    prepare_send,
    refuse_late,
    send_error,
    too_large,
)

logger = logging.getLogger("horsies.send")

CHUNK_CHARACTERS = 16_777_216  # the most characters of arguments in one INSERT
WARN_BYTES = 1_048_576
MODULE_LEVEL = ". Module-level code runs again in every process that imports the module"
_warned: set[str] = set()
S = TypeVar("S")


def send_call(
    task: TaskDefinition,
    options: SendOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    when: When | None = None,
) -> tuple[uuid.UUID, bool]:
    """Send one call of ``task``, and return its id and whether it is new.

    It is not new if it has the key of an earlier send, or is a duplicate of a unique task. Then the
    id is that of the earlier task. Raises TaskSendError if the task cannot be sent.
    """
    refuse_suppressed(task.name, [task])
    new = prepare_send(task, options, when)
    refuse_late(new)

    new.ids.append(uuid7())
    new.kwargs.append(encode(task, args, kwargs))

    if options.key is not None or task.unique is not None:
        return write_once(task, new, options.key)
    write_one(new)
    return new.ids[0], True


def write_once(task: TaskDefinition, new: NewTasks, key: str | None) -> tuple[uuid.UUID, bool]:
    """Insert a task with a key, or a unique task, unless an equal one exists.

    Return the id of the inserted or the existing task, and whether it was inserted. The insert is
    part of the caller's transaction. Raises TaskSendError if the task cannot be sent.
    """
    conf = config()
    unique = task.unique
    kwargs = new.kwargs[0]
    once: dict[str, Any] = {"arguments": None, "until": None, "keep": None}
    once["patience"] = f"{conf.unique_lock_timeout_ms}ms"

    if key is not None and unique is not None:
        raise send_error(
            f"{task.name} has unique=...: a key cannot be combined with it. Remove one of the two"
        )

    if key is not None:
        hours = conf.retention.key_hours
        once["keep"] = None if hours is None else dt.timedelta(hours=hours)
        once |= {
            "digest": key_digest(task.name, key),
            "arguments": arguments_digest(kwargs, task.arguments.defaults),
        }
    elif unique is not None:
        once |= {
            "digest": unique.digest(task.name, kwargs, task.arguments.defaults),
            "until": unique.until,
        }
        new = new._replace(options=with_unique(new.options, once["digest"], unique.until))

    id_, verdict, _ = insert_one(new, partial(TaskStore.send_once, once=once))
    if verdict == "CONFLICT":
        raise send_error(
            f"{task.name}: the key {key!r} was used for task {id_} with other arguments: use "
            "another key",
            TaskSendErrorCode.KEY_CONFLICT,
        )

    if verdict == "FOUND" and unique is not None and unique.on_duplicate == "refuse":
        raise send_error(
            f"{task.name} is unique, and task {id_} is a duplicate of it",
            TaskSendErrorCode.DUPLICATE,
        )

    if verdict == "SENT":
        send_sent_signal(new)
    return id_, verdict == "SENT"


def send_calls(
    task: TaskDefinition, options: SendOptions, calls: Iterable[Mapping[str, Any]]
) -> list[tuple[uuid.UUID, bool]]:
    """Send one task per mapping of arguments, and return for each the id and whether it is new.

    Either all tasks are sent or none of them. Raises TaskSendError if a task cannot be sent.
    """
    refuse_suppressed(task.name, [task])
    template = prepare_send(task, options, None)
    refuse_late(template)
    if options.key is not None:
        raise send_error(
            f"{task.name}: a key identifies one task, so send_many() does not take a key; call "
            "send() for each task"
        )

    # The iterable of calls is read before anything is written, because it may use the connection,
    # which becomes a pipeline during the insert.
    chunks = encode_calls(task, template, list(calls))
    if task.unique is not None:
        return write_unique(task, list(chunks))

    first = next(chunks, None)
    second = next(chunks, None)
    if first is None:
        return []

    if second is None:
        with taken():
            TaskStore(connections[config().database]).send(first)
        ids = first.ids
    else:
        ids = write_many(itertools.chain([first, second], chunks))

    send_sent_signal(template._replace(ids=ids))
    return [(id_, True) for id_ in ids]


def write_unique(task: TaskDefinition, chunks: list[NewTasks]) -> list[tuple[uuid.UUID, bool]]:
    """Insert unique tasks one by one, and return for each the id and whether it is new.

    The tasks are inserted in the order of their digests, so that two senders do not wait for each
    other.
    """
    assert task.unique is not None
    calls = [
        chunk._replace(ids=[id_], kwargs=[text])
        for chunk in chunks
        for id_, text in zip(chunk.ids, chunk.kwargs, strict=True)
    ]

    digest = task.unique.digest
    defaults = task.arguments.defaults
    with transaction.atomic(using=config().database):
        ordered = sorted(calls, key=lambda call: digest(task.name, call.kwargs[0], defaults))
        sent = {new.ids[0]: write_once(task, new, None) for new in ordered}

    return [sent[new.ids[0]] for new in calls]


def encode_calls(
    task: TaskDefinition, template: NewTasks, calls: Iterable[Mapping[str, Any]]
) -> Iterator[NewTasks]:
    """Encode calls, and yield them in chunks for one INSERT each.

    Raises TaskSendError if a call is invalid. The message contains the position of the call.
    """
    texts: list[str] = []
    size = 0

    for position, call in enumerate(calls):
        if type(call) is not dict and not isinstance(call, Mapping):
            raise send_error(
                f"{task.name}.send_many(): item {position} is {type(call).__name__}; each item "
                "must be a dict of the task's "
                f"arguments by name, as in [{{'user_id': 1}}, {{'user_id': 2}}]"
            )

        try:
            text = encode(task, (), dict(call))
        except TaskSendError as error:
            raise send_error(f"item {position}: {error.message}", error.code) from error

        texts.append(text)
        size += len(text)
        if len(texts) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
            yield template._replace(ids=uuid7s(len(texts)), kwargs=texts)
            texts = []
            size = 0

    if texts:
        yield template._replace(ids=uuid7s(len(texts)), kwargs=texts)


def refuse_suppressed(
    what: str, tasks: Iterable[TaskDefinition], circumstance: str = MODULE_LEVEL
) -> None:
    """Raise TaskSendError if tasks cannot be sent now, or not from this code.

    Tasks cannot be sent while Django is loading or modules of tasks are imported, nor if no other
    process can import the module that defines them.
    """
    if not apps.ready or registry.discovering():
        raise send_error(
            f"{what} was sent while Django was still loading, or while task modules were being "
            f"imported{circumstance}: send from a view, "
            "a signal or a command instead",
            TaskSendErrorCode.SEND_SUPPRESSED,
        )
    if problem := registry.unsendable(tasks):
        raise send_error(problem)


def refuse_running_loop(task: TaskDefinition, verb: str) -> None:
    """Raise TaskSendError if an event loop is running, because a sync method would block it."""
    if in_event_loop():
        raise send_error(
            f"{task.name}.{verb}() was called on a running event loop: use 'await "
            f"{task.name.rpartition('.')[2]}.a{verb}(...)'",
            TaskSendErrorCode.ASYNC_CONTEXT,
        )


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread.

    Return False if DJANGO_ALLOW_ASYNC_UNSAFE is set, which allows sync calls there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def encode(task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON text.

    A warning is logged if they are large. Raises TaskSendError if they are invalid or too large.
    """
    try:
        text = task.arguments.encode(args, kwargs)
    except CodecError as error:
        raise send_error(f"{task.name}: {error}") from error

    if len(text) > WARN_BYTES // 4:
        if excess := too_large(text):
            message = f"{task.name}: the arguments take {excess}. Store the data and pass its key"
            raise send_error(message, TaskSendErrorCode.PAYLOAD_TOO_LARGE)

        size = len(text.encode())
        if size > WARN_BYTES and task.name not in _warned:
            _warned.add(task.name)
            logger.warning(
                "%s was sent with %s bytes of arguments; consider storing the data and passing its "
                "key",
                task.name,
                size,
            )

    return text


def write_one(new: NewTasks) -> None:
    """Insert a single task on the caller's connection, in its transaction if one is open.

    Raises TaskSendError if the database does not accept the task.
    """
    insert_one(new, TaskStore.send, int)
    send_sent_signal(new)


def write_timed(new: NewTasks) -> Sent:
    """Insert a single task, and return when it was sent and when it is due.

    The times are those of the database's clock. The task is inserted on the caller's connection, in
    its transaction if one is open. Raises TaskSendError if the database does not accept the task.
    """
    sent = insert_one(new, TaskStore.send_timed)
    send_sent_signal(new)
    return sent


def send_sent_signal(new: NewTasks) -> None:
    if task_sent.receivers:
        task_sent.send_robust(
            registry.find(new.task_name),
            task_ids=tuple(new.ids),
            task_name=new.task_name,
            queue_name=new.queue_name,
            priority=new.priority,
            metadata=read_metadata(new.options),
            using=config().database,
        )


def insert_one(
    new: NewTasks,
    send: Callable[[TaskStore, NewTasks, int | None], S],
    table_of: Callable[[S], int | None] = attrgetter("table"),
) -> S:
    """Insert a single task with ``send``, notify workers, and return the value of ``send``.

    ``table_of`` returns the OID of the table into which the task was sent, or None if nothing was
    inserted. Raises TaskSendError if the database does not accept the task.
    """
    connection = connections[config().database]
    store = TaskStore(connection)

    with taken():
        if in_transaction(connection):
            return send(store, new, None)

        turn = throttle.begin(new.queue_name, new.lane)
        sent = send(store, new, turn.notified)

    table = table_of(sent)
    if table is not None and throttle.end(turn, table):
        announce(store, new.queue_name, table)
    return sent


def in_transaction(connection: Any) -> bool:
    """Return whether a transaction is open on a connection.

    The state of the driver is read too, because Django has no record of a BEGIN that user code has
    sent itself.
    """
    return (
        not connection.get_autocommit()
        or connection.connection.pgconn.transaction_status != TransactionStatus.IDLE
    )


def announce(store: TaskStore, queue: str, table: int) -> None:
    """Notify workers of a committed task.

    No error is raised if this fails, because workers find the task at their next poll. A warning is
    logged.
    """
    try:
        store.announce(queue, table)
    except Error as error:
        logger.warning(
            "a task in queue %r was sent, but workers could not be notified: %s", queue, error
        )


def write_many(chunks: Iterable[NewTasks]) -> list[uuid.UUID]:
    """Insert chunks of tasks on the caller's connection, and return the ids of all tasks.

    The inserts are part of the caller's transaction, if one is open. The next chunk is encoded
    while the server inserts the one before. Raises TaskSendError if the database does not accept
    the tasks.
    """
    alias = config().database
    connection = connections[alias]
    ids = list[uuid.UUID]()
    store = TaskStore(connection)

    with (
        taken(),
        transaction.atomic(using=alias),
        connection.wrap_database_errors,
        pipelined(connection),
    ):
        for chunk in chunks:
            store.send_on(chunk)
            ids += chunk.ids

    return ids


def pipelined(connection: Any) -> Any:
    """Return a context in which statements do not wait for results.

    The context has no effect if libpq does not support pipelines.
    """
    return connection.connection.pipeline() if Pipeline.is_supported() else nullcontext()


@contextmanager
def taken() -> Iterator[None]:
    """Turn database errors into TaskSendError."""
    try:
        yield
    except (OperationalError, InterfaceError, DataError) as error:
        # A DataError is raised, for example, for a character that the encoding of the database does
        # not have.
        unfit = isinstance(error, DataError)
        code = TaskSendErrorCode.VALIDATION_FAILED if unfit else TaskSendErrorCode.ENQUEUE_FAILED
        raise send_error(
            f"the database did not accept the task: {error_text(error)}", code
        ) from error
    except ProgrammingError as error:
        # A pipeline raises the error only at its end, outside of the store, which translates it
        # otherwise.
        found = (
            error
            if isinstance(error, NotMigrated)
            else not_migrated(connections[config().database], error)
        )

        if found is None:
            raise
        raise send_error(str(found), TaskSendErrorCode.ENQUEUE_FAILED) from error
