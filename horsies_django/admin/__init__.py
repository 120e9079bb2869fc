"""Admin pages for tasks, queues, schedules, workflows, workers and the audit.

Importing this package registers the pages on ``admin.site``, as Django's autodiscovery does.
``register`` registers them on another site. The mixins contain all the logic and have no base class
of Django, so they can be combined with the ModelAdmin of a theme.
"""

from __future__ import annotations

from django.contrib import admin

from horsies_django.admin.audit import AuditAdmin, AuditAdminMixin
from horsies_django.admin.queues import QueueAdmin, QueueAdminMixin
from horsies_django.admin.schedules import ScheduleAdmin, ScheduleAdminMixin
from horsies_django.admin.tasks import TaskAdmin, TaskAdminMixin
from horsies_django.admin.workers import WorkerAdmin, WorkerAdminMixin
from horsies_django.admin.workflows import WorkflowAdmin, WorkflowAdminMixin
from horsies_django.models import AuditEntry, Queue, Schedule, Task, Worker, WorkflowRun

__all__ = [
    "AuditAdmin",
    "AuditAdminMixin",
    "QueueAdmin",
    "QueueAdminMixin",
    "ScheduleAdmin",
    "ScheduleAdminMixin",
    "TaskAdmin",
    "TaskAdminMixin",
    "WorkerAdmin",
    "WorkerAdminMixin",
    "WorkflowAdmin",
    "WorkflowAdminMixin",
    "register",
]


def register(site: admin.AdminSite) -> None:
    """Register the pages on ``site``. Raises AlreadyRegistered if the site has one of them."""
    site.register(Task, TaskAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Schedule, ScheduleAdmin)
    site.register(WorkflowRun, WorkflowAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(AuditEntry, AuditAdmin)


register(admin.site)
