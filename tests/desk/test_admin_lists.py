"""The list of tasks, the page of failures, the page that acts on all matches, and the audit."""

from __future__ import annotations

import datetime as dt
import html
import random
import re
import uuid
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django import queues
from horsies_django.admin.base.audit import changes
from horsies_django.admin.tasks import bulk as acts
from horsies_django.core.counts import OTHER
from horsies_django.models import AuditEntry, Queue, Task
from horsies_django.monitoring import history
from horsies_django.store.selections import Selection
from horsies_django.tasks import selection
from tests.conftest import sql
from tests.db.test_selection import fits, made
from tests.desk.test_admin import body, client_with, listed, page_of, says
from tests.desk.test_admin_overview import counted
from tests.desk.test_admin_speed import plan_of, queries
from tests.desk.test_operations import failures
from tests.support.factories import AuditEntryFactory, TaskAttemptFactory, TaskFactory, now
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db
LIST = reverse("admin:horsies_task_changelist")
ALL = reverse("admin:horsies_task_all")
PAGE = reverse("admin:horsies_task_failures")
SITE = "shop/tasks.py in pay"
WORKER = uuid.UUID(int=1)


def links(page: str, text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'<a href="([^"]+)">{text}</a>', page)]


def test_each_field_of_the_list_is_exact(boss: Client) -> None:
    """Fails if: an unknown field is ignored, so that the list shows more tasks than it should.

    Combinations of fields are tested in ``tests/db/test_selection.py``.
    """
    moment = now().replace(microsecond=0)
    pick = random.Random(7)
    rows = [made(pick, moment) for _ in range(49)]
    when = moment - dt.timedelta(minutes=2)
    aware = timezone.make_aware(when) if timezone.is_naive(when) else when

    for query, chosen in (
        ({}, Selection(None)),
        *(
            ({"status": status}, Selection(status))
            for status in ("CLAIMED", "UNSUCCESSFUL", "FINISHED")
        ),
        ({"queue": "mail"}, Selection(None, queue="mail")),
        ({"name": "shop.pay"}, Selection(None, names=["shop.pay"])),
        ({"since": "1h", "q": "shop.pay"}, Selection(None, names=["shop.pay"])),
        ({"worker": str(WORKER)}, Selection(None, worker=WORKER)),
        ({"since": when.isoformat(" ")}, Selection(None, since=when)),
        ({"until": aware.isoformat()}, Selection(None, until=when)),
        # A time without a zone is in the current one.
        ({"since": f"{timezone.localtime(aware):%F %T}"}, Selection(None, since=when)),
        ({"queue": "mail", "partition": "x"}, Selection(None, queue="mail", partition="x")),
        (
            {"queue": "mail", "partition": "a=7"},
            Selection(None, queue="mail", partition='{"a": 7}'),
        ),
        ({"code": "OH_NO"}, Selection("UNSUCCESSFUL", code="OH_NO")),
        ({"status": "FAILED", "site": SITE}, Selection("FAILED", site=SITE)),
        ({"status": "FAILED", "exception": "(none)"}, Selection("FAILED", exception="(none)")),
    ):
        assert set(listed(boss, **query)) == {
            row.pk for row in rows if fits(row, chosen, runs=True)
        }, query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            {"status": "RUNNING", "code": "OH_NO"},
            "only tasks that did not complete have an error code",
        ),
        ({"partition": "x"}, "pass the queue, too"),
        ({"worker": "web-1"}, "Enter a valid UUID"),
        ({"since": "yesterday"}, "Enter 30m, 2h, 7d or"),
        ({"until": "9" * 30 + "w"}, "Enter 30m, 2h, 7d or"),
        ({"queue": "a\x00b"}, "Null characters are not allowed"),
    ],
)
def test_a_field_that_cannot_be_meant_is_an_error_and_no_list(
    boss: Client, query: dict[str, str], words: str
) -> None:
    """An invalid field is an error, and the page shows no tasks.

    Fails if: the server fails, or lists all tasks, so that a click on "Retry" retries them all.
    """
    TaskFactory(status="RUNNING")

    for address, given in ((LIST, query), (ALL, {"status": "FAILED", **query})):
        page = body(boss, address, **given)
        assert html.escape(words) in page
        assert ("horsies-found" in page, 'name="_selected_action"' in page) == (False, False)


