"""The tasks that were sent: ``captured_tasks()``, the assertions, and the fixture ``horsies``."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, overload

from django.db import connections

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.records import NewTasks
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.store.base import tasks_written
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.handle import TaskHandle
from horsies_django.testing.at_once import immediate
from horsies_django.testing.contexts import AnyTask, Context, definition_of
from horsies_django.testing.draining import (
    adrain,
    drain,
    fail_next,
    is_broken,
    open_gate,
    signal,
    travel,
)

MOST_LISTED = 20  # tasks in a message


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task that was sent.

    ``kwargs`` are its arguments by name, decoded, without the defaults of omitted ones. ``due_at``
    is None if the task was due when it was sent. ``rolled_back`` is true if the transaction that
    sent the task was rolled back, so that no worker could see it.
    """

    name: str
    kwargs: Mapping[str, Any]
    queue: str
    priority: int
    due_at: dt.datetime | None
    handle: TaskHandle[Any]
    rolled_back: bool = False

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r:.100}" for name, value in self.kwargs.items())
        due = "" if self.due_at is None else f", due {self.due_at.isoformat(timespec='seconds')}"
        return (
            f"{self.name}({given}) on queue "
            f"{self.queue!r}{due}{', rolled back' if self.rolled_back else ''}"
        )


class SentTasks(Sequence[SentTask]):
    """The tasks that were sent, in the order of their sends.

    They are read again at each use until the block ends.
    """

    def __init__(self, read: Callable[[], list[SentTask]]) -> None:
        self._tasks = read

    def _finish(self) -> None:
        final = self._tasks()
        self._tasks = lambda: final

    @overload
    def __getitem__(self, index: int) -> SentTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[SentTask]: ...
    def __getitem__(self, index: int | slice) -> SentTask | list[SentTask]:
        return self._tasks()[index]

    def __iter__(self) -> Iterator[SentTask]:
        return iter(self._tasks())

    def __len__(self) -> int:
        return len(self._tasks())

    def __repr__(self) -> str:
        return f"<SentTasks: {self._tasks()!r}>"

    def assert_sent(
        self,
        task: AnyTask,
        *,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        count: int | None = None,
    ) -> list[SentTask]:
        """Assert that one of these tasks is the given one, and return the sends that match.

        The arguments are those of the function ``assert_sent``.
        """
        definition = definition_of(task)
        tasks = self._tasks()
        wanted = None if kwargs is None else normal(definition, kwargs)
        found = [
            each
            for each in tasks
            if each.name == definition.name
            and not each.rolled_back
            and queue in (None, each.queue)
            and (
                wanted is None or complete(definition, each.kwargs) == complete(definition, wanted)
            )
        ]

        matches = bool(found) if count is None else len(found) == count
        if matches:
            return found

        description = definition.name
        description += (
            ""
            if kwargs is None
            else f"({', '.join(f'{name}={value!r:.100}' for name, value in kwargs.items())})"
        )
        description += "" if queue is None else f" on queue {queue!r}"

        problem = "was not sent" if count is None else f"was sent {len(found)} times, not {count}"
        raise AssertionError(f"{description} {problem}. {sent_text(tasks)}")

    def assert_nothing_sent(self) -> None:
        """Assert that there are no tasks, apart from those that were rolled back."""
        tasks = self._tasks()
        if not all(each.rolled_back for each in tasks):
            raise AssertionError(f"Tasks were sent. {sent_text(tasks)}")


def captured_tasks() -> Context[SentTasks]:
    """Yield the tasks that are sent in the block, as a sequence of SentTask.

    The sequence has the methods ``assert_sent`` and ``assert_nothing_sent``. It has all tasks whose
    rows appear in the block, sent by the code, other tasks, workflows or other processes. Sends
    that are rolled back are seen if they are made in this thread, or in async code with
    ``async with``. After the block, the sequence does not change any more.
    """
    return Context("captured_tasks", capturing, connected=True)


