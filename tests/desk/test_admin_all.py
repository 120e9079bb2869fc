"""The page that acts on all tasks that match: what it says first, who may do what, and that it goes on where it stopped."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections import Counter
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from horsies_django.admin.tasks import bulk as module
from horsies_django.models import AuditEntry, Task
from horsies_django.tasks import selection
from tests.desk.test_admin import body, client_with
from tests.desk.test_operations import failures
from tests.support.factories import TaskFactory, now
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db
ALL = reverse("admin:horsies_task_all")
LIST = reverse("admin:horsies_task_changelist")
OPERATOR = ("view_task", "operate_task")


def hidden(page: str) -> str:
    (found,) = re.findall(r'name="act" value="([^"]+)"', page)
    return html.unescape(found)


def posted(client: Client, page: str, **values: str) -> Any:
    return client.post(ALL, {"act": hidden(page), **values})


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
    done = posted(boss, page, verb="retry", reason="the bank is back", spread="10").content.decode()
    assert "<h2>Done</h2>" in done
    assert "<li>RETRIED: 5</li>" in done
    assert statuses() == {"PENDING": 5, "FAILED": 1}
    entry = AuditEntry.objects.get(action="task.retry")
    assert (entry.actor, entry.reason) == ("boss", "the bank is back")
    assert any(task.enqueued_at > now() for task in Task.objects.filter(status="PENDING"))


def test_an_act_that_takes_long_shows_how_far_it_is_and_goes_on_or_stops(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.0)
    monkeypatch.setattr(selection, "BATCH", 2)
    failures(5)
    page = posted(boss, body(boss, ALL, status="FAILED"), verb="retry").content.decode()
    assert re.search(r'<progress value="2" max="5"', page)
    assert "data-continues" in page
    page = posted(boss, page, stop="Stop").content.decode()
    assert ("<h2>Stopped</h2>" in page, "data-continues" in page) == (True, False)
    assert statuses() == {"PENDING": 4, "FAILED": 1}
    page = posted(boss, page, go="Continue").content.decode()
    assert "<li>RETRIED: 5</li>" in page
    assert statuses() == {"PENDING": 5}
    assert len({entry.after["act"] for entry in AuditEntry.objects.filter(action="task.retry")}) == 1


def test_a_page_counts_the_first_entries_of_an_index_and_an_act_reads_all(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: nothing can be done to tasks that are behind those that were counted."""
    monkeypatch.setattr(selection, "DEEPEST", 2)
    failures(3, task_name="shop.pay")
    failures(1, task_name="shop.late", finished_at=now())
    page = body(boss, ALL, status="FAILED", name="shop.late")
    assert '<h2 id="horsies-found">At least 0 tasks</h2>' in page
    assert "<li>RETRIED: 1</li>" in posted(boss, page, verb="retry").content.decode()
    assert statuses() == {"FAILED": 3, "PENDING": 1}


@pytest.mark.parametrize(
    ("status", "verb", "permissions", "allowed"),
    [
        ("FAILED", "retry", OPERATOR, True),
        ("FAILED", "retry", ("view_task", "view_payload"), False),
        ("FAILED", "retry", ("operate_task",), False),
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
    me = User.objects.get(pk=client.session["_auth_user_id"]).get_username()
    ready = module.Progress(me, selection.matching(status), 1, False)
    response = client.post(ALL, {"act": ready.signed(), "verb": verb, "reason": "asked"})
    assert response.status_code == (200 if allowed else 403)
    task.refresh_from_db()
    changed = (task.status, task.terminate, task.redacted_at is not None) != (status, False, False)
    assert changed == allowed


def test_what_was_not_signed_here_for_this_user_is_refused(boss: Client) -> None:
    failures(1)
    page = body(boss, ALL, status="FAILED")
    for client, text in ((boss, hidden(page) + "x"), (boss, "nonsense"), (client_with(*OPERATOR), hidden(page))):
        assert client.post(ALL, {"act": text, "verb": "retry"}).status_code == 403
    assert statuses() == {"FAILED": 1}


def test_a_permission_that_was_withdrawn_meanwhile_ends_the_act(boss: Client) -> None:
    failures(1)
    client = client_with(*OPERATOR)
    me = User.objects.get(pk=client.session["_auth_user_id"]).get_username()
    begun = module.Progress(me, selection.matching("FAILED"), 1, False, verb="redact", reason="asked", verdicts={})
    assert client.post(ALL, {"act": begun.signed(), "go": "Continue"}).status_code == 403
    assert not Task.objects.exclude(redacted_at=None).exists()


def test_an_act_that_the_database_refuses_says_how_far_it_is_and_why_and_can_go_on(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: a page that only says why, and nobody knows what was done."""
    monkeypatch.setattr(selection, "BATCH", 2)
    *_, last = failures(5)
    page = body(boss, ALL, status="FAILED")
    with refused("horsies_tasks", f"OLD.id = '{last.pk}'"):
        page = posted(boss, page, verb="retry").content.decode()
    assert ("<h2>Stopped</h2>" in page, "<li>RETRIED: 4</li>" in page, "data-continues" in page) == (True, True, False)
    assert "The database refused" in page
    assert "<li>RETRIED: 5</li>" in posted(boss, page, go="Continue").content.decode()


def test_a_description_that_fits_no_task_or_no_status_says_so(boss: Client) -> None:
    failures(1)
    assert "have an error code or a site" in body(boss, ALL, status="RUNNING", code="OH_NO")
    assert "Select a valid choice" in body(boss, ALL, status="SLEEPING")
    assert "0 tasks" in body(boss, ALL, status="FAILED", name="shop.nothing")
    page = posted(boss, body(boss, ALL, status="FAILED"), verb="redact", reason=" ").content.decode()
    assert "a redaction needs a reason" in page
