"""Values as HTML: statuses, datetimes, durations, JSON. All values are escaped.

There are no inline styles: a content security policy may forbid them, and colours belong to the theme.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.core.status import Status

NOTHING = "–"
LONGEST = 20_000  # characters shown of one value

# status -> a symbol (so that colour is not the only difference) and its name
STATUSES = {
    Status.PENDING: ("○", gettext_lazy("Pending")),
    Status.CLAIMED: ("◐", gettext_lazy("Claimed")),
    Status.RUNNING: ("▶", gettext_lazy("Running")),
    Status.COMPLETED: ("✓", gettext_lazy("Completed")),
    Status.FAILED: ("✕", gettext_lazy("Failed")),
    Status.CANCELLED: ("⊘", gettext_lazy("Cancelled")),
    Status.EXPIRED: ("◷", gettext_lazy("Expired")),
}


def badge(kind: str, shape: str, text: object) -> SafeString:
    """Return a state as symbol, text and colour; the stylesheet has a class for each ``kind``."""
    template = '<span class="horsies-badge horsies-{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(template, kind.lower(), shape, text)


def breakable(name: str) -> SafeString:
    """Return a dotted name that may wrap after dots and underscores."""
    parts = ((part,) for part in re.findall(r"[^._]*[._]?", name))
    return format_html('<span class="horsies-name">{}</span>', format_html_join(SafeString("<wbr>"), "{}", parts))


def status_badge(status: str) -> SafeString:
    """Return a badge for a status, including one that only a newer version knows."""
    try:
        shape, text = STATUSES[Status(status)]
    except ValueError:
        return badge("unknown", "?", status)
    return badge(status, shape, text)


def span(value: dt.timedelta) -> str:
    """Return a duration in its two largest units: 350 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    seconds = max(value.total_seconds(), 0.0)
    if seconds < 1:
        return _("%(n)d ms") % {"n": seconds * 1000}
    if seconds < 10:
        return _("%(n).1f s") % {"n": int(seconds * 10) / 10}
    if seconds < 60:
        return _("%(n)d s") % {"n": seconds}
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest}
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    days, hours = divmod(hours, 24)
    return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours}


def absolute(value: dt.datetime) -> str:
    """Return a datetime to the second in the current time zone, independent of the language."""
    return f"{timezone.localtime(value) if timezone.is_aware(value) else value:%Y-%m-%d %H:%M:%S}"


def age(value: dt.datetime, now: dt.datetime) -> SafeString:
    """Return how long ago a datetime was, with the datetime as tooltip."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', value.isoformat(), absolute(value), span(now - value)
    )


def moment(value: dt.datetime | None, now: dt.datetime) -> SafeString | str:
    if value is None:
        return NOTHING
    template = '<time datetime="{}">{}</time> <span class="horsies-quiet">{}</span>'
    return format_html(template, value.isoformat(), absolute(value), away(value, now))


def away(value: dt.datetime, now: dt.datetime) -> str:
    """Return the distance of a datetime from now: ``3 min 20 s ago``, ``in 2 h 5 min``."""
    form = _("%(span)s ago") if value <= now else _("in %(span)s")
    return form % {"span": span(abs(now - value))}


def moment_field(model: type[Model], name: str) -> Callable[[Any, Any], SafeString | str]:
    """Return a display method for a datetime column; the rows need ``read_at``, the database's clock."""

    @admin.display(description=model._meta.get_field(name).verbose_name)  # type: ignore[union-attr]
    def shown(self: Any, obj: Any) -> SafeString | str:
        return moment(getattr(obj, name), obj.read_at)

    return shown


def linked_field(name: str, description: Any) -> Callable[[Any, Any], Any]:
    """Return a display method for an attribute that ``get_object`` sets, usually a link."""

    @admin.display(description=description)
    def shown(self: Any, obj: Any) -> Any:
        return getattr(obj, name)

    return shown


def block(text: str) -> SafeString:
    """Return preformatted text, truncated to ``LONGEST`` characters."""
    if len(text) <= LONGEST:
        return format_html('<pre class="horsies-text">{}</pre>', text)
    note = _("Showing the first %(shown)s of %(all)s characters.") % {"shown": f"{LONGEST:,}", "all": f"{len(text):,}"}
    return format_html('<pre class="horsies-text">{}</pre><p class="horsies-quiet">{}</p>', text[:LONGEST], note)


def json_block(value: object) -> SafeString:
    try:
        return block(json.dumps(value, indent=2, ensure_ascii=False, default=str))
    except RecursionError:
        return block(_("This value is nested too deeply to be shown."))


def payload_note() -> SafeString:
    """Return a note about the permission to see payloads."""
    text = _("The permission {} is required to see arguments, results, error messages and tracebacks.")
    return format_html(text, SafeString("<code>horsies.view_payload</code>"))
