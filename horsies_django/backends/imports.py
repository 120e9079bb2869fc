"""Imports tasks of ``django.tasks`` that are not in the ``tasks`` module of an app.

Names come from the table of tasks, so what they import is limited: modules of installed apps, and those in OPTIONS["MODULES"] of
a HorsiesBackend. Of such a module only a Task is taken.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from horsies_django.backends import tasks
from horsies_django.backends.backend import BackendMixin
from horsies_django.backends.options import read

logger = logging.getLogger("horsies.worker")


class DjangoTasks:
    """What ``tasks.registry`` asks for modules and tasks of ``django.tasks``."""

    def modules(self) -> Iterator[str]:
        """Yield the modules in the OPTIONS of the backends."""
        for _alias, _backend, modules in own_backends():
            yield from modules

    def load(self, name: str) -> None:
        """Import the module of a task, and register the task. Logs what fails; never raises."""
        backends = list(own_backends())
        allowed = [config.name for config in apps.get_app_configs()]
        allowed += [module for _alias, _backend, modules in backends for module in modules]
        for module, attributes in places(name) if backends else ():
            if not any(module == one or module.startswith(f"{one}.") for one in allowed):
                continue
            try:
                if (found := attribute(module, attributes)) is not None:
                    take(name, found, backends)
                    return
            except Exception as error:
                logger.error("the task %r cannot be imported from %s: %r", name, module, error)
                return


def own_backends() -> Iterator[tuple[str, type[BackendMixin], tuple[str, ...]]]:
    """Yield alias, class and modules of each HorsiesBackend in ``settings.TASKS``."""
    for alias, params in getattr(settings, "TASKS", {}).items():
        try:
            backend = import_string(params["BACKEND"])
        except (ImportError, KeyError, TypeError, AttributeError):  # Django reports it
            continue
        if isinstance(backend, type) and issubclass(backend, BackendMixin):
            yield alias, backend, read(params.get("OPTIONS", {})).modules


def take(name: str, found: Any, backends: list[tuple[str, type[BackendMixin], tuple[str, ...]]]) -> None:
    """Register what a module has under the name of a task, if it is that task."""
    for alias, backend, _modules in backends:
        if isinstance(found, backend.api.task) and found.module_path == name:
            own = tasks.is_ours(found.get_backend())  # it may have been sent by using(backend=...)
            tasks.declare(found if own else tasks.rebuilt(found, backend=alias))
            return


def places(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules in which a task may be, the longest first, each with the attributes that lead to it."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        for count in range(len(parts) - 1, 0, -1):
            yield ".".join(parts[:count]), parts[count:]


def attribute(module: str, attributes: list[str]) -> Any:
    """Return the attribute of a module, None if there is no such module or attribute. Raises what importing it raises."""
    if module not in sys.modules:
        try:
            if find_spec(module) is None:
                return None
        except (ImportError, ValueError):  # its package is none
            return None
    found: Any = import_module(module)
    for one in attributes:
        found = getattr(found, one, None)
    return found
