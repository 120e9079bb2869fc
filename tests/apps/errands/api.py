"""The parts of ``django.tasks`` that the tests use, from Django or from the backport."""

from __future__ import annotations

from importlib import import_module

import django

PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"

api = import_module(PACKAGE)
base = import_module(f"{PACKAGE}.base")
exceptions = import_module(f"{PACKAGE}.exceptions")
signals = import_module(f"{PACKAGE}.signals")

task = api.task
task_backends = api.task_backends
TaskContext = api.TaskContext
TaskResultStatus = api.TaskResultStatus
InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
InvalidTaskBackend = (
    getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
)
