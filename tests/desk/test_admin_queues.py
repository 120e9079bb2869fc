"""The admin shows the limits of queues and their reasons; permitted users change them by forms."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django import queues
from horsies_django.core.counts import CLAIMED, COMPLETED
from horsies_django.models import AuditEntry, Heartbeat, Queue, Task
from tests.conftest import Connect, limit
from tests.desk.test_admin import body, client_with, page_of, says, table
from tests.desk.test_admin_overview import counted
from tests.support.factories import (
    AuditEntryFactory,
    HeartbeatFactory,
    TaskFactory,
    living_worker,
    now,
)
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_queue_changelist"
WHY = "the provider throttles us"


def url(verb: str, name: str = "mail") -> str:
    return reverse(f"admin:horsies_queue_{verb}", args=(quote(name),))


def messages(response: Any) -> list[tuple[str, str]]:
    return [(str(message), message.level_tag) for message in response.context["messages"]]


def post(client: Client, verb: str, name: str = "mail", **values: str) -> Any:
    """Post a form with the given values, as its page gave it, and follow the redirect."""
    page = client.get(url(verb, name))
    return client.post(url(verb, name), {"seen": page.context["seen"], **values}, follow=True)


@pytest.mark.promise("S4.18")
def test_an_override_sets_the_given_limits_under_the_users_name(boss: Client) -> None:
    """An override has the limits that the form gives and the name of the user."""
    until = (timezone.localtime(dt.datetime.now(dt.UTC)) + dt.timedelta(days=1)).replace(
        second=0, microsecond=0
    )

    response = post(
        boss,
        "override",
        max_concurrency="4",
        local_limit=" None ",
        partition_max_concurrency="",
        reason=WHY,
        until=f"{until:%Y-%m-%dT%H:%M}",
    )

    assert response.redirect_chain == [(page_of(Queue(name="mail")), 302)]
    queue = Queue.objects.get(name="mail")
    assert queue.override == {"max_concurrency": 4, "local_limit": None}
    assert (queue.override_by, queue.override_reason) == ("boss", WHY)

    held = queue.override_until
    assert (
        timezone.localtime(held) if timezone.is_aware(held) else timezone.make_aware(held)
    ) == until

    entry = AuditEntry.objects.latest("pk")
    assert (entry.actor, entry.action, entry.subject, entry.reason) == (
        "boss",
        "queue.override",
        "mail",
        WHY,
    )

    ((text, level),) = messages(response)
    assert level == "success"
    assert "concurrency (override): – → 4" in text

    form = boss.get(url("override")).context["form"]
    assert [form[name].value() for name in ("max_concurrency", "local_limit", "reason")] == [
        4,
        "none",
        None,
    ]

    post(boss, "override", partition_local_limit="2", reason="another")
    assert Queue.objects.get(name="mail").override == {"partition_local_limit": 2}


def as_rendered(html: str) -> dict[str, str]:
    """Return what a browser sends for an unchanged form; it leaves out seconds that are zero."""
    found = {}
    for tag in re.findall(r"<input [^>]*>", html):
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        if "name" in attributes and attributes["type"] != "submit":
            value = attributes.get("value", "")
            found[attributes["name"]] = (
                value.removesuffix(":00") if attributes["type"] == "datetime-local" else value
            )

    return found


UNTIL = dt.datetime(2037, 5, 6, 14, 3, 27, 123_456, tzinfo=dt.UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "until",
    [
        UNTIL,
        UNTIL.replace(second=0),
        # By the clock of Berlin, this moment occurs twice.
        dt.datetime(2037, 10, 25, 1, 30, 5, 7, tzinfo=dt.UTC),
    ],
    ids=str,
)
def test_an_until_that_nobody_touched_keeps_its_seconds(
    boss: Client, settings: Any, zone: str, until: Any
) -> None:
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


def test_an_edited_until_is_stored_as_written(boss: Client) -> None:
    """If a user edits the end of an override, it is stored as it was written."""
    queues.override("mail", {"max_concurrency": 3}, actor="ada", reason=WHY, until=UNTIL)

    for written in ("2036-01-02T03:04:05", ""):
        form = as_rendered(body(boss, url("override")))
        post(boss, "override", **{**form, "until": written, "reason": WHY})
        until = Queue.objects.get(name="mail").override_until
        local = timezone.localtime(until) if until and timezone.is_aware(until) else until
        assert (local.strftime("%FT%T") if local else "") == written

    for held in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59", "x"):
        post(
            boss,
            "override",
            max_concurrency="5",
            until="2037-01-02T03:04:05",
            until_held=held,
            reason=held,
        )

        changed = Queue.objects.get(name="mail", override_until__year=2037)
        assert changed.override_reason == held, "the form cannot have been opened with it"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("max_concurrency", value)
            for value in ("many", "-1", "1.5", "1_000", "１２", "9" * 30, "0x10", "1000001", "nil")
        ),
        ("local_limit", "0"),
        ("partition_max_concurrency", "0"),
        ("partition_local_limit", "<b>2</b>"),
        ("max_concurrency", "a\x00b"),
        ("reason", ""),
        ("reason", "   "),
        ("reason", "x" * 10_001),
        ("reason", "a\x00b"),
        ("until", "tomorrow"),
        ("until", "0000-00-00T00:00"),
        ("until", "9999-12-31T23:59"),
        ("until", "10000-01-01T00:00"),
        # Values that the queue refuses are reported above the form.
        ("__all__", ""),
        ("__all__", "2001-01-01T10:00"),
        ("__all__", "0001-01-02T00:00"),
    ],
)
def test_an_invalid_limit_is_reported_at_its_field(boss: Client, field: str, value: str) -> None:
    if field == "__all__":
        values = {"max_concurrency": "4" if value else "", "until": value, "reason": WHY}
    else:
        values = {"max_concurrency": "4", "reason": WHY, field: value}

    response = post(boss, "override", **values)

    assert response.status_code == 200
    errors = response.context["form"].errors
    assert set(errors) == {field}
    if field == "__all__":
        assert ("is in the past" if value else "Enter at least one limit") in str(errors)

    assert "Nothing was changed." in response.content.decode()
    assert Queue.objects.get(name="mail").override is None


def test_a_queue_is_paused_and_resumed_from_its_page(
    boss: Client,
) -> None:
    """The page of a queue offers to pause and resume it and to clear its override."""

    def offered() -> set[str]:
        html = body(boss, url("change"))
        return {
            verb
            for verb in ("override", "clear", "pause", "resume")
            if f'href="{url(verb)}"' in html
        }

    assert offered() == {"override", "pause"}

    queues.override("mail", {"max_concurrency": 4}, actor="ada", reason=WHY)
    post(boss, "pause", reason="<b>maintenance</b>")

    assert offered() == {"override", "clear", "resume"}
    paused = Queue.objects.get(name="mail")
    assert (paused.paused_by, paused.paused_reason) == ("boss", "<b>maintenance</b>")
    assert "&lt;b&gt;maintenance&lt;/b&gt;" in body(boss, page_of(paused))

    post(boss, "resume")
    post(boss, "clear", reason="it is over")
    open_ = Queue.objects.get(name="mail")
    assert (open_.paused_at, open_.paused_by, open_.override) == (None, None, None)

    written = AuditEntry.objects.order_by("pk").filter(actor="boss").values_list("action", "reason")
    done = [
        ("queue.pause", "<b>maintenance</b>"),
        ("queue.resume", None),
        ("queue.clear", "it is over"),
    ]
    assert list(written) == done

    unchanged = (
        "Queue mail: nothing was changed, because its state did not need or allow the change."
    )
    assert messages(post(boss, "clear")) == [(unchanged, "info")]
    assert list(written.all()) == done

    # A form with an invalid ``seen`` is accepted.
    for seen in ("", "-1", "9" * 40, "1' OR 1=1", "٣"):
        response = boss.post(url("pause"), {"seen": seen, "reason": repr(seen)}, follow=True)
        assert [level for _text, level in messages(response)] == ["success"]
        assert Queue.objects.get(name="mail").paused_reason == repr(seen)


@pytest.mark.django_db(transaction=True)
def test_a_refusal_of_the_database_is_an_error_on_the_form(
    boss: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal or a lock of the database is an error on the form.

    A lost entry of the audit is a warning.
    """

    def said() -> str:
        response = post(boss, "pause", reason=WHY)
        assert response.status_code == 200
        return str(response.context["form"].non_field_errors())

    with refused("horsies_queues", code="42501"):
        assert "refused" in said()

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(queues, "LOCK_TRIES", 2)
    keeper = connect()

    with keeper.transaction():
        keeper.execute("LOCK TABLE horsies_limits IN ACCESS SHARE MODE")
        assert "keeps the limits locked" in said()
    assert Queue.objects.get(name="mail").paused_at is None

    with refused("horsies_audit", event="INSERT"):
        (message,) = messages(boss.post(url("pause"), {"reason": WHY}, follow=True))

    assert message == ("Queue mail: Paused, but the audit has no entry for it.", "warning")
    assert Queue.objects.get(pk="mail").paused_by == "boss"


