"""The gates of a run as a table on its page: those that wait for a decision, and who decided about the others."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.safestring import SafeString

from horsies_django.admin.base.html import NOTHING, moment
from horsies_django.admin.base.run_links import node_link
from horsies_django.admin.workflows.cells import badge_of
from horsies_django.models import WorkflowNode

MANY = 100
SHOWN = ("number", "name", "status", "permission", "due_at", "decided_by", "finished_at")


class GateRow(NamedTuple):
    """A row of the table of gates."""

    name: SafeString | str
    status: SafeString
    permission: str
    until: SafeString | str
    decided_by: str
    finished: SafeString | str


class GateTable(NamedTuple):
    """Gates of a run, and whether there are more; ``rows`` is None if reading timed out."""

    rows: list[GateRow] | None
    more: bool


def read_gates(run: Any) -> list[WorkflowNode]:
    """Return the gates of a run, first those that wait: no status comes after WAITING in the alphabet."""
    gates = WorkflowNode.objects.using(run._state.db).filter(workflow_id=run.pk, kind="gate", signal__isnull=False)
    return list(gates.only("pk", *SHOWN).order_by("-status", "number")[: MANY + 1])


def gate_table(page: Any, request: HttpRequest, run: Any, found: list[WorkflowNode] | None) -> GateTable:
    """Return gates of a run as a table; None: reading them timed out."""
    if found is None:
        return GateTable(None, False)
    rows = [
        GateRow(
            name=node_link(page, request, run.pk, gate.number, gate.name),
            status=badge_of(gate.status),
            permission=gate.permission or NOTHING,
            until=moment(gate.due_at, run.read_at) if gate.due_at else NOTHING,
            decided_by=gate.decided_by or NOTHING,
            finished=moment(gate.finished_at, run.read_at) if gate.finished_at else NOTHING,
        )
        for gate in found[:MANY]
    ]
    return GateTable(rows, len(found) > MANY)
