"""All tasks of this process by name, the import of the ``tasks`` modules that define them, and
tasks that workers may not know.

The worker and the checks call ``autodiscover``; nothing is imported when Django starts, and never
because a row names it.

A worker imports what Django imports when it starts, the ``tasks`` modules of apps, those in
OPTIONS["MODULES"], and what these import. A further module is known to it only if something else
imports it, as the system checks import the URLconf.
"""

from __future__ import annotations

import copyreg
import json
import logging
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from horsies_django.core.codec import ResultCodec
from horsies_django.core.codec.plain import PlainResult
from horsies_django.core.errors import StopRequested, TaskDefinitionError
from horsies_django.tasks.definition import TaskDefinition

logger = logging.getLogger("horsies.send")

_tasks: dict[str, TaskDefinition] = {}
# Modules that define tasks and that each worker imports, so far as this process has seen
sure: set[str] = set()
OWN_APP = "horsies_django"  # its ``tasks`` is not a module of tasks
# Where code belongs that scripts and shells run: ``shell -c`` runs it in its own module, a console
# in none
NOWHERE = ("__main__", "django.core.management.commands.shell", "builtins", None)

TESTS = re.compile(r"(^|\.)(tests?|test_\w+|conftest)(\.|$)")  # such modules need no worker
_sent: set[str] = set()  # names of tasks that were sent

_discovering = threading.local()


# OPTIONS["MODULES"]: of the package ``backends``, of a floor above; ``apps.py`` sets it
more_modules: Callable[[], Iterable[str]] = tuple


class ImportProblem(NamedTuple):
    """A module of tasks that could not be imported."""

    module: str
    error: BaseException


def register(task: TaskDefinition) -> None:
    """Add a task; a reloaded function replaces the old one.

    Raises TaskDefinitionError if another function has its name.
    """
    known = _tasks.get(task.name)
    if known is not None and known.origin != task.origin:
        raise TaskDefinitionError(
            f"two tasks are named {task.name!r}: {known.origin} and {task.origin}. Give one of "
            "them another name: @task(name=...)"
        )

    if not apps.ready:  # each process imports what Django imports when it starts
        sure.add(task.function.__module__)
    _tasks[task.name] = task


def find(name: str) -> TaskDefinition | None:
    """Return the task of that name if its module has been imported, else None."""
    return _tasks.get(name)


def find_or_import(name: str) -> TaskDefinition | None:
    """Return the task of that name, or None.

    Imports the ``tasks`` modules if the name is unknown.
    """
    if name not in _tasks:
        autodiscover()
    return _tasks.get(name)


def _definition(name: str) -> TaskDefinition:
    """Return the task of a pickle. Raises LookupError if this process has none of its name."""
    found = find_or_import(name)
    if found is None:
        raise LookupError(
            f"this process has no task {name!r}: its pickle is of another project, or the task is "
            "gone"
        )
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
    """Return the names of all tasks that this process has imported, sorted; what a web process has
    not needed is missing.
    """
    return sorted(_tasks)


def tasks() -> list[TaskDefinition]:
    return [_tasks[name] for name in names()]


def unimportable(found: Iterable[TaskDefinition]) -> str | None:
    """Return the problem with tasks of the main module or of a shell, which no other process
    imports; None without any.
    """
    wrong = [task for task in found if task.function.__module__ in NOWHERE]
    if not wrong:
        return None

    path = getattr(sys.modules["__main__"], "__file__", None)
    in_main = path is not None and any(task.function.__module__ == "__main__" for task in wrong)
    return (
        f"{', '.join(task.origin for task in wrong)}: defined in "
        f"{f'the main module ({path})' if in_main else 'a shell'}, which "
        "the processes that run tasks do not import: define tasks in the tasks.py of an app in "
        "INSTALLED_APPS"
    )


def unsendable(found: Iterable[TaskDefinition]) -> str | None:
    """Do the same for a send: a worker with --processes=0 may run a task of its script that has a
    name of its own.
    """
    return unimportable(
        task for task in found if task.name == task.origin or task.function.__module__ != "__main__"
    )


