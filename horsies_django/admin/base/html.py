"""HTML for the values on the admin pages: statuses, datetimes, durations, tables, charts and more.

The limits of how much a page shows are also here.

All values are escaped. There are no inline styles, because a content security policy may forbid
them and because colours belong to the theme.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.conf import config
from horsies_django.core.explanations import Reason, ReasonCode
from horsies_django.core.status import Status
from horsies_django.core.words import duration
from horsies_django.models import Queue, Task, Worker, WorkflowRun

NO_VALUE = "–"
LONGEST_VALUE = 20_000  # characters shown of one value

# The symbol and the name of each status. With a symbol, colour is not the only difference.
STATUSES = {
    Status.PENDING: ("○", gettext_lazy("Pending")),
    Status.CLAIMED: ("◐", gettext_lazy("Claimed")),
    Status.RUNNING: ("▶", gettext_lazy("Running")),
    Status.COMPLETED: ("✓", gettext_lazy("Completed")),
    Status.FAILED: ("✕", gettext_lazy("Failed")),
    Status.CANCELLED: ("⊘", gettext_lazy("Cancelled")),
    Status.EXPIRED: ("◷", gettext_lazy("Expired")),
}
# The same for all statuses of tasks, runs and nodes.
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
FEW = 5  # the most things named in one line
MOST_ENTRIES = 20  # the newest entries of a list that grows without end
MOST_ROWS = 100  # the rows of a table on the page of something else
LONGEST_CELL = 100  # characters
LONGEST_FIELD = 200  # characters
PATIENCE_MS = 1_000  # after this time, a page is shown without the reasons
NODE_PAGE = "horsies_workflowrun_node"

Row = TypeVar("Row")

LINE = 16  # height of a line of text
LEAST_BAR = 1.5  # height of the bar of the smallest number above zero

Mention: TypeAlias = tuple[type[Model], Any, str]  # the model, primary key and text of a link
# Reasons whose texts contain the key of a partition, which is made from arguments.
TEXTS_WITHOUT_PARTITION: dict[str, str | Promise] = {
    ReasonCode.PARTITION_AT_LIMIT: gettext_lazy(
        "The partition of this task is at its limit. The permission horsies.view_payload is "
        "required to see partitions."
    ),
    ReasonCode.BEHIND_IN_ORDER: gettext_lazy(
        "Another task of its partition comes first. The permission horsies.view_payload is "
        "required to see partitions."
    ),
}


def badge(kind: str, shape: str, text: object) -> SafeString:
    """Return a state as symbol, text and colour. The stylesheet has a class for each ``kind``."""
    template = '<span class="horsies-badge horsies-{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(template, kind, shape, text)


def breakable(name: str) -> SafeString:
    """Return a dotted name in HTML that may wrap after dots and underscores."""
    parts = ((part,) for part in re.findall(r"[^._]*[._]?", name))
    return format_html(
        '<span class="horsies-name">{}</span>', format_html_join(SafeString("<wbr>"), "{}", parts)
    )


def badge_shape(status: str) -> tuple[str, str, str | Promise]:
    """Return the arguments of ``badge`` for a status.

    The status may belong to a newer version.
    """
    shape, text = SHAPES.get(status, ("?", status))
    return status.lower() if status in SHAPES else "unknown", shape, text


def status_badge(status: str) -> SafeString:
    return badge(*badge_shape(status))


def duration_text(value: dt.timedelta) -> str:
    """Return a duration in its two largest units."""
    return duration(value.total_seconds())


def duration_or_dash(value: float | None) -> str:
    return NO_VALUE if value is None else duration_text(dt.timedelta(seconds=value))


def absolute(value: dt.datetime) -> str:
    """Return a datetime to the second in the current time zone.

    The form is the same in all languages.
    """
    return f"{timezone.localtime(value) if timezone.is_aware(value) else value:%Y-%m-%d %H:%M:%S}"


def age(value: dt.datetime, now: dt.datetime) -> SafeString:
    """Return how long ago a datetime was, with the datetime itself as tooltip."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        value.isoformat(),
        absolute(value),
        duration_text(now - value),
    )


def time_and_age(value: dt.datetime | None, now: dt.datetime) -> SafeString | str:
    if value is None:
        return NO_VALUE
    template = '<time datetime="{}">{}</time> <span class="horsies-quiet">{}</span>'
    return format_html(template, value.isoformat(), absolute(value), away(value, now))


def away(value: dt.datetime, now: dt.datetime) -> str:
    """Return how far a datetime is from now, such as ``3 min 20 s ago`` or ``in 2 h 5 min``."""
    form = _("%(span)s ago") if value <= now else _("in %(span)s")
    return form % {"span": duration_text(abs(now - value))}


def moment_field(model: type[Model], name: str) -> Callable[[Any, Any], SafeString | str]:
    """Return a display method for a datetime column.

    The rows need the attribute ``read_at``, the time of the database's clock.
    """

    description = model._meta.get_field(name).verbose_name  # type: ignore[union-attr]
    return row_field(description, lambda row: time_and_age(getattr(row, name), row.read_at))


