"""Each URL of the app as each kind of user: its answer, its changes, and no payload."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Workflow, queues, schedules, urls
from horsies_django.admin.overview import summaries
from horsies_django.admin.tasks.bulk import ActProgress
from horsies_django.admin.workflows import picture
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.tasks import selection
from horsies_django.tasks.ids import uuid7
from horsies_django.testing import drain
from horsies_django.workflows import operations
from tests.apps.project import flows, tasks
from tests.conftest import limit, sql
from tests.desk.test_admin import client_with
from tests.desk.test_admin_overview import counted
from tests.desk.test_admin_schedules import declare, opened
from tests.support.factories import (
    AuditEntryFactory,
    TaskAttemptFactory,
    TaskFactory,
    error,
    living_worker,
)

pytestmark = pytest.mark.django_db

PAYLOAD = "s3cret-4711"  # in each value that only users with view_payload may see
KEY = f'{{"customer": "{PAYLOAD}"}}'
VIEWS = {
    f"view_{model}"
    for model in ("task", "queue", "schedule", "workflowrun", "worker", "auditentry")
}
ACTS = {"operate_task", "operate_workflow", "configure_queue"}
EVERYTHING = {*VIEWS, *ACTS, "view_payload"}
USERS: dict[str, set[str] | None] = {  # None: not logged in
    "anonymous": None,
    "not staff": EVERYTHING,
    "without permissions": set(),
    "superuser": EVERYTHING,
    **{f"all but {one}": EVERYTHING - {one} for one in sorted(EVERYTHING)},
}

Statuses = tuple[int, int]  # of GET and POST for permitted users
Given = dict[str, dict[str, Any]]  # what forms post, by URL
LOOK = (200, 200)
FORM = (200, 302)
READ_ONLY = (200, 403)
OF_ALL: dict[str, Statuses] = {  # the pages of each model, for users with its view permission
    "": LOOK,
    "<path:object_id>/": (302, 302),
    "<path:object_id>/change/": READ_ONLY,
    "<path:object_id>/history/": LOOK,
}
FORMS = {  # the forms of a model, and what they need in addition to its view permission
    "task": ({"retry", "skip", "copy", "cancel", "kill", "redact"}, "operate_task"),
    "queue": ({"override", "clear", "resume", "pause"}, "configure_queue"),
    "schedule": (
        {"run_now", "enable", "disable", "edit", "revert", "delete", "add"},
        "configure_queue",
    ),
    "workflowrun": (
        {"resume", "pause", "retry", "skip", "cancel", "approve", "reject"},
        "operate_workflow",
    ),
}
OTHERS: dict[str, tuple[set[str], Statuses]] = {
    "task/all/": ({"view_task", "operate_task"}, LOOK),
    "task/failures/": ({"view_task"}, LOOK),  # of one group
    "workflowrun/<path:object_id>/nodes/<int:number>/": ({"view_workflowrun"}, LOOK),
    "workflowrun/<path:object_id>/picture/": ({"view_workflowrun"}, LOOK),
}
ACTIONS = {
    "task": ("operate_task", "cancel_tasks"),
    "workflowrun": ("operate_workflow", "pause_runs"),
}


class Page(NamedTuple):
    """A URL and the permissions that it needs; None: no user may open it. ``verb``: of a form."""

    url: str
    model: str
    verb: str
    needs: set[str] | None
    statuses: Statuses


def needed(route: str) -> tuple[str, set[str] | None, Statuses]:
    """Return the verb of a route, the permissions that it needs, and its statuses.

    Fails for a route that is in no table.
    """
    model, _slash, rest = route.partition("/")
    verb = rest.removeprefix("<path:object_id>/").removesuffix("/")
    forms, permission = FORMS.get(model, (set(), ""))

    if verb in forms:
        return (
            verb,
            {f"view_{model}", permission} | ({"view_payload"} if verb == "redact" else set()),
            FORM,
        )

    if rest in ("add/", "<path:object_id>/delete/"):
        return "", None, FORM
    if rest in OF_ALL:
        return "", set() if rest == "<path:object_id>/" else {f"view_{model}"}, OF_ALL[rest]

    assert route in OTHERS, f"{route} is new: say what it needs"
    return "", *OTHERS[route]


def tasks_with_payload() -> dict[str, Any]:
    """Make tasks of all kinds, with payload in each column that can have it.

    Return the ids for the pages by verb, and all ids under "".
    """
    ordered = {
        "partition_by_args": ["customer"],
        "partition_max_concurrency": 1,
        "partition_policy": "stop",
    }
    limit("mail", max_concurrency=5, **ordered)

    worker = living_worker("mail", "default")
    columns: dict[str, Any] = {
        "queue_name": "mail",
        "kwargs": {"customer": PAYLOAD},
        "options": {"metadata": PAYLOAD, "note": PAYLOAD},
        "partition_key": KEY,
        "partition_version": 1,
    }

    trace = {"type": PAYLOAD, "repr": PAYLOAD, "message": PAYLOAD, "traceback": PAYLOAD}
    bad = error("OH_NO", PAYLOAD, data={"a": PAYLOAD}, exception=trace)
    failed = TaskFactory(
        status="FAILED", error_code="OH_NO", result=bad, claimed_by=worker.pk, **columns
    )
    stops = TaskFactory(
        status="FAILED",
        ordered=True,
        order_stop="stop",
        result=bad,
        claimed_by=worker.pk,
        **columns,
    )

    raised = {
        "error_code": "OH_NO",
        "error_message": PAYLOAD,
        "traceback": PAYLOAD,
        "exception_class": "ValueError",
    }
    for task in (failed, stops):
        ended = {"site": "shop/tasks.py in pay", "finished_at": task.finished_at}
        TaskAttemptFactory(task_id=task.pk, worker_id=worker.pk, **ended, **raised)

    running = TaskFactory(status="RUNNING", claimed_by=worker.pk, **columns)
    parked = TaskFactory(parked=True, ordered=True, **columns)
    done = TaskFactory(status="COMPLETED", result={"ok": PAYLOAD}, claimed_by=worker.pk, **columns)
    waits = TaskFactory(**columns)
    counted(("mail", failed.task_name, "OH_NO", 5))

    every = [failed.pk, stops.pk, running.pk, parked.pk, done.pk, waits.pk]
    return {
        "": every,
        "skip": stops.pk,
        "cancel": waits.pk,
        "kill": running.pk,
        "worker": worker.pk,
    }


def schedules_with_payload() -> dict[str, Any]:
    definition = {
        "task": tasks.raises.name,
        "pattern": "30 4 * * *",
        "kwargs": {"message": PAYLOAD},
    }

    schedules.create("made", definition, actor="ada")
    schedules.create("off", {**definition, "enabled": False}, actor="ada")
    declare("declared", **definition)
    schedules.change("declared", {"kwargs": {"message": f"{PAYLOAD}-2"}}, actor="ada")

    return {"": ["made", "off", "declared"], "enable": "off", "revert": "declared"}


def runs_with_payload() -> dict[str, Any]:
    flow = Workflow("order")
    broken = Workflow("fails")
    flow.add(flows.number, 1)
    gate = flow.gate("approve")
    flow.add(flows.number, 1, after=[gate])

    waiting = flow.send()
    paused = flow.send()

    failed = None
    broken.add(flows.broken, 1)
    failed = broken.send()
    drain(raise_errors=False)
    operations.control(paused.workflow_id, "pause")

    ended = WorkflowNode.objects.filter(kind="task", finished_at__isnull=False)
    ended.filter(status="COMPLETED").update(
        **dict.fromkeys(("kwargs", "inputs", "value"), {"a": PAYLOAD})
    )
    ended.filter(status="FAILED").update(error=PAYLOAD)
    WorkflowRun.objects.filter(pk=failed.workflow_id).update(result=error("OH_NO", PAYLOAD))

    run = waiting.workflow_id
    parked = flow.send().workflow_id
    held = {
        "partition_key": KEY,
        "partition_version": 1,
        "parked": True,
        "kwargs": {"customer": PAYLOAD},
    }
    Task.objects.filter(workflow_id=parked).update(queue_name="mail", **held)

    signal = WorkflowSignal(id=uuid7(), workflow_id=run, name="paid", data=PAYLOAD, actor="ada")
    WorkflowSignal.objects.bulk_create([signal])
    AuditEntryFactory(action="workflow.approve", subject=str(run), reason=PAYLOAD)

    every = [run, paused.workflow_id, failed.workflow_id, parked]
    return {"": every, "resume": paused.workflow_id, "retry": failed.workflow_id}


@pytest.fixture
def pages() -> list[Page]:
    return pages_of(admin.site)


def pages_of(site: admin.AdminSite) -> list[Page]:
    """Return all pages that the site has of the app, with rows for each.

    A new page is included.
    """
    rows: dict[str, dict[str, Any]] = {
        "workflowrun": runs_with_payload(),
        "task": tasks_with_payload(),
        "schedule": schedules_with_payload(),
        "queue": {"": ["mail", "bulk", "*"], "clear": "bulk", "resume": "bulk"},
    }

    limit("bulk", max_concurrency=3)
    queues.pause("bulk", actor="ada")
    queues.override("bulk", {"max_concurrency": 1}, actor="ada", reason="slow")

    rows["task"][""].append(Task.objects.filter(workflow_id=rows["workflowrun"]["retry"]).get().pk)
    rows["worker"] = {"": [rows["task"]["worker"]]}
    entries = AuditEntry.objects.exclude(action="queue.declare")
    rows["auditentry"] = {"": list(entries.values_list("pk", flat=True))}

    return [*made(site, rows)]


def made(site: admin.AdminSite, rows: dict[str, dict[str, Any]]) -> Iterator[Page]:
    index = reverse("admin:index")
    seen = set()

    for route in routes(site.get_urls()):
        if not route.startswith("horsies/") or route in seen:
            continue
        seen.add(route)

        model, _slash, rest = route.removeprefix("horsies/").partition("/")
        verb, needs, statuses = needed(f"{model}/{rest}")

        ids = rows[model][""] if rest.startswith("<path:object_id>/") else [""]
        if verb:
            ids = [rows[model].get(verb, ids[0])]

        for id_ in ids:
            numbers: tuple[Any, ...] = ("",)
            if "<int:number>" in rest:
                numbers = (0, 1) if id_ == ids[0] else (0,)
            for number in numbers:
                path = rest.replace("<path:object_id>", str(quote(id_))).replace(
                    "<int:number>", str(number)
                )
                path += "?task=shop.tasks.send_receipt&code=OH_NO" if rest == "failures/" else ""
                yield Page(f"{index}horsies/{model}/{path}", model, verb, needs, statuses)


def routes(patterns: Any, prefix: str = "") -> Iterator[str]:
    for one in patterns:
        if hasattr(one, "url_patterns"):
            yield from routes(one.url_patterns, prefix + str(one.pattern))
        else:
            assert not hasattr(one.callback, "csrf_exempt"), (
                f"{prefix}{one.pattern} takes forms without their token"
            )
            yield prefix + str(one.pattern)


def browser(kind: str) -> Client:
    permissions = USERS[kind]
    return (
        Client()
        if permissions is None
        else client_with(*permissions, name=kind, staff=kind != "not staff")
    )


@pytest.fixture
def given(boss: Client, pages: list[Page]) -> Given:
    """Return what the form of each page posts, by URL, as a superuser receives it."""
    found: dict[str, dict[str, Any]] = {page.url: {} for page in pages}
    more: dict[str, dict[str, Any]] = {
        "override": {"max_concurrency": "1"},
        "skip": {"number": "2"},
        "approve": {"node": "1", "opening": "1"},
        "reject": {"node": "1", "opening": "1"},
        "edit": {"priority": "7"},
        "add": {"name": "new", "task": tasks.noop.name, "pattern": "0 3 * * *", "kwargs": "{}"},
    }

    for page in pages:
        if page.verb:
            found[page.url] = {**opened(boss, page.url), **more.get(page.verb, {}), "reason": "why"}

    return found


def posted(page: Page, given: Given, pages: list[Page], name: str) -> dict[str, Any]:
    """Return what to post: to lists an action on a row, to the page for all tasks a signed act."""
    if page.url.endswith("/task/all/"):
        return {
            "act": ActProgress(name, selection.matching("FAILED"), 2, False).signed(),
            "verb": "retry",
        }

    if page.model in ACTIONS and page.url.endswith(f"/{page.model}/"):
        verb = "cancel" if page.model == "task" else "pause"
        (row,) = [
            one.url.split("/")[-3] for one in pages if (one.model, one.verb) == (page.model, verb)
        ]
        return {"action": ACTIONS[page.model][1], "_selected_action": row, "index": "0"}

    return given[page.url]


def everything() -> list[Any]:
    """Return a digest of each table of the app."""
    tables = [
        name for name in connection.introspection.table_names() if name.startswith("horsies_")
    ]
    digest = "SELECT count(*), sum(hashtextextended(row::text, 0)) FROM {} row"
    return sql(" UNION ALL ".join(digest.format(name) for name in tables))


def ask(
    client: Client, method: str, url: str, values: dict[str, Any], before: list[Any]
) -> tuple[Any, bool]:
    """Return the response, and whether any row differs from ``before``; all changes are undone."""
    summaries.kept.clear()
    with transaction.atomic():
        response = getattr(client, method)(url, values)
        changed = everything() != before
        transaction.set_rollback(True)

    return response, changed


def changes(page: Page, permissions: set[str]) -> bool:
    """Return whether a POST changes something for users who may see the page."""
    if page.url.endswith(f"/{page.model}/") and page.model in ACTIONS:
        return ACTIONS[page.model][0] in permissions
    return bool(page.verb) or page.url.endswith("/task/all/")


@pytest.mark.parametrize("kind", USERS)
def test_each_page_answers_each_kind_of_user(
    kind: str, boss: Client, pages: list[Page], given: Given
) -> None:
    """Each page answers GET and POST according to the permissions of the user.

    Fails if: a page checks no permission, or one of two; or its POST checks none; or it shows
    payload.
    """
    permissions = USERS[kind]
    name = "boss" if kind == "superuser" else kind
    client = boss if kind == "superuser" else browser(kind)
    shown = set()
    before = everything()
    lacks = {kind.removeprefix("all but ")} & (EVERYTHING - {"view_payload"})

    for page in pages:
        if lacks - (page.needs or set()):
            continue  # it is as for a superuser

        for place, method in enumerate(("get", "post")):
            response, changed = ask(
                client, method, page.url, posted(page, given, pages, name) if place else {}, before
            )
            where = (method, page.url)

            if permissions is None or kind == "not staff":
                assert response.status_code == 302, where
                assert response["Location"].startswith(reverse("admin:login")), where
                assert not changed, where
                continue

            may = page.needs is not None and page.needs <= permissions
            acts = may and bool(place) and changes(page, permissions)
            status = (
                302 if acts and not page.verb and "/all/" not in page.url else page.statuses[place]
            )

            assert response.status_code == (status if may else 403), where
            assert changed == acts, where

            if PAYLOAD in response.content.decode():
                shown.add(page.url)

            if page.verb and page.verb != "add" and not may:
                absent = page.url.replace(f"/{page.verb}/", f"x/{page.verb}/")
                assert client.get(absent).status_code == 403, (
                    "nor does it say whether there is such a row"
                )

    assert shown == set() or "view_payload" in (permissions or ())
    if kind == "superuser":
        models = {page.model for page in pages if page.url in shown}
        assert models == {"task", "queue", "schedule", "workflowrun", "auditentry"}
        assert {page.verb for page in pages if page.url in shown and page.verb} == {"edit"}


@pytest.mark.parametrize("missing", sorted(EVERYTHING))
def test_links_and_buttons_lead_only_where_the_user_may_go(
    missing: str, boss: Client, pages: list[Page]
) -> None:
    """Fails if: the page of a node offers a user who may only view it to skip the node."""
    client = client_with(*EVERYTHING - {missing})
    found = False

    forms = [
        f'{model}/[^"]*/(?:{"|".join(names)})'
        for model, (names, needs) in FORMS.items()
        if needs == missing
    ]
    forms += {"operate_task": ["task/all"], "view_payload": ['task/[^"]*/redact']}.get(missing, [])
    places = "|".join(forms or [f'{missing.removeprefix("view_")}[^"]*'])
    offers = re.compile(rf'(?:href|action)="/admin/horsies/(?:{places})/(?:\?[^"]*)?"')

    for page in pages:
        if not page.verb and page.statuses != FORM and page.needs and missing not in page.needs:
            assert offers.findall(client.get(page.url).content.decode()) == [], page.url
            found = found or bool(offers.search(boss.get(page.url).content.decode()))

    assert found, "those who may go there see the way"


SECRET = {  # columns by table
    "tasks": ("kwargs", "options", "result", "partition_key"),
    "task_attempts": ("error_message", "traceback"),
    "workflow_signals": ("data",),
    **dict.fromkeys(("workflows", "workflow_nodes"), ("kwargs", "value", "error", "result")),
}


def test_pages_read_no_payload_without_the_permission(
    boss: Client, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``view_payload``, pages do not even read payload, and show that it is hidden.

    The pages of pictures have tables of nodes here, as those of runs that are too large for a
    picture.
    """
    monkeypatch.setattr(picture, "MOST_NODES_DRAWN", 0)
    client = client_with(*VIEWS)
    seen = set()
    untold = set()

    for page in pages:
        if page.url.endswith(("/change/", "/picture/")) or "/nodes/" in page.url:
            with CaptureQueriesContext(connection) as captured:
                html = client.get(page.url).content.decode()

            sql = " ".join(one["sql"] for one in captured)
            for columns, table in re.findall(r'SELECT (.*?) FROM "horsies_(\w+)"', sql):
                assert not [name for name in SECRET.get(table, ()) if f'"{name}"' in columns], (
                    page.url,
                    table,
                )

            if PAYLOAD in boss.get(page.url).content.decode():
                assert PAYLOAD not in html, page.url
                kind = page.url.split("/")[3 if page.model != "workflowrun" else -2]
                seen.add(kind)
                untold |= set() if "horsies.view_payload" in html else {kind}

    assert seen == {"task", "queue", "schedule", "auditentry", "change", "0", "picture"}
    assert untold <= {"queue", "schedule", "auditentry", "picture"}, (
        "the queue is that of the whole cluster"
    )


