"""What was sent: ``captured_tasks()`` and the assertions; and the value of the pytest fixture
``horsies``.
"""

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
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.store.base import watching
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

# The statements that send; the last one may find a task.
SENDS = ("tasks/send", "tasks/send_timed", "tasks/send_once")
SHOWN = 20  # tasks in a message


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task that was sent.

    ``kwargs`` are its arguments by name, decoded, without defaults of omitted ones. ``due_at`` is
    None if it was due when it was sent. ``rolled_back``: the transaction in which it was sent was
    rolled back, so it was never there for others.
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
    """Tasks that were sent, in the order in which that happened; read anew at each use until the
    block ends.
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
        """Do what the function ``assert_sent`` does, for these tasks."""
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

        wish = definition.name
        wish += (
            ""
            if kwargs is None
            else f"({', '.join(f'{name}={value!r:.100}' for name, value in kwargs.items())})"
        )
        wish += "" if queue is None else f" on queue {queue!r}"

        verdict = "was not sent" if count is None else f"was sent {len(found)} times, not {count}"
        raise AssertionError(f"{wish} {verdict}. {shown(tasks)}")

    def assert_nothing_sent(self) -> None:
        """Do what the function ``assert_nothing_sent`` does, for these tasks."""
        tasks = self._tasks()
        if not all(each.rolled_back for each in tasks):
            raise AssertionError(f"Tasks were sent. {shown(tasks)}")


def captured_tasks() -> Context[SentTasks]:
    """Yield the tasks that are sent in the block, as a sequence of SentTask with ``assert_sent``
    and ``assert_nothing_sent``.

    They are those whose rows appear in the block, whoever sends them: the code, other tasks,
    workflows, other processes. Sends that are rolled back are seen if they are made in this thread,
    or with ``async with`` in async code. After the block, the sequence does not change any more.
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

    Looks at all tasks in the database that the test can see. ``kwargs`` are all arguments by name;
    omitted ones have their defaults. ``count`` is the exact number of matching sends; without,
    there must be at least one. Raises AssertionError with what was sent instead, ValueError for
    arguments that the task does not take, LookupError for an unknown task.
    """
    return SentTasks(in_database).assert_sent(task, kwargs=kwargs, queue=queue, count=count)


def assert_nothing_sent() -> None:
    """Assert that no task was sent, and that no workflow has sent one.

    Raises AssertionError with what was sent.
    """
    SentTasks(in_database).assert_nothing_sent()


@contextmanager
def capturing() -> Iterator[SentTasks]:
    """Yield the tasks whose rows appear in the block, and those that were sent and rolled back."""
    alias = config().database
    connection = connections[alias]
    before = set(Task.objects.using(alias).values_list("id", flat=True))
    attempted: list[SentTask] = []

    def watch(name: str, params: Any) -> None:
        if name in SENDS:
            sent = list(of_statement(params))
            written = Task.objects.using(alias).filter(
                pk__in=[each.handle.task_id for each in sent]
            )
            if name != "tasks/send_once" or written.exists():
                attempted.extend(sent)

    def read() -> list[SentTask]:
        found = [] if is_broken(connection) else in_database(before)
        there = {each.handle.task_id for each in found}
        found += [
            replace(each, rolled_back=True)
            for each in attempted
            if each.handle.task_id not in there
        ]
        return sorted(found, key=lambda each: each.handle.task_id)

    sent = SentTasks(read)
    with watching(connection, watch):
        try:
            yield sent
        finally:
            sent._finish()


def in_database(without: Collection[uuid.UUID] = ()) -> list[SentTask]:
    """Return the tasks in the database that are not among ``without``, in the order of their ids,
    which grow with time.
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


def of_statement(params: Mapping[str, Any]) -> Iterator[SentTask]:
    """Yield the tasks that a statement has sent; see ``TaskStore.send``."""
    due_at = params["due_at"]
    if params["delay"] is not None:
        due_at = (params["now"] or dt.datetime.now(dt.UTC)) + params["delay"]

    ids = params["ids"].strip("{}").split(",")
    name = params["task_name"]
    queue = params["queue_name"]
    priority = params["priority"]

    for id_, kwargs in zip(ids, json.loads(params["kwargs"]), strict=True):
        yield sent_task(uuid.UUID(id_), name, json.dumps(kwargs), queue, priority, due_at)


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
    """Return stored arguments by name, those without a name as "*", or as plain JSON if the task
    does not take them.
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
    """Return arguments as they would be after being stored.

    Raises ValueError if the task does not take them.
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
    """Return arguments with the defaults of omitted ones."""
    return {
        each.name: each.default for each in parameters(definition) if each.default is not each.empty
    } | dict(kwargs)


def parameters(definition: TaskDefinition) -> list[Parameter]:
    """Return the parameters for which a send gives arguments."""
    return list(definition.arguments.signature.parameters.values())


def shown(tasks: Sequence[SentTask]) -> str:
    """Return the tasks as lines of a message."""
    if not tasks:
        return "Nothing was sent."
    more = f"\n- and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    return "What was sent:" + "".join(f"\n- {each}" for each in tasks[:SHOWN]) + more


class Kit:
    """The functions of ``horsies_django.testing``.

    ``sent``, and the assertions, are about what was sent since the test began.
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