def test_the_link_to_the_page_of_acts_has_the_fields_of_the_list(boss: Client) -> None:
    """The link from the list to the page of acts contains all fields of the list.

    Fails if: the list shows the failures of a night at one site, and "all that match" means all
    failures of all time.
    """
    fields = {
        "status": "FAILED",
        "queue": "mail",
        "code": "OH_NO",
        "site": SITE,
        "since": "12h",
        "worker": str(WORKER),
    }

    page = body(boss, LIST, **fields, q="shop", p="1")
    (link,) = re.findall(r'href="([^"]+/all/[^"]*)"', page)

    assert dict(parse_qsl(urlsplit(html.unescape(link)).query)) == {**fields, "name": "shop"}

    without = body(boss, LIST, queue="mail")
    (link,) = re.findall(r'href="([^"]+/all/[^"]*)"', without)
    form = body(boss, html.unescape(link))
    assert ('value="mail"' in form, '<option value="FAILED" selected>' in form) == (True, True)

    assert "/all/" not in body(boss, LIST, workflow=str(uuid.uuid4())), (
        "acts leave the tasks of runs"
    )


def test_partitions_are_for_those_who_may_see_payloads() -> None:
    """A filter by partition needs the permission ``view_payload``.

    Fails if: a user who may not see the keys finds them by trying; or the field is ignored, and an
    act changes all partitions.
    """
    TaskFactory(queue_name="mail", partition_key="ann", parked=True)
    viewer = client_with("view_task", "operate_task")
    reader = client_with("view_task", "operate_task", "view_payload")
    query = {"queue": "mail", "partition": "ann", "status": "PENDING"}

    for address in (LIST, ALL):
        page = body(viewer, address, **query)
        assert "horsies.view_payload is required" in page
        assert ("horsies-found" in page, 'name="_selected_action"' in page) == (False, False)

    assert len(listed(reader, **query)) == 1
    assert "1 tasks" in body(reader, ALL, **query)


# The page of failures: groups of failures in a span of time, and their sites

HOUR = dt.timedelta(hours=1)
NOW = dt.timedelta(0)
PAY = 'shop/tasks.py in "pay" & <co>'
SHIP = "shop/tasks.py in ship"


def fail(
    exception: Any, site: Any, message: str = "s3cret", ago: dt.timedelta = NOW, **columns: Any
) -> Task:
    """Make a task that failed at its second attempt, at another site than at its first one."""
    values = {"task_name": "shop.pay", "error_code": "OH_NO", **columns}
    task: Task = TaskFactory(status="FAILED", finished_at=now() - ago, **values)

    early = {
        "exception_class": "Early",
        "site": "shop/tasks.py in early",
        "error_message": "s3cret",
    }
    TaskAttemptFactory(task_id=task.pk, attempt=1, **early)

    last = {"exception_class": exception, "site": site, "error_message": message}
    TaskAttemptFactory(task_id=task.pk, attempt=2, finished_at=task.finished_at, **last)

    return task


def rows(page: str) -> list[list[str]]:
    """Return the texts of the cells of all tables, without their links to other pages."""
    cell = r'<(?:td|th scope="row")[^>]*>(.*?)</t[dh]>'
    of_page = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    found = [re.findall(cell, row, re.DOTALL)[:-1] for row in of_page]
    return [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]
        for cells in found
        if cells
    ]


