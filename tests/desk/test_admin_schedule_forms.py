"""The admin changes schedules for those who may, under their name, and tells what it did or why it did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from horsies_django import schedules
from horsies_django.models import AuditEntry, Schedule, Task
from tests.apps.project import tasks
from tests.desk.test_admin import body, client_with, page_of
from tests.desk.test_admin_limits import messages
from tests.desk.test_admin_schedules import DEFINITION, LIST, NAME, WHY, declare, force, make, row, url
from tests.support.factories import now

pytestmark = pytest.mark.django_db

ADD = "admin:horsies_schedule_add"
VERBS = ("run_now", "enable", "disable", "edit", "revert", "delete")
MAY = ("view_schedule", "configure_queue", "view_payload")


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def opened(client: Client, address: str) -> dict[str, Any]:
    """Return what a browser would post of a form that nobody touched."""
    page = client.get(address)
    assert page.status_code == 200
    form, values = page.context["form"], {"seen": page.context["seen"]}
    for field in form:
        value = field.field.prepare_value(field.value()) if hasattr(field.field, "prepare_value") else field.value()
        if field.name == "enabled":
            values |= {"enabled": "on"} if value else {}
        else:
            values[field.html_name] = "" if value is None else value
        if field.field.show_hidden_initial:
            values[field.html_initial_name] = "" if value is None else str(value)
    return values


def post(client: Client, page: str, name: str = "report", /, **values: Any) -> Any:
    """Post a form as its page gave it, with other values; None takes one out; follow to the page that it leads to."""
    address = reverse(ADD) if page == "add" else url(page, name)
    posted = {**opened(client, address), **values}
    return client.post(address, {key: value for key, value in posted.items() if value is not None}, follow=True)


@pytest.mark.parametrize("permissions", [("view_schedule",), ("configure_queue",), ("view_queue", "operate_task")])
@pytest.mark.parametrize("verb", [*VERBS, "add"])
def test_to_change_schedules_takes_both_permissions(verb: str, permissions: tuple[str, ...]) -> None:
    declare()
    schedules.change("report", {"priority": 9}, actor="ada")
    before = Schedule.objects.values().get()
    address = reverse(ADD) if verb == "add" else url(verb)
    client = client_with(*permissions)
    assert client.get(address).status_code == 403
    assert client.post(address, {"name": "another", **DEFINITION, "kwargs": "{}", "reason": WHY}).status_code == 403
    assert Schedule.objects.values().get() == before
    assert not Task.objects.exists()


@pytest.mark.parametrize("verb", [*VERBS, "add"])
def test_a_form_from_elsewhere_is_refused(verb: str) -> None:
    make()
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    assert client.post(reverse(ADD) if verb == "add" else url(verb), {"reason": WHY}).status_code == 403


def test_the_ways_to_change_a_schedule_show_for_those_who_may_and_as_it_stands() -> None:
    declare()
    viewer, keeper = client_with("view_schedule"), client_with(*MAY)

    def offered(client: Client) -> set[str]:
        html = body(client, url("change"))
        return {verb for verb in VERBS if f'href="{url(verb)}"' in html}

    assert offered(viewer) == set()
    assert offered(keeper) == {"run_now", "disable", "edit"}
    schedules.disable("report", actor="ada")
    assert offered(keeper) == {"run_now", "enable", "edit", "revert"}
    force(gone_at=now())
    assert offered(keeper) == {"run_now", "edit", "revert", "delete"}
    assert offered(viewer) == set()
    assert reverse(ADD) in body(keeper, reverse(LIST))
    assert reverse(ADD) not in body(viewer, reverse(LIST))


def test_a_schedule_that_the_admin_made_has_nothing_to_go_back_to(boss: Client) -> None:
    make(priority=4)
    assert url("revert") not in body(boss, url("change"))
    assert "there is nothing to revert to" in str(post(boss, "revert").context["form"].non_field_errors())


def test_a_schedule_that_no_code_declares_is_deleted_and_its_page_is_no_more(boss: Client) -> None:
    make(priority=4)
    response = post(boss, "delete", reason=WHY)
    assert response.redirect_chain == [(reverse(LIST), 302)]
    assert [level for _, level in messages(response)] == ["success"]
    assert not Schedule.objects.exists()
    entry = AuditEntry.objects.get(action="schedule.delete")
    assert (entry.actor, entry.reason, entry.before["priority"]) == ("boss", WHY, 4)


def test_a_schedule_that_the_code_declares_is_not_deleted_and_it_says_where_to(boss: Client) -> None:
    declare()
    assert "delete it there, or disable it here" in str(post(boss, "delete").context["form"].non_field_errors())
    assert row().declared_in is not None


@pytest.mark.parametrize("name", ["no such schedule", "a\x00b", "<b>x</b>"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_schedule_that_is_not_there_leads_to_the_index_and_is_not_made(boss: Client, verb: str, name: str) -> None:
    for response in (boss.get(url(verb, name)), boss.post(url(verb, name), {"reason": WHY})):
        assert (response.status_code, response["Location"]) == (302, reverse("admin:index"))
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("name", ["a/b", "add", "a_2Fb", "50%_25", "q/edit", "?x=1#y", "schlüssel"])
def test_a_schedule_of_any_name_is_found_by_its_links(boss: Client, name: str) -> None:
    make(name)
    assert f'href="{url("change", name)}"' in body(boss, reverse(LIST))
    assert f'href="{url("disable", name)}"' in body(boss, url("change", name))
    post(boss, "disable", name)
    assert row(name).definition["enabled"] is False


def test_the_arguments_are_for_those_who_may_see_payloads() -> None:
    declare(kwargs={"to": "secret@example.org"})
    schedules.change("report", {"kwargs": {"to": "secret-2@example.org"}}, actor="ada")
    entry = AuditEntry.objects.latest("pk")
    everything, plain = client_with(*MAY), client_with("view_schedule", "configure_queue", "view_auditentry")
    for page in ("change", "edit"):
        assert "secret-2@example.org" in body(everything, url(page))
        assert "secret" not in body(plain, url(page))
    assert "secret" not in body(plain, page_of(entry))
    assert "arguments: changed" in body(plain, reverse("admin:horsies_auditentry_changelist"))
    boss = client_with("view_auditentry", "view_payload")
    assert "secret-2@example.org" in body(boss, page_of(entry))
    post(plain, "edit", priority="5", reason=WHY)
    assert (row().definition["kwargs"], row().definition["priority"]) == ({"to": "secret-2@example.org"}, 5)


@pytest.mark.parametrize(
    "definition",
    [
        {}, {"task": 5, "pattern": None, "zone": []}, {**DEFINITION, "zone": "Mars/Olympus"}, {**DEFINITION, "kwargs": [1]},
        {**DEFINITION, "pattern": "every " + "9" * 5_000 + " minutes"}, {**DEFINITION, "colour": {"red": 1}},
        {**DEFINITION, "queue": {"a": 1}, "priority": "x", "most": None, "enabled": "yes", "catch_up": ["a"], "jitter_ms": 1.5},
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_read_has_a_page_and_can_be_corrected(
    boss: Client, definition: Mapping[str, Any]
) -> None:
    make()
    force(changes=dict(definition))
    assert "✕</span> Error" in body(boss, reverse(LIST))
    assert "The definition is invalid." in body(boss, url("change"))
    values: dict[str, Any] = {"reason": WHY, "enabled": "on", "kwargs": '{"to": "a@b"}', "most": "7", "priority": ""}
    values |= {
        "task": NAME,
        "pattern": "daily at 05:00",
        "zone": "UTC",
        "catch_up": "all",
        "jitter_ms": "5",
        "queue": "",
    }
    response = post(boss, "edit", **values)
    if "colour" in definition:
        assert "unknown key 'colour'".capitalize() in str(response.context["form"].errors).replace("&#x27;", "'")
    else:
        assert messages(response)[-1][1] == "success"
        assert row().definition["pattern"] == "daily at 05:00"
        assert "horsies-problem" not in body(boss, url("change"))


def test_run_now_sends_one_task_and_is_written_down_with_the_reason() -> None:
    make()
    client = client_with(*MAY, "view_task")
    assert client.get(url("run_now")).status_code == 200
    assert not Task.objects.exists()
    response = post(client, "run_now", reason=WHY)
    task = Task.objects.get()
    assert (task.task_name, task.kwargs, task.queue_name) == (NAME, {"to": "a@b"}, "mail")
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.subject, entry.reason) == ("schedule.run_now", "report", WHY)
    assert entry.after == {"task_id": str(task.pk)}
    html = response.content.decode()
    assert f'its task was sent, <a href="{page_of(task)}">{task.pk}</a>' in html
    assert "Run now" in str(response.context["entries"][0])


@pytest.mark.parametrize("change", [{"task": "tests.no_such_task"}, {"kwargs": {"to": 5}}, {"pattern": "never"}])
def test_what_cannot_be_sent_now_is_told_and_nothing_is_written(boss: Client, change: dict[str, Any]) -> None:
    make()
    force(changes={**DEFINITION, **change})
    before = AuditEntry.objects.count()
    response = post(boss, "run_now")
    assert response.context["form"].non_field_errors()
    assert (Task.objects.count(), AuditEntry.objects.count()) == (0, before)


def test_a_schedule_is_disabled_enabled_and_reverted(boss: Client) -> None:
    declare()
    assert messages(post(boss, "disable", reason=WHY)) == [
        ("Schedule report: Disabled; enabled: yes → no.", "success"),
    ]  # fmt: skip
    assert (row().definition["enabled"], row().next_at) == (False, None)
    assert messages(post(boss, "disable")) == [
        ("Schedule report: nothing was changed, because it already has these values.", "info")
    ]
    post(boss, "enable")
    assert row().definition["enabled"] is True
    schedules.change("report", {"pattern": "hourly at :05", "priority": 9}, actor="ada")
    post(boss, "revert", reason="it is over")
    assert (row().changes, row().definition) == ({}, row().declared)
    written = AuditEntry.objects.order_by("pk").filter(actor="boss").values_list("action", "reason")
    assert list(written) == [
        ("schedule.disable", WHY), ("schedule.enable", None), ("schedule.revert", "it is over"),
    ]  # fmt: skip


def test_an_edit_writes_what_was_altered_and_no_more(boss: Client) -> None:
    declare()
    response = post(boss, "edit", pattern="daily at 05:00", good_for_ms="60000", queue="bulk", reason=WHY)
    assert messages(response) == [
        (
            "Schedule report: Edited; pattern: 30 4 * * mon-fri → daily at 05:00; queue: the task's own → bulk; "
            "good for: no limit → 60,000 ms.",
            "success",
        )
    ]
    assert row().changes == {"pattern": "daily at 05:00", "good_for_ms": 60_000, "queue": "bulk"}
    assert [fire_time.local[-6:] for fire_time in response.context["coming"]] == [" 05:00"] * 5
    post(boss, "edit", good_for_ms="", queue="", enabled=None, reason=WHY)
    assert {key: row().definition[key] for key in ("good_for_ms", "queue", "enabled")} == {
        "good_for_ms": None, "queue": None, "enabled": False,
    }  # fmt: skip


def test_an_edit_that_alters_nothing_says_so(boss: Client) -> None:
    declare(task=tasks.mirror.name, kwargs={"point": tasks.Point(1, 2)})
    assert messages(post(boss, "edit", reason=WHY)) == [
        ("Schedule report: nothing was changed, because it already has these values.", "info")
    ]
    assert row().changes == {}


def test_the_arguments_of_a_task_with_types_of_its_own_are_edited_as_json(boss: Client) -> None:
    make(task=tasks.mirror.name, kwargs={"point": {"x": 1, "y": 2}})
    post(boss, "edit", kwargs='{"point": {"x": 3, "y": 4}}', priority="8", reason=WHY)
    assert (row().definition["kwargs"], row().definition["priority"]) == ({"point": {"x": 3, "y": 4}}, 8)
    response = post(boss, "edit", kwargs='{"point": {"x": "three"}}', reason=WHY)
    assert set(response.context["form"].errors) == {"kwargs"}


def test_what_others_changed_while_the_form_was_open_stays_and_is_told(boss: Client) -> None:
    declare()
    values = {**opened(boss, url("edit")), "priority": "8", "reason": WHY}
    schedules.change("report", {"pattern": "daily at 05:00", "most": 5}, actor="ada")
    others, mine = messages(boss.post(url("edit"), values, follow=True))
    assert others == (
        "While the form was open, ada also changed schedule report: Edited; pattern: 30 4 * * mon-fri → daily at 05:00; "
        "maximum missed fire times: 100 → 5. The last change applies.",
        "warning",
    )
    assert mine == ("Schedule report: Edited; priority: the task's own → 8.", "success")
    assert row().changes == {"pattern": "daily at 05:00", "most": 5, "priority": 8}


def test_all_that_is_wrong_is_told_at_once_each_at_its_field(boss: Client) -> None:
    declare()
    wrong = {
        "task": "", "pattern": "0 0 31 4 *", "zone": "Mars/Olympus", "kwargs": "[", "priority": "101", "most": "many",
        "jitter_ms": "-1", "good_for_ms": "5", "reason": "",
    }  # fmt: skip
    response = post(boss, "edit", **wrong)
    assert response.status_code == 200
    told = response.context["form"].errors
    assert set(told) == set(wrong)
    assert "there is no time zone" in str(told["zone"]).replace("There", "there")
    assert "Nothing was changed." in response.content.decode()
    assert row().changes == {}
    told = post(boss, "edit", pattern="0 0 31 4 *", kwargs='{"from": "x"}', reason=WHY).context["form"].errors
    assert set(told) == {"pattern", "kwargs"}
    assert "never fires" in str(told["pattern"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "os.remove"), ("task", "tests.no_such_task"), ("queue", "nowhere"), ("catch_up", "some"),
        ("kwargs", "[1]"), ("kwargs", '{"to": 5}'), ("kwargs", '"to"'), ("pattern", "now and then"), ("pattern", "x" * 201),
        ("pattern", "every " + "9" * 150 + " minutes"), ("zone", ""), ("zone", "../../etc/passwd"), ("zone", "a\x00b"),
        ("priority", "0"), ("priority", "9" * 400), ("most", "0"), ("jitter_ms", ""), ("reason", "   "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_at_its_field_and_changes_nothing(boss: Client, field: str, value: str) -> None:
    declare()
    response = post(boss, "edit", **{"most": "7", "reason": WHY, field: value})
    assert response.status_code == 200
    assert set(response.context["form"].errors) == {field}
    assert row().changes == {}


def test_only_tasks_of_the_code_are_offered_and_what_no_code_has_is_named(boss: Client) -> None:
    make()
    force(changes={**DEFINITION, "task": "shop.tasks.gone"})
    choices = dict(boss.get(url("edit")).context["form"].fields["task"].choices)
    assert choices["shop.tasks.gone"] == "shop.tasks.gone (not in the code)"
    assert choices[NAME] == NAME
    response = post(boss, "edit", priority="4", reason=WHY)
    assert set(response.context["form"].errors) == {"task"}
    assert "shop.tasks.gone" not in dict(boss.get(reverse(ADD)).context["form"].fields["task"].choices)


def test_a_schedule_is_added_and_fires_from_then_on(boss: Client) -> None:
    values = {
        "task": NAME,
        "pattern": "weekly on mon, thu at 09:00",
        "zone": "Europe/Berlin",
        "kwargs": '{"to": "a@b"}',
    }
    response = post(boss, "add", name="letters", **values, reason=WHY)
    assert response.redirect_chain == [(url("change", "letters"), 302)]
    made = row("letters")
    assert made.declared_in is None
    assert made.definition == {
        **values, "kwargs": {"to": "a@b"}, "queue": None, "priority": None, "good_for_ms": None, "catch_up": "latest",
        "most": 100, "jitter_ms": 0, "enabled": True,
    }  # fmt: skip
    assert made.next_at is not None
    ((text, level),) = messages(response)
    assert (text.startswith("Schedule letters: Made; task: – → tests.apps.project.tasks.mail"), level) == (
        True,
        "success",
    )
    entry = AuditEntry.objects.latest("pk")
    assert (entry.actor, entry.action, entry.subject, entry.reason) == ("boss", "schedule.create", "letters", WHY)
    assert f'<a href="{url("change", "letters")}">letters</a>' in body(boss, page_of(entry))


@pytest.mark.parametrize("name", ["", "report", "x" * 256, "a\x00b", "two\nlines"])
def test_a_schedule_needs_a_name_that_no_other_has(boss: Client, name: str) -> None:
    make()
    response = post(boss, "add", name=name, task=NAME, pattern="every minute", kwargs='{"to": "a@b"}')
    assert set(response.context["form"].errors) == {"name"}
    assert Schedule.objects.count() == 1


def test_a_form_to_add_tells_all_that_is_wrong_at_once(boss: Client) -> None:
    told = post(boss, "add", kwargs='{"nobody": 1}', most="0", priority="x").context["form"].errors
    assert set(told) == {"name", "task", "pattern", "most", "priority"}
    assert not Schedule.objects.exists()
