"""Bar charts as SVG, made on the server. The text of a chart says its figures; the stylesheet gives the colours."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

LINE = 16  # height of a line of text
LEAST = 1.5  # height of a bar of something, however little


def bars(
    pairs: Sequence[tuple[int, int]], label: str, *, width: int = 120, height: int = 24, marks: Sequence[str] = ()
) -> SafeString:
    """Return a chart with a bar for each pair, how many completed and how many failed, the latter above the former.

    With ``marks``, texts for the time axis in equal distances, it also shows the greatest number; else it is a sparkline.
    """
    most = max((sum(pair) for pair in pairs), default=0)
    top, floor = (LINE, height - LINE) if marks else (0, height)
    step = width / max(len(pairs), 1)
    completed, failed = "", ""
    for place, (done, bad) in enumerate(pairs):
        lower, upper = (max((floor - top) * many / most, LEAST) if many else 0.0 for many in (done, bad))
        lower = min(lower, floor - top - upper)  # what failed is seen beside however much that completed
        completed += _bar(place * step, floor, step, lower)
        failed += _bar(place * step, floor - lower, step, upper)
    return format_html(
        '<svg class="horsies-chart" role="img" width="{0}" height="{1}" viewBox="0 0 {0} {1}"><title>{2}</title>'
        '<path class="horsies-chart-axis" d="M0 {3}h{0}"/><path class="horsies-chart-done" d="{4}"/>'
        '<path class="horsies-chart-failed" d="{5}"/>{6}</svg>',
        str(width), str(height), told(pairs, label), str(floor), completed, failed, _texts(marks, most, width, height),
    )  # fmt: skip


def told(pairs: Sequence[tuple[int, int]], label: str) -> str:
    """Return the figures of a chart in words."""
    sums = [sum(pair) for pair in pairs] or [0]
    figures = [f"{one:,}" for one in (min(sums), max(sums), sums[-1], sum(bad for _done, bad in pairs))]
    text = _("%(label)s: least %(least)s, most %(most)s, last %(last)s; failed in all: %(failed)s")
    return text % {"label": label, **dict(zip(("least", "most", "last", "failed"), figures, strict=True))}


def _bar(x: float, bottom: float, step: float, high: float) -> str:
    wide = step * 0.8 if step > 3 else step
    return f"M{x:.1f} {bottom:.1f}v-{high:.1f}h{wide:.1f}v{high:.1f}z" if high else ""


def _texts(marks: Sequence[str], most: int, width: int, height: int) -> SafeString | str:
    if not marks:
        return ""
    last, rows = len(marks) - 1, [("0", str(LINE - 5), "start", f"{most:,}")]
    for place, text in enumerate(marks):
        anchor = "middle" if 0 < place < last else "end" if place else "start"
        rows.append((str(width * place // max(last, 1)), str(height - 3), anchor, text))
    return format_html_join("", '<text x="{}" y="{}" text-anchor="{}" aria-hidden="true">{}</text>', rows)