def test_permanent_failures_are_counted_by_task_and_code(
    boss: Client,
) -> None:
    """Final failures are counted by task and code, the most frequent first.

    Fails if: retries and returned errors are counted, or each queue has a row of its own.
    """
    counted(
        ("mail", "shop.pay", "OH_NO", 3),
        ("bulk", "shop.pay", "OH_NO", 4),
        ("mail", "shop.ship", "NO_ROOM", 9),
    )
    none = ("RETRIED", "RETURNED", "COMPLETED", "CRASHED", "EXPIRED", "CANCELLED")
    counted(
        ("mail", "shop.pay", "TASK_TIMEOUT", 1),
        *(("mail", "shop.pay", result, 100) for result in none),
    )

    page = body(boss, PAGE)

    assert rows(page) == [
        ["shop.ship", "NO_ROOM", "9"],
        ["shop.pay", "OH_NO", "7"],
        ["shop.pay", "TASK_TIMEOUT", "1"],
    ]
    assert ">17 failed for good since " in page


def test_each_span_includes_the_row_in_which_it_begins(boss: Client, settings: Any) -> None:
    """Each span includes the row of the history in which it begins.

    Fails if: that row is left out, and with it half of the first hour of a night.
    """
    for hours, minutes in (
        *((hours, 0) for hours in (0, 1, 23, 24, 26, 100, 168, 170, 400)),
        (0, 59),
        (1, 3),
    ):
        counted(
            ("mail", "shop.pay", f"{hours} H {minutes} M", 1),
            ago=dt.timedelta(hours=hours, minutes=minutes),
        )

    found = {
        span: {cells[1] for cells in rows(body(boss, PAGE, since=span))}
        for span in ("hour", "day", "week")
    }

    lately = {"0 H 0 M", "0 H 59 M", "1 H 0 M"}
    assert found["hour"] == lately
    assert found["day"] == {*lately, "1 H 3 M", "23 H 0 M", "24 H 0 M"}
    assert found["week"] == {*found["day"], "26 H 0 M", "100 H 0 M", "168 H 0 M"}
    assert rows(body(boss, PAGE, since="nonsense\x00")) == rows(body(boss, PAGE)), "last night"

    settings.TIME_ZONE = "Asia/Kolkata"  # half an hour beside the hours that are counted
    (told,) = re.findall(r"since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", body(boss, PAGE))
    yesterday = dt.datetime.now(
        dt.timezone(dt.timedelta(hours=5, minutes=30))
    ).date() - dt.timedelta(days=1)
    assert dt.datetime.fromisoformat(told) == dt.datetime.combine(yesterday, dt.time(17, 30)), (
        "six in the evening"
    )


def test_a_group_of_failures_opens_by_class_and_site(boss: Client, monkeypatch: Any) -> None:
    """A group of failures opens by exception class and site, with links to exactly these tasks.

    Fails if: the first attempts are counted, or "Retry all" retries what failed elsewhere.
    """
    counted(("mail", "shop.pay", "OH_NO", 5))
    late = fail("ValueError", PAY, "the newest")
    wanted = {late.pk, fail("ValueError", PAY, "older", HOUR / 4).pk}

    fail("KeyError", PAY, ago=HOUR / 3)
    fail("ValueError", SHIP)
    nowhere = fail(None, None)
    fail("ValueError", PAY, error_code="OTHER")
    fail("ValueError", PAY, task_name="shop.ship")
    fail("ValueError", PAY, ago=300 * HOUR)

    page = body(boss, PAGE, since="hour", task="shop.pay", code="OH_NO")
    found = rows(page)

    assert found[0][:3] == ["ValueErrorthe newest", PAY, "2"]
    others = [["KeyErrors3cret", PAY, "1"], ["ValueErrors3cret", SHIP, "1"], ["–s3cret", "–", "1"]]
    assert sorted(cells[:3] for cells in found[1:4]) == others

    show = links(page, "Show")[0]
    retry = links(page, "Retry all")[0]
    assert set(listed(boss, **dict(parse_qsl(urlsplit(show).query)))) == wanted
    assert '<h2 id="horsies-found">2 tasks</h2>' in body(boss, retry)

    place = next(place for place, cells in enumerate(found) if cells[0].startswith("–"))
    assert listed(boss, **dict(parse_qsl(urlsplit(links(page, "Show")[place]).query))) == [
        nowhere.pk
    ]
    assert '<h2 id="horsies-found">1 tasks</h2>' in body(boss, links(page, "Retry all")[place])
    assert parse_qsl(urlsplit(show).query) == parse_qsl(urlsplit(retry).query)

    monkeypatch.setattr(history, "NEWEST", 1)
    seen = [cells[2] for cells in rows(body(boss, PAGE, task="shop.pay", code="OH_NO"))]
    assert seen == ["1", "5"], "so many are looked at, of those that were counted"


