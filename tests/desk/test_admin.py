"""The admin shows tasks, queues and workers to permitted users and has no form that edits them."""

from __future__ import annotations

import datetime as dt
import re
import uuid
import warnings
from typing import Any

import django
import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django.admin import QueueAdmin, TaskAdmin
from horsies_django.admin.base.audit import OF_QUEUES, OF_SCHEDULES, OF_TASKS, OF_WORKFLOWS
from horsies_django.admin.base.change_forms import ADMIN_VERBS
from horsies_django.admin.base.html import STATUSES
from horsies_django.core.status import Status
from horsies_django.models import AuditEntry, Queue, Schedule, Task, TaskStep, Worker, WorkflowRun
from horsies_django.monitoring.health import examine
from tests.support.factories import (
    HeartbeatFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    WorkerStateFactory,
    error,
    now,
)

pytestmark = pytest.mark.django_db

TASKS = "admin:horsies_task_changelist"


def url(model: type[Any], page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:horsies_{model._meta.model_name}_{page}", args=args)


def page_of(row: Any) -> str:
    return url(type(row), "change", row.pk)


def body(client: Client, address: str, **query: str) -> str:
    response = client.get(address, query)
    assert response.status_code == 200, (response.status_code, response.headers)
    return str(response.content.decode())


def says(html: str, *texts: str) -> None:
    for text in texts:
        assert text in html, text


def listed(client: Client, **query: str) -> list[uuid.UUID]:
    """Return the ids of a page of the task list, in its order."""
    response = client.get(reverse(TASKS), query)
    assert response.status_code == 200, response.headers
    return [task.pk for task in response.context["cl"].result_list]


def table(html: str, section: str) -> list[list[str]]:
    """Return the rows of the table of a section as texts."""
    (found,) = re.findall(rf'aria-labelledby="{section}">(.*?)</section>', html, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", found.partition("<tbody>")[2], re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in cells]


def client_with(*codenames: str, name: str | None = None, staff: bool = True) -> Client:
    """Return the browser of a new user with these permissions."""
    user = User.objects.create_user(name or f"user-{uuid.uuid4()}", is_staff=staff)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="horsies", codename__in=codenames)
    )

    client = Client()
    client.force_login(user)
    return client


def test_each_status_has_a_badge_and_a_filter(
    boss: Client,
) -> None:
    """Each status has a badge and a filter that finds its tasks; the list offers each queue."""
    Queue.objects.get_or_create(name="*")
    tasks = {status: TaskFactory(status=status.value) for status in Status}

    html = body(boss, reverse(TASKS))

    for status, (shape, text) in STATUSES.items():
        colour = f"horsies-badge horsies-{status.value.lower()}"
        assert (
            f'<span class="{colour}"><span aria-hidden="true">{shape}</span> {text}</span>' in html
        )
        assert listed(boss, status=status.value) == [tasks[status].pk]

    assert len({shape for shape, _text in STATUSES.values()}) == len(Status)
    offered = html.partition('id="horsies-queues"')[2].partition("</datalist>")[0]
    assert re.findall(r'<option value="([a-z*]+)">', offered) == ["bulk", "default", "mail", "twin"]
    assert "SLEEPING" in TaskAdmin(Task, admin.site).shown_status(Task(status="SLEEPING")), (
        "of a newer version"
    )


def test_the_list_shows_the_newest_first_with_age_and_duration(boss: Client) -> None:
    """The list shows the newest tasks first, with their worker, age and duration."""
    worker = WorkerFactory(hostname="web-7", pid=4711)
    sent = now() - dt.timedelta(hours=2, minutes=5, seconds=10)
    old = TaskFactory(
        status="COMPLETED",
        sent_at=sent,
        claimed_by=worker.pk,
        finished_at=sent + dt.timedelta(milliseconds=4_200),
    )
    new = TaskFactory()

    assert listed(boss) == [new.pk, old.pk]

    html = body(boss, reverse(TASKS))
    says(html, ">web-7:4711</a>", ">4.2 s<", ">2 h 5 min</time>")

    cells = re.findall(r"field-shown_(?:wait|attempt)[^>]*>(.*?)</td>", html)
    assert [re.sub("<.*?>", "", cell) for cell in cells][2:] == ["0 ms", "–"]

    TaskFactory(
        status="FAILED",
        sent_at=sent,
        enqueued_at=sent + dt.timedelta(minutes=2),
        started_at=sent + dt.timedelta(minutes=5),
        finished_at=sent + dt.timedelta(minutes=5, seconds=1),
        retry_count=1,
        max_retries=4,
        error_code="NO_ROOM",
    )

    html = body(boss, reverse(TASKS))
    says(html, ">3 min<", ">2 of 5<", ">NO_ROOM<", ">2 h</time>")


