"""The admin pages for workflow runs: the list, and one run with its nodes and who changed it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import Tool
from horsies_django.admin.base.history import OF_WORKFLOWS, last_changes
from horsies_django.admin.base.html import (
    NOTHING,
    age,
    breakable,
    field,
    json_block,
    moment_field,
    node_link,
    parse_id,
    row_field,
    status_badge,
)
from horsies_django.admin.base.readonly import ModelAdmin, read_bounded
from horsies_django.admin.workflows.listing import (
    NameFilter,
    NeedsFilter,
    ParentFilter,
    RunActionsMixin,
    RunListMixin,
    StatusFilter,
)
from horsies_django.admin.workflows.node_page import NodePageMixin
from horsies_django.admin.workflows.nodes import (
    node_links,
    node_table,
    progress_bar,
    progress_of,
    tasks_link,
    wait_tables,
)
from horsies_django.admin.workflows.picture.page import PicturePageMixin
from horsies_django.models import WorkflowRun
from horsies_django.monitoring import workflows


class WorkflowAdminMixin(RunActionsMixin, NodePageMixin, PicturePageMixin):
    """The logic of the pages of workflow runs, for any ModelAdmin."""

    change_list_mixin = RunListMixin
    list_display = (
        "shown_status", "shown_name", "shown_key", "shown_progress", "shown_waits", "shown_sent", "shown_finished",
        "shown_error_code",
    )  # fmt: skip
    list_display_links = ("shown_name",)
    list_filter = (NeedsFilter, StatusFilter, NameFilter, ParentFilter)
    search_fields = ("key",)  # shows the box; searched() does the search
    search_help_text = gettext_lazy("Enter a full id, a full key, or the full name of a workflow.")
    ordering = ("-sent_at",)
    payload_columns = ("result",)

    def searched(self, rows: QuerySet[WorkflowRun], term: str) -> QuerySet[WorkflowRun]:
        """Search by id, by key, or else by name, each through its index."""
        if id_ := parse_id(term):
            return rows.filter(pk=id_)
        keyed = read_bounded(rows.db, lambda: workflows.keyed(rows.db, term))
        return rows.filter(pk__in=keyed) if keyed else rows.filter(name=term)

    def complete(self, request: HttpRequest, run: Any) -> None:
        """Set the progress of a run and its links to other rows."""
        run.progress = progress_of(run)
        nodes = node_links(self, request, run, (run.output, run.error_node))
        run.linked_output, run.linked_failure = (nodes.get(number, NOTHING) for number in (run.output, run.error_node))
        run.linked_parent = NOTHING
        if run.parent_id is not None:
            of = (
                WorkflowRun.objects.using(run._state.db).filter(pk=run.parent_id).values_list("name", flat=True).first()
            )
            parent = self.link(request, WorkflowRun, run.parent_id, of or str(run.parent_id))
            node = node_link(self, request, run.parent_id, run.parent_node, _("node %(n)s") % {"n": run.parent_node})
            run.linked_parent = format_html("{}, {}", parent, node)
        run.linked_before, run.linked_after = (
            NOTHING if id_ is None else self.link(request, WorkflowRun, id_, str(id_))
            for id_ in (run.continues, run.continued_as)
        )
        run.linked_tasks = tasks_link(self, request, run.pk, None, _("Show")) or NOTHING

    def get_fieldsets(self, request: HttpRequest, obj: WorkflowRun | None = None) -> Any:
        linked = {"shown_parent": "parent_id", "shown_before": "continues", "shown_after": "continued_as"}
        parent = [field for field, column in linked.items() if getattr(obj, column, None) is not None]
        failure = (("shown_failure", "shown_error_code"),) if obj is not None and obj.error_code else ()
        visible = self.has_view_payload_permission(request)
        result = "shown_result" if obj is not None and visible else "hidden_payload"
        return (
            (None, {"fields": (
                "shown_id", ("name", "shown_key"), ("shown_status", "shown_progress"), *failure, *parent,
                ("on_error", "shown_in_flight", "shown_output"), "shown_tasks",
            )}),
            (gettext_lazy("Times"), {"fields": (("sent", "finished", "good_until_"),)}),
            (gettext_lazy("Result"), {"fields": (result,)}),
        )  # fmt: skip

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the nodes, what it waits for, the last changes and links to the change forms."""
        changes = last_changes(self, request, obj, str(obj.pk), OF_WORKFLOWS)
        picture = Tool(self.url_of(obj, "picture"), _("Picture"))
        return {
            "tables": [node_table(self, request, obj), *wait_tables(self, request, obj), changes],
            "tools": [picture, *self.tools(request, obj)],
        }

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, obj: WorkflowRun) -> SafeString:
        """Return the name, and below it whether the run is a node of another one."""
        if obj.parent_id is None:
            return breakable(obj.name)
        return format_html('{}<br><span class="horsies-quiet">{}</span>', breakable(obj.name), _("node of another run"))

    @admin.display(description=gettext_lazy("finished"))
    def shown_finished(self, obj: Any) -> SafeString | str:
        return format_html(_("{} ago"), age(obj.finished_at, obj.read_at)) if obj.finished_at else NOTHING

    shown_status = field("status", gettext_lazy("status"), status_badge)
    shown_key = field("key", gettext_lazy("key"))
    shown_progress = row_field(gettext_lazy("progress"), lambda run: progress_bar(run.progress))
    shown_sent = row_field(gettext_lazy("sent"), lambda run: format_html(_("{} ago"), age(run.sent_at, run.read_at)))
    shown_error_code = field("error_code", gettext_lazy("error code"))  # contains no payload
    shown_in_flight = field("max_in_flight", gettext_lazy("tasks in flight at most"), "{:,}".format)
    shown_result = field("result", gettext_lazy("result"), json_block)
    shown_waits = field("waits_for", gettext_lazy("waits for"))
    shown_tasks = field("linked_tasks", gettext_lazy("tasks"))
    shown_failure = field("linked_failure", gettext_lazy("failed node"))
    shown_parent = field("linked_parent", gettext_lazy("parent"))
    shown_before = field("linked_before", gettext_lazy("continues"))
    shown_after = field("linked_after", gettext_lazy("continued as"))
    shown_output = field("linked_output", gettext_lazy("output node"))
    sent = moment_field(WorkflowRun, "sent_at")
    finished = moment_field(WorkflowRun, "finished_at")
    good_until_ = moment_field(WorkflowRun, "good_until")


class WorkflowAdmin(WorkflowAdminMixin, ModelAdmin):
    """The pages of workflow runs for Django's own admin."""