def test_the_cluster_has_one_limit_and_its_own_page(boss: Client) -> None:
    limit("*", max_concurrency=40)
    TaskFactory.create_batch(101, queue_name="mail", status="RUNNING")

    html = body(boss, url("change", "*"))

    says(html, "the whole cluster", "Only the 100 oldest permits are shown.")
    assert html.count("shop.tasks.send_receipt") == len(table(html, "horsies-permits")) == 100

    form = boss.get(url("override", "*")).context["form"]
    assert set(form.fields) == {"max_concurrency", "reason", "until", "until_held"}

    post(boss, "override", "*", max_concurrency="8", local_limit="1", reason=WHY)
    assert Queue.objects.get(name="*").override == {"max_concurrency": 8}


# The state of queues


@pytest.mark.promise("S4.23")
def test_the_list_shows_the_limits_in_force_and_whence_they_come(boss: Client) -> None:
    limit("mail", max_concurrency=8, partition_by_task=True, partition_max_concurrency=2)
    queues.override("mail", {"max_concurrency": 4}, actor="ada", reason=WHY)
    queues.pause("bulk", actor="ada", reason=WHY)

    rows = {row.name: row for row in boss.get(reverse(LIST)).context["cl"].result_list}
    html = body(boss, reverse(LIST))

    assert list(rows) == ["mail", "bulk", "twin", "default"]
    assert "4 in total, 2 per partition" in html
    assert (html.count("horsies-overridden"), html.count("horsies-paused")) == (1, 1)

    limit("*", max_concurrency=40)
    assert boss.get(reverse(LIST)).context["cl"].result_list[0].name == "*"

    living_worker("mail")
    TaskFactory(queue_name="mail")
    assert "horsies-silent" not in body(boss, reverse(LIST))
    TaskFactory(queue_name="bulk")
    assert body(boss, reverse(LIST)).count("horsies-silent") == 1, "it has work and no worker"