@pytest.mark.skipif(
    django.VERSION < (6, 1), reason="Django 6.1 passes get_actions the place of the actions"
)
def test_the_task_pages_use_nothing_of_django_that_is_deprecated(boss: Client) -> None:
    task = TaskFactory(status="FAILED")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for address in (reverse(TASKS), page_of(task)):
            assert body(boss, address)

        data = {"action": "cancel_tasks", "_selected_action": [str(task.pk)]}
        assert boss.post(reverse(TASKS), data).status_code == 302


def test_search_finds_tasks_by_id_or_name_and_not_by_payload(
    boss: Client,
) -> None:
    """A search finds tasks by the whole id or a part of a known name, but not by payload."""
    mail, more, other = (
        TaskFactory(task_name=name) for name in ("shop.mail", "shop.mail_all", "x.shop.mail")
    )

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_history SELECT 3600, now(), 'default', name, 'COMPLETED', 1, 0, "
            "array_fill(0, '{16}')"
            " FROM unnest(ARRAY['shop.mail_all', 'x.shop.mail']) AS name"
        )

    secret = {
        "kwargs": {"password": "s3cret"},
        "partition_key": "s3cret",
        "result": error("A_CODE", "s3cret"),
    }
    wanted = TaskFactory(status="FAILED", **secret)

    for spelling in ("{}", " {} ", "{{{}}}", "urn:uuid:{}"):
        assert listed(boss, q=spelling.format(wanted.pk)) == [wanted.pk]
        assert listed(boss, q=spelling.format(wanted.pk), status="PENDING") == []

    assert (
        listed(boss, q="shop.mail")
        == listed(boss, name="shop.mail")
        == [other.pk, more.pk, mail.pk]
    )
    assert listed(boss, q="shop.mail_all", name="x.shop.mail") == [more.pk], (
        "the box was filled in last"
    )

    for nothing in ("shop%", "SHOP", "s3cret"):
        assert listed(boss, q=nothing) == []
    assert "Null characters are not allowed" in body(boss, reverse(TASKS), q="a\x00b")


def test_pages_lead_to_older_tasks_and_back(boss: Client) -> None:
    tasks = [task.pk for task in reversed(TaskFactory.create_batch(101))]

    pages = [listed(boss, p=str(page)) for page in (1, 2, 3, 4)]

    assert pages == [tasks[:50], tasks[50:100], tasks[100:], []]

    html = body(boss, reverse(TASKS), p="2")
    says(html, 'rel="prev" href="?p=1"', 'rel="next" href="?p=3"', "51 to 100")
    assert 'rel="next"' not in body(boss, reverse(TASKS), p="3")


def test_the_detail_shows_a_task_without_results_of_its_steps(
    boss: Client,
) -> None:
    """The page of a task shows all its data, except the results of its steps."""
    worker = WorkerFactory(hostname="web-7", pid=4711)
    exception = {"repr": "E()", "traceback": "line 1\nline 2"}
    task = TaskFactory(
        status="FAILED",
        kwargs={"order": {"id": 42, "note": "grüße"}},
        options={"retry": "never"},
        max_retries=3,
        retry_count=1,
        partition_key="customer 9",
        claimed_by=worker.pk,
        error_code="CARD_DECLINED",
        result=error("CARD_DECLINED", "the bank said no", data={"bank": 7}, exception=exception),
    )

    TaskAttemptFactory(
        task_id=task.pk, attempt=1, error_code="BUSY", error_message="line busy", will_retry=True
    )
    TaskAttemptFactory(
        task_id=task.pk,
        attempt=2,
        error_code="CARD_DECLINED",
        worker_id=worker.pk,
        child_pid=999_123,
    )

    other = TaskFactory(status="RUNNING")
    for of, name in ((task, "charge <b>"), (other, "another")):
        TaskStep.objects.bulk_create(
            [TaskStep(task_id=of.pk, name=name, digest="d", result="s3cret")]
        )

    html = body(boss, page_of(task))

    says(
        html,
        str(task.pk),
        "shop.tasks.send_receipt",
        "grüße",
        "&quot;id&quot;: 42",
        "the bank said no",
        "&quot;bank&quot;: 7",
        "line 1\nline 2",
        "CARD_DECLINED",
        "1 of 3",
        "customer 9",
        "never",
        "line busy",
        "then retried",
        "999123",
        f'<a href="{page_of(worker)}">web-7:4711</a>',
        f'<a href="{page_of(Queue.objects.get(name="default"))}">default</a>',
        '<th scope="row">charge &lt;b&gt;</th>',
    )

    assert ("another" in html, "s3cret" in html) == (False, False)
    assert "horsies-steps" not in body(boss, page_of(TaskFactory()))