# In a transaction, the locks of the rows would block the connections that these views open.
@pytest.mark.django_db(transaction=True)
def test_the_overview_and_monitoring_answer_each_kind_of_user(pages: list[Page]) -> None:
    before = everything()
    answers = {"status": {200, 503}, "metrics": {200} if find_spec("prometheus_client") else {501}}

    for kind, permissions in USERS.items():
        client = browser(kind)
        if kind in ("anonymous", "not staff"):
            overview = 302
        elif permissions:
            overview = 200
        else:
            overview = 404

        for method in ("get", "post"):
            response, changed = ask(
                client, method, reverse("admin:app_list", args=("horsies",)), {}, before
            )
            assert (response.status_code, changed) == (overview, False), (kind, method)
            assert PAYLOAD not in response.content.decode(), kind

        for pattern in urls.urlpatterns:
            address = reverse(f"horsies:{pattern.name}")
            refused = {401 if permissions is None else 403}
            response, changed = ask(client, "get", address, {}, before)

            may = "view_queue" in (permissions or ())
            assert response.status_code in (answers[str(pattern.name)] if may else refused), (
                kind,
                address,
            )
            assert not changed, (kind, address)
            assert PAYLOAD not in response.content.decode(), (kind, address)
            assert ask(client, "post", address, {}, before)[0].status_code == 405, (kind, address)


