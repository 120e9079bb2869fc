"""All tasks of this process by name, and the import of the ``tasks`` modules that define them.

The worker and the checks call ``autodiscover``; nothing is imported when Django starts, and never because a row names it.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from horsies_django.core.codec import ResultCodec
from horsies_django.core.codec.plain import PlainResult
from horsies_django.core.errors import StopRequested, TaskDefinitionError
from horsies_django.tasks.definition import TaskDefinition

_tasks: dict[str, TaskDefinition] = {}
sure: set[str] = set()  # modules that define tasks and that each worker imports, so far as this process has seen
OWN_APP = "horsies_django"  # its ``tasks`` is not a module of tasks
# Where code belongs that scripts and shells run: ``shell -c`` runs it in its own module, a console in none
NOWHERE = ("__main__", "django.core.management.commands.shell", "builtins", None)

_discovering = threading.local()


# OPTIONS["MODULES"]: of the package ``backends``, of a floor above; ``apps.py`` sets it
more_modules: Callable[[], Iterable[str]] = tuple


class ImportProblem(NamedTuple):
    """A module of tasks that could not be imported."""

    module: str
    error: BaseException


def register(task: TaskDefinition) -> None:
    """Add a task; a reloaded function replaces the old one. Raises TaskDefinitionError if another function has its name."""
    known = _tasks.get(task.name)
    if known is not None and known.origin != task.origin:
        raise TaskDefinitionError(
            f"two tasks are named {task.name!r}: {known.origin} and {task.origin}. Give one of them another name: @task(name=...)"
        )
    if not apps.ready:  # each process imports what Django imports when it starts
        sure.add(task.function.__module__)
    _tasks[task.name] = task


def find(name: str) -> TaskDefinition | None:
    """Return the task of that name if its module has been imported, else None."""
    return _tasks.get(name)


def find_or_import(name: str) -> TaskDefinition | None:
    """Return the task of that name, or None. Imports the ``tasks`` modules if the name is unknown."""
    if name not in _tasks:
        autodiscover()
    return _tasks.get(name)


def _definition(name: str) -> TaskDefinition:
    """Return the task of a pickle. Raises LookupError if this process has none of its name."""
    found = find_or_import(name)
    if found is None:
        raise LookupError(f"this process has no task {name!r}: its pickle is of another project, or the task is gone")
    return found


def _reduce_result(codec: ResultCodec) -> tuple[Any, ...]:
    """Let the codec of a task be pickled by the task. Raises PicklingError for any other."""
    for task in _tasks.values():
        if task.result is codec:
            return attrgetter("result"), (task,)
    raise pickle.PicklingError(f"{codec.origin} is not a task of this process any more")


# Tasks are themselves in copies, and names in pickles.
copyreg.pickle(TaskDefinition, lambda task: (_definition, (task.name,)))
for codec_class in (ResultCodec, PlainResult):
    copyreg.pickle(codec_class, _reduce_result)


def names() -> list[str]:
    """Return the names of all tasks that this process has imported, sorted; what a web process has not needed is missing."""
    return sorted(_tasks)


def tasks() -> list[TaskDefinition]:
    return [_tasks[name] for name in names()]


def unimportable(found: Iterable[TaskDefinition]) -> str | None:
    """Return the problem with tasks of the main module or of a shell, which no other process imports; None without any."""
    wrong = [task for task in found if task.function.__module__ in NOWHERE]
    if not wrong:
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    in_main = path is not None and any(task.function.__module__ == "__main__" for task in wrong)
    return (
        f"{', '.join(task.origin for task in wrong)}: defined in {f'the main module ({path})' if in_main else 'a shell'}, which "
        "the processes that run tasks do not import: define tasks in the tasks.py of an app in INSTALLED_APPS"
    )


def unsendable(found: Iterable[TaskDefinition]) -> str | None:
    """Do the same for a send: a worker with --processes=0 may run a task of its script that has a name of its own."""
    return unimportable(task for task in found if task.name == task.origin or task.function.__module__ != "__main__")


def autodiscover() -> list[ImportProblem]:
    """Import the modules of tasks; return those that failed. Meanwhile, this thread cannot send.

    They are the ``tasks`` modules of the installed apps, and those that OPTIONS["MODULES"] of a backend in TASKS names.
    """
    before = set(_tasks)
    problems = import_all(modules())
    sure.update(_tasks[name].function.__module__ for name in set(_tasks) - before)
    return problems


def import_all(names: Iterable[str]) -> list[ImportProblem]:
    """Import modules; return those that failed, also one that raises SystemExit. Meanwhile, this thread cannot send."""
    problems = []
    with suppressed_sends():
        for module in names:
            try:
                import_module(module)
            except (StopRequested, KeyboardInterrupt):  # meant for this process
                raise
            except BaseException as error:
                problems.append(ImportProblem(module, error))
    return problems


def modules() -> Iterator[str]:
    """Yield the modules of tasks that each worker imports."""
    for config in apps.get_app_configs():
        if config.name != OWN_APP and config.module is not None and module_has_submodule(config.module, "tasks"):
            yield f"{config.name}.tasks"
    yield from more_modules()


def other_modules() -> list[str]:
    """Return the modules of the tasks that this process knows, less those that each worker imports, sorted."""
    known = {task.function.__module__ for task in _tasks.values()}
    return sorted(known.difference(modules(), NOWHERE))


@contextmanager
def suppressed_sends() -> Iterator[None]:
    """Refuse to send tasks in this thread during the block."""
    before = discovering()
    _discovering.active = True
    try:
        yield
    finally:
        _discovering.active = before


def discovering() -> bool:
    """Whether this thread is importing task modules."""
    return getattr(_discovering, "active", False)
