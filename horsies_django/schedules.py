"""Schedules that the code declares, and changes of them by users.

Each change is audited and wakes the schedulers. Patterns and ``ScheduleConfig`` are imported from
here: ``from horsies_django.schedules import Cron, Daily, Every``.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from django.db import connections, transaction

from horsies_django.conf import DEFAULT_QUEUE, config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.jsondata import too_deep
from horsies_django.core.errors import ScheduleError, TaskSendError
from horsies_django.core.patterns import (
    Cron,
    Daily,
    Every,
    Hourly,
    Monthly,
    Pattern,
    PatternError,
    Weekly,
)
from horsies_django.core.records import NewTasks
from horsies_django.core.schedules import ScheduleConfig, as_texts, read_definition
from horsies_django.core.texts import LONGEST_NAME, is_name, storable_actor, text_problem
from horsies_django.models import Schedule
from horsies_django.store.base import migrated
from horsies_django.store.schedules import ScheduleStore
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import encode, write_one
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.options import SendOptions, prepare_send, send_error

__all__ = [
    "Cron",
    "Daily",
    "Every",
    "Hourly",
    "Monthly",
    "Pattern",
    "PatternError",
    "ScheduleConfig",
    "Weekly",
    "change",
    "create",
    "declare",
    "declared",
    "delete",
    "disable",
    "enable",
    "definition_problems",
    "revert",
    "run_now",
    "task_of",
]


class Declared(NamedTuple):
    """A schedule that the code declares, with its definition and the place of the declaration."""

    name: str
    definition: Mapping[str, Any]
    where: str


# Declared schedules


def declared() -> Iterator[Declared]:
    """Yield the schedules of the settings and of the tasks.

    If two schedules have the same name, both are yielded.
    """
    for name, definition in config().schedules.items():
        yield Declared(name, definition, f"HORSIES['SCHEDULES'][{name!r}]")
    for task in registry.registered_tasks():
        if task.schedule is not None:
            yield Declared(task.name, {**task.schedule, "task": task.name}, task.origin)


def declare(*, actor: str, only: Collection[str] | None = None) -> dict[str, list[str]]:
    """Write the declared schedules to the table, and return the changed keys by schedule.

    With ``only``, write only the schedules of these names. Changes by users stay in force. Raises
    ScheduleError, which contains all problems, if a schedule is invalid.
    """
    found = [one for one in declared() if only is None or one.name in only]
    wrong = [
        (one.where, problem)
        for one in found
        for problem in as_texts(definition_problems(one.name, one.definition))
    ]

    if wrong:
        raise ScheduleError("\n".join(as_texts(wrong)))

    changed = {}
    for one in found:
        options: dict[str, Any] = {
            "declared": in_wire_form(one.definition),
            "declared_in": one.where,
            "create": True,
        }
        if columns := _change(one.name, action="schedule.declare", actor=actor, **options):
            changed[one.name] = columns

    return changed


def in_wire_form(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid definition with its arguments encoded as JSON."""
    found, _ = read_definition(definition)
    task = registry.find_or_import(found.task) if found else None
    assert found is not None
    assert task is not None

    return {**found.definition(), "kwargs": json.loads(task.arguments.encode_values(found.kwargs))}


