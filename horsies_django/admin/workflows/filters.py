"""The filters of the list of runs. The statuses of unfinished runs and the names have an index; see ``monitoring.workflows``."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.workflows.cells import SHAPES
from horsies_django.conf import config
from horsies_django.core.status import RUN_STATUSES
from horsies_django.models import WorkflowRun
from horsies_django.monitoring import workflows

FEW = 20  # more names, and the filter is not offered


class RunFilter(admin.SimpleListFilter):
    """A filter whose value has to be one of those offered."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> QuerySet[WorkflowRun]:
        """Filter the runs. Raises IncorrectLookupParameters for a value that is not offered."""
        value = self.value()
        if value is None:
            return queryset
        if value not in {offered for offered, _text in self.lookup_choices}:
            raise IncorrectLookupParameters(repr(value))
        return queryset.filter(**self.condition(value))

    def condition(self, value: str) -> dict[str, Any]:
        return {self.parameter_name or "": value}


class StatusFilter(RunFilter):
    """Runs of one status."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all statuses, whether or not there are such runs."""
        return [(status, SHAPES[status][1]) for status in RUN_STATUSES]


class NameFilter(RunFilter):
    """Runs of one workflow; offered if there are few names."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names of runs if they are few, and the name in the address."""
        found = read_bounded(config().database, lambda: workflows.names(FEW + 1)) or []
        given = request.GET.get(self.parameter_name)
        names = found if len(found) <= FEW else []
        return [
            (name, name)
            for name in [*names, *([given] if given and "\x00" not in given and given not in names else [])]
        ]


class ParentFilter(RunFilter):
    """Runs that were sent, or runs that are nodes of other runs."""

    title = _("parent")
    parameter_name = "child"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("0", _("Not part of another run")), ("1", _("Node of another run"))]

    def condition(self, value: str) -> dict[str, Any]:
        return {"parent_id__isnull": value == "0"}
