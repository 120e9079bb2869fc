"""The models of the tables. The ORM only reads them; the statements in ``store/sql`` write them."""

from __future__ import annotations

from horsies_django.models.audit import AuditEntry, LostRecord
from horsies_django.models.queues import Pruning, Queue, QueueLimits
from horsies_django.models.schedules import Schedule, ScheduleTick
from horsies_django.models.tasks import SendKey, Task, TaskAttempt, TaskStep
from horsies_django.models.workers import Heartbeat, History, Waiter, Worker, WorkerState
from horsies_django.models.workflows import WorkflowEdge, WorkflowNode, WorkflowRun, WorkflowSignal

__all__ = [
    "AuditEntry",
    "Heartbeat",
    "History",
    "LostRecord",
    "Pruning",
    "Queue",
    "QueueLimits",
    "Schedule",
    "ScheduleTick",
    "SendKey",
    "Task",
    "TaskAttempt",
    "TaskStep",
    "Waiter",
    "Worker",
    "WorkerState",
    "WorkflowEdge",
    "WorkflowNode",
    "WorkflowRun",
    "WorkflowSignal",
]
