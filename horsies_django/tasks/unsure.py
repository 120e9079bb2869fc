"""Tasks in modules that no worker is sure to import.

A worker imports what Django imports when it starts, the ``tasks`` modules of apps, those in OPTIONS["MODULES"], and what these
import. A further module is known to it only if something else imports it, as the system checks import the URLconf.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition

logger = logging.getLogger("horsies.send")

TESTS = re.compile(r"(^|\.)(tests?|test_\w+|conftest)(\.|$)")  # such modules need no worker
_sent: set[str] = set()  # names of tasks that were sent


def unsure() -> dict[str, list[str]]:
    """Return the modules that no worker is sure to import, of those of known tasks, each with the names of its tasks.

    Call it once the modules of tasks are imported.
    """
    found = doubtful()
    sure = reached(found.keys()) if found else set()
    return {module: names for module, names in found.items() if module not in sure}


def doubtful() -> dict[str, list[str]]:
    """Return the modules of tasks that are no modules of tasks, were not imported by these, and not while Django started."""
    found: dict[str, list[str]] = {}
    roots = tuple(registry.modules())
    inside = tuple(f"{root}." for root in roots)
    for task in registry.tasks():
        module = task.function.__module__
        if module in registry.sure or module in roots or module in registry.NOWHERE or "<locals>" in task.origin:
            continue
        if not module.startswith(inside) and not TESTS.search(module):
            found.setdefault(module, []).append(task.name)
    return found


def reached(wanted: Iterable[str]) -> set[str]:
    """Return the modules whose functions, classes or tasks the modules of tasks name, until the wanted ones are among them."""
    homes = {id(named(task)): task.function.__module__ for task in registry.tasks() if named(task) is not None}
    level, found = set(registry.modules()), set[str]()
    while level and not found.issuperset(wanted):
        found |= level
        loaded = [module for name in level if type(module := sys.modules.get(name)) is ModuleType]
        values = [value for module in loaded for value in [*vars(module).values()]]
        level = {home for value in values if (home := homes.get(id(value)) or home_of(value))} - found
    return found


def named(task: TaskDefinition) -> object | None:
    module = sys.modules.get(task.function.__module__)
    return vars(module).get(task.function.__name__) if type(module) is ModuleType else None


def home_of(value: Any) -> str | None:
    """Return the name of a module, or where a function or a class was defined. Calls no user code, such as of lazy objects."""
    kind = type(value)
    if kind is ModuleType or kind is FunctionType:
        home = value.__name__ if kind is ModuleType else value.__module__
    else:
        home = vars(type)["__dict__"].__get__(value).get("__module__") if issubclass(kind, type) else None
    return home if type(home) is str else None


def problem(found: Mapping[str, list[str]]) -> str:
    """Return what may be wrong with the tasks of these modules."""
    return "no worker is sure to import " + "; ".join(f"{module} ({', '.join(found[module])})" for module in found)


def advice(modules: Iterable[str]) -> str:
    """Return what makes workers import the tasks of these modules."""
    return (
        "move them to the tasks.py of an app in INSTALLED_APPS, import them there, or add "
        f'"MODULES": {json.dumps(sorted(modules))} to the OPTIONS of a HorsiesBackend in TASKS'
    )


def warn_once(task: TaskDefinition) -> None:
    """Log the first send of a task that may be unknown to workers. Imports the modules of tasks where only they can tell."""
    if task.name in _sent:
        return
    _sent.add(task.name)
    module = task.function.__module__
    if module in doubtful():
        registry.autodiscover()
        if module in unsure():
            logger.warning("%s is sent, but %s: %s", task.name, problem({module: [task.name]}), advice([module]))