def test_a_long_hostile_value_is_shown_as_text(boss: Client) -> None:
    """A hostile value is shown as text, even if it is longer than the part that is shown."""
    evil = "</pre><script>alert(1)</script><b>&amp;" * 1_000
    row = TaskFactory(
        status="FAILED",
        kwargs={"evil": evil},
        error_code="EVIL",
        result=error("EVIL", evil, data=evil),
    )

    html = body(boss, page_of(row))

    assert html.count("Showing the first 20,000 of") == 3
    assert f"Showing the first 20,000 of {len(evil) + 16:,} characters." in html
    assert 1_000 < html.count("&lt;script&gt;alert(1)&lt;/script&gt;&lt;b&gt;&amp;amp;") < 2_000

    for markup in ("<script>alert", "</pre><script", "</script><b>"):
        assert markup not in html, markup


@pytest.mark.parametrize(
    "result", [[], "text", {"err": "text"}, {"err": {"exception": []}}, {"err": {}}, {"odd": 1}]
)
def test_a_task_unknown_to_the_code_is_shown(boss: Client, result: Any) -> None:
    """The page shows a task that is missing in the code and a result of an unexpected shape."""
    task = TaskFactory(
        task_name="no.such.task", status="COMPLETED", kwargs={"day": "2026-02-30"}, result=result
    )

    html = body(boss, page_of(task))

    says(html, "Arguments and result", "2026-02-30")


NO_NAMES = ("no such one", "a\x00b", "<b>x</b>", "a_00b")
NO_UUIDS = (uuid.uuid4(), "none", "a_00b")
MISSING: dict[type[Any], tuple[Any, ...]] = {
    Queue: NO_NAMES,
    Schedule: NO_NAMES,
    Task: NO_UUIDS,
    WorkflowRun: NO_UUIDS,
    Worker: NO_UUIDS,
    AuditEntry: ("0", "x", "9" * 30, "-1", "1_000"),
}


@pytest.mark.parametrize("model", MISSING)
def test_a_missing_row_is_reported_and_not_created(boss: Client, model: type[Any]) -> None:
    """A page of a missing row redirects to the index with a message, and creates no row."""
    before = model.objects.count()
    given = {"reason": "why", "max_concurrency": "1"}
    subjects = {Queue: OF_QUEUES, Schedule: OF_SCHEDULES, Task: OF_TASKS, WorkflowRun: OF_WORKFLOWS}
    verbs = ADMIN_VERBS[subjects[model]].keys() - {"add"} if model in subjects else set()

    for id_ in MISSING[model]:
        for page in {"change", *verbs, *(["picture"] if model is WorkflowRun else [])}:
            address = url(model, page, quote(id_))
            answers = [boss.get(address, follow=True)]
            if page in verbs:
                answers.append(boss.post(address, given, follow=True))

            for response in answers:
                assert response.redirect_chain == [(reverse("admin:index"), 302)], address
                assert list(response.context["messages"]), address

    assert model.objects.count() == before


