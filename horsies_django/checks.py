"""System checks, which report problems in the settings and the task definitions before tasks run.

Only ``check_schema`` connects to a database, because ``manage.py`` must work without one. All ids
are explained in ``docs/reference/checks.md``. A number is never reused for another check, because
projects silence checks by id.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router
from django.urls import get_resolver
from django.utils.text import capfirst

from horsies_django import schedules
from horsies_django.conf import DEFAULT_QUEUE, Config, QueueConfig, read_settings
from horsies_django.conf.section import CHECK_TAG, path_problems
from horsies_django.core.errors import RESERVED, TaskDefinitionError
from horsies_django.core.queues import shown_priority
from horsies_django.core.schedules import as_texts
from horsies_django.store.schema import open_schema
from horsies_django.tasks import registry
from horsies_django.tasks.decorator import TaskFunction
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.produced_codes import never_produced


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Report problems of ``settings.HORSIES`` and of the databases that it names.

    If there are none, report settings that have no effect.
    """
    config, problems = read_settings()
    if problems:
        return [_message(one.id, one.message, one.hint, one.where) for one in problems]
    if config.claim_lease_ms is None or config.prefetch_buffer:
        return []

    return [
        _message(
            "W003",
            f"CLAIM_LEASE_MS is {config.claim_lease_ms:_}, but PREFETCH_BUFFER is 0, so workers "
            "claim only tasks that they "
            "start at once.",
            "Remove CLAIM_LEASE_MS, or set PREFETCH_BUFFER.",
            "HORSIES['CLAIM_LEASE_MS']",
        )
    ]


def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """Report database routes and options that tasks cannot work with.

    Reports nothing while the settings are invalid.
    """
    config, problems = read_settings()
    if problems:
        return []
    return [*_misrouted(config), *_models_elsewhere(config), *_notifications_pooled(config)]