def test_a_queue_shows_declared_override_and_effective_limits(boss: Client) -> None:
    """A queue shows its declared limits, its override and the limits in force side by side."""
    limit(
        "mail",
        max_concurrency=8,
        local_limit=3,
        partition_by_args=["customer", "day"],
        partition_by_task=True,
    )
    queues.override("mail", {"max_concurrency": 4, "local_limit": None}, actor="ada", reason=WHY)

    assert table(body(boss, url("change")), "horsies-limits") == [
        ["Priority", "1", "–", "1"],
        ["Concurrency", "8", "4", "4 ✎ Overridden"],
        ["Concurrency per worker", "3", "no limit", "no limit ✎ Overridden"],
        ["Concurrency per partition", "no limit", "–", "no limit"],
        ["Concurrency per partition and worker", "no limit", "–", "no limit"],
        ["Partitions by", "arguments: customer, day; task", "–", "arguments: customer, day; task"],
        ["Policy of partitions", "–", "–", "–"],
    ]

    queues.pause("mail", actor="ada", reason="stop")
    html = body(boss, url("change"))
    assert ["Concurrency", "8", "4", "0 ‖ Paused"] in table(html, "horsies-limits")
    says(html, WHY, "stop")


def test_a_queue_shows_its_own_permits_and_busiest_partitions(
    boss: Client,
) -> None:
    """A queue shows its own permits, busiest partitions and waiting tasks, and none of others."""
    limit("mail", partition_by_args=["customer"], partition_max_concurrency=2)
    alive = living_worker("mail", hostname="web-1", pid=11)
    silent = living_worker("mail", hostname="web-2", pid=22)
    Heartbeat.objects.filter(pk=silent.pk).update(died_at=now())

    acme, globex = (
        {
            "queue_name": "mail",
            "kwargs": {"customer": name},
            "partition_key": f'{{"customer": "{name}"}}',
        }
        for name in ("acme", "globex")
    )

    since = now() - dt.timedelta(hours=2, minutes=30)
    held = TaskFactory(status="RUNNING", claimed_by=alive.pk, claimed_at=since, **acme)
    HeartbeatFactory(worker_id=alive.pk, pid=12_345, holding=[str(held.pk)])
    TaskFactory(status="RUNNING", claimed_by=alive.pk, **acme)
    TaskFactory(status="RUNNING", claimed_by=silent.pk, **globex)

    TaskFactory.create_batch(3, task_name="c.parked", parked=True, **acme)
    TaskFactory.create_batch(3, queue_name="mail", task_name="a.mail", enqueued_at=now())
    TaskFactory.create_batch(
        2, queue_name="mail", task_name="b.<mail>", enqueued_at=now() - dt.timedelta(minutes=7)
    )
    TaskFactory(queue_name="mail", task_name="d.later", enqueued_at=now() + dt.timedelta(hours=1))

    TaskFactory(queue_name="bulk", status="RUNNING", task_name="shop.of_another_queue")
    TaskFactory(queue_name="bulk", task_name="shop.of_another_queue")

    html = body(boss, url("change"))

    says(html, "web-2:22", "12345", "2 h 30 min")
    assert (html.count("horsies-silent"), "of_another_queue" in html) == (1, False)
    assert table(html, "horsies-permits")[0][-1] == "{&quot;customer&quot;: &quot;acme&quot;}"
    assert f'<a href="{page_of(held)}">shop.tasks.send_receipt</a>' in html
    assert f'<a href="{page_of(alive)}">web-1:11</a>' in html

    assert table(html, "horsies-partitions") == [
        ["{&quot;customer&quot;: &quot;acme&quot;}", "2", "2 ■ At its limit", "3"],
        ["{&quot;customer&quot;: &quot;globex&quot;}", "1", "2", "0"],
    ]

    first, second = table(html, "horsies-waiting")
    assert first[:2] == ["a. mail", "3"]
    assert second[:2] == ["b. &lt;mail&gt;", "2"]
    assert second[2].startswith("7 min")
    assert f'<a href="{reverse("admin:horsies_task_changelist")}?queue=mail">' in html

    plain = body(client_with("view_queue"), url("change"))
    says(plain, "shop.tasks.send_receipt", "web-1:11", "horsies.view_payload")
    assert "acme" not in plain

    limit("mail", partition_by_args=None, partition_by_task=True)
    Task.objects.filter(pk=held.pk).update(partition_key='{"": "a.full"}')
    assert "a.full&quot;}" in body(client_with("view_queue"), url("change")), (
        "names of tasks are no payload"
    )