def definition_problems(
    name: str, definition: Mapping[str, Any], *, as_json: bool = False
) -> list[tuple[str, str]]:
    """Return the problems of a schedule as pairs of a key and a message.

    Problems are invalid values, arguments that do not fit the task, and undeclared queues. With
    ``as_json``, the arguments in the definition are encoded as JSON. Otherwise they are Python
    values.
    """
    found, wrong = read_definition(definition)
    if found and (problem := found.overtaking()):
        wrong.append(("jitter_ms", problem))
    broken = {key for key, _ in wrong}

    if not is_name(name):
        wrong.append(
            ("name", f"must be 1 to {LONGEST_NAME} printable characters, not {name!r:.80}")
        )

    task_name = definition.get("task")
    queue = definition.get("queue")
    if "queue" not in broken and queue is not None and queue not in config().queues:
        names = ", ".join(sorted(config().queues))
        wrong.append(("queue", f"{queue!r} is not declared; HORSIES['QUEUES'] has: {names}"))

    if "task" in broken:
        return wrong

    task = registry.find_or_import(str(task_name))
    if task is None:
        wrong.append(
            (
                "task",
                f"there is no task {task_name!r}; use the name of a task, such as "
                "'shop.tasks.tidy'",
            )
        )
    elif "kwargs" not in broken:
        try:
            arguments_text(task, definition.get("kwargs", {}), as_json)
        except TaskSendError as error:
            wrong.append(("kwargs", error.message))

    if task is not None and found is not None:
        sent_to = config().queues.get(found.queue or task.queue or DEFAULT_QUEUE)
        priority = task.priority if found.priority is None else found.priority
        if sent_to is not None and sent_to.ordered and priority != task.usual_priority:
            order = (
                f"the tasks of the queue {sent_to.name!r} run in the order in which they were sent"
            )
            wrong.append(("priority", f"is {priority}, but {order}"))

    return wrong


def arguments_text(task: TaskDefinition, kwargs: Mapping[str, Any], as_json: bool) -> str:
    """Return the arguments of a task as JSON text.

    With ``as_json``, the arguments are encoded as JSON already, and are checked. Raises
    TaskSendError if they do not fit the task.
    """
    if not as_json:
        return encode(task, (), dict(kwargs))

    try:
        args, by_name = task.arguments.decode_values(json.dumps(dict(kwargs)))
    except (CodecError, TypeError, ValueError) as error:
        raise send_error(f"{task.name}: {error}") from error
    except RecursionError:
        raise send_error(f"{task.name}: {too_deep()}") from None

    return encode(task, tuple(args), by_name)


# Changes by users


def create(
    name: str, definition: Mapping[str, Any], *, actor: str, reason: str | None = None
) -> None:
    """Create a schedule that the code does not declare.

    The arguments in the definition are encoded as JSON. Raises ScheduleError if the definition is
    invalid or a schedule of the same name exists.
    """
    with transaction.atomic(using=config().database):
        if _row(name) is not None:
            raise ScheduleError(f"a schedule {name!r} already exists")
        _refuse(name, definition)

        found, _ = read_definition(definition)
        assert found is not None
        _change(
            name,
            action="schedule.create",
            actor=actor,
            reason=reason,
            changes=found.definition(),
            create=True,
        )


def change(
    name: str, changes: Mapping[str, Any], *, actor: str, reason: str | None = None
) -> list[str]:
    """Change keys of the definition of a schedule, and return the keys that changed.

    The changes have precedence over the code. Arguments are encoded as JSON. A pattern may be a
    text, which keeps the zone of the schedule, or an object, which has its own zone. Raises
    ScheduleError if the changed definition is invalid or there is no such schedule.
    """
    with transaction.atomic(using=config().database):
        held = _find(name).definition
        pattern = changes.get("pattern")
        if isinstance(pattern, Pattern):
            _refuse(name, {**held, "zone": None, **changes})
            changes = {**changes, "pattern": str(pattern), "zone": pattern.zone}

        _refuse(name, {**held, **changes})
        return _change(name, action="schedule.change", actor=actor, reason=reason, changes=changes)


