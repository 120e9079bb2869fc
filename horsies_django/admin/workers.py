"""The admin pages for workers: their state, queues, processes and running tasks."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any

from django.contrib import admin
from django.db.models import (
    CharField,
    DurationField,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
)
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import (
    MOST_ENTRIES,
    MOST_ROWS,
    NO_VALUE,
    Table,
    age,
    badge,
    duration_text,
    field,
    moment_field,
    row_field,
    time_and_age,
)
from horsies_django.admin.base.readonly import ChosenFilter, ModelAdmin, ReadOnlyAdminMixin
from horsies_django.conf import config
from horsies_django.models import Heartbeat, Task, Worker, WorkerState
from horsies_django.models.tasks import IN_FLIGHT

# The states as horsies_status names them, with the arguments of a badge.
LIFE = {
    "living": ("up", "●", gettext_lazy("Living")),
    "stopping": ("stopped", "◐", gettext_lazy("Stopping")),
    "stale": ("silent", "✕", gettext_lazy("Stale")),
    "dead": ("silent", "✕", gettext_lazy("Dead")),
    "stopped": ("stopped", "■", gettext_lazy("Stopped")),
}


class WorkerStateFilter(ChosenFilter):
    """Filter for workers that have stopped, or have not."""

    title = gettext_lazy("state")
    parameter_name = "state"
    offered = (("on", gettext_lazy("Not stopped")), ("off", gettext_lazy("Stopped")))

    def condition(self, value: str) -> Q:
        return Q(stopped_at__isnull=value == "on")


class WorkerAdminMixin(ReadOnlyAdminMixin):
    """The logic of the worker pages, for any ModelAdmin."""

    list_display = (
        "shown_worker",
        "shown_state",
        "shown_queues",
        "shown_slots",
        "shown_running",
        "shown_memory",
        "uptime",
        "last_seen",
    )
    list_display_links = ("shown_worker",)
    list_filter = (WorkerStateFilter,)
    ordering = ("-started_at", "-pk")
    fieldsets = (
        (None, {"fields": ("shown_worker", "shown_id", "shown_state", "version")}),
        (
            gettext_lazy("Work"),
            {"fields": ("shown_queues", "shown_slots", "shown_running", "shown_memory")},
        ),
        (gettext_lazy("Times"), {"fields": ("started", "seen", "stopping", "stopped")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Return the workers, each with the time of its last heartbeat and with its state.

        The heartbeat is more exact than ``seen_at`` of the worker, which is written more rarely.
        """
        beats = Heartbeat.objects.filter(id=OuterRef("pk"))
        stale = config().recovery.running_stale_threshold_ms
        times = [F(name) for name in ("stopping_at", "stopped_at", "beat_at", "died_at")]
        threshold = Value(dt.timedelta(milliseconds=stale), DurationField())
        state = Func(*times, threshold, function="horsies_worker_phase", output_field=CharField())

        rows: QuerySet[Worker] = super().get_queryset(request)
        rows = rows.annotate(
            beat_at=Subquery(beats.values("sent_at")), died_at=Subquery(beats.values("died_at"))
        )
        return rows.annotate(state=state)

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the tables of a worker: its processes, running tasks and latest snapshots.

        The tasks are shown only to users who may view tasks.
        """
        alias = obj._state.db
        now = obj.read_at

        beats = (
            Heartbeat.objects.using(alias)
            .filter(worker_id=obj.pk)
            .order_by("role", "pid")[:MOST_ROWS]
        )
        states = (
            WorkerState.objects.using(alias).filter(worker_id=obj.pk).order_by("-pk")[:MOST_ENTRIES]
        )
        pids = {id_: beat.pid for beat in beats for id_ in beat.holding or ()}

        tables: list[Table] = []
        runs = defaultdict(list)
        if request.user.has_perm("horsies.view_task"):
            tasks = (
                Task.objects.using(alias)
                .filter(IN_FLIGHT, claimed_by=obj.pk)
                .order_by("claimed_at")
            )

            rows = []
            for task in tasks.only("task_name", "queue_name", "started_at")[:MOST_ROWS]:
                link = self.link(request, Task, task.pk, task.task_name)
                pid = pids.get(str(task.pk))
                running = duration_text(now - task.started_at) if task.started_at else NO_VALUE
                runs[pid].append((link, running))
                rows.append([link, task.queue_name, running, pid or NO_VALUE])

            heads: tuple[str, ...] = (_("Task"), _("Queue"), _("Running for"), _("Process"))
            tables = [Table("held", _("Running tasks"), heads, rows)]

        def process(beat: Heartbeat) -> list[Any]:
            role = _("parent, claims tasks") if beat.role == "claimer" else _("child, runs tasks")
            size = NO_VALUE if beat.memory_mb is None else _("%(n).0f MB") % {"n": beat.memory_mb}
            held = format_html_join(SafeString("<br>"), "{} {}", runs[beat.pid]) or NO_VALUE
            return [
                beat.pid,
                role,
                size,
                held,
                time_and_age(beat.sent_at, now),
                time_and_age(beat.died_at, now),
            ]

        heads = (_("Process"), _("Role"), _("Memory"), _("Tasks"), _("Last heartbeat"), _("Died"))
        tables.insert(
            0, Table("processes", _("Processes"), heads, [process(beat) for beat in beats])
        )

        if shots := [snapshot(state, now) for state in states]:
            heads = (
                _("Taken"),
                _("Running"),
                _("Prefetched"),
                _("Children"),
                _("Memory"),
                _("CPU"),
            )
            tables.append(Table("states", _("Snapshots"), heads, shots))

        return {"tables": tables}

    @admin.display(description=gettext_lazy("queues"))
    def shown_queues(self, obj: Worker) -> str:
        return (
            ", ".join(str(name) for name in obj.queues)
            if isinstance(obj.queues, list)
            else str(obj.queues)
        )

    @admin.display(description=gettext_lazy("slots"))
    def shown_slots(self, obj: Worker) -> str:
        """Return how many tasks the worker can run at once.

        A worker without child processes runs them in its own process.
        """
        processes = max(obj.processes, 1)
        slots = {"sync": processes * obj.threads, "async": processes * obj.async_concurrency}
        return _("%(sync)d sync, %(async)d async") % slots

    @admin.display(description=gettext_lazy("last seen"))
    def last_seen(self, obj: Any) -> SafeString:
        return age(obj.beat_at or obj.stopped_at or obj.seen_at, obj.read_at)

    shown_worker = row_field(gettext_lazy("worker"), str)
    shown_state = field("state", gettext_lazy("state"), lambda state: badge(*LIFE[state]))
    # The number at the last heartbeat.
    shown_running = row_field(gettext_lazy("running"), lambda worker: running_counts(worker))
    shown_memory = row_field(gettext_lazy("memory"), lambda worker: memory(worker))
    uptime = row_field(
        gettext_lazy("started"), lambda worker: age(worker.started_at, worker.read_at)
    )
    started = moment_field(Worker, "started_at")
    seen = moment_field(Worker, "seen_at")
    stopping = moment_field(Worker, "stopping_at")
    stopped = moment_field(Worker, "stopped_at")


def running_counts(row: Worker | WorkerState) -> str:
    return _("%(sync)d sync, %(async)d async") % {
        "sync": row.running_sync,
        "async": row.running_async,
    }


def snapshot(state: WorkerState, now: dt.datetime) -> list[Any]:
    cpu = NO_VALUE if state.cpu_percent is None else _("%(n).0f %%") % {"n": state.cpu_percent}
    return [
        time_and_age(state.snapshot_at, now),
        running_counts(state),
        state.buffered,
        state.children,
        memory(state),
        cpu,
    ]


def memory(row: Worker | WorkerState) -> str:
    if row.memory_usage_mb is None:
        return NO_VALUE
    if not row.children_memory_mb:
        return _("%(own).0f MB") % {"own": row.memory_usage_mb}
    return _("%(own).0f MB + %(children).0f MB") % {
        "own": row.memory_usage_mb,
        "children": row.children_memory_mb,
    }


class WorkerAdmin(WorkerAdminMixin, ModelAdmin):
    """The worker pages for Django's own admin."""
