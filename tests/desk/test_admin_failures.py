"""The page of failures: what failed since when, in groups; where those of one group failed; and who sees what of it."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django.admin.base import readonly
from horsies_django.core.counts import OTHER
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.monitoring import history as module
from horsies_django.tasks import selection
from tests.desk.test_admin import body, listed
from tests.support.factories import TaskAttemptFactory, TaskFactory, now

pytestmark = pytest.mark.django_db
PAGE = reverse("admin:horsies_task_failures")
HOUR = dt.timedelta(hours=1)
PAY, SHIP = "shop/tasks.py in pay", "shop/tasks.py in ship"


def count(
    task: str, result: str, n: int, ago: dt.timedelta = dt.timedelta(0), width: int = 3600, queue: str = "mail"
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_history SELECT %(w)s, to_timestamp(floor(extract(epoch FROM now() - %(ago)s) / %(w)s) * %(w)s),"
            " %(queue)s, %(task)s, %(result)s, %(n)s, 0, array_fill(0, ARRAY[16])",
            {"w": width, "ago": ago, "queue": queue, "task": task, "result": result, "n": n},
        )


def fail(
    exception: str | None,
    site: str | None,
    message: str = "s3cret",
    ago: dt.timedelta = dt.timedelta(0),
    **columns: Any,
) -> Task:
    """Make a task that failed at its second attempt, elsewhere than at its first one."""
    values = {"task_name": "shop.pay", "error_code": "OH_NO", **columns}
    task: Task = TaskFactory(status="FAILED", finished_at=now() - ago, **values)
    TaskAttemptFactory(
        task_id=task.pk, attempt=1, exception_class="Early", site="shop/tasks.py in early", error_message="s3cret"
    )
    TaskAttemptFactory(
        task_id=task.pk, attempt=2, claim_generation=2, finished_at=task.finished_at, exception_class=exception, site=site,
        error_message=message,
    )  # fmt: skip
    return task


def rows(page: str) -> list[list[str]]:
    """Return the texts of the cells of all tables, without their links to other pages."""
    found = [
        re.findall(r'<(?:td|th scope="row")[^>]*>(.*?)</t[dh]>', row, re.DOTALL)
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in cells[:-1]] for cells in found if len(cells) > 1]


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


def test_each_span_has_what_was_counted_from_its_begin_on(boss: Client) -> None:
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


def test_last_night_began_at_six_in_the_evening_of_the_day_before(boss: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"  # half an hour beside the hours that are counted
    (told,) = re.findall(r"since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", body(boss, PAGE))
    began = dt.datetime.fromisoformat(told)
    today = dt.datetime.now(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    assert (began.date(), began.time()) == (today.date() - dt.timedelta(days=1), dt.time(17, 30))


def test_a_group_is_opened_by_class_and_site_of_the_last_attempts_with_links_to_just_these(boss: Client) -> None:
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
    assert sorted(cells[:3] for cells in found[1:4]) == [
        ["KeyErrors3cret", PAY, "1"],
        ["ValueErrors3cret", SHIP, "1"],
        ["–s3cret", "–", "1"],
    ]
    show, retry = links(page, "Show")[0], links(page, "Retry all")[0]
    assert set(listed(boss, **dict(parse_qsl(urlsplit(show).query)))) == wanted
    assert '<h2 id="horsies-found">3 tasks</h2>' in body(boss, retry)
    assert parse_qsl(urlsplit(show).query) == parse_qsl(urlsplit(retry).query)


def test_the_newest_thousand_are_looked_at(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWEST", 2)
    for number in range(4):
        fail(f"E{number}", None, ago=number * HOUR / 60)
    assert [cells[0] for cells in rows(body(boss, PAGE, task="shop.pay", code="OH_NO"))] == ["E0s3cret", "E1s3cret"]


def test_what_is_counted_together_has_no_link_and_a_group_that_is_gone_says_so(boss: Client) -> None:
    count(OTHER, "OH_NO", 2)
    count("shop.pay", OTHER, 1)
    page = body(boss, PAGE)
    assert [len(links(page, text)) for text in ("Show", "Retry all", re.escape(OTHER), "shop.pay")] == [0, 0, 0, 0]
    assert "They have been deleted, or retried." in body(boss, PAGE, task="shop.gone", code="OH_NO")


def test_hostile_names_codes_and_messages_are_text(boss: Client) -> None:
    evil = "</td><script>alert(1)</script>\"'&amp;"
    fail(evil, evil, evil, task_name=evil, error_code=evil)
    count(evil, evil, 1)
    page = body(boss, PAGE, task=evil, code=evil)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 6
    (opened,) = links(page, re.escape(html.escape(evil)))
    assert dict(parse_qsl(urlsplit(opened).query)) == {"since": "night", "task": evil, "code": evil}
    assert len(listed(boss, **dict(parse_qsl(urlsplit(links(page, "Show")[0]).query)))) == 1
    assert body(boss, PAGE, task="a\x00", code="b\x00")


def test_it_costs_the_same_few_queries_for_many_and_gives_up_with_advice(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            body(boss, PAGE, task="shop.pay", code="OH_NO")
        return len(captured)

    fail("ValueError", PAY)
    few = cost()
    for number in range(20):
        fail(f"E{number}", PAY)
        count(f"shop.{number}", "OH_NO", 1)
    assert cost() == few <= 14
    monkeypatch.setattr(readonly, "STATEMENT_TIMEOUT_MS", 1)
    monkeypatch.setattr(selection, "DEEPEST", 1)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_history SELECT 3600, now() - n * interval '1 ms', 'q', 't' || n, 'X', 1, 0, "
            "array_fill(0, ARRAY[16]) FROM generate_series(1, 20000) n"
        )
    assert "took longer than three seconds" in body(boss, PAGE)


def test_a_moment_is_counted_from_the_begin_of_its_row() -> None:
    moment = dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert module.counted_from(moment, moment + HOUR) == moment.replace(second=0)
    assert module.counted_from(moment, moment + 3 * HOUR) == moment.replace(minute=0, second=0)
    assert module.groups(aware(now()), aware(now())) == []
