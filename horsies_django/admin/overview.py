"""The overview on the admin's page of the app: problems, queues, workers, schedules and runs.

A section is shown only to users who may view its model, according to the site's list of models. The
overview contains no payload.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.db import DatabaseError, connections
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import (
    FEW,
    MOST_ENTRIES,
    MOST_ROWS,
    NODE_PAGE,
    absolute,
    age,
    badge,
    bars,
    breakable,
    duration_or_dash,
)
from horsies_django.admin.base.readonly import database_refusal
from horsies_django.admin.workers import LIFE
from horsies_django.conf import config
from horsies_django.core.counts import COMPLETED, RETURNED
from horsies_django.core.queues import CLUSTER
from horsies_django.models import AuditEntry, Queue, Schedule, Task, Worker, WorkflowRun
from horsies_django.monitoring import history
from horsies_django.monitoring.health import (
    LATE,
    Health,
    Problem,
    ProblemCode,
    QueueHealth,
    Severity,
    examine,
    problems,
)
from horsies_django.monitoring.history import TimeStep
from horsies_django.monitoring.reading import Cached, status_connection
from horsies_django.store.base import Connection, error_text
from horsies_django.store.health import HealthStore, WaitingGates
from horsies_django.store.history import Failures, HistoryStore

logger = logging.getLogger("horsies.admin")

# The label of each span, its length, and the number of its steps.
OVERVIEW_SPANS: dict[str, tuple[str | Promise, dt.timedelta, int]] = {
    "hour": (gettext_lazy("Last hour"), dt.timedelta(hours=1), 60),
    "day": (gettext_lazy("Last 24 hours"), dt.timedelta(days=1), 24),
    "week": (gettext_lazy("Last 7 days"), dt.timedelta(days=7), 56),
}
MOST_FAILURES = 10
EVERY_MS = "10000"  # milliseconds between two readings of a visible page
LATELY_MINUTES = 14  # the minutes counted of the last 15, because workers write once a minute
SEVERITIES = {
    Severity.CRITICAL: ("failed", "✕", gettext_lazy("Critical")),
    Severity.WARNING: ("paused", "!", gettext_lazy("Warning")),
}
HALT_LABELS = {
    "paused": gettext_lazy("paused by a failure"),
    "not undone": gettext_lazy("not undone completely"),
}
# The first word of a problem's subject, and the model whose viewers see the problem. All other
# problems are shown to users who may view queues.
MODELS: dict[str, type[Model]] = {
    "task": Task,
    "worker": Worker,
    "schedule": Schedule,
    "schedules": Schedule,
    "workflow": WorkflowRun,
    "audit": AuditEntry,
}
# The columns of the table of queues, without the first one.
QUEUE_HEADINGS = (
    gettext_lazy("Waiting"),
    gettext_lazy("Longest wait"),
    gettext_lazy("Running"),
    gettext_lazy("Per minute"),
    gettext_lazy("Failed"),
    gettext_lazy("Wait, 95 %"),
    gettext_lazy("Run, 95 %"),
    gettext_lazy("Finished"),
)

Text = SafeString | str
TitledList = tuple[str, list[SafeString]]  # its title, and a list


class Summary(NamedTuple):
    """The state of queues, workers, schedules and runs.

    ``steps`` are by queue, and ``failures`` are the largest groups. If ``health`` is not complete,
    only ``health`` and ``problems`` are filled.
    """

    health: Health
    problems: list[Problem]
    steps: dict[str, list[TimeStep]]
    failures: list[Failures]
    gates: list[WaitingGates]


def read_summary(connection: Connection, span: str) -> Summary:
    """Read the summary of a span, which is a key of ``OVERVIEW_SPANS``, in autocommit mode.

    Raises the errors of the database driver.
    """
    health = examine(connection)
    (_text, length, points) = OVERVIEW_SPANS[span]
    found = Summary(health, problems(health), {}, [], [])
    if not health.complete:
        return found

    steps, failures = summaries.read(  # workers add to it once a minute
        f"history of {span}",
        lambda: (
            history.series(connection, length, points),
            HistoryStore(connection).failures(length, MOST_FAILURES),
        ),
        seconds=60.0,
    )

    return found._replace(
        steps=steps, failures=failures, gates=HealthStore(connection).waiting_gates()
    )


summaries: Cached[Any] = Cached()


def cached_summary(span: str) -> Summary | DatabaseError:
    """Return the summary of a span, or the error if the database refused.

    Both are at most five seconds old, and the counts at most a minute.
    """

    def make() -> Summary | DatabaseError:
        try:
            with (
                connections[config().database].wrap_database_errors,
                status_connection() as connection,
            ):
                return read_summary(connection, span)
        except DatabaseError as error:
            logger.warning("the overview could not be read: %s", error_text(error))
            return error

    found: Summary | DatabaseError = summaries.read(span, make)
    return found


class Overview:
    """A summary as one user of a site sees it.

    ``lists`` are the addresses of the lists of the models that the user may view.
    """

    def __init__(
        self, request: Any, lists: Mapping[type[Model], str], summary: Summary, chosen: str
    ) -> None:
        self.site = getattr(request, "current_app", None)
        self.lists = lists
        self.summary = summary
        self.chosen = chosen
        self.clock = summary.health.database.clock

    def link(self, model: type[Model], pk: str | uuid.UUID, text: Text) -> Text:
        """Return ``text`` as a link to the page of a row, or only the text if there is none.

        The user must have the permission to view the row.
        """
        return self.to(f"admin:horsies_{model._meta.model_name}_change", (quote(pk),), text)

    def to(self, name: str, arguments: tuple[object, ...], text: Text) -> Text:
        """Return ``text`` as a link to a page, or only the text if the site has no such page."""
        try:
            return format_html(
                '<a href="{}">{}</a>', reverse(name, args=arguments, current_app=self.site), text
            )
        except NoReverseMatch:
            return text

    def listed(self, text: str, **fields: str) -> Text:
        """Return ``text`` as a link to the tasks with these fields."""
        address = self.lists.get(Task)
        return (
            format_html('<a href="{}?{}">{}</a>', address, urlencode(fields), text)
            if address
            else text
        )

    def shown(self) -> dict[str, Any]:
        """Return the context of the template. Sections that the user may not view are missing."""
        health = self.summary.health
        if not health.complete:
            return {"problems": list(self.problems())}

        made = {
            Task: self.failures,
            Worker: self.workers,
            Schedule: self.schedules,
            WorkflowRun: self.workflows,
        }
        queues = (
            [self.queue(one) for one in health.queues[:MOST_ROWS]] if Queue in self.lists else None
        )

        return {
            "problems": list(self.problems()),
            "queues": queues,
            "columns": QUEUE_HEADINGS,
            "more": len(health.queues) > MOST_ROWS,
            "sections": [
                section
                for model, sections in made.items()
                if model in self.lists
                for section in sections()
            ],
        }

    def problems(self) -> Iterator[tuple[Text, ...]]:
        """Yield the problems that concern models the user may view, the worst first.

        Each is a tuple of badge, text, age, advice and link.
        """
        for one in self.summary.problems:
            if MODELS.get(one.subject.partition(" ")[0], Queue) in self.lists:
                since = age(one.since, self.clock) if one.since else ""
                yield (
                    badge(*SEVERITIES[one.severity]),
                    capfirst(one.text),
                    since,
                    capfirst(one.advice),
                    self.about(one),
                )

    def about(self, problem: Problem) -> Text:
        """Return a link to the subject of a problem: a row, or a list of tasks."""
        kind, _space, name = problem.subject.partition(" ")
        health = self.summary.health

        if kind == "task":
            if problem.code == ProblemCode.CRASHES:
                # These tasks may have been retried, so they may wait, run or be completed.
                return self.listed(_("These tasks"), name=name)

            waits = problem.code == ProblemCode.UNKNOWN_TASK and name in {
                one.task_name for one in health.unknown_tasks
            }
            status = "PENDING" if waits else "FAILED"
            return self.listed(_("These tasks"), status=status, name=name)

        if kind == "workflow":
            run = next(
                (one.run for one in health.halted_runs if str(one.run) in problem.text), None
            )
            return self.link(WorkflowRun, run, _("The first run")) if run else ""

        if kind == "worker":
            worker_ids = (
                one.id
                for one in health.workers
                if f"{one.hostname}:{one.pid}" == name and not one.up
            )
            return self.link(Worker, next(worker_ids, name), _("The worker"))

        if kind in ("queue", "schedule"):
            return self.link(Queue if kind == "queue" else Schedule, name, name)
        if model := MODELS.get(kind):
            return format_html(
                '<a href="{}">{}</a>', self.lists[model], model._meta.verbose_name_plural
            )
        return ""

    def queue(self, queue: QueueHealth) -> tuple[Text, Text, list[tuple[str | Promise, Text]]]:
        """Return the name of a queue, a badge if it is paused, and its columns.

        The row of the cluster contains the numbers of all queues.
        """
        of_queue = {} if queue.name == CLUSTER else {"queue": queue.name}
        lately = (one for one in self.summary.health.lately if queue.name in (one.queue, CLUSTER))
        rate = (
            sum(one.n for one in lately if one.failed or one.result in (COMPLETED, RETURNED))
            / LATELY_MINUTES
        )

        steps = history.of_queue(self.summary.steps, queue.name)
        whole = history.together(steps)

        columns = (
            self.listed(
                f"{queue.pending:,}{'+' * queue.pending_more}", status="PENDING", **of_queue
            ),
            duration_or_dash(queue.oldest_seconds),
            running_with_limit(
                self.listed(f"{queue.running:,}", status="RUNNING", **of_queue), queue
            ),
            f"{rate:,.{0 if rate >= 10 else 1}f}",
            self.listed(f"{whole.failed:,}", status="FAILED", **of_queue) if whole.failed else "0",
            duration_or_dash(whole.wait(0.95)),
            duration_or_dash(whole.run(0.95)),
            bars([step[:2] for step in steps], f"{queue.name}, {OVERVIEW_SPANS[self.chosen][0]}"),
        )

        paused = badge("paused", "■", _("Paused")) if queue.paused else ""
        name = self.link(Queue, queue.name, str(Queue(name=queue.name)))
        return name, paused, list(zip(QUEUE_HEADINGS, columns, strict=True))

    def failures(self) -> Iterator[TitledList]:
        form = "{} × {} <code>{}</code>"
        lines = []
        for one in self.summary.failures:
            link = self.listed(f"{one.n:,}", status="FAILED", name=one.task, code=one.code)
            lines.append(format_html(form, link, breakable(one.task), one.code))
        yield _("Most failures"), lines

    def workers(self) -> Iterator[TitledList]:
        found = self.summary.health.workers
        states = Counter(one.state for one in found)
        silent = [one for one in found if one.state in ("stale", "dead")]
        lines = [
            format_html("{} {}", f"{states[state]:,}", badge(*LIFE[state]))
            for state in LIFE
            if states[state]
        ]

        for one in silent[:FEW]:
            link = self.link(Worker, one.id, f"{one.hostname}:{one.pid}")
            lines.append(line(link, _("last seen %(span)s ago"), one.silent_seconds))

        yield _("Workers"), lines

    def schedules(self) -> Iterator[TitledList]:
        found = [(one.name, one.late_seconds or 0.0) for one in self.summary.health.schedules]
        late = [(name, by) for name, by in found if by > LATE.total_seconds()]
        yield (
            _("Late schedules"),
            [
                line(self.link(Schedule, name, name), _("for %(span)s"), by)
                for name, by in late[:MOST_ENTRIES]
            ],
        )

    def workflows(self) -> Iterator[TitledList]:
        halted = [one for one in self.summary.health.halted_runs if one.reason in HALT_LABELS]
        yield (
            _("Halted runs"),
            [
                many(
                    one.many,
                    self.link(WorkflowRun, one.run, breakable(one.name)),
                    HALT_LABELS[one.reason],
                )
                for one in halted[:MOST_ENTRIES]
            ],
        )
        yield (
            _("Waiting gates"),
            [
                many(
                    one.many,
                    self.to(f"admin:{NODE_PAGE}", (quote(one.run), one.number), one.gate),
                    one.workflow,
                )
                for one in self.summary.gates[:MOST_ENTRIES]
            ],
        )


def running_with_limit(running: Text, queue: QueueHealth) -> Text:
    """Return the number of running tasks, and the limit as a bar if there is one."""
    if not queue.limit:
        return running

    template = (
        '{} {} <progress class="horsies-progress" value="{}" max="{}" aria-label="{}"></progress>'
    )
    text = _("of %(limit)s") % {"limit": f"{queue.limit:,}"}
    return format_html(
        template,
        running,
        text,
        str(queue.running + queue.claimed),
        str(queue.limit),
        _("Permits held"),
    )


def line(text: Text, form: str, by: float) -> SafeString:
    return format_html(
        '{} <span class="horsies-quiet">{}</span>', text, form % {"span": duration_or_dash(by)}
    )


def many(count: int, text: Text, note: object) -> SafeString:
    return format_html('{} × {} <span class="horsies-quiet">{}</span>', f"{count:,}", text, note)


def overview(request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the context of the overview.

    ``app_list`` is the site's list of apps, with the models that the user may view.
    """
    chosen = request.GET.get("span", "")
    chosen = chosen if chosen in OVERVIEW_SPANS else "hour"
    models = [model for app in app_list for model in app["models"]]
    lists = {model["model"]: model["admin_url"] for model in models if model["perms"].get("view")}

    context: dict[str, Any] = {
        "every": EVERY_MS,
        "spans": [(name, text, name == chosen) for name, (text, *_) in OVERVIEW_SPANS.items()],
    }

    found = cached_summary(chosen)
    if isinstance(found, DatabaseError):
        return {**context, "refused": database_refusal(found)}

    page = Overview(request, lists, found, chosen)
    return {
        **context,
        "complete": found.health.complete,
        "read_at": absolute(page.clock),
        **page.shown(),
    }
