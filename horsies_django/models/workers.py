"""Workers, their heartbeats, snapshots and counts, and processes that wait for results."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from horsies_django.models.fields import IntegerArray, StoredJSON
from horsies_django.models.tasks import ReadOnlyRow


class Worker(models.Model):
    """A worker: its queues, how many tasks it runs, and when it was last seen.

    Each start creates a new row.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    hostname = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process"))
    version = models.CharField(_("version"), max_length=50)
    queues = StoredJSON(_("queues"))
    task_names = StoredJSON(_("names of its tasks"), null=True)
    wire = models.SmallIntegerField(_("version of the task format"), null=True)
    processes = models.IntegerField(_("processes"))
    threads = models.IntegerField(_("threads"))
    async_concurrency = models.IntegerField(_("coroutines"))
    started_at = models.DateTimeField(_("started"), db_default=Now())
    seen_at = models.DateTimeField(_("last seen"), db_default=Now())
    stopping_at = models.DateTimeField(_("stopping since"), null=True)
    stopped_at = models.DateTimeField(_("stopped"), null=True)
    running_sync = models.IntegerField(_("running, sync"), default=0, db_default=0)
    running_async = models.IntegerField(_("running, async"), default=0, db_default=0)
    memory_usage_mb = models.FloatField(_("memory, MB"), null=True)
    children_memory_mb = models.FloatField(_("memory of children, MB"), null=True)
    # How often the worker wrote to the history.
    counted = models.IntegerField(_("writes to the history"), default=0, db_default=0)

    class Meta:
        db_table = "horsies_workers"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        indexes = (models.Index(fields=["-started_at"], name="horsies_workers_started"),)

    def __str__(self) -> str:
        return f"{self.hostname}:{self.pid}"


class Heartbeat(models.Model):
    """One process of a worker: the parent, which claims tasks, or a child, which runs them.

    The parent sends the heartbeats of all processes. ``holding`` lists up to a hundred tasks that a
    child held at its last heartbeat. It is None while the child is not ready to run tasks. Parents
    of the same ``team`` can run the same tasks. ``listens`` is true for parents that receive
    notifications.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    worker_id = models.UUIDField(_("worker"))
    role = models.CharField(_("role"), max_length=7)
    pid = models.IntegerField(_("process"))
    sent_at = models.DateTimeField(_("sent"), db_default=Now())
    died_at = models.DateTimeField(_("died"), null=True)
    holding = StoredJSON(_("tasks"), null=True)
    team = models.BigIntegerField(_("team"), null=True)
    listens = models.BooleanField(_("listens"), default=False, db_default=False)
    memory_mb = models.FloatField(_("memory, MB"), null=True)  # of a child, at the last snapshot

    class Meta:
        db_table = "horsies_heartbeats"
        verbose_name = _("heartbeat")
        verbose_name_plural = _("heartbeats")
        default_permissions = ("view",)
        indexes = (
            models.Index(fields=["worker_id"], name="horsies_heartbeats_worker"),
            models.Index(
                fields=["died_at", "id"],
                condition=Q(role="claimer"),
                name="horsies_heartbeats_parents",
            ),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(role__in=("claimer", "runner")), name="horsies_heartbeats_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.role} {self.pid}"


class WorkerState(models.Model):
    """A snapshot of a worker: its numbers of tasks, memory and CPU.

    It is written at intervals, and never updated.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    worker_id = models.UUIDField(_("worker"))
    snapshot_at = models.DateTimeField(_("taken"), db_default=Now())
    running_sync = models.IntegerField(_("running, sync"))
    running_async = models.IntegerField(_("running, async"))
    buffered = models.IntegerField(_("prefetched"))
    children = models.IntegerField(_("children"))
    memory_usage_mb = models.FloatField(_("memory, MB"))
    children_memory_mb = models.FloatField(_("memory of children, MB"))
    cpu_percent = models.FloatField(_("CPU, %"), null=True)

    class Meta:
        db_table = "horsies_worker_states"
        verbose_name = _("worker state")
        verbose_name_plural = _("worker states")
        default_permissions = ()
        indexes = (models.Index(fields=["worker_id", "-id"], name="horsies_worker_states_worker"),)

    def __str__(self) -> str:
        return f"{self.worker_id} {self.snapshot_at}"


class Waiter(models.Model):
    """A process that listens for finished tasks until ``expires_at``.

    Workers send notifications about finished tasks only while there is such a row.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        db_table = "horsies_waiters"
        verbose_name = _("waiter")
        verbose_name_plural = _("waiters")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.pk)


class History(ReadOnlyRow):
    """How often a result of a task occurred in one minute or hour.

    ``at`` is the begin of that time, and ``width`` its length in seconds. The results and the
    durations are explained in ``horsies_django.core.counts``.
    """

    pk = models.CompositePrimaryKey("width", "at", "queue", "task", "result")
    width = models.IntegerField(_("width"))
    at = models.DateTimeField(_("start"))
    queue = models.CharField(_("queue"), max_length=100)
    task = models.CharField(_("name"), max_length=255)
    result = models.CharField(_("result"), max_length=100)
    n = models.IntegerField(_("number"))
    seconds = models.FloatField(_("total seconds"))
    longest = models.FloatField(_("longest, seconds"), null=True)
    buckets = IntegerArray(_("histogram"))

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_history"
        verbose_name = _("history")
        verbose_name_plural = _("history")

    def __str__(self) -> str:
        return f"{self.task} {self.result} {self.at}"
