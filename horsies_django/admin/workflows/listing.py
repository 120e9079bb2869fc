"""The list of workflow runs, its filters, and the actions on runs.

The list has the newest runs first, and is read through an index until the page is full. There are
indexes for the statuses of unfinished runs and for the names, see ``monitoring.workflows``. The
actions are pause, resume, cancel and retry. They require ``horsies.operate_workflow`` and are
audited.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.audit import OF_WORKFLOWS
from horsies_django.admin.base.change_forms import ADMIN_VERBS
from horsies_django.admin.base.html import NO_VALUE, SHAPES, parse_id
from horsies_django.admin.base.readonly import (
    ChosenFilter,
    NextPageMixin,
    database_refusal,
    patiently,
    read_bounded,
)
from horsies_django.conf import config
from horsies_django.core.errors import WorkflowError
from horsies_django.core.kinds import kind_of
from horsies_django.core.status import RUN_STATUSES
from horsies_django.core.texts import LONGEST_REASON, name_of_user
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.monitoring import workflows
from horsies_django.store.workflows import Progress

MOST_FILTER_NAMES = 20  # if there are more names, the filter is not offered
MOST_NODES_NAMED = 2  # waiting nodes named in a row of the list
SEARCHED = 1_000  # the most halted runs and waiting nodes; a text contains this number, too
LISTED_RUN_COLUMNS = ("name", "key", "status", "sent_at", "finished_at", "error_code", "parent_id")
IS_HALTED = Q(status="PAUSED") | Q(error_code="COMPENSATION_FAILED")  # the condition of an index
HALTED_RUNS_SEARCHED: str | Promise = _(
    "Only the newest 1,000 halted runs and the first 1,000 waiting nodes were searched."
)

# The number is that of ``monitoring.reading.DEEPEST_ROW``. It is part of the text, so that
# translators can format it.
NEWEST_RUNS_SEARCHED: str | Promise = _("Only the newest 100,000 runs were searched.")
NOT_COUNTED: str | Promise = _(
    "The progress is missing, because counting took longer than three seconds."
)


class StatusFilter(ChosenFilter):
    """Filter for runs of one status."""

    title = _("status")
    parameter_name = "status"
    # All statuses, whether or not there are such runs.
    offered = tuple((status, SHAPES[status][1]) for status in RUN_STATUSES)


class NameFilter(ChosenFilter):
    """Filter for runs of one workflow, which is offered if there are few names."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names of runs if they are few, and the name in the address."""
        names = (
            read_bounded(config().database, lambda: workflows.run_names(MOST_FILTER_NAMES + 1))
            or []
        )
        names = names if len(names) <= MOST_FILTER_NAMES else []

        given = request.GET.get(self.parameter_name)
        if given and "\x00" not in given and given not in names:
            names.append(given)

        return [(name, name) for name in names]


class ParentFilter(ChosenFilter):
    """Filter for runs that were sent, or for runs that are nodes of other runs."""

    title = _("parent")
    parameter_name = "child"
    offered = (("0", _("Not part of another run")), ("1", _("Node of another run")))

    def condition(self, value: str) -> Q:
        return Q(parent_id__isnull=value == "0")


class NeedsFilter(ChosenFilter):
    """Filter for runs that continue only after a person acts. The list selects them itself."""

    title = _("needs a person")
    parameter_name = "needs"
    offered = (("1", _("Paused by a failure, not undone, or at a gate")),)

    def condition(self, value: str) -> Q:
        return Q()