def enable(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Enable a schedule, so that it fires from now on, and return the keys that changed.

    Returns [] if the schedule is enabled already. Raises ScheduleError if there is no such
    schedule.
    """
    return _change(
        name, action="schedule.enable", actor=actor, reason=reason, changes={"enabled": True}
    )


def disable(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Disable a schedule, so that it no longer fires, and return the keys that changed.

    Returns [] if the schedule is disabled already. Raises ScheduleError if there is no such
    schedule.
    """
    return _change(
        name, action="schedule.disable", actor=actor, reason=reason, changes={"enabled": False}
    )


def revert(name: str, *, actor: str, reason: str | None = None) -> list[str]:
    """Drop all changes of a schedule, and return the keys that changed.

    The definition in the code is in force then. Raises ScheduleError if there is no such schedule
    or the code does not declare it.
    """
    with transaction.atomic(using=config().database):
        found = _find(name)
        if found.declared_in is None:
            raise ScheduleError(
                f"the schedule {name!r} is not declared in the code: there is nothing to revert to"
            )

        return _change(
            name, action="schedule.revert", actor=actor, reason=reason, drop=list(found.changes)
        )


def delete(name: str, *, actor: str, reason: str | None = None) -> None:
    """Delete a schedule that the code does not declare, or no longer declares.

    Raises ScheduleError if there is no such schedule. It is also raised if the code declares the
    schedule, because the next scheduler that starts would write it again.
    """
    actor, reason = storable_actor(
        ScheduleError, f"schedule {name!r:.200} was not deleted", actor, reason
    )

    with transaction.atomic(using=config().database):
        found = _find(name)
        if not ScheduleStore(connections[config().database]).delete(name, actor, reason):
            raise ScheduleError(
                f"the schedule {name!r} is declared in {found.declared_in}: delete it there, or "
                "disable it here"
            )


def run_now(name: str, *, actor: str, reason: str | None = None) -> uuid.UUID:
    """Send the task of a schedule once now, and return the id of the task.

    The schedule may be disabled. Its fire times do not change. Raises ScheduleError if there is no
    such schedule, its definition is invalid or this process does not have its task. Raises
    TaskSendError if the task cannot be sent for another reason.
    """
    found, wrong = read_definition(_find(name).definition)
    actor, reason = storable_actor(
        ScheduleError, f"the task of the schedule {name!r} was not sent", actor, reason
    )
    if found is None:
        raise ScheduleError(f"invalid schedule {name!r}: {'; '.join(as_texts(wrong))}")

    try:
        new = task_of(found, None)
    except LookupError as error:
        raise ScheduleError(f"could not send the task of the schedule {name!r}: {error}") from error

    with transaction.atomic(using=config().database):
        write_one(new)
        task_id = {"task_id": str(new.ids[0])}
        TaskStore(connections[config().database]).note(
            name, "schedule.run_now", actor, reason, task_id
        )

    return new.ids[0]


def task_of(schedule: ScheduleConfig, fire_time: dt.datetime | None) -> NewTasks:
    """Return the task to send for a fire time, with the options of its decorator.

    Without a fire time, ``good_until`` is counted from now. The arguments are decoded and checked,
    because another release of the project may have written them. Raises LookupError if this process
    does not have the task, and TaskSendError if the arguments or the options are invalid.
    """
    task = registry.find_or_import(schedule.task)
    if task is None:
        raise LookupError(f"this process has no task {schedule.task!r}")

    good_until = None
    if schedule.good_for_ms is not None:
        good_until = (fire_time or dt.datetime.now(dt.UTC)) + dt.timedelta(
            milliseconds=schedule.good_for_ms
        )

    new = prepare_send(task, SendOptions(schedule.queue, schedule.priority, good_until), None)
    return new._replace(ids=[uuid7()], kwargs=[arguments_text(task, schedule.kwargs, as_json=True)])


def _refuse(name: str, definition: Mapping[str, Any]) -> None:
    if wrong := definition_problems(name, definition, as_json=True):
        raise ScheduleError(f"invalid schedule {name!r}: {'; '.join(as_texts(wrong))}")


def _find(name: str) -> Schedule:
    found = _row(name)
    if found is None:
        raise ScheduleError(f"there is no schedule {name!r}")
    return found


def _row(name: str) -> Schedule | None:
    if text_problem("name", name):
        return None
    alias = config().database
    with migrated(connections[alias]):
        return Schedule.objects.using(alias).filter(name=name).first()


def _change(name: str, *, actor: str, reason: str | None = None, **options: Any) -> list[str]:
    actor, reason = storable_actor(
        ScheduleError, f"schedule {name!r:.200} was not changed", actor, reason
    )

    changed = None
    if text_problem("name", name) is None:
        changed = ScheduleStore(connections[config().database]).change(
            name, actor=actor, reason=reason, **options
        )

    if changed is None:
        raise ScheduleError(f"there is no schedule {name!r}")
    return changed