def autodiscover() -> list[ImportProblem]:
    """Import the modules of tasks; return those that failed. Meanwhile, this thread cannot send.

    They are the ``tasks`` modules of the installed apps, and those that OPTIONS["MODULES"] of a
    backend in TASKS names.
    """
    before = set(_tasks)
    problems = import_all(modules())
    sure.update(_tasks[name].function.__module__ for name in set(_tasks) - before)
    return problems


def import_all(names: Iterable[str]) -> list[ImportProblem]:
    """Import modules; return those that failed, also one that raises SystemExit.

    Meanwhile, this thread cannot send.
    """
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
        if (
            config.name != OWN_APP
            and config.module is not None
            and module_has_submodule(config.module, "tasks")
        ):
            yield f"{config.name}.tasks"
    yield from more_modules()


def other_modules() -> list[str]:
    """Return the modules of the tasks that this process knows, less those that each worker imports,
    sorted.
    """
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


def unsure() -> dict[str, list[str]]:
    """Return the modules that no worker is sure to import, of those of known tasks, each with the
    names of its tasks.

    Call it once the modules of tasks are imported.
    """
    found = doubtful()
    known = reached(found.keys()) if found else set()
    return {module: names for module, names in found.items() if module not in known}


def doubtful() -> dict[str, list[str]]:
    """Return the modules of tasks that are no modules of tasks, were not imported by these, and not
    while Django started.
    """
    found: dict[str, list[str]] = {}
    roots = tuple(modules())
    inside = tuple(f"{root}." for root in roots)

    for task in tasks():
        module = task.function.__module__
        if module in sure or module in roots or module in NOWHERE or "<locals>" in task.origin:
            continue
        if not module.startswith(inside) and not TESTS.search(module):
            found.setdefault(module, []).append(task.name)

    return found


def reached(wanted: Iterable[str]) -> set[str]:
    """Return the modules whose functions, classes or tasks the modules of tasks name, until the
    wanted ones are among them.
    """
    homes = {
        id(named(task)): task.function.__module__ for task in tasks() if named(task) is not None
    }
    level = set(modules())
    found = set[str]()

    while level and not found.issuperset(wanted):
        found |= level
        loaded = [module for name in level if type(module := sys.modules.get(name)) is ModuleType]
        values = [value for module in loaded for value in [*vars(module).values()]]
        level = {
            home for value in values if (home := homes.get(id(value)) or home_of(value))
        } - found

    return found


def named(task: TaskDefinition) -> object | None:
    module = sys.modules.get(task.function.__module__)
    return vars(module).get(task.function.__name__) if type(module) is ModuleType else None


def home_of(value: Any) -> str | None:
    """Return the name of a module, or where a function or a class was defined.

    Calls no user code, such as of lazy objects.
    """
    kind = type(value)
    if kind is ModuleType or kind is FunctionType:
        home = value.__name__ if kind is ModuleType else value.__module__
    else:
        home = (
            vars(type)["__dict__"].__get__(value).get("__module__")
            if issubclass(kind, type)
            else None
        )

    return home if type(home) is str else None


def unsure_problem(found: Mapping[str, list[str]]) -> str:
    """Return what may be wrong with the tasks of these modules."""
    return "no worker is sure to import " + "; ".join(
        f"{module} ({', '.join(found[module])})" for module in found
    )


def unsure_advice(found: Iterable[str]) -> str:
    """Return what makes workers import the tasks of these modules."""
    return (
        "move them to the tasks.py of an app in INSTALLED_APPS, import them there, or add "
        f'"MODULES": {json.dumps(sorted(found))} to the OPTIONS of a HorsiesBackend in TASKS'
    )


def warn_once(task: TaskDefinition) -> None:
    """Log the first send of a task that may be unknown to workers.

    Imports the modules of tasks where only they can tell.
    """
    if task.name in _sent:
        return
    _sent.add(task.name)

    module = task.function.__module__
    if module in doubtful():
        autodiscover()
        if module in unsure():
            logger.warning(
                "%s is sent, but %s: %s",
                task.name,
                unsure_problem({module: [task.name]}),
                unsure_advice([module]),
            )