def test_merged_groups_have_no_links(
    boss: Client,
) -> None:
    """Groups that are counted together have no links; the page of a deleted group reports that."""
    counted(("mail", OTHER, "OH_NO", 2), ("mail", "shop.pay", OTHER, 1))

    page = body(boss, PAGE)

    assert [
        len(links(page, text)) for text in ("Show", "Retry all", re.escape(OTHER), "shop.pay")
    ] == [0, 0, 0, 0]
    assert "The tasks have been deleted or retried." in body(
        boss, PAGE, task="shop.gone", code="OH_NO"
    )


# The page that acts on all tasks that match

OPERATOR = ("view_task", "operate_task")


def hidden(page: str) -> str:
    (found,) = re.findall(r'name="act" value="([^"]+)"', page)
    return html.unescape(found)


def posted(client: Client, page: str, **values: str) -> str:
    return str(client.post(ALL, {"act": hidden(page), **values}).content.decode())


def begun(client: Client, status: str, **how: Any) -> str:
    """Return a signed act of the user of this browser, as the page of that user has it."""
    me = User.objects.get(pk=client.session["_auth_user_id"]).get_username()
    return acts.ActProgress(me, selection.matching(status), 1, False, **how).signed()


def statuses() -> Counter[str]:
    return Counter(Task.objects.values_list("status", flat=True))


def test_a_nights_failures_are_retried_in_four_clicks(boss: Client) -> None:
    """The clicks are: the list of failed tasks, the link, "Count the tasks" and "Retry all"."""
    failures(3, task_name="shop.pay")
    failures(2, task_name="shop.ship", error_code="NO_ROOM")
    failures(1, finished_at=now() - dt.timedelta(days=2))

    (link,) = re.findall(r'href="([^"]+/all/\?[^"]*)"', body(boss, LIST, status="FAILED"))
    assert "status=FAILED" in link

    page = body(boss, ALL, status="FAILED", since="12h")
    assert '<h2 id="horsies-found">5 tasks</h2>' in page
    cells = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", page)
    assert cells == [("shop.pay", "OH_NO", "3"), ("shop.ship", "NO_ROOM", "2")]
    assert "a redaction needs a reason" in posted(boss, page, verb="redact", reason=" ")

    done = posted(boss, page, verb="retry", reason="the bank is back", spread="10")
    says(done, "<h2>Done</h2>", "<li>RETRIED: 5</li>")
    assert statuses() == {"PENDING": 5, "FAILED": 1}

    entry = AuditEntry.objects.get(action="task.retry")
    assert (entry.actor, entry.reason) == ("boss", "the bank is back")
    assert any(task.enqueued_at > now() for task in Task.objects.filter(status="PENDING"))
    assert "0 tasks" in body(boss, ALL, status="FAILED", name="shop.nothing")