class RunListMixin(NextPageMixin):
    """The change list of runs. It loads only the columns that it shows, and no payload."""

    def source(self) -> QuerySet[WorkflowRun]:
        """Return the filtered runs in the order of an index.

        They are limited to the newest runs if the filter requires it.
        """
        runs: QuerySet[WorkflowRun] = self.queryset.only(*LISTED_RUN_COLUMNS)
        term = self.query.strip()
        child = self.chosen(ParentFilter)

        if self.chosen(NeedsFilter):
            self.note = HALTED_RUNS_SEARCHED

            # The newest halted runs and the first gates are found by an index each.
            halted = (
                WorkflowRun.objects.using(runs.db)
                .filter(IS_HALTED, error_code__isnull=False)
                .order_by("-sent_at")
            )
            waiting = WorkflowNode.objects.using(runs.db).filter(
                status="WAITING", finished_at__isnull=True
            )

            first = waiting.order_by("due_at").values_list("workflow_id", "kind")[:SEARCHED]
            gates = [run for run, kind in first if kind == "gate"]
            found = [*halted.values_list("pk", flat=True)[:SEARCHED], *gates]
            return runs.filter(pk__in=found).order_by("-sent_at", "-pk")

        if term and (parse_id(term) or workflows.keyed(runs.db, term)):
            # These few rows are sorted, because no index has this order.
            return runs.order_by("key", "-sent_at", "-pk")

        runs, partial = workflows.newest_runs(
            runs,
            status=self.chosen(StatusFilter),
            name=term or self.chosen(NameFilter),
            child=None if child is None else child == "1",
        )
        self.note = NEWEST_RUNS_SEARCHED if partial else ""
        return runs

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Set ``progress`` and ``waits_for`` of the runs of the page, with two queries."""
        alias = self.root_queryset.db
        open_ = [row.pk for row in rows if row.finished_at is None]
        waiting = WorkflowNode.objects.using(alias).filter(
            workflow_id__in=open_, finished_at__isnull=True, status="WAITING"
        )
        shown = waiting.order_by("workflow_id", "number").only(
            "workflow_id", "name", "kind", "signal"
        )

        def read() -> tuple[dict[uuid.UUID, Progress], list[WorkflowNode]]:
            return workflows.progress([row.pk for row in rows]), list(shown[:SEARCHED])

        found = read_bounded(alias, read)
        if found is None:
            self.note = NOT_COUNTED

        counted, waits = found or ({}, [])
        by_run = defaultdict(list)
        for node in waits:
            by_run[node.workflow_id].append(node)

        for row in rows:
            row.progress = counted.get(row.pk)
            row.waits_for = NO_VALUE if found is None else unfinished_reason(row, by_run[row.pk])

        return rows


def unfinished_reason(run: WorkflowRun, nodes: list[WorkflowNode]) -> str:
    """Return the reason why a run is not finished, with the first of its waiting ``nodes``.

    Return a dash if the run is finished and no undo of it failed.
    """
    if run.error_code == "COMPENSATION_FAILED":
        return gettext("a person: it was not undone completely")
    if run.finished_at is not None:
        return NO_VALUE

    if run.status == "PAUSED":
        return (
            gettext("a person: a failure paused it")
            if run.error_code
            else gettext("a person: it is paused")
        )

    if run.status == "COMPENSATING":
        return gettext("its undos")
    if not nodes:
        return gettext("its tasks")

    events = []
    for node in nodes[:MOST_NODES_NAMED]:
        awaited = kind_of(node.kind).awaits.format(signal=node.signal, keyed="", allowed="")
        events.append(f"{awaited} ({node.name})")
    return "; ".join(events) + ("; …" if len(nodes) > MOST_NODES_NAMED else "")


class ReasonForm(ActionForm):
    """The bar of actions, with a field for the reason."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


def action_of(verb: str) -> Callable[..., None]:
    """Return the list action of a verb of the table ``ADMIN_VERBS``."""
    change = ADMIN_VERBS[OF_WORKFLOWS][verb]

    @admin.action(permissions=["operate"], description=change.label)
    def act(self: Any, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> None:
        """Change the selected runs one by one, and show how many of them changed."""
        actor_and_reason = {
            "actor": name_of_user(request.user),
            "reason": request.POST.get("reason", "").strip()[:LONGEST_REASON] or None,
        }

        done = same = 0
        try:
            for run in list(queryset.values_list("pk", flat=True)):
                try:
                    with patiently():
                        changed = change.run(run, **actor_and_reason) is not False
                except (WorkflowError, LookupError) as error:
                    self.message_user(request, str(error), messages.WARNING)
                    continue
                done, same = done + changed, same + (not changed)
        except DatabaseError as error:  # the other runs would fail in the same way
            self.message_user(request, database_refusal(error), messages.ERROR)

        if done:
            text = ngettext("%(count)d run was changed.", "%(count)d runs were changed.", done)
            self.message_user(request, text % {"count": done}, messages.SUCCESS)

        if same:
            text = ngettext(
                "%(count)d run was left as it is, because of its status.",
                "%(count)d runs were left as they are, because of their status.",
                same,
            )
            self.message_user(request, text % {"count": same}, messages.INFO)

    act.__name__ = f"{verb}_runs"
    return act


RUN_ACTIONS = tuple(map(action_of, ("pause", "resume", "cancel", "retry")))
