"""Texts of tasks, hosts and exceptions appear in pages as text, never as markup."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.admin.overview import summaries
from horsies_django.core.counts import COMPLETED
from horsies_django.core.schedules import SCHEDULE_KEYS
from horsies_django.models import (
    AuditEntry,
    Queue,
    Schedule,
    Task,
    Worker,
    WorkflowEdge,
    WorkflowNode,
    WorkflowRun,
)
from horsies_django.tasks.ids import uuid7
from tests.desk.test_admin_overview import anew, counted, sections
from tests.support.factories import (
    AuditEntryFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    TaskFactory,
    living_worker,
    now,
)

__all__ = ["anew"]

pytestmark = pytest.mark.django_db

EVIL = (
    """</pre></script>"'><script>alert(1)</script><img src=x onerror=alert(2)>"""
    '{{ 7|add:7 }}{% now "Y" %}{0}%s'
)


@pytest.fixture
def pages(boss: Client) -> dict[str, str]:
    """Return all pages about rows whose every text is hostile."""
    short = EVIL[:100]
    queue = Queue.objects.create(name=short, priority=5)
    limits = {"partition_by_args": [EVIL], "max_concurrency": 9}
    queues.change(short, limits, actor=EVIL, reason=EVIL)
    queues.override(short, {"max_concurrency": 3}, actor=EVIL, reason=EVIL)
    queues.pause(short, actor=EVIL, reason=EVIL)
    queue.refresh_from_db()

    odd_entry = AuditEntryFactory(
        actor=EVIL, action=short[:50], subject=EVIL, reason=EVIL, before=EVIL, after=[EVIL]
    )
    after = {"override": {EVIL: {EVIL: EVIL}}}
    written = {
        "actor": EVIL,
        "subject": short,
        "reason": EVIL,
        "before": {EVIL: EVIL},
        "after": after,
    }
    entry = AuditEntryFactory(action="queue.set", **written)

    shape = {"version": short[:50], "memory_usage_mb": 1}
    worker = living_worker(
        EVIL, hostname=EVIL, beat={"sent_at": now() - dt.timedelta(hours=1)}, **shape
    )

    counted((short, EVIL, short, 30), (short, EVIL, COMPLETED, 1))
    summaries.kept.clear()

    exception = {
        "type": EVIL,
        "module": EVIL,
        "message": EVIL,
        "repr": EVIL,
        "traceback": f"Traceback\n{EVIL}",
    }
    columns: dict[str, Any] = {
        "task_name": EVIL,
        "queue_name": short,
        "kwargs": {EVIL: [EVIL, {"deep": EVIL}]},
        "options": {EVIL: EVIL},
        "partition_key": EVIL,
        "claimed_by": worker.pk,
    }
    problem = {
        "err": {"error_code": EVIL, "message": EVIL, "data": {EVIL: EVIL}, "exception": exception}
    }

    failed = TaskFactory(status="FAILED", error_code=short, result=problem, **columns)
    done = TaskFactory(status="COMPLETED", result={"ok": EVIL}, **columns)
    odd = TaskFactory(status="COMPLETED", result={"ok": {EVIL: EVIL}, "err": EVIL}, **columns)
    running = TaskFactory(status="RUNNING", **columns)
    waiting = TaskFactory(**columns | {"claimed_by": None})

    TaskAttemptFactory(
        task_id=failed.pk,
        error_code=short,
        error_message=EVIL,
        worker_id=worker.pk,
        site=EVIL,
        site_line=1,
        traceback=f'  File "{EVIL[:40]}", line 1, in x{EVIL}',
    )

    addresses = [*schedules(short, failed), *workflows(short)]
    opened = {"task": EVIL, "code": short, "since": "day", "status": "FAILED"}
    addresses += [
        f"{reverse(f'admin:horsies_task_{page}')}?{urlencode(opened)}"
        for page in ("failures", "all")
    ]

    rows = (failed, done, odd, running, waiting, worker, entry, odd_entry)
    addresses += [
        reverse(f"admin:horsies_{row._meta.model_name}_change", args=(row.pk,)) for row in rows
    ]
    forms = ("change", "override", "clear", "resume")
    addresses += [reverse(f"admin:horsies_queue_{page}", args=(quote(short),)) for page in forms]
    verbs = ("retry", "copy", "redact", "kill")
    addresses += [reverse(f"admin:horsies_task_{verb}", args=(failed.pk,)) for verb in verbs]

    models = (Task, Queue, Schedule, Worker, AuditEntry, WorkflowRun)
    lists = [reverse(f"admin:horsies_{model._meta.model_name}_changelist") for model in models]
    addresses.append(reverse("admin:app_list", args=("horsies",)))
    asked = [f"{lists[0]}?status=FAILED", f"{lists[0]}?q=%3Cscript%3Ealert(1)%3C/script%3E"]

    return {address: boss.get(address).content.decode() for address in addresses + lists + asked}