def assert_sent(
    task: AnyTask,
    *,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[SentTask]:
    """Assert that a task was sent, whether or not it has run, and return the sends that match.

    All tasks in the database that the test can see are searched. ``kwargs`` are all arguments by
    name; omitted ones have their defaults. ``count`` is the exact number of matching sends; without
    it, at least one send must match. Raises AssertionError with the sent tasks if the assertion
    fails, ValueError if the task does not take these arguments, and LookupError if the task is
    unknown.
    """
    return SentTasks(in_database).assert_sent(task, kwargs=kwargs, queue=queue, count=count)


def assert_nothing_sent() -> None:
    """Assert that no task was sent, neither by code nor by a workflow.

    Raises AssertionError with the sent tasks if there are any.
    """
    SentTasks(in_database).assert_nothing_sent()


@contextmanager
def capturing() -> Iterator[SentTasks]:
    """Yield the tasks whose rows appear in the block, and those that were sent and rolled back."""
    alias = config().database
    own = connections[alias]
    before = set(Task.objects.using(alias).values_list("id", flat=True))
    attempted: list[SentTask] = []

    def collect(connection: Any, sent: NewTasks | None, **_others: Any) -> None:
        if connection is own and sent is not None:
            attempted.extend(sent_tasks(sent))

    def read() -> list[SentTask]:
        found = [] if is_broken(own) else in_database(before)
        there = {each.handle.task_id for each in found}
        found += [
            replace(each, rolled_back=True)
            for each in attempted
            if each.handle.task_id not in there
        ]
        return sorted(found, key=lambda each: each.handle.task_id)

    found = SentTasks(read)
    tasks_written.connect(collect, weak=False)
    try:
        yield found
    finally:
        tasks_written.disconnect(collect)
        found._finish()


def in_database(without: Collection[uuid.UUID] = ()) -> list[SentTask]:
    """Return the tasks in the database, in the order of their ids, which grow with time.

    Tasks with ids in ``without`` are left out.
    """
    rows = (
        Task.objects.using(config().database)
        .order_by("id")
        .values_list(
            "id", "task_name", "kwargs", "queue_name", "priority", "sent_at", "enqueued_at"
        )
    )
    return [
        sent_task(
            id_,
            name,
            json.dumps(kwargs),
            queue,
            priority,
            aware(due_at) if due_at > sent_at else None,
        )
        for id_, name, kwargs, queue, priority, sent_at, due_at in rows
        if id_ not in without
    ]


def sent_tasks(new: NewTasks) -> Iterator[SentTask]:
    """Yield the tasks that were inserted together."""
    due_at = new.due_at
    if new.delay is not None:
        due_at = (new.now or dt.datetime.now(dt.UTC)) + new.delay

    for id_, kwargs in zip(new.ids, new.kwargs, strict=True):
        yield sent_task(id_, new.task_name, kwargs, new.queue_name, new.priority, due_at)


def sent_task(
    id_: uuid.UUID, name: str, text: str, queue: str, priority: int, due_at: dt.datetime | None
) -> SentTask:
    """Return a sent task with its arguments decoded."""
    definition = registry.find_or_import(name)
    if definition is None:
        return SentTask(name, json.loads(text), queue, priority, due_at, TaskHandle(id_))
    return SentTask(
        name, by_name(definition, text), queue, priority, due_at, TaskHandle(id_, definition.result)
    )


def by_name(definition: TaskDefinition, text: str) -> dict[str, Any]:
    """Return stored arguments by name, and further positional arguments as "*".

    The arguments are plain JSON if the task does not accept them.
    """
    try:
        args, kwargs = definition.arguments.decode(text)
    except CodecError:
        return dict(json.loads(text))

    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters(definition) if each.kind in by_place]
    rest = {"*": args[len(names) :]} if len(args) > len(names) else {}
    return {**dict(zip(names, args, strict=False)), **kwargs, **rest}


def normal(definition: TaskDefinition, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in the form that they have after being stored and read.

    Raises ValueError if the task does not accept them.
    """
    by_place = [each.name for each in parameters(definition) if each.kind is each.POSITIONAL_ONLY]
    unnamed = [name for name in by_place if name in kwargs]
    named = {name: value for name, value in kwargs.items() if name not in unnamed}

    try:
        return by_name(
            definition, definition.arguments.encode(tuple(kwargs[name] for name in unnamed), named)
        )
    except CodecError as error:
        raise ValueError(
            f"{definition.name} cannot be sent with these arguments: {error}"
        ) from error


def complete(definition: TaskDefinition, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments, with the defaults of those that are omitted."""
    return {
        each.name: each.default for each in parameters(definition) if each.default is not each.empty
    } | dict(kwargs)


def parameters(definition: TaskDefinition) -> list[Parameter]:
    """Return the parameters of a task that a send gives arguments for."""
    return list(definition.arguments.signature.parameters.values())


def sent_text(tasks: Sequence[SentTask]) -> str:
    """Return the tasks as text for the error of an assertion."""
    if not tasks:
        return "Nothing was sent."
    more = f"\n- and {len(tasks) - MOST_LISTED} more" if len(tasks) > MOST_LISTED else ""
    return "What was sent:" + "".join(f"\n- {each}" for each in tasks[:MOST_LISTED]) + more


class Kit:
    """The functions of ``horsies_django.testing``, as the fixture ``horsies``.

    ``sent`` and the assertions are limited to tasks that were sent since the test began.
    """

    adrain = staticmethod(adrain)
    captured_tasks = staticmethod(captured_tasks)
    drain = staticmethod(drain)
    fail_next = staticmethod(fail_next)
    immediate = staticmethod(immediate)
    open_gate = staticmethod(open_gate)
    signal = staticmethod(signal)
    travel = staticmethod(travel)

    def __init__(self, sent: SentTasks) -> None:
        self.sent = sent
        self.assert_sent = sent.assert_sent
        self.assert_nothing_sent = sent.assert_nothing_sent
