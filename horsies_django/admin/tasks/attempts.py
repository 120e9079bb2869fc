"""The attempts of a task as a timeline, and tracebacks with the project's frames first."""

from __future__ import annotations

import datetime as dt
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

import horsies_django
from horsies_django.admin.base.html import LONGEST, NOTHING, Table, absolute, badge, block, span, worker_links
from horsies_django.models import Task, TaskAttempt

FRAME = re.compile(r'^([ |]*)File "([^"\n]*)", line \d+, in [^\n]*\n?(?:\1  [^\n]*\n?)*', re.MULTILINE)
# As worker.child.site decides it, but the file may be one of another machine.
LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<", re.IGNORECASE)
ELSEWHERE = (sysconfig.get_path("stdlib"), str(Path(horsies_django.__file__).parent))
OUTCOMES = {"COMPLETED": ("completed", "✓"), "SNOOZED": ("pending", "○"), "CANCELLED": ("cancelled", "⊘")}


def is_project(path: str) -> bool:
    """Whether a file is the project's own."""
    return not LIBRARY.search(path) and not any(Path(path).is_relative_to(folder) for folder in ELSEWHERE)


def frames(trace: str) -> SafeString:
    """Return a traceback with the project's frames, and below it, folded, with all."""
    short = FRAME.sub(lambda found: found[0] if is_project(found[2]) else "\0", trace[:LONGEST])
    if "\0" not in short:
        return block(trace)

    def left_out(found: re.Match[str]) -> str:
        text = ngettext("  … %(n)d frame of libraries\n", "  … %(n)d frames of libraries\n", len(found[0]))
        return text % {"n": len(found[0])}

    folded = format_html("<details><summary>{}</summary>{}</details>", _("All frames"), block(trace))
    return format_html("{}{}", block(re.sub("\0+", left_out, short)), folded)


def attempt_table(page: Any, request: HttpRequest, task: Task, attempts: Sequence[TaskAttempt], visible: bool) -> Table:
    """Return attempts, the newest first; ``visible``: the user may see messages and tracebacks."""
    workers = worker_links(page, request, {attempt.worker_id for attempt in attempts})
    begun = [attempt.finished_at for attempt in attempts[1:]] + [task.sent_at]
    whole = attempts[0].finished_at - task.sent_at if attempts else dt.timedelta()

    def row(attempt: TaskAttempt, since: dt.datetime) -> list[Any]:
        wait, ran = attempt.started_at - since, attempt.finished_at - attempt.started_at
        told = {"wait": span(wait), "ran": span(ran)}
        kind, shape = OUTCOMES.get(attempt.outcome, ("failed", "✕"))
        retried = format_html(' <span class="horsies-quiet">{}</span>', _("then retried")) if attempt.will_retry else ""
        return [
            attempt.attempt,
            format_html("{}{}", badge(kind, shape, attempt.outcome.capitalize()), retried),
            absolute(attempt.started_at),
            format_html(
                "{}<br>{}", _("waited %(wait)s, ran %(ran)s") % told, bar(kind, since - task.sent_at, wait, ran, whole)
            ),
            error(attempt, visible, unfolded=attempt is attempts[0] and task.finished_at is None),
            workers[attempt.worker_id],
            attempt.child_pid or NOTHING,
        ]

    rows = [row(*pair) for pair in zip(attempts, begun, strict=False)]
    heads = (_("Attempt"), _("Outcome"), _("Started"), _("Duration"), _("Error"), _("Worker"), _("Process"))
    return Table("attempts", _("Attempts"), heads, rows, empty=_("No attempt has finished yet."))


def error(attempt: TaskAttempt, visible: bool, *, unfolded: bool) -> SafeString:
    """Return code and place, and if they are ``visible`` the message and the traceback, ``unfolded`` or not."""
    place = _("%(site)s, line %(line)s") % {"site": attempt.site, "line": attempt.site_line} if attempt.site else ""
    message = trace = SafeString("")
    if visible and attempt.error_message:
        message = block(attempt.error_message)
    if visible and attempt.traceback:
        form = "<details{}><summary>{}</summary>{}</details>"
        trace = format_html(form, SafeString(" open") if unfolded else "", _("Traceback"), frames(attempt.traceback))
    shown = '{} <span class="horsies-quiet">{}</span>{}{}'
    return format_html(shown, attempt.error_code or NOTHING, place, message, trace)


def bar(
    kind: str, before: dt.timedelta, wait: dt.timedelta, ran: dt.timedelta, whole: dt.timedelta
) -> SafeString | str:
    """Return when it waited and ran, between the time when the task was sent and its last end; a text beside it says it, too."""
    if whole <= dt.timedelta():
        return ""
    start, middle, end = (
        round(min(max(part / whole, 0), 1) * 200) for part in (before, before + wait, before + wait + ran)
    )
    return format_html(
        '<svg class="horsies-timeline horsies-timeline-{}" width="200" height="8" viewBox="0 0 200 8" preserveAspectRatio="none"'
        ' aria-hidden="true">'
        '<path d="M{} 4H{}"/><rect x="{}" y="0" width="{}" height="8"/></svg>',
        kind, start, middle, min(middle, 198), max(end - middle, 2),
    )  # fmt: skip
