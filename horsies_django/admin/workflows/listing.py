"""The list of runs: the newest first, read through an index until the page is full."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.links import parse_id
from horsies_django.admin.base.readonly import NextPageMixin, read_bounded
from horsies_django.admin.workflows.filters import NameFilter, ParentFilter, RunFilter, StatusFilter
from horsies_django.models import WorkflowRun
from horsies_django.monitoring import workflows

COLUMNS = ("name", "key", "status", "sent_at", "finished_at", "error_code", "parent_id")

# The number is workflows.DEEPEST; it is part of the text so that translators can format it.
LOOKED_AT_NEWEST: str | Promise = _("Only the newest 100,000 runs were searched.")
NOT_COUNTED: str | Promise = _("The progress is missing, because counting took longer than three seconds.")


class RunListMixin(NextPageMixin):
    """The change list of runs; loads only the columns that it shows, no payload."""

    def source(self) -> QuerySet[WorkflowRun]:
        """Return the filtered runs in the order of an index, limited to the newest ones where the filter needs it."""
        runs: QuerySet[WorkflowRun] = self.queryset.only(*COLUMNS)
        term, child = self.query.strip(), self._chosen(ParentFilter)
        if term and (parse_id(term) or workflows.keyed(runs.db, term)):
            return runs.order_by("key", "-sent_at", "-pk")  # a few rows, sorted: no index has this order
        runs, partial = workflows.newest(
            runs,
            status=self._chosen(StatusFilter),
            name=term or self._chosen(NameFilter),
            child=None if child is None else child == "1",
        )
        self.note = LOOKED_AT_NEWEST if partial else ""
        return runs

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Count how far the runs of the page are, with one query."""
        found = read_bounded(self.root_queryset.db, lambda: workflows.progress([row.pk for row in rows]))
        if found is None:
            self.note = NOT_COUNTED
        for row in rows:
            row.progress = (found or {}).get(row.pk)
        return rows

    def _chosen(self, kind: type[RunFilter]) -> str | None:
        value: str | None = next((item.value() for item in self.filter_specs if isinstance(item, kind)), None)
        return value
