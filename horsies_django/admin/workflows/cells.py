"""Statuses of runs and nodes as badges, and the progress of a run as a bar."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import NOTHING, STATUSES, badge
from horsies_django.store.workflows import Progress

# status -> a symbol and its name; a run and a node have some in common with a task
SHAPES: dict[str, tuple[str, str | Promise]] = {
    **{status.value: shape for status, shape in STATUSES.items()},
    "PAUSED": ("‖", gettext_lazy("Paused")),
    "COMPENSATING": ("↶", gettext_lazy("Compensating")),
    "ADDED": ("+", gettext_lazy("Added")),
    "READY": ("◔", gettext_lazy("Ready")),
    "WAITING": ("◌", gettext_lazy("Waiting")),
    "ENQUEUED": ("◐", gettext_lazy("Sent")),
    "SKIPPED": ("↷", gettext_lazy("Skipped")),
}
KINDS: dict[str, str | Promise] = {
    "task": gettext_lazy("task"),
    "map": gettext_lazy("map"),
    "workflow": gettext_lazy("workflow"),
    "input": gettext_lazy("input"),
    "undo": gettext_lazy("undo"),
    "continue": gettext_lazy("continue"),
    "timer": gettext_lazy("timer"),
    "signal": gettext_lazy("signal"),
    "gate": gettext_lazy("gate"),
}


def badge_of(status: str) -> SafeString:
    """Return a badge for the status of a run or node, including one that only a newer version knows."""
    shape, text = SHAPES.get(status, ("?", status))
    return badge(status if status in SHAPES else "unknown", shape, text)


def progress_bar(progress: Progress | None) -> SafeString | str:
    """Return a bar, the percentage and the counts. The text says all that the bar shows, so readers of screens skip the bar."""
    if progress is None:
        return NOTHING
    done = int(progress.share * 100)
    counts = [
        _("%(done)s of %(total)s") % {"done": f"{progress.total - progress.open:,}", "total": f"{progress.total:,}"}
    ]
    counts += [_("%(n)s failed") % {"n": f"{progress.failed:,}"}] if progress.failed else []
    counts += [_("%(n)s skipped") % {"n": f"{progress.skipped:,}"}] if progress.skipped else []
    return format_html(
        '<progress class="horsies-progress{}" max="100" value="{}" aria-hidden="true"></progress> {} %'
        ' <span class="horsies-quiet">{}</span>',
        " horsies-progress-failed" if progress.failed else "",
        done,
        done,
        ", ".join(counts),
    )
