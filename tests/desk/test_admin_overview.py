"""The overview on the admin's page of the app: its content, permissions, links and cost."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Workflow, queues
from horsies_django.admin.overview import summaries
from horsies_django.core.counts import BOUNDS, CLAIMED, COMPLETED, Total
from horsies_django.models import Heartbeat, Schedule, WorkflowNode
from horsies_django.monitoring import reading
from horsies_django.store import base
from horsies_django.store.history import HistoryStore
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import Connect, limit, put, sql
from tests.desk.test_admin import body, client_with
from tests.support.factories import (
    HeartbeatFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    living_worker,
    now,
)

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
# By permission: a problem and the sections that a user with it sees.
SEEN: dict[str, tuple[str, set[str]]] = {
    "view_queue": ("Queue mail has 3 tasks", {"Queues"}),
    "view_task": ("25 tasks shop.pay failed", {"Most failures"}),
    "view_worker": ("Worker web-9:77 is stale", {"Workers"}),
    "view_schedule": ("The schedule 'night' is overdue", {"Late schedules"}),
    "view_workflowrun": (
        "1 run of workflow order was paused",
        {"Halted runs", "Waiting gates"},
    ),
    "view_auditentry": ("could not be written", set()),  # the test has no such problem
}


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    summaries.kept.clear()
    yield
    summaries.kept.clear()


def seen(client: Client, **query: str) -> str:
    summaries.kept.clear()
    return shown(client, **query)


def shown(client: Client, **query: str) -> str:
    html = body(client, reverse("admin:app_list", args=("horsies",)), **query)
    return html.partition('class="horsies-overview"')[2].partition('id="content-main"')[0]


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html.replace("<wbr>", ""))).split())


def sections(html: str) -> dict[str, str]:
    return dict(re.findall(r"<h2[^>]*>(.*?)</h2>(.*?)</section>", html, re.DOTALL))


def links(html: str) -> list[str]:
    return [unescape(link) for link in re.findall(r'href="([^"]*)"', html)]


def cells(html: str, queue: str) -> dict[str, str]:
    """Return the columns of a queue, as texts."""
    (row,) = [
        one
        for one in re.findall(r"<tr>(.*?)</tr>", sections(html)["Queues"], re.DOTALL)
        if f">{queue}<" in one
    ]
    return {
        name: text(cell)
        for name, cell in re.findall(r'<td data-label="(.*?)">(.*?)</td>', row, re.DOTALL)
    }


def counted(
    *rows: tuple[str, str, str, int], ago: dt.timedelta = dt.timedelta(0), seconds: int = 5
) -> None:
    """Add results of tasks to the history, each row as (queue, task, result, number).

    All have the same duration, about half a second unless ``seconds`` names another bucket.
    """
    worker = WorkerFactory(stopped_at=now(), seen_at=now() - HOUR)
    buckets = [tuple(n * (place == seconds) for place in range(len(BOUNDS))) for *_, n in rows]
    totals = [
        Total(*row, seconds=0.0, buckets=histogram)
        for row, histogram in zip(rows, buckets, strict=True)
    ]
    HistoryStore(connection).add(worker.pk, 1, totals, 2 * ago)


@pytest.fixture
def troubled(transactional_db: None) -> dict[str, Any]:
    """Make a system that has a problem of each kind."""
    flow = Workflow("order", on_error="pause")
    other = Workflow("parcel")
    flow.add(flows.odd_fails, 1)
    flow.add(flows.number, 1)
    other.gate("approve")

    run = flow.send()
    gate = other.send()
    drain(raise_errors=False)

    put(3, queue="mail")
    worker = living_worker(hostname="web-9", pid=77, beat={"sent_at": now() - HOUR})
    TaskFactory(status="RUNNING", claimed_by=worker.pk)

    memory = {"memory_usage_mb": 80, "children_memory_mb": 912}
    grown = living_worker(
        "default", "bulk", hostname="web-1", pid=12, task_names=["shop.eats", "shop.pay"], **memory
    )
    eats = TaskFactory(task_name="shop.eats", status="RUNNING", claimed_by=grown.pk)
    HeartbeatFactory(worker_id=grown.pk, pid=34, holding=[str(eats.pk)], memory_mb=912)

    for name, code, site in (
        ("shop.pay", "CARD", "shop/tasks.py in pay"),
        ("shop.eats", "WORKER_CRASHED", None),
    ):
        failed = {"error_code": code, "finished_at": now() - MINUTE}
        task = TaskFactory(task_name=name, status="FAILED", claimed_by=grown.pk, **failed)
        attempt = {
            "site": site,
            "exception_class": "OSError",
            "worker_id": grown.pk,
            "child_pid": 4711,
        }
        TaskAttemptFactory(task_id=task.pk, **failed, **attempt)

    TaskFactory(task_name="shop.gone", sent_at=now() - HOUR)
    limit("bulk", partition_by_args=["customer"], partition_max_concurrency=1)
    of_acme = {
        "queue_name": "bulk",
        "partition_key": '{"customer": "acme"}',
        "partition_version": 1,
    }
    TaskFactory(status="RUNNING", claimed_by=grown.pk, **of_acme)
    TaskFactory(parked=True, **of_acme)

    queues.override(
        "bulk", {"max_concurrency": 2}, actor="grace", reason="The provider throttles us."
    )

    definition = {"task": "shop.night", "pattern": "0 3 * * *", "zone": "UTC"}
    Schedule.objects.bulk_create([Schedule(name="night", changes=definition, next_at=now() - HOUR)])

    counted(
        ("mail", "shop.pay", "CARD", 25),
        ("mail", "shop.pay", COMPLETED, 115),
        ("mail", "", CLAIMED, 100),
    )
    counted(("mail", "shop.old", "LATE", 7), ago=3 * HOUR)
    counted(("default", "shop.eats", "CRASHED", 3))

    return {"worker": worker, "run": run, "gate": gate}


def test_the_overview_lists_problems_the_worst_first(boss: Client, troubled: Any) -> None:
    """The overview lists the problems, the worst first, each with a link to its page."""
    html = sections(seen(boss))["Problems"]
    told = [text(one) for one in re.findall(r"<li>(.*?)</li>", html, re.DOTALL)]

    assert [one.split()[1] for one in told] == sorted(one.split()[1] for one in told)
    assert {"Critical", "Warning"} == {one.split()[1] for one in told}
    (mail,) = [one for one in told if "Queue mail has 3 tasks due and no live worker. For" in one]
    assert "Start a worker that serves it" in mail

    rows = {
        "worker": troubled["worker"].pk,
        "workflowrun": troubled["run"].workflow_id,
        "queue": "mail",
    }
    rows["schedule"] = "night"
    expected = {
        reverse(f"admin:horsies_{model}_change", args=(key,)) for model, key in rows.items()
    }

    tasks = reverse("admin:horsies_task_changelist")
    assert {*expected, f"{tasks}?status=FAILED&name=shop.pay"} <= set(links(html))
    for address in expected:
        assert boss.get(address).status_code == 200


def test_the_overview_shows_figures_of_each_queue_with_links(boss: Client, troubled: Any) -> None:
    """The overview shows the figures of each queue, with links to its tasks."""
    limit("mail", max_concurrency=8)
    TaskFactory.create_batch(2, status="RUNNING", queue_name="mail")

    html = seen(boss)
    found = cells(html, "mail")

    assert found["Waiting"] == "3"
    assert re.fullmatch(r"\d.*s", found["Longest wait"])
    assert found["Running"] == "2 of 8"
    assert 'value="2" max="8"' in html
    assert found["Per minute"] == "10"
    assert found["Failed"] == "25"
    assert found["Wait, 95 %"] == found["Run, 95 %"] == "242 ms"

    limit("*", max_concurrency=40)
    counted(("bulk", "shop.pay", COMPLETED, 5))

    whole = cells(seen(boss), "the whole cluster")
    assert (whole["Running"], whole["Per minute"], whole["Failed"]) == ("5 of 40", "10", "25")
    # A new minute may have begun.
    assert re.search(r"most 14[05], last \d+; total failed: 25$", whole["Finished"])

    assert re.fullmatch(
        r"mail, Last hour: least 0, most 140, last \d+; total failed: 25", found["Finished"]
    )

    tasks = reverse("admin:horsies_task_changelist")
    for status in ("PENDING", "RUNNING", "FAILED"):
        assert f"{tasks}?status={status}&queue=mail" in links(html)
    assert cells(html, "twin")["Longest wait"] == cells(html, "twin")["Run, 95 %"] == "–"


def test_the_overview_shows_workers_schedules_runs_and_failures(
    boss: Client, troubled: Any
) -> None:
    found = sections(seen(boss))

    assert "1 ● Living" in text(found["Workers"])
    assert re.search(r"web-9:77 last seen 1 h ago", text(found["Workers"]))
    assert re.search(r"night for 1 h", text(found["Late schedules"]))
    assert text(found["Halted runs"]) == "1 × order paused by a failure"
    assert text(found["Waiting gates"]) == "1 × approve parcel"

    node = WorkflowNode.objects.get(workflow_id=troubled["gate"].workflow_id)
    assert links(found["Waiting gates"]) == [
        reverse("admin:horsies_workflowrun_node", args=(node.workflow_id, node.number))
    ]

    assert text(found["Most failures"]) == "25 × shop.pay CARD"
    (link,) = links(found["Most failures"])
    assert QueryDict(link.partition("?")[2]).dict() == {
        "status": "FAILED",
        "name": "shop.pay",
        "code": "CARD",
    }


def note_statements(monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    """Append the name of each statement that a store runs to ``ran``."""
    text = base.statement_text

    def noted(name: str, params: Any = None) -> str:
        ran.append(name)
        return text(name, params)

    monkeypatch.setattr(base, "statement_text", noted)


def test_the_span_that_is_chosen_is_that_of_the_figures(
    boss: Client, troubled: Any, monkeypatch: Any
) -> None:
    """The figures are those of the chosen span, and a page takes at most 25 queries."""
    ran: list[str] = []
    note_statements(monkeypatch, ran)

    for span, failures in (("hour", 25), ("day", 32), ("week", 32)):
        ran.clear()
        with CaptureQueriesContext(connection) as captured:
            html = seen(boss, span=span)

        assert "horsies_series" in ran
        assert len(ran) + len(captured) <= 25, (ran, captured.captured_queries)
        assert cells(html, "mail")["Failed"] == str(failures), span
        assert f'<a href="?span={span}" aria-current="page">' in html
        assert ("shop.old" in sections(html)["Most failures"]) == (span != "hour")

    for odd in ("", "year", "\x00", "<script>", "hour "):
        assert cells(seen(boss, span=odd), "mail")["Failed"] == "25"


@pytest.mark.parametrize("codename", SEEN)
def test_a_user_sees_only_sections_that_they_may_view(troubled: Any, codename: str) -> None:
    """Fails if: a user who may view one of the models sees all of the overview."""
    viewer = client_with(codename, "operate_task", "configure_queue", "view_payload")

    html = seen(viewer)

    titles = SEEN[codename][1]
    assert set(sections(html)) == {"Problems", *titles}
    assert [one for one, (told, _) in SEEN.items() if told in text(html)] == (
        [codename] if titles else []
    )

    for name in SEEN.keys() - {codename}:
        assert not [
            link for link in links(html) if f"/horsies/{name.removeprefix('view_')}/" in link
        ], name


@pytest.mark.urls("tests.support.backstage")
def test_links_on_a_site_of_the_project_stay_on_that_site(boss: Client, troubled: Any) -> None:
    """On an admin site of the project, links stay on that site, and its pages decide what is shown.

    Fails if: links lead to Django's own site, or a permission is enough although
    ``has_view_permission`` returns False.
    """
    html = boss.get(reverse("backstage:app_list", args=("horsies",))).content.decode()
    html = html.partition('class="horsies-overview"')[2].partition('id="content-main"')[0]

    assert "Queues" not in sections(html)
    assert "Queue mail" not in html

    found = [link for link in links(html) if not link.startswith("?")]
    assert found
    assert [link for link in found if not link.startswith("/backstage/")] == []


# Reading the figures


def test_the_database_is_read_once_in_five_seconds(
    boss: Client, troubled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is read once in five seconds, and each user sees only what they may view."""
    html = seen(boss)
    viewer = client_with("view_worker")
    put(4, queue="mail")

    assert cells(shown(boss), "mail")["Waiting"] == "3"
    assert set(sections(shown(viewer))) == {"Problems", "Workers"}
    assert "mail" not in shown(viewer)
    assert shown(boss) == html
    assert cells(shown(boss, span="week"), "mail")["Failed"] == "32", (
        "another span is not what was kept"
    )

    kept = summaries.kept
    summaries.kept = {
        name: (until - reading.CACHED_SECONDS, one) for name, (until, one) in kept.items()
    }
    ran: list[str] = []
    note_statements(monkeypatch, ran)

    assert cells(shown(boss), "mail")["Waiting"] == "7"
    assert "horsies_series" not in ran, "what was counted is read once in a minute"
    assert "monitoring/queues" in ran


