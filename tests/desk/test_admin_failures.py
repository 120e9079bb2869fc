"""The page of failures: what failed since when, in groups, and where; and the page that acts on all tasks that match."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from horsies_django.admin.tasks import bulk as acts
from horsies_django.core.counts import OTHER
from horsies_django.models import AuditEntry, Task
from horsies_django.monitoring import history as module
from horsies_django.tasks import selection
from tests.conftest import sql
from tests.desk.test_admin import body, client_with, listed, says
from tests.desk.test_operations import failures
from tests.support.factories import TaskAttemptFactory, TaskFactory, now
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db
PAGE = reverse("admin:horsies_task_failures")
HOUR, NONE = dt.timedelta(hours=1), dt.timedelta(0)
PAY, SHIP = 'shop/tasks.py in "pay" & <co>', "shop/tasks.py in ship"


def count(task: str, result: str, n: int, ago: dt.timedelta = NONE, width: int = 3600, queue: str = "mail") -> None:
    sql(
        "INSERT INTO horsies_history SELECT %(w)s, to_timestamp(floor(extract(epoch FROM now() - %(ago)s) / %(w)s) * %(w)s),"
        " %(queue)s, %(task)s, %(result)s, %(n)s, 0, array_fill(0, ARRAY[16])",
        {"w": width, "ago": ago, "queue": queue, "task": task, "result": result, "n": n},
    )


def fail(exception: Any, site: Any, message: str = "s3cret", ago: dt.timedelta = NONE, **columns: Any) -> Task:
    """Make a task that failed at its second attempt, elsewhere than at its first one."""
    values = {"task_name": "shop.pay", "error_code": "OH_NO", **columns}
    task: Task = TaskFactory(status="FAILED", finished_at=now() - ago, **values)
    early = {"exception_class": "Early", "site": "shop/tasks.py in early", "error_message": "s3cret"}
    TaskAttemptFactory(task_id=task.pk, attempt=1, **early)
    last = {"exception_class": exception, "site": site, "error_message": message}
    TaskAttemptFactory(task_id=task.pk, attempt=2, finished_at=task.finished_at, **last)
    return task


def rows(page: str) -> list[list[str]]:
    """Return the texts of the cells of all tables, without their links to other pages."""
    cell, of_page = r'<(?:td|th scope="row")[^>]*>(.*?)</t[dh]>', re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    found = [re.findall(cell, row, re.DOTALL)[:-1] for row in of_page]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells] for cells in found if cells]


def links(page: str, text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'<a href="([^"]+)">{text}</a>', page)]


def test_failures_for_good_are_counted_by_task_and_code_the_most_frequent_first(boss: Client) -> None:
    """Naive: retries and returned errors are counted, or each queue has a row of its own."""
    count("shop.pay", "OH_NO", 3)
    count("shop.pay", "OH_NO", 4, queue="bulk")
    count("shop.ship", "NO_ROOM", 9)
    count("shop.pay", "TASK_TIMEOUT", 1)
    for result in ("RETRIED", "RETURNED", "COMPLETED", "CRASHED", "EXPIRED", "CANCELLED"):
        count("shop.pay", result, 100)
    page = body(boss, PAGE)
    assert rows(page) == [["shop.ship", "NO_ROOM", "9"], ["shop.pay", "OH_NO", "7"], ["shop.pay", "TASK_TIMEOUT", "1"]]
    assert ">17 failed for good since " in page


def test_each_span_has_what_was_counted_from_its_begin_on(boss: Client, settings: Any) -> None:
    """Naive: the row in which the span begins is left out, and half of a night's first hour with it."""
    for hours in (0, 1, 23, 24, 26, 100, 168, 170, 400):
        count("shop.pay", f"H{hours}", 1, hours * HOUR)
    for minutes in (0, 59, 60, 63):
        count("shop.pay", f"M{minutes}", 1, dt.timedelta(minutes=minutes), width=60)
    found = {span: {cells[1] for cells in rows(body(boss, PAGE, since=span))} for span in ("hour", "day", "week")}
    assert found["hour"] == {"M0", "M59", "M60"}
    assert found["day"] == {"H0", "H1", "H23", "H24"}
    assert found["week"] == {"H0", "H1", "H23", "H24", "H26", "H100", "H168"}
    assert rows(body(boss, PAGE, since="nonsense\x00")) == rows(body(boss, PAGE)), "last night"
    settings.TIME_ZONE = "Asia/Kolkata"  # half an hour beside the hours that are counted
    (told,) = re.findall(r"since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", body(boss, PAGE))
    yesterday = dt.datetime.now(dt.timezone(dt.timedelta(hours=5, minutes=30))).date() - dt.timedelta(days=1)
    assert dt.datetime.fromisoformat(told) == dt.datetime.combine(yesterday, dt.time(17, 30)), "six in the evening"