def schedules(short: str, task: Task) -> list[str]:
    """Make schedules whose every text is hostile, and return the addresses of their pages."""
    columns = {**dict.fromkeys(SCHEDULE_KEYS, EVIL), "kwargs": {EVIL: [EVIL]}, EVIL: {EVIL: EVIL}}
    readable = {**columns, "pattern": "daily at 04:30", "zone": "UTC"}
    names = [short, f"{short}?", f"{short}/"]

    for name, definition in zip(names, (columns, readable, {"kwargs": [EVIL]}), strict=True):
        given = {
            "declared": columns,
            "declared_in": EVIL,
            "changes": definition,
            "error": EVIL,
            "error_at": now(),
        }
        Schedule.objects.bulk_create(
            [Schedule(name=name, next_at=now() - dt.timedelta(hours=1), **given)]
        )
        ScheduleTickFactory(schedule_name=name, task_id=task.pk)
        after = {"kwargs": EVIL, "pattern": EVIL, EVIL: EVIL}
        AuditEntryFactory(
            actor=EVIL, action="schedule.change", subject=name, reason=EVIL, after=after
        )

    pages = ("change", "edit", "run_now", "disable", "revert")
    found = [
        reverse(f"admin:horsies_schedule_{page}", args=(quote(name),))
        for name in names
        for page in pages
    ]

    entry = AuditEntry.objects.filter(action="schedule.change").latest("pk")
    return [*found, reverse("admin:horsies_auditentry_change", args=(entry.pk,))]


def workflows(short: str) -> list[str]:
    """Make a run whose every text is hostile, and return the addresses of its pages."""
    run = WorkflowRun(
        id=uuid7(),
        name=EVIL,
        key=EVIL,
        status=short[:10],
        on_error="fail",
        error_node=0,
        error_code=short,
        output=1,
        result={EVIL: EVIL},
        parent_id=uuid7(),
        parent_node=5,
        sent_at=now(),
    )

    stopped = {
        "status": "PAUSED",
        "on_error": "pause",
        "error_code": "X",
        "output": 0,
        "sent_at": now(),
    }
    WorkflowRun.objects.bulk_create([run, WorkflowRun(id=uuid7(), name=EVIL, **stopped)])

    columns: dict[str, Any] = {
        "workflow_id": run.pk,
        "queue_name": short,
        "lane": "sync",
        "priority": 1,
        "rule": "all",
        "when_node": 0,
        "error_code": short,
        **dict.fromkeys(("task_name", "value", "when_path", "error"), EVIL),
        **dict.fromkeys(("kwargs", "inputs", "options"), {EVIL: EVIL}),
    }

    finished = {"status": "SKIPPED", "finished_at": now()}
    nodes = [
        WorkflowNode(number=0, name=EVIL, kind="task", **finished, **columns),
        WorkflowNode(number=1, name=f"{EVIL}1", kind=short[:8], status=short[:10], **columns),
        WorkflowNode(
            number=2,
            name=f"{EVIL}2",
            kind="map",
            status="PENDING",
            open=1,
            bad=1,
            total=3,
            **columns,
        ),
        WorkflowNode(number=3, name=f"{EVIL}3", kind="gate", status="WAITING", **columns),
    ]
    WorkflowNode.objects.bulk_create(nodes)

    edges = [WorkflowEdge(workflow_id=run.pk, upstream=number, downstream=2) for number in (0, 1)]
    WorkflowEdge.objects.bulk_create(edges)

    for action, after in (
        ("pause", {EVIL: EVIL}),
        ("skip", EVIL),
        ("resume", {"before": EVIL, "after": [EVIL]}),
    ):
        AuditEntryFactory(
            actor=EVIL, action=f"workflow.{action}", subject=str(run.pk), reason=EVIL, after=after
        )

    task = TaskFactory(task_name=EVIL, queue_name=short, workflow_id=run.pk, node=2, node_index=0)
    verbs = ("change", "picture", "pause", "resume", "cancel", "retry", "skip")
    found = [reverse(f"admin:horsies_workflowrun_{verb}", args=(run.pk,)) for verb in verbs]
    found += [
        reverse("admin:horsies_workflowrun_node", args=(run.pk, node.number)) for node in nodes
    ]

    return [*found, reverse("admin:horsies_task_change", args=(task.pk,))]