def test_a_long_act_shows_its_progress_and_continues(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An act that takes long or is refused shows its progress and the reason, and can be continued.

    Fails if: the page shows only the reason, so that the user cannot see how much was done.
    """

    monkeypatch.setattr(selection, "TASKS_PER_TRANSACTION", 2)
    *_, last = failures(5)
    page = body(boss, ALL, status="FAILED")
    monkeypatch.setattr(acts, "ACT_SECONDS", 0.0)

    page = posted(boss, page, verb="retry")

    assert re.search(r'<progress value="2" max="5"', page)
    assert "data-continues" in page

    page = posted(boss, page, stop="Stop")
    assert ("<h2>Stopped</h2>" in page, "data-continues" in page) == (True, False)
    assert statuses() == {"PENDING": 4, "FAILED": 1}

    with refused("horsies_tasks", f"OLD.id = '{last.pk}'"):
        page = posted(boss, page, go="Continue")

    assert (
        "<h2>Stopped</h2>" in page,
        "<li>RETRIED: 4</li>" in page,
        "data-continues" in page,
    ) == (True, True, False)
    assert "The database refused" in page

    assert "<li>RETRIED: 5</li>" in posted(boss, page, go="Continue")
    assert statuses() == {"PENDING": 5}
    assert (
        len({entry.after["act"] for entry in AuditEntry.objects.filter(action="task.retry")}) == 1
    )


def test_a_page_counts_the_first_entries_and_an_act_reads_all(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: an act does not reach the tasks beyond those that were counted."""
    monkeypatch.setattr(selection, "MOST_SCANNED", 2)
    failures(3, task_name="shop.pay")
    failures(1, task_name="shop.late", finished_at=now())

    page = body(boss, ALL, status="FAILED", name="shop.late")

    assert '<h2 id="horsies-found">At least 0 tasks</h2>' in page
    assert "Only the newest 30,000 tasks were searched." in body(boss, LIST, q="shop.pay")
    assert "<li>RETRIED: 1</li>" in posted(boss, page, verb="retry")
    assert statuses() == {"FAILED": 3, "PENDING": 1}


@pytest.mark.parametrize(
    ("status", "verb", "permissions", "allowed"),
    [
        ("FAILED", "retry", OPERATOR, True),
        ("FAILED", "redact", OPERATOR, False),
        ("FAILED", "redact", (*OPERATOR, "view_payload"), True),
        ("PENDING", "cancel", OPERATOR, True),
        ("FAILED", "cancel", OPERATOR, False),
        ("RUNNING", "terminate", OPERATOR, True),
        ("COMPLETED", "burn", (*OPERATOR, "view_payload"), False),
    ],
)
def test_each_verb_needs_its_permission_and_a_matching_status(
    boss: Client, status: str, verb: str, permissions: tuple[str, ...], allowed: bool
) -> None:
    """Each verb needs its permission and a status that allows the verb."""
    task = TaskFactory(status=status, sent_at=now() - dt.timedelta(seconds=1))
    client = client_with(*permissions)

    shown = client.get(ALL, {"status": status})
    offered = re.findall(r'name="verb" value="(\w+)"', shown.content.decode())
    assert (verb in offered) == allowed

    response = client.post(ALL, {"act": begun(client, status), "verb": verb, "reason": "asked"})
    assert response.status_code == (200 if allowed else 403)

    task.refresh_from_db()
    changed = (task.status, task.terminate, task.redacted_at is not None) != (status, False, False)
    assert changed == allowed


def test_an_act_without_a_valid_signature_is_refused(
    boss: Client,
) -> None:
    """An act is refused without a signature for this user, or if the user lacks the permission."""
    failures(1)
    page = body(boss, ALL, status="FAILED")
    client = client_with(*OPERATOR)

    for browser, text in ((boss, hidden(page) + "x"), (boss, "nonsense"), (client, hidden(page))):
        assert browser.post(ALL, {"act": text, "verb": "retry"}).status_code == 403

    for reason in ("a\0b", "x" * 10_001):
        assert (
            boss.post(ALL, {"act": hidden(page), "verb": "retry", "reason": reason}).status_code
            == 403
        )
    assert statuses() == {"FAILED": 1}

    act = begun(client, "FAILED", verb="redact", reason="asked", verdicts={})
    assert client.post(ALL, {"act": act, "go": "Continue"}).status_code == 403
    assert not Task.objects.exclude(redacted_at=None).exists()


# The audit: each change with its user, time and reason

AUDIT = "admin:horsies_auditentry_changelist"


@pytest.fixture
def empty(db: None) -> None:
    """Empty the audit, which contains the declarations of the settings."""
    AuditEntry.objects.all().delete()


def entries(client: Client, **query: str) -> list[tuple[str, str]]:
    response = client.get(reverse(AUDIT), query)
    assert response.status_code == 200, response.headers
    return [(entry.action, entry.subject) for entry in response.context["cl"].result_list]


def test_the_audit_lists_changes_by_subject_and_by_action(boss: Client, empty: None) -> None:
    """The audit lists each change with its user and reason, filtered by subject and action."""
    queues.change("mail", {"max_concurrency": 8}, actor="ada", reason="eight is plenty")
    queues.override("mail", {"max_concurrency": 4}, actor="grace", reason="four is safe")

    html = body(boss, reverse(AUDIT))

    says(
        html,
        "ada",
        "eight is plenty",
        "concurrency: no limit → 8",
        "grace",
        "concurrency (override): – → 4",
    )
    assert f'<a href="{page_of(Queue(name="mail"))}">mail</a>' in html

    html = body(boss, page_of(AuditEntry.objects.latest("pk")))
    says(html, "grace", "Overridden", "four is safe", "&quot;override_by&quot;: &quot;grace&quot;")

    queues.change("bulk", {"max_concurrency": 8}, actor="ada")
    of_mail = [("queue.override", "mail"), ("queue.set", "mail")]
    assert entries(boss) == [("queue.set", "bulk"), *of_mail], "the newest first"

    id_ = str(uuid.uuid4())
    AuditEntryFactory(actor="ada", action="task.cancel", subject=id_)

    assert entries(boss, subject="mail") == of_mail
    assert entries(boss, action="queue.set") == [("queue.set", "bulk"), ("queue.set", "mail")]
    assert entries(boss, action="queue.set", subject="mail") == [("queue.set", "mail")]
    assert entries(boss, subject=id_) == entries(boss, q=f" {id_} ") == [("task.cancel", id_)]
    assert entries(boss, q="mai") == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, None, []),
        ("text", ["list"], []),
        ({"priority": 1}, {"priority": 2}, ["priority: 1 → 2"]),
        ({"new_column": None}, {"new_column": {"a": 1}}, ['new_column: – → {"a": 1}']),
        ({"override": "odd"}, {"override": {"x": "y" * 500}}, [f"x (override): – → {'y' * 99}…"]),
        ({"override_until": "never"}, {"override_until": None}, ["override ends: never → –"]),
        (
            {"override_until": "2026-01-01T10:00:00+00:00"},
            {"override_until": "2026-01-01"},
            ["override ends: 2026-01-01 13:00:00 → 2026-01-01"],
        ),
    ],
)
def test_each_change_of_an_audit_entry_is_shown_in_one_line(
    before: object, after: object, told: list[str]
) -> None:
    assert changes(AuditEntry(before=before, after=after)) == told


def test_all_audit_lists_are_read_down_an_index(boss: Client, empty: None) -> None:
    """All lists of the audit are read through an index, and no list counts its entries."""
    sql(
        "INSERT INTO horsies_audit (id, actor, action, subject, at)"
        " SELECT horsies_uuid7(n), 'ada', 'queue.set', 'queue-' || n %% 50, now() - n * interval "
        "'1 s'"
        " FROM generate_series(1, %s) AS n",
        [20_000],
    )
    sql("ANALYZE horsies_audit")

    for query, index in (
        ({}, {"horsies_audit_pkey"}),
        ({"action": "queue.pause"}, {"horsies_audit_pkey"}),
        ({"subject": "queue-7"}, {"horsies_audit_subject"}),
        ({"subject": "queue-7", "action": "queue.pause"}, {"horsies_audit_subject"}),
        ({"q": "queue-7"}, {"horsies_audit_subject"}),
    ):
        found = [
            text
            for text in queries(boss, reverse(AUDIT), **query)
            if 'FROM "horsies_audit"' in text
        ]

        assert len(found) == 1
        assert "count(" not in found[0].lower()
        assert "LIMIT 51" in found[0]
        assert set(plan_of(found[0])) == index, query