def test_a_group_is_opened_by_class_and_site_with_links_to_just_these(boss: Client, monkeypatch: Any) -> None:
    """Naive: the first attempts are counted, or "Retry all" retries what failed elsewhere."""
    count("shop.pay", "OH_NO", 5)
    late = fail("ValueError", PAY, "the newest")
    wanted = {late.pk, fail("ValueError", PAY, "older", HOUR / 4).pk, fail("KeyError", PAY, ago=HOUR / 3).pk}
    fail("ValueError", SHIP)
    fail(None, None)
    fail("ValueError", PAY, error_code="OTHER")
    fail("ValueError", PAY, task_name="shop.ship")
    fail("ValueError", PAY, ago=300 * HOUR)
    page = body(boss, PAGE, since="hour", task="shop.pay", code="OH_NO")
    found = rows(page)
    assert found[0][:3] == ["ValueErrorthe newest", PAY, "2"]
    others = [["KeyErrors3cret", PAY, "1"], ["ValueErrors3cret", SHIP, "1"], ["–s3cret", "–", "1"]]
    assert sorted(cells[:3] for cells in found[1:4]) == others
    show, retry = links(page, "Show")[0], links(page, "Retry all")[0]
    assert set(listed(boss, **dict(parse_qsl(urlsplit(show).query)))) == wanted
    assert '<h2 id="horsies-found">3 tasks</h2>' in body(boss, retry)
    assert parse_qsl(urlsplit(show).query) == parse_qsl(urlsplit(retry).query)
    monkeypatch.setattr(module, "NEWEST", 1)
    seen = [cells[2] for cells in rows(body(boss, PAGE, task="shop.pay", code="OH_NO"))]
    assert seen == ["1", "5"], "so many are looked at, of those that were counted"


def test_what_is_counted_together_has_no_link_and_a_group_that_is_gone_says_so(boss: Client) -> None:
    count(OTHER, "OH_NO", 2)
    count("shop.pay", OTHER, 1)
    page = body(boss, PAGE)
    assert [len(links(page, text)) for text in ("Show", "Retry all", re.escape(OTHER), "shop.pay")] == [0, 0, 0, 0]
    assert "They have been deleted, or retried." in body(boss, PAGE, task="shop.gone", code="OH_NO")


# The page that acts on all tasks that match


ALL = reverse("admin:horsies_task_all")
LIST = reverse("admin:horsies_task_changelist")
OPERATOR = ("view_task", "operate_task")


def hidden(page: str) -> str:
    (found,) = re.findall(r'name="act" value="([^"]+)"', page)
    return html.unescape(found)


def posted(client: Client, page: str, **values: str) -> str:
    return str(client.post(ALL, {"act": hidden(page), **values}).content.decode())


def begun(client: Client, status: str, **how: Any) -> str:
    """Return a signed act of the user of this browser, as their page has it."""
    me = User.objects.get(pk=client.session["_auth_user_id"]).get_username()
    return acts.Progress(me, selection.matching(status), 1, False, **how).signed()