NAMES = {  # names of users in a user model of a project, and their names in the audit
    "a number": (905551234567, "905551234567"),
    "a UUID": (uuid.UUID(int=7), str(uuid.UUID(int=7))),
    "empty": ("", "user {pk}"),
    "null": (None, "user {pk}"),
    "spaces": ("  ", "user {pk}"),
    "long": ("x" * 300, "{cut}… (user {pk})"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_users_of_any_name_act(kind: str, boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    user = User.objects.get()
    name, expected = NAMES[kind]
    expected = expected.format(pk=user.pk, cut="x" * (255 - len(f"… (user {user.pk})")))
    monkeypatch.setattr(User, "get_username", lambda self: name)

    task = TaskFactory(status="FAILED")
    other = TaskFactory(status="FAILED")
    flow = Workflow("asks")
    flow.gate("go")
    run = flow.send().workflow_id
    drain()

    for model, pk, verb in (("queue", "mail", "pause"), ("task", task.pk, "retry")):
        address = f"/admin/horsies/{model}/{quote(pk)}/{verb}/"
        boss.post(address, {**opened(boss, address), "reason": "why"})
    page = boss.get("/admin/horsies/task/all/", {"status": "FAILED"})
    boss.post(
        "/admin/horsies/task/all/", {"act": page.context["progress"].signed(), "verb": "retry"}
    )
    boss.post(
        f"/admin/horsies/workflowrun/{run}/approve/", {"node": 0, "opening": 1, "reason": "why"}
    )

    other.refresh_from_db()
    assert other.status == "PENDING"
    done = AuditEntry.objects.filter(actor=expected).order_by("pk")
    assert list(done.values_list("action", flat=True)) == [
        "queue.pause",
        "task.retry",
        "task.retry",
        "workflow.approve",
    ]
