"""What ``horsies_task send`` and ``horsies_task purge`` make of their options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from horsies_django.core.results import TaskResult
from horsies_django.schedules import arguments_text
from horsies_django.tasks import purging, registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import send_call
from horsies_django.tasks.handle import TaskHandle, get_handle
from horsies_django.tasks.options import SendOptions
from horsies_django.workflows.checks import close_to


def send(name: str, kwargs: str, options: SendOptions) -> TaskHandle[Any]:
    """Send a task with arguments in JSON, checked as in any send. Raises LookupError, ValueError and TaskSendError."""
    task = find(name)
    try:
        given = json.loads(kwargs)
    except ValueError as error:
        raise ValueError(f"--kwargs must be JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError("""--kwargs must be a JSON object of arguments by name, as in '{"user_id": 7}'""")
    args, by_name = task.arguments.decode(arguments_text(task, given, True))
    return get_handle(send_call(task, options, tuple(args), by_name))


def find(name: str) -> TaskDefinition:
    """Return the task of a name. Raises LookupError, which also says which modules of tasks cannot be imported."""
    if (task := registry.find_or_import(name)) is not None:
        return task
    failed = [f"; importing {problem.module} failed: {problem.error!r}" for problem in registry.autodiscover()]
    raise LookupError(f"there is no task named {name!r}{close_to(name, registry.names())}{''.join(failed)}")


def options_of(options: Mapping[str, Any]) -> SendOptions:
    return SendOptions(
        queue=options["queue"], priority=options["priority"], delay=options["delay"], good_until=options["good_for"]
    )


def envelope(result: TaskResult[Any]) -> dict[str, Any]:
    if result.is_ok():
        return {"ok": result.ok}
    error = result.err_value
    return {"err": {"error_code": error.error_code, "message": error.message, "data": error.data}}


def selection_of(options: Mapping[str, Any]) -> purging.Selection:
    """Return the tasks that a purge concerns. Raises ValueError for options that do not go together."""
    given = {name: options[name] for name in ("finished", "queue", "name", "status")}
    age = options["older_than"]
    if options["finished"] and age is None:
        raise ValueError("--finished deletes tasks with their results: say which, as in --older-than=7d")
    if options["status"] and not options["finished"]:
        raise ValueError("--status is for --finished: without it, waiting tasks are cancelled")
    if options["all"] == bool(options["queue"] or options["name"]):
        raise ValueError("give --queue, --name or both, or else --all for the tasks of all queues")
    if age is not None:
        given["older_than"] = age
    return purging.selection(**given)


def described(chosen: purging.Selection, count: int) -> str:
    """Return how many tasks of which kind these are: "2 waiting tasks named 'a.b' in the queue 'mail'"."""
    kind = f"{chosen.status.lower()} " if chosen.status else "finished " if chosen.finished else "waiting "
    name = f" named {chosen.name!r}" if chosen.name else ""
    queue = f" in the queue {chosen.queue!r}" if chosen.queue else ""
    return f"{count:,} {kind}task{'' if count == 1 else 's'}{name}{queue}"
