"""The registry of all tasks of this process, by name.

This module also imports the ``tasks`` modules that define tasks, and finds tasks that workers may
not have. The worker and the checks call ``autodiscover``. No module is imported when Django starts,
or because a row contains its name.

A worker imports the modules that Django imports when it starts, the ``tasks`` modules of apps, the
modules in OPTIONS["MODULES"], and all modules that these import. A worker has the tasks of another
module only if something else imports it. For example, the system checks import the URLconf.
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
# The modules that define tasks and are known to be imported by each worker
sure: set[str] = set()
OWN_APP = "horsies_django"  # the package ``tasks`` of this app defines no tasks
# The modules of code that scripts and shells run. ``shell -c`` runs code in its own module, and a
# console runs code without a module.
UNIMPORTABLE_MODULES = ("__main__", "django.core.management.commands.shell", "builtins", None)

TESTS = re.compile(r"(^|\.)(tests?|test_\w+|conftest)(\.|$)")  # workers need not import tests
_sent: set[str] = set()  # names of tasks that were sent

_discovering = threading.local()


# The function that returns the modules in OPTIONS["MODULES"]. ``apps.py`` sets it, because it is in
# the package ``backends``, which this package must not import.
more_modules: Callable[[], Iterable[str]] = tuple


class ImportProblem(NamedTuple):
    """A module of tasks that could not be imported."""

    module: str
    error: BaseException


def register(task: TaskDefinition) -> None:
    """Add a task to the registry.

    The function of a reloaded module replaces the old one. Raises TaskDefinitionError if another
    function has the same task name.
    """
    known = _tasks.get(task.name)
    if known is not None and known.origin != task.origin:
        raise TaskDefinitionError(
            f"two tasks are named {task.name!r}: {known.origin} and {task.origin}. Give one of "
            "them another name: @task(name=...)"
        )

    if not apps.ready:  # each process imports the modules that Django imports when it starts
        sure.add(task.function.__module__)
    _tasks[task.name] = task


def find(name: str) -> TaskDefinition | None:
    """Return the task of a name, or None if no imported module defines it."""
    return _tasks.get(name)


def find_or_import(name: str) -> TaskDefinition | None:
    """Return the task of a name, or None if there is none.

    The ``tasks`` modules are imported if the name is unknown.
    """
    if name not in _tasks:
        autodiscover()
    return _tasks.get(name)


def _definition(name: str) -> TaskDefinition:
    """Return the task in a pickle. Raises LookupError if this process has no task of its name."""
    found = find_or_import(name)
    if found is None:
        raise LookupError(
            f"this process has no task {name!r}: its pickle is from another project, or the task "
            "was renamed or removed"
        )
    return found


def _reduce_result(codec: ResultCodec) -> tuple[Any, ...]:
    """Return the pickle of a codec, which refers to its task.

    Raises PicklingError if the codec does not belong to a task of this process.
    """
    for task in _tasks.values():
        if task.result is codec:
            return attrgetter("result"), (task,)
    raise pickle.PicklingError(f"{codec.origin} is not a task of this process any more")


# A copy of a task is the task itself, and a pickle has only its name.
copyreg.pickle(TaskDefinition, lambda task: (_definition, (task.name,)))
for codec_class in (ResultCodec, PlainResult):
    copyreg.pickle(codec_class, _reduce_result)


def names() -> list[str]:
    """Return the sorted names of all tasks that this process has imported.

    In a web process, tasks of modules that it has not needed are missing.
    """
    return sorted(_tasks)


def registered_tasks() -> list[TaskDefinition]:
    return [_tasks[name] for name in names()]


def unimportable(found: Iterable[TaskDefinition]) -> str | None:
    """Return the problem with tasks that are defined in the main module or in a shell.

    No other process imports these modules. Return None if there is no such task.
    """
    wrong = [task for task in found if task.function.__module__ in UNIMPORTABLE_MODULES]
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
    """Return the problem with sending tasks that are defined in the main module or in a shell.

    A task of the main module that has an explicit name may be sent, because a worker with
    --processes=0 may run it in the same script. Return None if there is no problem.
    """
    return unimportable(
        task for task in found if task.name == task.origin or task.function.__module__ != "__main__"
    )


def autodiscover() -> list[ImportProblem]:
    """Import the modules of tasks, and return the modules that cannot be imported.

    They are the ``tasks`` modules of the installed apps, and the modules in OPTIONS["MODULES"] of a
    backend in TASKS. This thread cannot send tasks during the import.
    """
    before = set(_tasks)
    problems = import_all(modules())
    sure.update(_tasks[name].function.__module__ for name in set(_tasks) - before)
    return problems


def import_all(names: Iterable[str]) -> list[ImportProblem]:
    """Import modules, and return the modules that cannot be imported.

    A module that raises SystemExit is one of them. This thread cannot send tasks during the import.
    """
    problems = []
    with suppressed_sends():
        for module in names:
            try:
                import_module(module)
            except (StopRequested, KeyboardInterrupt):  # they stop the process, not the import
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
    """Return the sorted modules of tasks that this process has, but that workers may not import."""
    known = {task.function.__module__ for task in _tasks.values()}
    return sorted(known.difference(modules(), UNIMPORTABLE_MODULES))


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
    """Return whether this thread is importing modules of tasks."""
    return getattr(_discovering, "active", False)


def unreached_modules() -> dict[str, list[str]]:
    """Return the modules with tasks that no worker is sure to import, and the names of their tasks.

    The modules of tasks must be imported before the call.
    """
    found = doubtful()
    known = reached(found.keys()) if found else set()
    return {module: names for module, names in found.items() if module not in known}


def doubtful() -> dict[str, list[str]]:
    """Return the modules with tasks that workers may not import, and the names of their tasks.

    These are modules that are not among ``modules()`` or inside of one, were not imported during
    ``autodiscover`` or the start of Django, and are neither tests nor scripts.
    """
    found: dict[str, list[str]] = {}
    roots = tuple(modules())
    inside = tuple(f"{root}." for root in roots)

    for task in registered_tasks():
        module = task.function.__module__
        if (
            module in sure
            or module in roots
            or module in UNIMPORTABLE_MODULES
            or "<locals>" in task.origin
        ):
            continue
        if not module.startswith(inside) and not TESTS.search(module):
            found.setdefault(module, []).append(task.name)

    return found


def reached(wanted: Iterable[str]) -> set[str]:
    """Return the modules that the modules of tasks import, directly or through other modules.

    A module counts as imported if a variable of another module is that module, or a function, a
    class or a task of it. The search ends as soon as all ``wanted`` modules are found.
    """
    homes = {
        id(value_in_module(task)): task.function.__module__
        for task in registered_tasks()
        if value_in_module(task) is not None
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


def value_in_module(task: TaskDefinition) -> object | None:
    module = sys.modules.get(task.function.__module__)
    return vars(module).get(task.function.__name__) if type(module) is ModuleType else None


def home_of(value: Any) -> str | None:
    """Return the name of a module, or of the module that defines a function or a class.

    Return None for any other value. No user code is called, such as that of lazy objects.
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
    """Return the text of the problem with tasks that workers may not import."""
    return "workers do not necessarily import " + "; ".join(
        f"{module} ({', '.join(found[module])})" for module in found
    )


def unsure_advice(found: Iterable[str]) -> str:
    """Return the text of the remedy, with which workers import these modules."""
    return (
        "move the tasks to the tasks.py of an app in INSTALLED_APPS, import the modules "
        "there, or add "
        f'"MODULES": {json.dumps(sorted(found))} to the OPTIONS of a HorsiesBackend in TASKS'
    )


def warn_once(task: TaskDefinition) -> None:
    """Log a warning at the first send of a task that workers may not import.

    The modules of tasks are imported if this cannot be decided without them.
    """
    if task.name in _sent:
        return
    _sent.add(task.name)

    module = task.function.__module__
    if module in doubtful():
        autodiscover()
        if module in unreached_modules():
            logger.warning(
                "%s was sent, but %s: %s",
                task.name,
                unsure_problem({module: [task.name]}),
                unsure_advice([module]),
            )
