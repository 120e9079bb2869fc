"""The pages about queues: what is declared, and how much waits and runs, counted no further than a person would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import IntegerField, OuterRef, Q, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.filters import WAITING
from horsies_django.admin.reading import NextPageMixin, ReadOnlyAdminMixin, read_bounded
from horsies_django.admin.showing import NOTHING, moment_field
from horsies_django.models import Queue, Task
from horsies_django.models.tasks import IN_FLIGHT

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Queue]
else:
    ModelAdmin = admin.ModelAdmin

CAP = 1_000


class CappedCount(Subquery):
    """How many rows a sub-query has, which brings its own LIMIT."""

    template = "(SELECT count(*) FROM (%(subquery)s) AS capped)"
    output_field = IntegerField()


def capped_count(rows: Q) -> CappedCount:
    """Count a queue's tasks under a condition that a partial index holds, to one beyond the cap."""
    tasks = Task.objects.filter(rows, queue_name=OuterRef("name"))
    return CappedCount(tasks.values("id")[: CAP + 1])


def with_counts(alias: str, queues: list[Any]) -> list[Any]:
    """Give each queue ``pending`` and ``running``, counted with one query; None where that took too long."""
    rows = Queue.objects.using(alias).filter(name__in=[queue.name for queue in queues])
    counted = rows.annotate(pending=capped_count(WAITING), running=capped_count(IN_FLIGHT))
    found = read_bounded(alias, lambda: list(counted.values_list("name", "pending", "running"))) or []
    counts = {name: (pending, running) for name, pending, running in found}
    for queue in queues:
        queue.pending, queue.running = counts.get(queue.name, (None, None))
    return queues


def shown_count(value: int | None) -> str:
    """Return a count that may have stopped at the cap, or was given up."""
    if value is None:
        return _("not counted: it took too long")
    return _("more than %(n)s") % {"n": f"{CAP:,}"} if value > CAP else f"{value:,}"


class QueueListMixin(NextPageMixin):
    """The change list of queues."""

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Count for the whole page at once."""
        return with_counts(self.root_queryset.db, rows)


class QueueAdminMixin(ReadOnlyAdminMixin):
    """The logic of the queue pages, for any ModelAdmin."""

    change_list_mixin = QueueListMixin
    list_display = ("name", "shown_priority", "shown_pending", "shown_running", "shown_tasks")
    ordering = ("priority", "name")
    fieldsets = (
        (None, {"fields": ("name", "shown_priority", "shown_pending", "shown_running", "shown_tasks")}),
        (gettext_lazy("Times"), {"fields": ("created", "updated")}),
    )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Queue | None:
        """Return the queue with its counts; NUL bytes cannot be in a name, nor in a query."""
        queues = [] if "\x00" in object_id else list(self.get_queryset(request).filter(name=object_id))
        return with_counts(queues[0]._state.db, queues)[0] if queues else None

    @admin.display(description=gettext_lazy("priority (1 is served first)"))
    def shown_priority(self, obj: Queue) -> int:
        """Return the declared priority."""
        return obj.priority

    @admin.display(description=gettext_lazy("pending"))
    def shown_pending(self, obj: Any) -> str:
        """Return how many tasks wait, those that are due later included."""
        return shown_count(obj.pending)

    @admin.display(description=gettext_lazy("running"))
    def shown_running(self, obj: Any) -> str:
        """Return how many tasks workers hold."""
        return shown_count(obj.running)

    @admin.display(description=gettext_lazy("tasks"))
    def shown_tasks(self, obj: Queue) -> SafeString | str:
        """Return a link to the queue's tasks."""
        if not self.admin_site.is_registered(Task):
            return NOTHING
        address = reverse("admin:horsies_task_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?{}">{}</a>', address, urlencode({"queue": obj.name}), _("Show"))

    created = moment_field(Queue, "created_at")
    updated = moment_field(Queue, "updated_at")


class QueueAdmin(QueueAdminMixin, ModelAdmin):
    """The queue pages of Django's own admin."""
