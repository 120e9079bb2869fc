"""The code of ``HorsiesBackend`` for both Django's own ``django.tasks`` and the backport."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.utils import timezone

from horsies_django.backends import tasks
from horsies_django.backends.options import BackendOptions, options_problem, read_backend_options
from horsies_django.backends.results import (
    BACKEND,
    Api,
    ResultMixin,
    alias_of,
    asend_task_signal,
    fields_of,
    send_task_signal,
    stored_task,
)
from horsies_django.conf import read_settings
from horsies_django.conf.section import CHECK_TAG
from horsies_django.core.queues import django_priority
from horsies_django.tasks import registry
from horsies_django.tasks.enqueue import encode, refuse_running_loop, refuse_suppressed, write_timed
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.options import LONGEST_DELAY, SendOptions, prepare_send


class BackendMixin:
    """The methods of a backend that sends tasks and reads their results.

    A send is a plain INSERT in the caller's transaction on the database alias HORSIES["DATABASE"].
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    api: ClassVar[Api]
    result_class: ClassVar[type[ResultMixin]]
    task_class: Any
    alias: str
    options: dict[str, Any]
    queues: set[str]

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Allow all queues in HORSIES["QUEUES"] if QUEUES is not given.

        Django's own default allows only the queue "default".
        """
        super().__init__(alias, {"QUEUES": [], **params})  # type: ignore[call-arg]

    @property
    def horsies_options(self) -> BackendOptions:
        """The OPTIONS of this backend.

        They are read again if they are invalid, because a module may not have been importable while
        the apps were loaded.
        """
        found: BackendOptions | None = self.__dict__.get("_horsies_options")
        if found is None or found.problems:
            found = self.__dict__["_horsies_options"] = read_backend_options(self.options)
        return found

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if a task cannot be run.

        ``run_after`` may also be a timedelta.
        """
        checked = task
        priority = task.priority
        if isinstance(priority, bool) or not isinstance(priority, int | float):
            raise self.api.invalid_task("priority must be a whole number between -100 and 100.")

        if isinstance(task.run_after, dt.timedelta):
            if not dt.timedelta(0) <= task.run_after <= LONGEST_DELAY:
                raise self.api.invalid_task(
                    "run_after must be from 0 seconds to 100 years from now."
                )
            fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
            checked = SimpleNamespace(**fields | {"run_after": None})
        elif task.run_after is not None and not isinstance(task.run_after, dt.datetime):
            raise self.api.invalid_task("run_after must be a datetime or a timedelta.")

        super().validate_task(checked)  # type: ignore[misc]
        if problem := options_problem(task):
            raise self.api.invalid_task(f"{task.module_path}: {problem}.")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send a task, which exists if and only if the caller's transaction commits.

        Raises InvalidTask if the task cannot be run, TypeError if the arguments are not JSON, and
        TaskSendError.
        """
        self.validate_task(task)
        refuse_running_loop(tasks.register_definition(task), "enqueue")
        result = self._send(task, args, kwargs)
        send_task_signal(self, "task_enqueued", result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send a task as ``enqueue`` does, from async code.

        The INSERT runs in Django's thread for sync code, as ORM calls do.
        """
        self.validate_task(task)
        result = await sync_to_async(self._send, thread_sensitive=True)(task, args, kwargs)
        await asend_task_signal(self, "task_enqueued", result)
        return result

    def _send(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if problems := self.horsies_options.problems:
            raise self.api.invalid_backend(
                "; ".join(f"{where(self.alias, key)} {problem}" for key, problem in problems)
            )

        # The options are those of this Task object, which ``using`` may have changed.
        definition = dataclasses.replace(
            tasks.register_definition(task), **tasks.sending_options(task)
        )
        refuse_suppressed(definition.name, [definition])
        registry.warn_once(definition)

        id_ = uuid7()
        try:
            result = self._result(
                id_, task, {"status": self.api.status.READY, "args": args, "kwargs": kwargs}
            )
        except RecursionError:
            encode(definition, tuple(args), dict(kwargs))  # raises an error that names the argument
            raise

        new = prepare_send(definition, SendOptions(), aware_run_after(task.run_after))
        options = {**json.loads(new.options or "{}"), BACKEND: self.alias}
        text = encode(definition, result.args, result.kwargs)
        sent = write_timed(new._replace(ids=[id_], kwargs=[text], options=json.dumps(options)))
        object.__setattr__(result, "enqueued_at", sent.sent_at)

        if isinstance(task.run_after, dt.timedelta):
            object.__setattr__(result, "task", tasks.rebuilt(task, run_after=sent.enqueued_at))

        return result

    def get_result(self, result_id: Any) -> Any:
        """Return the result of a task of this backend.

        Raises TaskResultDoesNotExist if there is no such task, or if the argument is not an id.
        """
        try:
            id_ = result_id if isinstance(result_id, uuid.UUID) else uuid.UUID(result_id)
        except (ValueError, AttributeError, TypeError):
            raise self.api.does_not_exist(result_id) from None

        stored = stored_task(id_)
        if stored is None:
            raise self.api.does_not_exist(result_id)
        task = tasks.find_or_placeholder(stored.task_name, self.task_class)
        if (alias_of(stored) or task.backend) != self.alias:
            raise self.api.does_not_exist(result_id)

        sent = tasks.rebuilt(
            task,
            backend=self.alias,
            queue_name=stored.queue_name,
            priority=django_priority(stored.priority),
            run_after=stored.enqueued_at if stored.enqueued_at > stored.sent_at else None,
        )
        return self._result(id_, sent, fields_of(stored, self.api))

    def _result(self, id_: uuid.UUID, task: Any, values: dict[str, Any]) -> Any:
        moments = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
        returned = values.pop("_return_value", None)

        made: Any = self.result_class
        result = made(
            **{
                "id": str(id_),
                "task": task,
                "backend": self.alias,
                "errors": [],
                "worker_ids": [],
                **moments,
                **values,
            }
        )
        object.__setattr__(result, "_return_value", returned)
        return result

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the problems of this backend in ``settings.TASKS``.

        No connection to a database is made.
        """
        return list(self._problems())

    def _problems(self) -> Iterator[CheckMessage]:
        if not apps.is_installed("horsies_django"):
            yield check_error(
                "E027",
                f"TASKS[{self.alias!r}] is a HorsiesBackend, but 'horsies_django' is not in "
                "INSTALLED_APPS.",
                "Add it, run 'python manage.py migrate', and start 'python manage.py "
                "horsies_worker'.",
                f"TASKS[{self.alias!r}]",
            )
            return

        for key, problem in self.horsies_options.problems:
            yield check_error(
                "E025",
                f"{where(self.alias, key)} {problem}.",
                "Correct it.",
                f"TASKS[{self.alias!r}]",
            )

        conf, problems = read_settings()
        if not problems and (unknown := sorted(self.queues - conf.queues.keys())):
            yield check_error(
                "E026",
                f"TASKS[{self.alias!r}]['QUEUES'] names queues that are not declared: "
                f"{', '.join(unknown)}.",
                f"Add them to HORSIES['QUEUES'], or use: {', '.join(sorted(conf.queues))}.",
                f"TASKS[{self.alias!r}]['QUEUES']",
            )


def aware_run_after(
    run_after: dt.datetime | dt.timedelta | None,
) -> dt.datetime | dt.timedelta | None:
    """Return a naive datetime with the time zone of the settings if USE_TZ is off.

    All other values are returned unchanged.
    """
    if isinstance(run_after, dt.datetime) and timezone.is_naive(run_after) and not settings.USE_TZ:
        return timezone.make_aware(run_after, timezone.get_default_timezone())
    return run_after


def where(alias: str, key: str) -> str:
    """Return the path of an option in the settings."""
    options = f"TASKS[{alias!r}]['OPTIONS']"
    return options if key == "OPTIONS" else f"{options}[{key!r}]"


def check_error(id_: str, message: str, hint: str, place: str) -> CheckMessage:
    return Error(message, hint=hint, obj=place, id=f"{CHECK_TAG}.{id_}")
