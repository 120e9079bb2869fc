"""The admin changes a queue's limits for those who may, under their name, and tells what it did or why it did not."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django import queues
from horsies_django.models import AuditEntry, Queue
from tests.conftest import limit
from tests.desk.test_admin import body, client_with, page_of
from tests.support.factories import TaskFactory
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_queue_changelist"
VERBS = ("override", "clear", "pause", "resume")
MAY = ("view_queue", "configure_queue")
WHY = "the provider throttles us"


def url(verb: str, name: str = "mail") -> str:
    return reverse(f"admin:horsies_queue_{verb}", args=(quote(name),))


def messages(response: Any) -> list[tuple[str, str]]:
    return [(str(message), message.level_tag) for message in response.context["messages"]]


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def post(client: Client, verb: str, name: str = "mail", **values: str) -> Any:
    """Post a form as its page gave it, with other values; follow to the page that it leads to."""
    page = client.get(url(verb, name))
    return client.post(url(verb, name), {"seen": page.context["seen"], **values}, follow=True)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("permissions", [("view_queue",), ("configure_queue",), ("view_task", "operate_task")])
def test_forms_are_for_those_who_may_see_and_configure(verb: str, permissions: tuple[str, ...]) -> None:
    queues.pause("mail", actor="ada", reason=WHY)
    before = Queue.objects.values().get(name="mail")
    client = client_with(*permissions)
    assert client.get(url(verb)).status_code == 403
    assert client.post(url(verb), {"max_concurrency": "1", "reason": WHY}).status_code == 403
    assert Queue.objects.values().get(name="mail") == before
    for name in ("no such queue", "a\x00b"):
        assert client.get(url(verb, name)).status_code == 403


@pytest.mark.parametrize("verb", VERBS)
def test_strangers_and_users_who_are_no_staff_are_sent_to_the_login(verb: str, client: Client) -> None:
    address = url(verb)
    assert client.post(address, {"reason": WHY})["Location"].startswith(reverse("admin:login"))
    client.force_login(User.objects.create_user("customer"))
    assert client.post(address, {"reason": WHY})["Location"].startswith(reverse("admin:login"))
    assert not AuditEntry.objects.exclude(actor="migrate").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_form_from_elsewhere_is_refused(verb: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    assert client.post(url(verb), {"max_concurrency": "1", "reason": WHY}).status_code == 403


def test_the_ways_to_change_a_queue_show_for_those_who_may_and_as_it_stands() -> None:
    mail = Queue.objects.get(name="mail")
    viewer, keeper = client_with("view_queue"), client_with(*MAY)

    def offered(client: Client) -> set[str]:
        html = body(client, page_of(mail))
        return {verb for verb in VERBS if f'href="{url(verb)}"' in html}

    assert offered(viewer) == set()
    assert offered(keeper) == {"override", "pause"}
    queues.pause("mail", actor="ada", reason=WHY)
    queues.override("mail", {"max_concurrency": 1}, actor="ada", reason=WHY)
    assert offered(keeper) == {"override", "clear", "resume"}
    assert offered(viewer) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_looking_at_a_form_changes_nothing(boss: Client, verb: str) -> None:
    queues.override("mail", {"max_concurrency": 1}, actor="ada", reason=WHY)
    before = Queue.objects.values().get(name="mail")
    for method in (boss.get, boss.head):
        assert method(url(verb), {"max_concurrency": "1", "reason": "just looking"}).status_code == 200
    assert Queue.objects.values().get(name="mail") == before


@pytest.mark.promise("S4.18")
def test_an_override_takes_the_limits_that_were_given_under_the_users_name() -> None:
    client = client_with(*MAY)
    user = User.objects.get()
    until = (timezone.localtime(dt.datetime.now(dt.UTC)) + dt.timedelta(days=1)).replace(second=0, microsecond=0)
    response = post(
        client, "override", max_concurrency="4", local_limit=" None ", partition_max_concurrency="", reason=WHY,
        until=f"{until:%Y-%m-%dT%H:%M}",
    )  # fmt: skip
    assert response.redirect_chain == [(page_of(Queue(name="mail")), 302)]
    queue = Queue.objects.get(name="mail")
    assert queue.override == {"max_concurrency": 4, "local_limit": None}
    assert (queue.override_by, queue.override_reason) == (user.username, WHY)
    assert timezone.localtime(queue.override_until) == until if timezone.is_aware(queue.override_until) else True
    entry = AuditEntry.objects.latest("pk")
    assert (entry.actor, entry.action, entry.subject, entry.reason) == (user.username, "queue.override", "mail", WHY)
    ((text, level),) = messages(response)
    assert level == "success"
    assert "concurrency (override): – → 4" in text


def test_an_override_starts_from_the_one_that_is_there_and_asks_for_a_reason_anew(boss: Client) -> None:
    queues.override("mail", {"max_concurrency": 3, "local_limit": None}, actor="ada", reason=WHY)
    form = boss.get(url("override")).context["form"]
    assert [form[name].value() for name in ("max_concurrency", "local_limit", "reason")] == [3, "none", None]
    post(boss, "override", partition_local_limit="2", reason="another")
    assert Queue.objects.get(name="mail").override == {"partition_local_limit": 2}


def as_rendered(html: str) -> dict[str, str]:
    """Return what a browser would send for a form nobody touched: it leaves out seconds that are zero."""
    inputs = re.findall(r"<input [^>]*>", html)
    found = {}
    for tag in inputs:
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        if "name" in attributes and attributes["type"] != "submit":
            found[attributes["name"]] = attributes.get("value", "")
            if attributes["type"] == "datetime-local":
                found[attributes["name"]] = attributes.get("value", "").removesuffix(":00")
    return found


UNTIL = dt.datetime(2037, 5, 6, 14, 3, 27, 123_456, tzinfo=dt.UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "until", [UNTIL, UNTIL.replace(second=0), dt.datetime(2037, 10, 25, 1, 30, 5, 7, tzinfo=dt.UTC)], ids=str
)  # the last one comes twice by the clock of Berlin
def test_an_until_that_nobody_touched_keeps_its_seconds(boss: Client, settings: Any, zone: str, until: Any) -> None:
    settings.TIME_ZONE = zone
    queues.override("mail", {"max_concurrency": 3}, actor="ada", reason=WHY, until=until)
    held = Queue.objects.get(name="mail").override_until
    form = as_rendered(body(boss, url("override")))
    failed = boss.post(url("override"), {**form, "max_concurrency": "many", "reason": WHY})
    assert set(failed.context["form"].errors) == {"max_concurrency"}
    again = as_rendered(failed.content.decode())
    assert again["until"] == form["until"]
    post(boss, "override", **{**again, "max_concurrency": "5", "reason": WHY})
    queue = Queue.objects.get(name="mail")
    assert (queue.override, queue.override_until) == ({"max_concurrency": 5}, held)


def test_an_until_that_somebody_changed_is_taken_as_it_was_written(boss: Client) -> None:
    queues.override("mail", {"max_concurrency": 3}, actor="ada", reason=WHY, until=UNTIL)
    form = as_rendered(body(boss, url("override")))
    post(boss, "override", **{**form, "until": "2036-01-02T03:04:05", "reason": WHY})
    until = Queue.objects.get(name="mail").override_until
    assert until is not None
    local = timezone.localtime(until) if timezone.is_aware(until) else until
    assert f"{local:%FT%T.%f}" == "2036-01-02T03:04:05.000000"
    form = as_rendered(body(boss, url("override")))
    post(boss, "override", **{**form, "until": "", "reason": WHY})
    assert Queue.objects.get(name="mail").override_until is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_concurrency", value) for value in ("many", "-1", "1.5", "1_000", "１２", "9" * 30, "0x10", "1000001", "nil")),
        ("local_limit", "0"), ("partition_max_concurrency", "0"), ("partition_local_limit", "<b>2</b>"),
        ("max_concurrency", "a\x00b"), ("reason", ""), ("reason", "   "), ("reason", "x" * 1_001), ("reason", "a\x00b"),
        ("until", "tomorrow"), ("until", "0000-00-00T00:00"), ("until", "9999-12-31T23:59"), ("until", "10000-01-01T00:00"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_at_its_field_and_changes_nothing(boss: Client, field: str, value: str) -> None:
    response = post(boss, "override", **{"max_concurrency": "4", "reason": WHY, field: value})
    assert response.status_code == 200
    assert set(response.context["form"].errors) == {field}
    assert "Nothing was changed." in response.content.decode()
    assert Queue.objects.get(name="mail").override is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "Enter at least one limit"),
        ({"max_concurrency": "4", "until": "2001-01-01T10:00"}, "is in the past"),
        ({"max_concurrency": "4", "until": "0001-01-02T00:00"}, "is in the past"),
    ],
)
def test_what_the_queue_refuses_is_told_above_the_form(boss: Client, values: dict[str, str], told: str) -> None:
    response = post(boss, "override", reason=WHY, **values)
    assert response.status_code == 200
    assert told in str(response.context["form"].non_field_errors())
    assert Queue.objects.get(name="mail").override is None


def test_a_queue_is_paused_resumed_and_its_override_cleared(boss: Client) -> None:
    queues.override("mail", {"max_concurrency": 4}, actor="ada", reason=WHY)
    post(boss, "pause", reason="<b>maintenance</b>")
    paused = Queue.objects.get(name="mail")
    assert (paused.paused_by, paused.paused_reason) == ("boss", "<b>maintenance</b>")
    assert "&lt;b&gt;maintenance&lt;/b&gt;" in body(boss, page_of(paused))
    post(boss, "resume")
    post(boss, "clear", reason="it is over")
    open_ = Queue.objects.get(name="mail")
    assert (open_.paused_at, open_.paused_by, open_.override) == (None, None, None)
    written = AuditEntry.objects.order_by("pk").filter(actor="boss").values_list("action", "reason")
    assert list(written) == [
        ("queue.pause", "<b>maintenance</b>"), ("queue.resume", None), ("queue.clear", "it is over"),
    ]  # fmt: skip


def test_to_ask_for_what_is_so_already_says_so(boss: Client) -> None:
    assert messages(post(boss, "clear")) == [
        ("Queue mail: nothing was changed, because it already has these values.", "info")
    ]
    assert not AuditEntry.objects.filter(actor="boss").exists()


def test_what_others_changed_while_the_form_was_open_is_told_and_the_last_write_holds(boss: Client) -> None:
    seen = boss.get(url("override")).context["seen"]
    queues.override("mail", {"max_concurrency": 9}, actor="ada", reason="more")
    values = {"seen": seen, "max_concurrency": "4", "reason": WHY}
    others, mine = messages(boss.post(url("override"), values, follow=True))
    assert others == (
        "While the form was open, ada also changed queue mail: Overridden; concurrency (override): – → 9. "
        "The last change applies.",
        "warning",
    )
    assert mine == ("Queue mail: Overridden; concurrency (override): 9 → 4.", "success")
    assert Queue.objects.get(name="mail").override == {"max_concurrency": 4}


def test_a_change_that_the_audit_cannot_record_is_made_and_the_user_is_told_both(boss: Client) -> None:
    with refused("horsies_audit", event="INSERT"):
        (said,) = messages(boss.post(url("pause"), {"reason": WHY}, follow=True))
    assert said == ("Queue mail: Paused, but the audit has no entry of it.", "warning")
    assert Queue.objects.get(pk="mail").paused_by == "boss"


@pytest.mark.parametrize("seen", ["", "-1", "9" * 40, "x", "1' OR 1=1", "٣"])
def test_a_form_that_lost_its_place_is_taken_all_the_same(boss: Client, seen: str) -> None:
    response = boss.post(url("pause"), {"seen": seen, "reason": WHY}, follow=True)
    assert [level for _text, level in messages(response)] == ["success"]
    assert Queue.objects.get(name="mail").paused_by == "boss"


@pytest.mark.parametrize("name", ["no such queue", "a\x00b", "<b>x</b>", "a_00b"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_queue_that_is_not_there_leads_to_the_index_and_is_not_made(boss: Client, verb: str, name: str) -> None:
    for response in (boss.get(url(verb, name)), boss.post(url(verb, name), {"max_concurrency": "1", "reason": WHY})):
        assert (response.status_code, response["Location"]) == (302, reverse("admin:index"))
    assert not AuditEntry.objects.exclude(actor="migrate").exists()


@pytest.mark.parametrize("name", ["a/b", "a_2Fb", "50%_25", "import_50", "q/pause", "?x=1#y", "schlüssel"])
def test_a_queue_of_any_name_is_found_by_its_links(boss: Client, name: str) -> None:
    limit(name, max_concurrency=2)
    task = TaskFactory(queue_name=name)
    assert f'href="{url("change", name)}"' in body(boss, reverse(LIST))
    assert f'<a href="{url("change", name)}">' in body(boss, page_of(task))
    assert f'href="{url("pause", name)}"' in body(boss, url("change", name))
    post(boss, "pause", name, reason=WHY)
    assert Queue.objects.get(name=name).paused_by == "boss"


def test_the_cluster_has_one_limit_and_its_own_page(boss: Client) -> None:
    limit("*", max_concurrency=40)
    TaskFactory.create_batch(2, queue_name="mail", status="RUNNING")
    html = body(boss, url("change", "*"))
    assert "the whole cluster" in html
    assert html.count("shop.tasks.send_receipt") == 2
    assert set(boss.get(url("override", "*")).context["form"].fields) == {"max_concurrency", "reason", "until"}
    post(boss, "override", "*", max_concurrency="8", local_limit="1", reason=WHY)
    assert Queue.objects.get(name="*").override == {"max_concurrency": 8}


@pytest.mark.django_db(transaction=True)
def test_limits_that_somebody_keeps_locked_are_an_error_on_the_form(
    boss: Client, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(queues, "TRIES", 2)
    keeper = connect()
    with keeper.transaction():
        keeper.execute("LOCK TABLE horsies_limits IN ACCESS SHARE MODE")
        response = post(boss, "pause", reason=WHY)
        assert response.status_code == 200
        assert "keeps the limits locked" in str(response.context["form"].non_field_errors())
    assert messages(post(boss, "pause", reason=WHY))[0][1] == "success"


def test_a_user_whose_name_is_markup_is_named_as_text(client: Client) -> None:
    name = f"<script>{uuid.uuid4()}</script>"
    client.force_login(User.objects.create_superuser(name))
    response = post(client, "pause", reason="<img src=x>")
    html = response.content.decode()
    assert Queue.objects.get(name="mail").paused_by == name
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<img src=x>" not in html


@pytest.mark.django_db(transaction=True)
def test_a_database_role_without_the_rights_is_an_error_on_the_form(boss: Client) -> None:
    role = f"site_{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}")
        try:
            cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
            cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
            cursor.execute(f"REVOKE INSERT, UPDATE, DELETE ON horsies_limits FROM {role}; SET ROLE {role}")
            response = post(boss, "pause", reason=WHY)
        finally:
            cursor.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert response.status_code == 200
    assert "permission denied for table horsies_limits" in str(response.context["form"].non_field_errors())
    assert Queue.objects.get(name="mail").paused_at is None