@pytest.mark.django_db(transaction=True)  # the overview reads through a connection of its own
def test_hostile_texts_are_escaped_on_every_page(
    pages: dict[str, str],
) -> None:
    """Hostile texts are escaped, and no page has inline styles, scripts or handlers."""
    assert len(pages) == 55

    for address, html in pages.items():
        assert "alert(1)" in html, address
        assert 'horsies/admin.css"' in html, address
        for markup in ("<script>alert", "<img src=x", "</pre></script>", "<style"):
            assert markup not in html, address
        assert not re.search(r"<[a-z]+[^<>]*\"'>", html), address

        # The values of attributes are removed first.
        tags = re.findall(r"<[a-z][^>]*>", re.sub(r'="[^"]*"', "=", html))
        assert not [tag for tag in tags if re.search(r"\s(style|on[a-z]+)=", tag)], address
        assert re.findall(r"<script(?![^>]*\ssrc=)", html) == [], address

    overview = sections(pages[reverse("admin:app_list", args=("horsies",))])
    assert {title for title, part in overview.items() if "alert(1)" in part} == {
        "Problems",
        "Queues",
        "Workers",
        "Most failures",
        "Late schedules",
        "Halted runs",
        "Waiting gates",
    }


TEXTS = (
    EVIL,
    "a\0b",
    "x" * 5_000,
    "\ud7ff\U0001f98a",
    "2030-02-31",
    "0001-01-01",
    "9999-12-31 23:59",
    "999999999d",
)
NO_NUMBERS = ("9" * 5_000, "9" * 20, "-1", "%00", "%ED%A0%80", "%FF", "1e999", "\u0663" * 30)
OF_TASKS = ("status", "queue", "name", "code", "site", "since", "until", "worker", "partition")
READ = {  # the parameters that each page reads from its address
    "task_changelist?status=FAILED": (*OF_TASKS, "workflow", "q", "p"),
    "task_all?status=FAILED": OF_TASKS,
    "task_failures?task=a&code=b": ("since", "task", "code"),
    "queue_changelist?": ("q", "p"),
    "schedule_changelist?": ("state", "q", "p"),
    "worker_changelist?": ("state", "p"),
    "auditentry_changelist?": ("action", "subject", "q", "p"),
    "workflowrun_changelist?": ("needs", "status", "name", "child", "q", "p"),
    "workflowrun_change?": ("nodes", "from"),
    "workflowrun_skip?": ("node",),
    "app_list?": ("span",),
}


@pytest.mark.parametrize("page", READ)
def test_no_value_in_an_address_causes_a_server_error(boss: Client, page: str) -> None:
    """No value in the address of a page causes a server error or becomes markup.

    Fails if: Python refuses to make a number of 5,000 digits.
    """
    name, _, usual = page.partition("?")
    workflows("short")
    run = WorkflowNode.objects.filter(number=0).get().workflow_id
    args = {"app_list": ["horsies"], "workflowrun_change": [run], "workflowrun_skip": [run]}.get(
        name
    )
    address = reverse(f"admin:{name}" if name == "app_list" else f"admin:horsies_{name}", args=args)

    for field in READ[page]:
        for value in (*map(quote_plus, TEXTS), *NO_NUMBERS):
            response = boss.get(f"{address}?{usual}&{field}={value}")
            assert response.status_code in (200, 302), (field, value[:20])
            html = response.content.decode()
            assert ("<script>alert" in html, "<img src=x" in html) == (False, False), (
                field,
                value[:20],
            )


NOT_OFFERED = {  # values that lead back to the list, and lookups
    "task": (
        ["p=0", "p=-3", "p=2001", f"p={10**30}"],
        ["kwargs__password__startswith", "partition_key", "id__gte"],
    ),
    "auditentry": (
        ["action=drop", "subject=a%00b", "p=0"],
        ["actor", "reason__contains", "after__override_by"],
    ),
    "workflowrun": (["status=SLEEPING", "child=2", "name=a%00"], ["result__has_key"]),
    "schedule": (["state=lost"], []),
    "worker": (["state=odd"], []),
}


def test_an_address_with_bad_parameters_redirects_to_the_list(
    boss: Client,
) -> None:
    """An address with invalid parameters redirects to the list; no lookup searches the payload."""
    workflows("short")  # without runs there is no filter by their names

    for model, (queries, lookups) in NOT_OFFERED.items():
        address = reverse(f"admin:horsies_{model}_changelist")
        for query in queries:
            response = boss.get(f"{address}?{query}")
            assert (response.status_code, response["Location"]) == (302, f"{address}?e=1"), (
                model,
                query,
            )

        for lookup in lookups:
            assert boss.get(address, {lookup: "s"}).status_code == 400, (model, lookup)


@pytest.mark.parametrize(
    "odd", [5, "text", [1, None], {}, {"task": [5]}, {"task": None, "begun": 5}], ids=str
)
def test_json_of_an_unexpected_shape_is_no_error_of_the_server(boss: Client, odd: Any) -> None:
    """Fails if: the page of a node requires that its undo is an object with a task."""
    addresses = [address for address in workflows("short") if "/workflowrun/" in address]
    columns = dict.fromkeys(("undo", "inputs", "options", "kwargs", "graph", "value"), odd)
    WorkflowNode.objects.update(**columns)
    WorkflowRun.objects.update(result=odd)

    for address in addresses:
        assert boss.get(address).status_code == 200, address