def row_field(description: Any, form: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a display method that shows the result of ``form`` for a row."""
    return admin.display(lambda _page, row: form(row), description=description)


def field(
    name: str, description: Any, form: Callable[[Any], Any] = lambda value: value
) -> Callable[[Any, Any], Any]:
    """Return a display method that shows the result of ``form`` for an attribute of a row.

    If the attribute is empty, the method shows a dash.
    """

    def shown(row: Any) -> Any:
        value = getattr(row, name)
        return NO_VALUE if value is None or value == "" else form(value)

    return row_field(description, shown)


def block(text: str) -> SafeString:
    """Return preformatted text, truncated to ``LONGEST_VALUE`` characters."""
    if len(text) <= LONGEST_VALUE:
        return format_html('<pre class="horsies-text" tabindex="0">{}</pre>', text)
    note = _("Showing the first %(shown)s of %(all)s characters.") % {
        "shown": f"{LONGEST_VALUE:,}",
        "all": f"{len(text):,}",
    }
    return format_html(
        '<pre class="horsies-text" tabindex="0">{}</pre><p class="horsies-quiet">{}</p>',
        text[:LONGEST_VALUE],
        note,
    )


def json_block(value: object) -> SafeString:
    try:
        return block(json.dumps(value, indent=2, ensure_ascii=False, default=str))
    except RecursionError:
        return block(_("This value is nested too deeply to be shown."))


class Table(NamedTuple):
    """A table with a heading, and with texts above and below it (``above`` and ``note``).

    The id of the heading ends with ``id``. The first cell of a row is its heading. ``rows`` is None
    if reading them took too long. A table without ``heads`` has no head.
    """

    id: str
    title: Any
    heads: Sequence[Any]
    rows: Sequence[Sequence[Any]] | None
    note: Any = ""
    empty: Any = gettext_lazy("None.")
    above: Any = ""


def rows_or_none(found: Iterable[Row] | None, row: Any) -> list[Any] | None:
    """Return the cells of each row that was found, or None if reading the rows took too long."""
    return None if found is None else [row(one) for one in found]


def marked(kind: str, value: Any) -> SafeString:
    """Return a cell in the style of its ``kind``. The stylesheet has a class for each kind."""
    return format_html('<span class="horsies-{}">{}</span>', kind, value)


def payload_note() -> SafeString:
    """Return a note that names the permission to see payload."""
    text = _(
        "The permission {} is required to see arguments, results, error messages and tracebacks."
    )
    return format_html(text, SafeString("<code>horsies.view_payload</code>"))


def parse_id(term: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(term.strip())
    except ValueError:
        return None


def node_link(
    page: Any, request: HttpRequest, run: uuid.UUID, number: int, text: str
) -> SafeString | str:
    """Return ``text`` as a link to the page of a node, or as plain text if there is no such page.

    That is so if the site does not have the page, or if the user may not view it.
    """
    if number < 0 or not page.admin_site.is_registered(WorkflowRun):
        return text
    if not request.user.has_perm("horsies.view_workflowrun"):
        return text
    return format_html('<a href="{}">{}</a>', node_url(page, run, number), text)


def node_url(page: Any, run: uuid.UUID, number: int) -> str:
    return reverse(
        f"admin:{NODE_PAGE}", args=(quote(run), number), current_app=page.admin_site.name
    )


def with_workers(page: Any, request: HttpRequest, rows: list[Row], column: str) -> list[Row]:
    """Set ``shown_worker`` of each row to host and process of its worker.

    ``column`` is the column with the id of the worker.
    """
    links = worker_links(page, request, {getattr(row, column) for row in rows})
    for row in rows:
        setattr(row, "shown_worker", links[getattr(row, column)])  # noqa: B010 - rows of any model
    return rows


def worker_links(page: Any, request: HttpRequest, ids: set[Any]) -> dict[Any, SafeString | str]:
    """Return host and process of workers by their ids, read with one statement.

    For a worker whose row was deleted, this is the id.
    """
    worker_ids = ids - {None}
    workers = (
        Worker.objects.using(config().database).only("hostname", "pid").in_bulk(worker_ids)
        if worker_ids
        else {}
    )
    links = {id_: page.link(request, Worker, id_, str(worker)) for id_, worker in workers.items()}
    return {None: NO_VALUE, **{id_: str(id_) for id_ in worker_ids}, **links}


def bars(
    pairs: Sequence[tuple[int, int]],
    label: str,
    *,
    width: int = 120,
    height: int = 24,
    marks: Sequence[str] = (),
) -> SafeString:
    """Return a chart with a bar for each pair of numbers: how many tasks completed and failed.

    The failed tasks are drawn above the completed ones. With ``marks``, which are the texts of the
    time axis at equal distances, the chart also shows the greatest number. Without them it is a
    sparkline.
    """
    most = max((sum(pair) for pair in pairs), default=0)
    top, floor = (LINE, height - LINE) if marks else (0, height)
    step = width / max(len(pairs), 1)

    completed = ""
    failed = ""
    for place, (done, bad) in enumerate(pairs):
        lower, upper = (
            max((floor - top) * many / most, LEAST_BAR) if many else 0.0 for many in (done, bad)
        )
        # Failed tasks stay visible, however many tasks completed.
        lower = min(lower, floor - top - upper)
        completed += _bar(place * step, floor, step, lower)
        failed += _bar(place * step, floor - lower, step, upper)

    return format_html(
        '<svg class="horsies-chart" role="img" width="{0}" height="{1}" viewBox="0 0 {0} '
        '{1}"><title>{2}</title>'
        '<path class="horsies-chart-axis" d="M0 {3}h{0}"/><path class="horsies-chart-done" '
        'd="{4}"/>'
        '<path class="horsies-chart-failed" d="{5}"/>{6}</svg>',
        str(width),
        str(height),
        chart_text(pairs, label),
        str(floor),
        completed,
        failed,
        _texts(marks, most, width, height),
    )


def chart_text(pairs: Sequence[tuple[int, int]], label: str) -> str:
    """Return the figures of a chart in words."""
    sums = [sum(pair) for pair in pairs] or [0]
    figures = [
        f"{one:,}" for one in (min(sums), max(sums), sums[-1], sum(bad for _done, bad in pairs))
    ]
    text = _("%(label)s: least %(least)s, most %(most)s, last %(last)s; total failed: %(failed)s")
    return text % {
        "label": label,
        **dict(zip(("least", "most", "last", "failed"), figures, strict=True)),
    }


def _bar(x: float, bottom: float, step: float, high: float) -> str:
    wide = step * 0.8 if step > 3 else step
    return f"M{x:.1f} {bottom:.1f}v-{high:.1f}h{wide:.1f}v{high:.1f}z" if high else ""


def _texts(marks: Sequence[str], most: int, width: int, height: int) -> SafeString | str:
    if not marks:
        return ""

    last = len(marks) - 1
    rows = [("0", str(LINE - 5), "start", f"{most:,}")]
    for place, text in enumerate(marks):
        anchor = "middle"
        if place == 0:
            anchor = "start"
        elif place == last:
            anchor = "end"
        rows.append((str(width * place // max(last, 1)), str(height - 3), anchor, text))

    return format_html_join(
        "", '<text x="{}" y="{}" text-anchor="{}" aria-hidden="true">{}</text>', rows
    )


class Line(NamedTuple):
    """One reason, with links to the rows that it mentions."""

    code: str
    text: str
    links: SafeString


def reason_line(page: Any, request: HttpRequest, reason: Reason, visible: bool) -> Line:
    """Return a reason as a line.

    ``visible`` is true if the user may see payload.
    """
    text = reason.text if visible else str(TEXTS_WITHOUT_PARTITION.get(reason.code, reason.text))
    return Line(reason.code.value, text, _mentions(page, request, reason.details))


def _mentions(page: Any, request: HttpRequest, details: Mapping[str, Any]) -> SafeString:
    """Return links to those rows in a reason whose pages the user may view."""
    queue = details.get("queue")
    child = details.get("run")
    workers = details.get("workers") or details.get("former") or ()

    groups: tuple[tuple[str, list[Mention]], ...] = (
        (_("queue"), [(Queue, queue, str(Queue(name=queue)))] if queue else []),
        (_("task"), [_task(details)] if details.get("task_id") and "task_name" in details else []),
        (_("run"), [(WorkflowRun, uuid.UUID(child["id"]), str(child["name"]))] if child else []),
        (_("held by"), [_task(one) for one in details.get("holders") or ()]),
        (_("worker"), [_worker(details)] if "worker_id" in details else []),
        (_("workers"), [_worker(one) for one in workers if one.get("hostname")]),
    )

    found = [
        (
            label,
            [page.link(request, model, pk, text) for model, pk, text in rows[:FEW]],
            len(rows) > FEW,
        )
        for label, rows in groups
    ]

    if nodes := details.get("upstream"):
        run = uuid.UUID(details["workflow_id"])
        links = [node_link(page, request, run, one["number"], one["name"]) for one in nodes[:FEW]]
        found.append((_("upstream"), links, len(nodes) > FEW))

    return format_html_join(
        " · ",
        "{}: {}{}",
        (
            (
                label,
                format_html_join(", ", "{}", ((link,) for link in links)),
                ", …" if more else "",
            )
            for label, links, more in found
            # Without such a page, the link is plain text.
            if links and isinstance(links[0], SafeString)
        ),
    )


def _task(facts: Mapping[str, Any]) -> Mention:
    return Task, uuid.UUID(str(facts["task_id"])), str(facts["task_name"])


def _worker(facts: Mapping[str, Any]) -> Mention:
    name = f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])
    return Worker, uuid.UUID(str(facts["worker_id"])), name