def check_schema(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report it if every role may create objects in the schema of the tables.

    Report nothing unless the database of the tables is among ``databases``.
    """
    config, problems = read_settings()
    if problems or config.database not in (databases or ()):
        return []

    connection = connections[config.database]
    if (schema := open_schema(connection)) is None:
        return []

    return [
        _message(
            "W006",
            f"Every role of the database {config.database!r} may create functions in the schema "
            f"{schema!r}, which the functions of horsies may call instead of PostgreSQL's own, "
            "with the rights of the worker.",
            "Run as the owner of the schema: REVOKE CREATE ON SCHEMA "
            f"{connection.ops.quote_name(schema)} FROM PUBLIC",
            "HORSIES['DATABASE']",
        )
    ]


def check_tasks(**kwargs: Any) -> list[CheckMessage]:
    """Import the ``tasks`` modules of all apps, and report tasks that no worker could run.

    Report also modules that cannot be imported, and schedules and settings that do not fit the
    tasks.
    """
    messages = []

    for failed in registry.autodiscover():
        error = failed.error
        id_ = "E011"
        message = f"The module cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, TaskDefinitionError):
            id_ = "E012"
            message = f"{error}"

        messages.append(
            _message(id_, message, f"Correct it in {_place(error, failed.module)}.", failed.module)
        )

    config, problems = read_settings()
    messages += [*_unsure_modules(), *_unsound_tasks(), *_wrapped_tasks()]
    if problems:
        return messages

    return [
        *messages,
        *_queues_of_tasks(config),
        *_unknown_codes(config),
        *_schedules(),
        *_unusable_paths(config),
    ]


def _message(id_: str, message: str, hint: str, where: object) -> CheckMessage:
    return (Error if id_.startswith("E") else Warning)(
        message, hint=hint, obj=where, id=f"{CHECK_TAG}.{id_}"
    )


def _misrouted(config: Config) -> Iterator[CheckMessage]:
    alias = config.database
    wrong = set()

    for model in apps.get_app_config("horsies").get_models():
        if (written := router.db_for_write(model)) != alias:
            wrong.add(f"written to {written!r}")
        if (read_from := router.db_for_read(model)) != alias:
            wrong.add(f"read from {read_from!r}")
        if not router.allow_migrate_model(alias, model):
            wrong.add(f"not migrated on {alias!r}")

    if wrong:
        yield _message(
            "E010",
            f"HORSIES['DATABASE'] is {alias!r}, but the models of horsies are "
            f"{', '.join(sorted(wrong))}.",
            "Put 'horsies_django.routers.HorsiesRouter' first in DATABASE_ROUTERS.",
            "HORSIES['DATABASE']",
        )


def _models_elsewhere(config: Config) -> Iterator[CheckMessage]:
    """Report that most models of the project are written to another alias than tasks.

    A few models may be on another database, so the alias with the most models is compared.
    """
    written = Counter({config.database: 0})

    for app in apps.get_app_configs():
        if app.label != "horsies" and not app.name.startswith("django.contrib."):
            own = (
                model for model in app.get_models() if model._meta.managed and not model._meta.proxy
            )
            written.update(map(router.db_for_write, own))

    alias, count = max(written.items(), key=lambda item: item[1])
    if count > written[config.database]:
        yield _message(
            "W001",
            f"Tasks are sent to {config.database!r}, but {count} of the project's "
            f"{written.total()} models are written to "
            f"{alias!r}. A task sent inside a transaction on {alias!r} is kept even if that "
            "transaction is rolled back.",
            f"Set HORSIES['DATABASE'] to {alias!r}, or silence this check if tasks do not depend "
            "on those transactions.",
            "HORSIES['DATABASE']",
        )


def _notifications_pooled(config: Config) -> Iterator[CheckMessage]:
    """Report an alias that disables server-side cursors.

    It probably connects through a pooler in transaction mode, where LISTEN does not work.
    """
    alias = config.listen_database or config.database
    if connections.settings[alias].get("DISABLE_SERVER_SIDE_CURSORS"):
        yield _message(
            "W002",
            f"The database {alias!r} sets DISABLE_SERVER_SIDE_CURSORS, as PgBouncer in transaction "
            "mode requires. LISTEN "
            "does not work through such a pooler: tasks start and results arrive only at the next "
            "poll.",
            "Add an alias that connects to PostgreSQL directly, and set HORSIES['LISTEN_DATABASE'] "
            "to it.",
            "HORSIES['LISTEN_DATABASE']",
        )


def _place(error: BaseException, module: str) -> str:
    """Return the file and the last line of the project's own code in the traceback of an error.

    Return the name of the module if the traceback has no line of the project.
    """
    paths = sysconfig.get_paths()
    elsewhere = (str(Path(__file__).parent), paths["stdlib"], paths["purelib"], "<frozen ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(elsewhere)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else module


def _unsure_modules() -> Iterator[CheckMessage]:
    """Report modules of tasks that no worker is sure to import, such as those the URLconf imports.

    Errors of the URLconf are ignored here, because Django's own check reports them.
    """
    with suppress(Exception):
        get_resolver().url_patterns  # noqa: B018 - imports the URLconf

    if found := registry.unreached_modules():
        message = capfirst(registry.unsure_problem(found))
        hint = capfirst(registry.unsure_advice(found))
        yield _message("W005", f"{message}.", f"{hint}.", ", ".join(found))


def _unsound_tasks() -> Iterator[CheckMessage]:
    """Resolve the annotations of all tasks, and report invalid annotations.

    An annotation may contain names that were not defined when the task was declared. All modules
    are imported before this check.
    """
    for task in registry.registered_tasks():
        try:
            task.arguments.resolve()
            task.result.resolve()
        except TaskDefinitionError as error:
            yield _message("E012", f"{error}", f"Correct it in {task.origin}.", task.origin)


def _wrapped_tasks() -> Iterator[CheckMessage]:
    """Report tasks that cannot be sent because another decorator is above ``@task``.

    Report only tasks whose module-level name is certain to be a wrapper of the task.
    """
    for task in registry.registered_tasks():
        named = getattr(sys.modules.get(task.function.__module__), task.function.__name__, None)
        if named is None or hasattr(named, "send"):
            continue

        try:
            innermost = inspect.unwrap(named, stop=lambda one: isinstance(one, TaskFunction))
        except ValueError:  # the function wraps itself
            continue

        if isinstance(innermost, TaskFunction) and innermost.definition is task:
            yield _message(
                "E023",
                f"{task.origin} has a decorator above @task. The name of the task refers to "
                "the function of that decorator, which cannot be sent, and workers run the "
                "task without the decorator.",
                "Swap the two lines: @task must be on top, as in '@task' above "
                "'@transaction.atomic'.",
                task.origin,
            )


def _unknown_codes(config: Config) -> Iterator[CheckMessage]:
    tasks = registry.registered_tasks()
    mapped = [config.exception_mapper, *(task.exception_mapper for task in tasks)]
    known = {
        *RESERVED,
        config.default_unhandled_error_code,
        *(code for one in mapped for code in one.values()),
    }

    for task, code in never_produced(known):
        near = get_close_matches(code, sorted(known), 1)
        yield _message(
            "W004",
            f"The task {task.name!r} is retried for the error code {code!r}, which nothing in this "
            "project produces.",
            f"{f'Did you mean {near[0]!r}? ' if near else ''}Correct it, or produce it with an "
            "exception mapper "
            f"or TaskError({code!r}). auto_retry_for may also contain exception classes.",
            task.origin,
        )


def _queues_of_tasks(config: Config) -> Iterator[CheckMessage]:
    """Report tasks whose queue is not declared, or whose options do not fit an ordered queue.

    The queue of a task is that of its decorator. A send may name another one.
    """
    for task in registry.registered_tasks():
        name = task.queue or DEFAULT_QUEUE
        if (queue := config.queues.get(name)) is None:
            yield _message(
                "E013",
                f"The task {task.name!r} uses the queue {name!r}, which is not declared, so it "
                "cannot be sent.",
                f"Add it to HORSIES['QUEUES'], or use one of: {', '.join(sorted(config.queues))}.",
                task.origin,
            )

        if queue is None or not queue.ordered:
            continue

        if task.priority != task.usual_priority:
            yield _message(
                "E028",
                f"The task {task.name!r} has the priority "
                f"{shown_priority(task.priority, task.codec)}, but the queue "
                f"{queue.name!r} is ordered: its tasks run in the order in which they were sent, "
                "so this task cannot be sent.",
                "Remove the priority, or use another queue. The queue itself may have a priority.",
                task.origin,
            )

        yield from _keys_in_order(task, queue)
        if queue.policy == "stop" and task.retry_policy is None:
            yield _message(
                "W010",
                f"The task {task.name!r} has no retry policy, and the queue {queue.name!r} is "
                "ordered: after one failure, the "
                "tasks of the same key do not run until the failed task is retried or skipped.",
                "Add a retry_policy to the task, or 'on_failure': 'continue' or 'cancel' to the "
                "partition of the queue.",
                task.origin,
            )


def _keys_in_order(task: TaskDefinition, queue: QueueConfig) -> Iterator[CheckMessage]:
    """Report arguments in the key of an ordered queue that are missing in a task or have a default.

    A send may leave out an argument that has a default.
    """
    names = queue.partition.by_args or () if queue.partition else ()
    arguments = task.arguments
    missing = [] if arguments.takes_any else [name for name in names if name not in arguments.names]

    if missing:
        yield _message(
            "W008",
            f"The task {task.name!r} has no argument {', '.join(map(repr, missing))}, by which the "
            f"queue {queue.name!r} is "
            "ordered: all tasks without it share one key, and run one after another.",
            "Add the argument, or use another queue.",
            task.origin,
        )

    if left := [name for name in names if name in arguments.optional]:
        yield _message(
            "W009",
            f"The task {task.name!r} has a default for {', '.join(map(repr, left))}, by which the "
            f"queue {queue.name!r} is "
            "ordered: all sends without it share one key, which is not the key of the default "
            "value.",
            "Remove the default.",
            task.origin,
        )


def _unusable_paths(config: Config) -> Iterator[CheckMessage]:
    for key, paths in (("MIDDLEWARE", config.middleware), ("METADATA", config.metadata)):
        for problem in path_problems(paths):
            yield _message("E024", f"{problem}.", "Correct or remove it.", f"HORSIES[{key!r}]")


def _schedules() -> Iterator[CheckMessage]:
    """Report all problems of the schedules that the code declares."""
    names: dict[str, str] = {}
    for one in schedules.declared():
        for problem in as_texts(schedules.definition_problems(one.name, one.definition)):
            yield _message(
                "E021", f"The schedule {one.name!r}: {problem}.", "Correct it.", one.where
            )

        if one.name in names:
            yield _message(
                "E022",
                f"The schedule {one.name!r} is declared here and in {names[one.name]}.",
                "Give one of them another name.",
                one.where,
            )

        names[one.name] = one.where
