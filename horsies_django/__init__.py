"""A distributed task queue for Django whose only broker is the project's own PostgreSQL.

The public names are imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from horsies_django.core.errors import (
        Skip,
        StaleAttempt,
        StepError,
        TaskCancelled,
        TaskDefinitionError,
        TaskNotCommitted,
        TaskSendError,
        TaskTimeout,
        WorkflowDefinitionError,
        WorkflowError,
    )
    from horsies_django.core.results import TaskError, TaskFailed, TaskResult
    from horsies_django.core.retry import Retry, RetryPolicy, Snooze
    from horsies_django.core.unique import Unique
    from horsies_django.monitoring.explain import explain, explain_node
    from horsies_django.tasks.context import CurrentTask, TaskContextFilter, current_task
    from horsies_django.tasks.decorator import task
    from horsies_django.tasks.handle import TaskHandle, cancel_many, get_handle
    from horsies_django.tasks.operations import purge
    from horsies_django.workflows.arguments import Results
    from horsies_django.workflows.builder import Batch, Workflow
    from horsies_django.workflows.handle import WorkflowHandle, get_workflow
    from horsies_django.workflows.nodes import Node, quorum

# The public names by module. A module is imported when one of its names is used first, so that
# INSTALLED_APPS can name the app without importing the modules.
_NAMES = {
    "core.errors": (
        "Skip",
        "StaleAttempt",
        "StepError",
        "TaskCancelled",
        "TaskDefinitionError",
        "TaskNotCommitted",
        "TaskSendError",
        "TaskTimeout",
        "WorkflowDefinitionError",
        "WorkflowError",
    ),
    "core.results": ("TaskError", "TaskFailed", "TaskResult"),
    "core.retry": ("Retry", "RetryPolicy", "Snooze"),
    "core.unique": ("Unique",),
    "monitoring.explain": ("explain", "explain_node"),
    "tasks.context": ("CurrentTask", "TaskContextFilter", "current_task"),
    "tasks.decorator": ("task",),
    "tasks.handle": ("TaskHandle", "cancel_many", "get_handle"),
    "tasks.operations": ("purge",),
    "workflows.arguments": ("Results",),
    "workflows.builder": ("Batch", "Workflow"),
    "workflows.handle": ("WorkflowHandle", "get_workflow"),
    "workflows.nodes": ("Node", "quorum"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Batch",
    "CurrentTask",
    "Node",
    "Results",
    "Retry",
    "RetryPolicy",
    "Skip",
    "Snooze",
    "StaleAttempt",
    "StepError",
    "TaskCancelled",
    "TaskContextFilter",
    "TaskDefinitionError",
    "TaskError",
    "TaskFailed",
    "TaskHandle",
    "TaskNotCommitted",
    "TaskResult",
    "TaskSendError",
    "TaskTimeout",
    "Unique",
    "Workflow",
    "WorkflowDefinitionError",
    "WorkflowError",
    "WorkflowHandle",
    "cancel_many",
    "current_task",
    "explain",
    "explain_node",
    "get_handle",
    "get_workflow",
    "purge",
    "quorum",
    "task",
]


def __getattr__(name: str) -> Any:
    from horsies_django.core.lazy import import_name

    return import_name(globals(), _HOMES, name)
