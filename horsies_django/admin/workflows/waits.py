"""The gates of a run, and the signals to it, as tables on its page."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import NOTHING, badge, json_block, moment
from horsies_django.admin.base.links import node_link
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.base.sizes import MANY
from horsies_django.admin.workflows.cells import badge_of
from horsies_django.models import WorkflowNode, WorkflowSignal

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


class SignalRow(NamedTuple):
    """A row of the table of signals. ``data`` is "" unless the user may see payloads."""

    name: str
    key: str
    sent: SafeString | str
    actor: str
    taken: SafeString | str
    data: SafeString | str


class SignalTable(NamedTuple):
    """The newest signals of a run, and whether there are more; ``rows`` is None if reading timed out."""

    rows: list[SignalRow] | None
    more: bool


def wait_tables(page: Any, request: HttpRequest, run: Any, visible: bool) -> dict[str, Any]:
    """Return the gates of a run and the signals to it, which are read together; ``visible``: the user may see payloads."""
    alias = run._state.db
    waits = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk, signal__isnull=False)
    signals = WorkflowSignal.objects.using(alias).filter(workflow_id=run.pk).order_by("-sent_at", "-pk")
    if not visible:
        signals = signals.defer("data")

    def read() -> tuple[list[WorkflowNode], list[WorkflowSignal]]:
        return (read_gates(run), list(signals[: MANY + 1])) if waits.exists() else ([], [])

    gates, sent = read_bounded(alias, read) or (None, None)
    return {"gates": gate_table(page, request, run, gates), "signals": signal_table(page, request, run, sent, visible)}


def signal_table(page: Any, request: HttpRequest, run: Any, found: Any, visible: bool) -> SignalTable:
    """Return signals to a run as a table; None: reading them timed out."""
    if found is None:
        return SignalTable(None, False)
    alias = run._state.db
    numbers = {signal.node for signal in found if signal.node is not None}
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk, number__in=numbers)
    names = dict(nodes.values_list("number", "name")) if numbers else {}
    rows = [
        SignalRow(
            name=signal.name,
            key=signal.key or NOTHING,
            sent=moment(signal.sent_at, run.read_at),
            actor=signal.actor,
            taken=_taken(page, request, run, signal, names),
            data=json_block(signal.data) if visible else "",
        )
        for signal in found[:MANY]
    ]
    return SignalTable(rows, len(found) > MANY)


def _taken(
    page: Any, request: HttpRequest, run: Any, signal: WorkflowSignal, names: dict[int, str]
) -> SafeString | str:
    """Return the node that took a signal, or that none has; that matters once none will."""
    if signal.node is not None:
        return node_link(page, request, run.pk, signal.node, names.get(signal.node, str(signal.node)))
    return badge("full", "■", _("Unused")) if run.finished_at else _("not yet")