def statuses() -> Counter[str]:
    return Counter(Task.objects.values_list("status", flat=True))


def test_a_nights_failures_are_retried_in_four_clicks(boss: Client) -> None:
    """The list of failed tasks, the link, "Count them", "Retry all"."""
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


def test_an_act_that_takes_long_or_is_refused_says_how_far_it_is_and_why_and_goes_on(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: a page that only says why, and nobody knows what was done."""
    monkeypatch.setattr(selection, "BATCH", 2)
    *_, last = failures(5)
    page = body(boss, ALL, status="FAILED")
    monkeypatch.setattr(acts, "REQUEST_SECONDS", 0.0)
    page = posted(boss, page, verb="retry")
    assert re.search(r'<progress value="2" max="5"', page)
    assert "data-continues" in page
    page = posted(boss, page, stop="Stop")
    assert ("<h2>Stopped</h2>" in page, "data-continues" in page) == (True, False)
    assert statuses() == {"PENDING": 4, "FAILED": 1}
    with refused("horsies_tasks", f"OLD.id = '{last.pk}'"):
        page = posted(boss, page, go="Continue")
    assert ("<h2>Stopped</h2>" in page, "<li>RETRIED: 4</li>" in page, "data-continues" in page) == (True, True, False)
    assert "The database refused" in page
    assert "<li>RETRIED: 5</li>" in posted(boss, page, go="Continue")
    assert statuses() == {"PENDING": 5}
    assert len({entry.after["act"] for entry in AuditEntry.objects.filter(action="task.retry")}) == 1


def test_a_page_counts_the_first_entries_and_an_act_reads_all(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: nothing can be done to tasks that are behind those that were counted."""
    monkeypatch.setattr(selection, "DEEPEST", 2)
    failures(3, task_name="shop.pay")
    failures(1, task_name="shop.late", finished_at=now())
    page = body(boss, ALL, status="FAILED", name="shop.late")
    assert '<h2 id="horsies-found">At least 0 tasks</h2>' in page
    assert "<li>RETRIED: 1</li>" in posted(boss, page, verb="retry")
    assert statuses() == {"FAILED": 3, "PENDING": 1}


@pytest.mark.parametrize(
    ("status", "verb", "permissions", "allowed"),
    [
        ("FAILED", "retry", OPERATOR, True),
        ("FAILED", "redact", OPERATOR, False),
        ("FAILED", "redact", (*OPERATOR, "view_payload"), True),
        ("PENDING", "cancel", OPERATOR, True),
        ("PENDING", "retry", OPERATOR, False),
        ("FAILED", "cancel", OPERATOR, False),
        ("RUNNING", "terminate", OPERATOR, True),
        ("COMPLETED", "burn", (*OPERATOR, "view_payload"), False),
    ],
)
def test_each_verb_needs_its_permission_and_a_status_that_allows_it(
    boss: Client, status: str, verb: str, permissions: tuple[str, ...], allowed: bool
) -> None:
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


def test_what_was_not_signed_here_for_this_user_or_may_not_be_any_more_is_refused(boss: Client) -> None:
    failures(1)
    page = body(boss, ALL, status="FAILED")
    client = client_with(*OPERATOR)
    for browser, text in ((boss, hidden(page) + "x"), (boss, "nonsense"), (client, hidden(page))):
        assert browser.post(ALL, {"act": text, "verb": "retry"}).status_code == 403
    for reason in ("a\0b", "x" * 10_001):
        assert boss.post(ALL, {"act": hidden(page), "verb": "retry", "reason": reason}).status_code == 403
    assert statuses() == {"FAILED": 1}
    act = begun(client, "FAILED", verb="redact", reason="asked", verdicts={})
    assert client.post(ALL, {"act": act, "go": "Continue"}).status_code == 403
    assert not Task.objects.exclude(redacted_at=None).exists()
