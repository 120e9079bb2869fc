"""The admin pages for workflow runs: the list, one run with its nodes and changes, and one node.

``WorkflowNode`` has a composite primary key, so it cannot be registered in the admin. The page of a
node is a view of the page of its run.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_WORKFLOWS, last_changes
from horsies_django.admin.base.change_forms import Tool
from horsies_django.admin.base.html import (
    MOST_ROWS,
    NO_VALUE,
    NODE_PAGE,
    PATIENCE_MS,
    Line,
    Table,
    age,
    block,
    breakable,
    duration_text,
    field,
    json_block,
    moment_field,
    node_link,
    parse_id,
    payload_note,
    reason_line,
    row_field,
    status_badge,
    time_and_age,
)
from horsies_django.admin.base.readonly import ModelAdmin, read_bounded
from horsies_django.admin.workflows.listing import (
    RUN_ACTIONS,
    NameFilter,
    NeedsFilter,
    ParentFilter,
    ReasonForm,
    RunListMixin,
    StatusFilter,
)
from horsies_django.admin.workflows.nodes import (
    LARGEST,
    elements_text,
    first_rows,
    lacked,
    leads_to,
    node_links,
    node_table,
    progress_bar,
    progress_of,
    tasks_link,
    upstream_counts,
    wait_tables,
)
from horsies_django.admin.workflows.picture import PicturePageMixin
from horsies_django.core.texts import LONGEST_REASON
from horsies_django.models import WorkflowEdge, WorkflowNode, WorkflowRun
from horsies_django.monitoring import workflows
from horsies_django.monitoring.explain import explain_node

AFTER_TIMEOUT_LABELS: dict[str, str | Promise] = {
    "fail": gettext_lazy("the node fails"),
    "skip": gettext_lazy("the node is skipped"),
    "complete": gettext_lazy("the node completes"),
}
PAYLOAD_FIELDS = ("kwargs", "inputs", "value", "error")
NOT_SHOWN = ("options", "graph")
PAYLOAD_TABLE = Table("payload", gettext_lazy("Arguments and value"), (), [])


def node_details(
    page: Any, request: HttpRequest, run: Any, node: WorkflowNode
) -> list[tuple[str, Any]]:
    """Return the lines about a node, without those that do not apply to it."""

    def linked(number: int | None, text: str) -> SafeString | str:
        """Return a link to another node of the run, or "" if there is none."""
        return (
            "" if number is None or number < 0 else node_link(page, request, run.pk, number, text)
        )

    on = linked(node.when_node, _("on node %(n)s") % {"n": node.when_node})
    found: list[tuple[str, Any]] = [
        (_("Status"), status_badge(node.status)),
        (_("Number"), node.number),
        (_("Kind"), _(node.kind)),
        (_("Task"), node.task_name and breakable(node.task_name)),
        (_("Queue"), node.queue_name),
        (_("Task or run"), leads_to(page, request, node)),
        (_("Elements"), elements_text(node)),
        (_("Upstream"), upstream_counts(node)),
        (_("Join"), join(node)),
        (_("Condition"), on and format_html("<code>{}</code> {}", node.when_path, on)),
        (_("Delay"), duration_text(node.delay) if node.delay else ""),
        (_("Waits for the signal"), node.signal if node.kind != "gate" else ""),
        (_("Key of the signal"), node.signal_key),
        (_("Waits until"), time_and_age(node.due_at, run.read_at)),
        (
            _("After the timeout"),
            AFTER_TIMEOUT_LABELS.get(node.on_timeout or "") if node.due_at and node.signal else "",
        ),
        (_("Permission to decide"), node.permission),
        (_("Decided by"), node.decided_by),
        (_("Good until"), time_and_age(node.good_until, run.read_at)),
        (_("Undo"), breakable(str(node.undo.get("task"))) if isinstance(node.undo, dict) else ""),
        (_("Undoes"), linked(node.undoes, node.name.removeprefix("undo "))),
        (_("Added by"), linked(node.added_by, _("node %(n)s") % {"n": node.added_by})),
        (_("Finished"), time_and_age(node.finished_at, run.read_at)),
        (_("Error code"), node.error_code),
    ]

    return [(label, value) for label, value in found if value not in (None, "", NO_VALUE)]


def join(node: WorkflowNode) -> str:
    """Return the condition on the upstream nodes, or "" if all of them must complete."""
    if node.kind == "undo":
        return ""
    if node.rule == "quorum":
        form = _("%(n)s have to finish") if node.allow_failed else _("%(n)s have to complete")
        return form % {"n": node.needs}

    texts = {
        "succeeded": _("runs when all have finished and none failed"),
        "failed": _("runs when all have finished and at least one failed"),
        "finished": _("runs when all have finished"),
    }
    return texts.get(
        node.rule, _("runs even if some did not complete") if node.allow_failed else ""
    )


def payload_table(node: WorkflowNode) -> Table:
    """Return a table of the arguments, the value and the error message of a node."""
    found = [(_("Arguments"), json_block(node.kwargs))] if node.kwargs else []
    found += [(_("Arguments from results"), json_block(node.inputs))] if node.inputs else []
    found += [(_("Value"), json_block(node.value))] if node.value is not None else []
    found += [(_("Error"), block(node.error))] if node.error else []

    return PAYLOAD_TABLE._replace(rows=found)


def reasons(
    page: Any, request: HttpRequest, run: Any, node: WorkflowNode, visible: bool
) -> list[Line] | None:
    """Return the reasons why a node does not run, or how it ended.

    Return None if finding the reasons took too long.
    """
    try:
        found = read_bounded(run._state.db, lambda: explain_node(run.pk, node.number), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return []
    return (
        None
        if found is None
        else [reason_line(page, request, reason, visible) for reason in found.reasons]
    )


def neighbour_table(
    page: Any, request: HttpRequest, run: Any, titled: tuple[str, str], **of: int
) -> Table:
    """Return a table of the first nodes at the other end of the edges of a node.

    ``titled`` is the name of that end and the title of the table.
    """
    alias = run._state.db
    end = titled[0]
    edges = WorkflowEdge.objects.using(alias).filter(workflow_id=run.pk, **of).order_by(end)
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk).order_by("number")

    def read() -> list[Any]:
        numbers = list(edges.values_list(end, flat=True)[: MOST_ROWS + 1])
        return list(nodes.filter(number__in=numbers).values_list("number", "name", "status"))

    def row(one: Any) -> list[Any]:
        return [one[0], node_link(page, request, run.pk, *one[:2]), status_badge(one[2])]

    heads = (_("Number"), _("Name"), _("Status"))
    return Table(*titled, heads, *first_rows(read_bounded(alias, read), row))


class WorkflowAdminMixin(PicturePageMixin):
    """The logic of the pages of workflow runs, for any ModelAdmin."""

    change_list_mixin = RunListMixin
    actions = RUN_ACTIONS
    action_form = ReasonForm
    list_display = (
        "shown_status",
        "shown_name",
        "shown_key",
        "shown_progress",
        "shown_waits",
        "shown_sent",
        "shown_finished",
        "shown_error_code",
    )
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
        run.linked_output, run.linked_failure = (
            nodes.get(number, NO_VALUE) for number in (run.output, run.error_node)
        )

        run.linked_parent = NO_VALUE
        if run.parent_id is not None:
            of = (
                WorkflowRun.objects.using(run._state.db)
                .filter(pk=run.parent_id)
                .values_list("name", flat=True)
                .first()
            )

            parent = self.link(request, WorkflowRun, run.parent_id, of or str(run.parent_id))
            node = node_link(
                self,
                request,
                run.parent_id,
                run.parent_node,
                _("node %(n)s") % {"n": run.parent_node},
            )
            run.linked_parent = format_html("{}, {}", parent, node)

        run.linked_before, run.linked_after = (
            NO_VALUE if id_ is None else self.link(request, WorkflowRun, id_, str(id_))
            for id_ in (run.continues, run.continued_as)
        )
        run.linked_tasks = tasks_link(self, request, run.pk, None, _("Show")) or NO_VALUE

    def get_fieldsets(self, request: HttpRequest, obj: WorkflowRun | None = None) -> Any:
        linked = {
            "shown_parent": "parent_id",
            "shown_before": "continues",
            "shown_after": "continued_as",
        }
        parent = [
            field for field, column in linked.items() if getattr(obj, column, None) is not None
        ]
        failure = (
            (("shown_failure", "shown_error_code"),) if obj is not None and obj.error_code else ()
        )

        visible = self.has_view_payload_permission(request)
        result = "shown_result" if obj is not None and visible else "hidden_payload"

        return (
            (
                None,
                {
                    "fields": (
                        "shown_id",
                        ("name", "shown_key"),
                        ("shown_status", "shown_progress"),
                        *failure,
                        *parent,
                        ("on_error", "shown_in_flight", "shown_output"),
                        "shown_tasks",
                    )
                },
            ),
            (gettext_lazy("Times"), {"fields": (("sent", "finished", "good_until_"),)}),
            (gettext_lazy("Result"), {"fields": (result,)}),
        )

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the nodes, the waits and the last changes of a run, and links to its forms."""
        changes = last_changes(self, request, obj, str(obj.pk), OF_WORKFLOWS)
        picture = Tool(self.url_of(obj, "picture"), _("Picture"))
        return {
            "tables": [node_table(self, request, obj), *wait_tables(self, request, obj), changes],
            "tools": [picture, *self.tools(request, obj)],
        }

    def get_urls(self) -> list[Any]:
        view = self.view_of(self.node_view)
        return [
            path("<path:object_id>/nodes/<int:number>/", view, name=NODE_PAGE),
            *super().get_urls(),
        ]

    def node_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Show the page of a node. Raises PermissionDenied if the user may not view the run."""
        run = self.find_run(request, object_id)
        visible = self.has_view_payload_permission(request)
        hidden = NOT_SHOWN if visible else (*PAYLOAD_FIELDS, *NOT_SHOWN)

        nodes = (
            None
            if run is None
            else WorkflowNode.objects.using(run._state.db).filter(workflow_id=run.pk)
        )
        node = (
            None
            if nodes is None or number > LARGEST
            else nodes.filter(number=number).defer(*hidden).first()
        )
        if node is None:
            text = _("There is no node %(number)s in the run “%(run)s”.")
            return self.home(request, text % {"number": number, "run": unquote(object_id)})

        gate = None
        if node.kind == "gate" and node.status == "WAITING":
            urls = {verb: self.url_of(run, verb) for verb in ("approve", "reject")}
            gate = {
                **urls,
                "node": node,
                "lacked": lacked(request, node),
                "longest": LONGEST_REASON,
            }

        skippable = (
            node.finished_at is None and run.finished_at is None and self.may(request, "skip")
        )
        if node.kind == "gate" and lacked(request, node):
            skippable = False

        context = {
            "picture_url": f"{self.url_of(run, 'picture')}#horsies-node-{node.number}",
            "skip_url": f"{self.url_of(run, 'skip')}?number={node.number}" if skippable else "",
            "gate": gate,  # for the form of a gate that waits for a decision
            "reasons": reasons(self, request, run, node, visible),
            "tables": [
                Table("facts", _("Node"), (), node_details(self, request, run, node)),
                payload_table(node) if visible else PAYLOAD_TABLE._replace(empty=payload_note()),
                neighbour_table(
                    self, request, run, ("upstream", _("Upstream nodes")), downstream=node.number
                ),
                neighbour_table(
                    self, request, run, ("downstream", _("Downstream nodes")), upstream=node.number
                ),
            ],
        }

        return self.page_of_run(
            request, run, "node", _("Node %(name)s") % {"name": node.name}, context
        )

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, obj: WorkflowRun) -> SafeString:
        """Return the name, and below it whether the run is a node of another run."""
        if obj.parent_id is None:
            return breakable(obj.name)
        return format_html(
            '{}<br><span class="horsies-quiet">{}</span>',
            breakable(obj.name),
            _("node of another run"),
        )

    @admin.display(description=gettext_lazy("finished"))
    def shown_finished(self, obj: Any) -> SafeString | str:
        return (
            format_html(_("{} ago"), age(obj.finished_at, obj.read_at))
            if obj.finished_at
            else NO_VALUE
        )

    shown_status = field("status", gettext_lazy("status"), status_badge)
    shown_key = field("key", gettext_lazy("key"))
    shown_progress = row_field(gettext_lazy("progress"), lambda run: progress_bar(run.progress))
    shown_sent = row_field(
        gettext_lazy("sent"), lambda run: format_html(_("{} ago"), age(run.sent_at, run.read_at))
    )
    shown_error_code = field("error_code", gettext_lazy("error code"))  # contains no payload
    shown_in_flight = field("max_in_flight", gettext_lazy("maximum tasks in flight"), "{:,}".format)
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