def test_a_queue_shows_its_last_day_as_a_chart_with_figures(boss: Client) -> None:
    """The chart and the figures are those of the queue's last 24 hours.

    Fails if: they are made of the rows by minute, which are kept for hours only; or of all queues;
    or waits and results without a duration are counted together.
    """
    assert table(body(boss, url("change")), "horsies-day") == []

    counted(("mail", "shop.pay", "CARD", 4), ("mail", "shop.pay", COMPLETED, 96))
    counted(("mail", "", CLAIMED, 100), seconds=8)
    counted(
        ("mail", "shop.pay", COMPLETED, 100),
        ("bulk", "shop.pack", COMPLETED, 7),
        ago=dt.timedelta(hours=5),
    )
    counted(("mail", "shop.pay", "OLD", 1_000), ago=dt.timedelta(hours=30))

    html = body(boss, url("change"))

    assert table(html, "horsies-day") == [["196", "4", "2.4 s", "242 ms"]]
    assert "Tasks an hour: least 0, most 100, last 100; total failed: 4" in html
    assert re.findall(r'aria-hidden="true">(.*?)</text>', html) == ["100", "−24 h", "−12 h", "now"]

    queues.pause("*", actor="ada")
    assert table(body(boss, url("change", "*")), "horsies-day")[0][:2] == ["203", "4"]


def test_a_queue_shows_its_last_twenty_changes_and_no_others(boss: Client) -> None:
    limit("quiet", partition_by_task=True, partition_max_concurrency=2)
    AuditEntry.objects.all().delete()

    html = body(boss, url("change", "quiet"))
    says(
        html,
        "None: no task of this queue is running or claimed.",
        "No partition holds a permit.",
        "None.",
    )

    for number in range(1, 26):
        limit("mail", max_concurrency=number)
    AuditEntryFactory(actor="x", action="task.cancel", subject="mail", reason="a task of this name")

    entries = table(body(boss, url("change")), "horsies-audit")

    assert [entry[3] for entry in entries] == [
        f"concurrency: {number - 1} → {number}" for number in range(25, 5, -1)
    ]
    assert "?subject=mail" in body(boss, url("change"))