def test_an_idle_worker_with_an_old_row_is_shown_as_alive(boss: Client) -> None:
    """An idle worker with a recent heartbeat is shown as living, even if its row is old.

    Fails if: the time in its row, which an idle worker writes every 30 seconds, makes it stale.
    """
    past = now() - dt.timedelta(minutes=2, seconds=5)
    beats = {
        "up": {},
        "stale": {"sent_at": past},
        "dead": {"died_at": now()},
        "stopped": {},
        "leaving": {},
    }

    for name, beat in beats.items():
        times = {"stopped": {"stopped_at": now()}, "leaving": {"stopping_at": now()}}.get(name, {})
        worker = WorkerFactory(hostname=name, seen_at=past, **times)
        HeartbeatFactory(id=worker.pk, worker_id=worker.pk, role="claimer", **beat)
    WorkerFactory(hostname="gone")

    rows = {row.hostname: row for row in boss.get(url(Worker)).context["cl"].result_list}
    told = {one.hostname: one.state for one in examine(connection).workers}

    assert told == {
        "up": "living",
        "stale": "stale",
        "dead": "dead",
        "stopped": "stopped",
        "gone": "dead",
        "leaving": "stopping",
    }
    assert {name: row.state for name, row in rows.items()} == told

    html = body(boss, url(Worker))
    assert [
        html.count(f"</span> {text}</span>")
        for text in ("Living", "Stopping", "Stale", "Dead", "Stopped")
    ] == [
        1,
        1,
        1,
        2,
        1,
    ]

    assert "up:" not in body(boss, url(Worker), state="off")
    assert "stopped:" not in body(boss, url(Worker), state="on")
    assert "Stale" in body(boss, page_of(Worker.objects.get(hostname="stale")))


def test_a_worker_shows_its_processes_tasks_and_last_snapshots(
    boss: Client,
) -> None:
    """The page of a worker shows its processes, its running tasks and its last snapshots."""
    worker = WorkerFactory(
        queues=["mail", "bulk"], processes=4, memory_usage_mb=52.4, children_memory_mb=210.0
    )

    assert "Snapshots" not in body(boss, page_of(worker))

    HeartbeatFactory(worker_id=worker.pk, role="claimer", pid=worker.pid)
    HeartbeatFactory(worker_id=worker.pk, pid=818_181, memory_mb=53.4)
    HeartbeatFactory(pid=919_191)
    task = TaskFactory(status="RUNNING", claimed_by=worker.pk, task_name="shop.tasks.held")
    HeartbeatFactory(worker_id=worker.pk, pid=818_182, memory_mb=80, holding=[str(task.pk)])
    TaskFactory(status="RUNNING", task_name="shop.tasks.of_another")

    for number in range(25):
        WorkerStateFactory(
            worker_id=worker.pk, buffered=700 + number, cpu_percent=None if number == 24 else 37.5
        )
    WorkerStateFactory(buffered=800)

    html = body(boss, page_of(worker))

    says(
        html,
        "mail, bulk",
        "4 sync, 400 async",
        "52 MB + 210 MB",
        "parent, claims tasks",
        "818181",
        "shop.tasks.held",
        "<td>53 MB</td>",
        f'href="{page_of(task)}"',
        "1 sync, 20 async",
        "50 MB + 120 MB",
        "<td>38 %</td>",
        "<td>–</td>",
    )

    assert "919191" not in html
    assert "of_another" not in html

    children = {row[0]: row[2:4] for row in table(html, "horsies-processes")}
    assert children["818181"] == ["53 MB", "–"]
    assert children["818182"][1].split()[0] == "shop.tasks.held"
    (held,) = table(html, "horsies-held")
    assert (held[0], held[3]) == ("shop.tasks.held", "818182")

    assert [int(cell) for cell in re.findall(r"<td>([78]\d\d)</td>", html)] == list(
        range(724, 704, -1)
    )
    assert "Running tasks" not in body(client_with("view_worker"), page_of(worker))


def test_a_project_adds_a_search_and_actions_to_a_page(rf: Any) -> None:
    """A project can add a search and actions to a page that has none."""
    noted: list[str] = []

    class OwnAdmin(QueueAdmin):
        search_fields = ("name",)
        actions = ("note",)

        def note(self, request: Any, queryset: Any) -> None:
            noted.extend(queryset.values_list("pk", flat=True))

    Queue.objects.bulk_create(
        [Queue(name=name) for name in ("mail", "bulk")], ignore_conflicts=True
    )

    page = OwnAdmin(Queue, admin.site)
    request = rf.post("/", {"action": "note", "_selected_action": ["mail", "\x00"], "index": "0"})
    request.user = User.objects.create_superuser("boss")

    page.response_action(request, Queue.objects.all())
    assert noted == ["mail"]

    found, _again = page.get_search_results(request, Queue.objects.all(), "bul")
    assert [queue.pk for queue in found] == ["bulk"]