@pytest.mark.parametrize("table", ["horsies_tasks", "horsies_history"])
def test_a_lock_on_the_tables_is_reported_as_a_problem(
    boss: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """If a lock prevents reading the tables, the overview reports the lock as a problem."""
    monkeypatch.setattr(reading, "STATEMENT_TIMEOUT_MS", 500)
    conn = connect()

    with conn.transaction():
        conn.execute("SET LOCAL application_name = 'psql'")
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())

        html = seen(boss)

        assert set(sections(html)) == {"Problems"}
        assert "('psql') has had a transaction open" in text(html)
        assert "nothing else is shown" in html
        assert "psql" not in seen(client_with("view_task"))


def test_a_refusing_database_is_reported_and_not_read_again(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overview reports a database that refuses or is not migrated.

    It does not repeat the failed reading at once.
    """
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        patch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        assert "The database refused" in text(seen(boss))

    assert "The database refused" in text(shown(boss))
    assert sections(shown(boss)) == {}
    assert "Queues" in sections(seen(boss))

    sql("ALTER TABLE horsies_history RENAME TO other")
    try:
        assert "Check that “migrate” has been run." in text(seen(boss))
    finally:
        sql("ALTER TABLE other RENAME TO horsies_history")


def test_the_overview_shows_when_it_was_read(
    boss: Client,
) -> None:
    """The overview shows when it was read, above the list of models.

    The pages of other apps are unchanged.
    """
    (told,) = re.findall(r"Read at (\S+ \S+)<", seen(boss))
    # TIME_ZONE is Istanbul.
    clock = dt.datetime.now(dt.timezone(dt.timedelta(hours=3))).replace(tzinfo=None)

    assert abs(dt.datetime.fromisoformat(told) - clock) < MINUTE

    assert "horsies-overview" not in body(boss, reverse("admin:app_list", args=("auth",)))
    models = body(boss, reverse("admin:app_list", args=("horsies",))).partition(
        'id="content-main"'
    )[2]
    assert f'href="{reverse("admin:horsies_worker_changelist")}"' in models


# Questions of people on call: docs/howto/incidents.md lists the links to the answers, at most four
# pages away


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "incidents.md"
UNKNOWN = "No live worker of its queue can run the task 'shop.gone'"
JOURNEYS = {  # by headings of PAGE: links, some with a part of the address, and expected texts
    "What would have woken me?": (
        [],
        ["Critical", "Queue mail has 3 tasks due and no live worker"],
    ),
    "Mail is late": (
        ["3@status=PENDING&queue=mail", "tests.nothing", "mail"],
        ["No worker has ever served the queue 'mail'"],
    ),
    "A night's failures": (["Tasks", "Failures", "shop.pay"], ["OSError", "shop/tasks.py in pay"]),
    "One tenant floods the queue": (["bulk"], ["acme", "At its limit"]),
    "Who changed the limit?": (["bulk"], ["grace", "The provider throttles us.", "Overridden"]),
    "A task kills its processes": (
        ["These tasks@shop.eats", "shop.eats"],
        ["WORKER_CRASHED", "4711", "web-1:12"],
    ),
    "A deploy removed a task": (["These tasks@shop.gone", "shop.gone"], [UNKNOWN]),
    "A worker grows": (
        ["Workers", "web-1:12"],
        ["80 MB + 912 MB", "34 child, runs tasks 912 MB shop.eats"],
    ),
    "Did 03:00 fire?": (["night"], ["0 3 * * *", "Last fire times"]),
    "A run stands still": (
        ["The first run", "Retry"],
        ["Nodes that failed, expired or were cancelled run again"],
    ),
    "How much ran today?": (["Last 24 hours"], ["most 140", "total failed: 32"]),
}


def walk(client: Client, *steps: str) -> str:
    """Follow links from the overview, each the first one with its text.

    Return the text of all pages.
    """
    address = reverse("admin:app_list", args=("horsies",))
    said = ""

    for step in (*steps, None):
        found: Any = client.get(address)
        if found.status_code == 302:
            found = client.get(found["Location"])
        assert found.status_code == 200, address
        html = found.content.decode().replace("<wbr>", "")
        said += text(html)

        if step is not None:
            word, _, part = step.partition("@")
            offered = re.findall(r'<a[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', html, re.DOTALL)
            to = [
                unescape(to)
                for to, shown in offered
                if text(shown) == word and part in unescape(to)
            ]
            assert to, (step, [text(shown) for _to, shown in offered])
            address = to[0] if to[0].startswith("/") else address.partition("?")[0] + to[0]

    return said


def test_each_question_on_call_is_answered_in_a_few_links(boss: Client, troubled: Any) -> None:
    """The answer to each question of people on call is on the overview or a few links away."""
    assert set(re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)) >= JOURNEYS.keys()

    for question, (links_, told) in JOURNEYS.items():
        assert len(links_) < 4
        Heartbeat.objects.exclude(worker_id=troubled["worker"].pk).update(sent_at=now())
        said = walk(boss, *links_)
        assert [one for one in told if one not in said] == [], (question, said)

    retried = walk(boss, "Tasks", "Failures", "shop.pay", "Retry all")
    assert "1 tasks" in retried, "which test_admin_lists.py retries from here on"
