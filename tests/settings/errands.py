"""The settings of a project with an app of ``django.tasks``, whose tasks workers run."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES, INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.errands"]
TASKS = {**TASKS, "default": {**TASKS["default"], "OPTIONS": {"MODULES": ["tests.apps.errands.elsewhere"]}}}
HORSIES = {
    **HORSIES,
    "SCHEDULES": {"sum": {"task": "tests.apps.errands.tasks.add", "pattern": "every hour", "kwargs": {"a": 2, "b": 3}}},
}
