"""The admin shows schedules, their fire times and results; permitted users change them by forms."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django import schedules
from horsies_django.admin.base import readonly
from horsies_django.models import AuditEntry, Queue, Schedule, ScheduleTick, Task
from horsies_django.store.base import sql_text
from horsies_django.store.notify import direct_connection
from horsies_django.store.schedules import ScheduleStore, session_name
from tests.apps.project import tasks
from tests.conftest import limit, sql
from tests.desk.test_admin import body, client_with, page_of, says, table
from tests.desk.test_admin_queues import messages
from tests.support.factories import ScheduleTickFactory, TaskFactory, now

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_schedule_changelist"
ADD = "admin:horsies_schedule_add"
VERBS = ("run_now", "enable", "disable", "edit", "revert", "delete")
NAME = tasks.mail.name
WHY = "the board wants it earlier"
DEFINITION = {
    "task": NAME,
    "pattern": "30 4 * * mon-fri",
    "zone": "Europe/Istanbul",
    "kwargs": {"to": "a@b"},
}


def url(page: str, name: str = "report") -> str:
    return reverse(f"admin:horsies_schedule_{page}", args=(quote(name),))


def make(name: str = "report", **definition: Any) -> Schedule:
    """Create a schedule as the admin does, not in the code."""
    schedules.create(name, {**DEFINITION, **definition}, actor="ada")
    return row(name)


def declare(name: str = "report", **definition: Any) -> Schedule:
    """Write a schedule as the scheduler writes one that it finds in the code."""
    columns = schedules.in_wire_form({**DEFINITION, **definition})
    how = {
        "action": "schedule.declare",
        "actor": "scheduler",
        "declared": columns,
        "declared_in": "shop/tasks.py:41",
    }
    ScheduleStore(connection).change(name, create=True, **how)
    return row(name)


def force(name: str = "report", **columns: Any) -> None:
    """Write columns of a schedule as they are, without validation."""
    sets = ", ".join(f"{column} = %s" for column in columns)
    values = [json.dumps(value) if isinstance(value, dict) else value for value in columns.values()]
    sql(f"UPDATE horsies_schedules SET {sets} WHERE name = %s", [*values, name])


def row(name: str = "report") -> Schedule:
    return Schedule.objects.get(name=name)


def fired(name: str, statuses: list[str]) -> list[Task]:
    """Record hourly fire times of a schedule, the newest last, with tasks of these statuses."""
    begin = now().replace(microsecond=0) - dt.timedelta(hours=len(statuses))
    sent = [TaskFactory(task_name=NAME, status=status) for status in statuses]
    for number, task in enumerate(sent):
        ScheduleTickFactory(
            schedule_name=name, fire_at=begin + dt.timedelta(hours=number), task_id=task.pk
        )
    return sent


# The list


def test_the_list_shows_patterns_and_fire_times_in_their_zone(
    boss: Client,
) -> None:
    """The list shows patterns, fire times in their zone, places of definition, and changes."""
    make()
    make("tidy", pattern="every 15 minutes", zone="UTC")
    force(next_fire_at="2126-03-01T01:30:00Z", next_at="2126-03-01T01:30:00Z")

    html = body(boss, reverse(LIST))

    assert 'title="30 4 * * mon-fri Europe/Istanbul">At 04:30, Monday through Friday</span>' in html
    says(html, "<code>30 4 * * mon-fri</code> · Europe/Istanbul", ">Every 15 minutes</span>")
    says(html, "Fri 2126-03-01 04:30</time>", "Europe/Istanbul, in ", "No scheduler is running.")
    assert "Late</span>" not in html

    force(next_fire_at="2026-03-02T01:30:00Z", next_at="2026-03-02T01:30:00Z")
    declare("by code")
    html = body(boss, reverse(LIST))
    says(html, "Mon 2026-03-02 04:30</time>", "Late", "the admin", "tasks.<wbr>py:41")
    assert "horsies-overridden" not in html

    for priority, changed in ((3, 1), (None, 0)):
        schedules.change("by code", {"priority": priority}, actor="ada")
        assert body(boss, reverse(LIST)).count("horsies-overridden") == changed


def test_the_last_twenty_fire_times_link_to_their_tasks(
    boss: Client,
) -> None:
    """The results of the last twenty fire times are shown with links to their tasks."""
    make()
    sent = fired("report", ["EXPIRED"] + ["COMPLETED"] * 17 + ["FAILED", "COMPLETED", "RUNNING"])

    html = body(boss, reverse(LIST))

    assert 'role="img" aria-label="The last 20 runs: 18 completed, 1 running, 1 failed."' in html
    blocks = [part.partition('"')[0] for part in html.split("horsies-run-")[1:]]
    assert blocks == ["completed"] * 17 + ["failed", "completed", "running"]
    assert f'<a href="{page_of(sent[-1])}"><span class="horsies-badge horsies-running">' in html

    make("removed")
    ScheduleTickFactory(schedule_name="removed")
    make("skips")
    (runs,) = fired("skips", ["RUNNING"])
    ScheduleTickFactory(schedule_name="skips", task_id=None, skipped_for=runs.pk)

    html = body(boss, reverse(LIST))
    says(
        html,
        "The last run: 1 removed.",
        "horsies-run-unknown",
        "The last 2 runs: 1 skipped, 1 running.",
    )
    assert f'<a href="{page_of(runs)}"><span class="horsies-badge horsies-skipped">' in html
    assert "Removed" in body(boss, url("change", "removed"))

    html = body(boss, url("change", "skips"))
    skipped, first = table(html, "horsies-runs")
    assert skipped[1:] == ["–", str(runs.pk), "⊘ Skipped because this task had not finished"]
    assert first[2:] == [str(runs.pk), "▶ Running"]
    assert html.count(f'<span class="horsies-id"><a href="{page_of(runs)}">{runs.pk}</a>') == 2


def test_the_last_fire_times_are_read_through_primary_keys() -> None:
    begin = now().replace(microsecond=0)

    for name in ("one", "two"):
        sent = TaskFactory.create_batch(300, task_name=NAME, status="COMPLETED")
        ScheduleTick.objects.bulk_create(
            ScheduleTick(
                schedule_name=name, fire_at=begin + dt.timedelta(hours=number), task_id=task.pk
            )
            for number, task in enumerate(sent)
        )

    sql("ANALYZE horsies_tasks, horsies_schedule_ticks")
    explained = partial(
        sql, f"EXPLAIN {sql_text('schedules/recent')}", {"names": ["one"], "many": 20}
    )
    plan = str(readonly.read_bounded("default", explained))

    for part, there in (
        ("horsies_schedule_ticks_pkey", True),
        ("horsies_tasks_pkey", True),
        ("Seq Scan", False),
    ):
        assert (part in plan) == there, plan

    found = ScheduleStore(connection).recent(["one", "two", "three"], 20)
    latest = [run.fire_at - begin for run in found if run.name == "two"]
    assert latest == [dt.timedelta(hours=number) for number in range(299, 279, -1)]
    assert len(found) == 40


def found(client: Client, **query: str) -> list[str]:
    return [
        schedule.name for schedule in client.get(reverse(LIST), query).context["cl"].result_list
    ]


def test_schedules_are_found_by_the_values_in_force(
    boss: Client,
) -> None:
    """Schedules are found by the values in force, not by the values that a change replaced."""
    keys: list[dict[str, Any]] = [{}, {"enabled": True}, {"enabled": False}]
    for number, (declared, changes) in enumerate(itertools.product(keys, keys)):
        declare(f"of-{number}")
        force(
            f"of-{number}",
            declared={**declared, "task": "old"},
            changes={**changes, "task": "shop.new"},
        )

    for state, enabled in (("on", True), ("off", False)):
        names = [
            one.name
            for one in Schedule.objects.all()
            if one.definition.get("enabled", True) == enabled
        ]
        assert sorted(found(boss, state=state)) == sorted(names)

    assert (len(found(boss, q="new")), found(boss, q="old")) == (9, [])


def test_schedules_show_why_they_do_not_fire(
    boss: Client,
) -> None:
    """Schedules show why they do not fire, and are found by state, by name and by task."""
    make("report for the board")
    make("off", enabled=False)
    make("broken", pattern="every minute")
    force("broken", error="the queue is gone")

    declare("gone")
    force("gone", gone_at=now())
    make("odd")
    force("odd", changes={**DEFINITION, "zone": "Mars"})
    make("tidy", task=tasks.noop.name, kwargs={})

    html = body(boss, reverse(LIST))
    error = "✕</span> Error</span>"

    says(
        html,
        "■</span> Off<",
        "⊘</span> Gone from",
        f"{error} the queue is gone",
        f"{error} zone: there is no",
    )

    on = ["broken", "odd", "report for the board", "tidy"]
    states = {
        "on": on,
        "off": ["off"],
        "gone": ["gone"],
        "error": ["broken"],
        "late": [],
        "missed": [],
    }

    assert found(boss) == ["broken", "gone", "odd", "off", "report for the board", "tidy"]
    assert {state: found(boss, state=state) for state in states} == states

    force("tidy", missed_at=now() - dt.timedelta(hours=2), next_at=now() - dt.timedelta(seconds=70))
    force("off", missed_at=now() - dt.timedelta(hours=25), next_at=now() - dt.timedelta(seconds=40))
    force("gone", next_at=now() - dt.timedelta(seconds=70))

    assert found(boss, state="late") == found(boss, state="missed") == ["tidy"]
    assert body(boss, reverse(LIST)).count("Missed fire times</span>") == 1
    assert found(boss, q="the BOARD") == ["report for the board"]
    assert found(boss, q="tasks.noop") == ["tidy"]


def test_the_list_shows_the_running_schedulers(
    boss: Client,
) -> None:
    """The list shows the running schedulers and when one last had the schedules in its code."""
    make("by hand")

    with direct_connection("default", application_name=session_name()):
        html = body(boss, reverse(LIST))
        assert f"Schedulers: {socket.gethostname()[:37]}:{os.getpid()}.<" in html, (
            "the code declares none"
        )

        declare("letters")
        force("letters", declared_at=now() - dt.timedelta(minutes=5))
        assert "The schedules were last declared 5 min ago." in body(boss, reverse(LIST))


# One schedule


def test_a_schedule_shows_its_next_five_fire_times_in_its_zone(
    boss: Client,
) -> None:
    """A schedule shows its next five fire times in its zone, even across a change of the clock."""
    # In eight months the clock jumps at least once.
    make(pattern="0 9 1 */2 *", zone="Europe/Berlin")

    page = body(boss, url("change"))

    begin = dt.datetime.now(dt.UTC)
    zone = ZoneInfo("Europe/Berlin")
    months = [(begin.year + number // 6, number % 6 * 2 + 1) for number in range(12)]
    times = [dt.datetime(year, month, 1, 9, tzinfo=zone) for year, month in months]
    expected = [time for time in times if time > begin][:5]

    shown = table(page, "horsies-coming")
    assert [one[0] for one in shown] == [
        f"{time:%a %Y-%m-%d} 09:00 {time.isoformat()[19:]}" for time in expected
    ]
    assert [one[1] for one in shown] == [
        f"{time.astimezone(dt.UTC):%Y-%m-%d %H:%M}" for time in expected
    ]
    assert {one[0][-6:] for one in shown} == {"+01:00", "+02:00"}
    says(page, '<span class="horsies-zone">Europe/Berlin</span></th>', "UTC</th>")

    schedules.disable("report", actor="ada")
    force(error="there is no room", error_at=now())

    page = body(boss, url("change"))

    assert len(table(page, "horsies-coming")) == 5
    says(
        page,
        "These would be its fire times",
        'role="alert"',
        "a fire time could not be sent.",
        "no room",
    )


def test_a_schedule_shows_where_it_differs_from_the_code(boss: Client) -> None:
    """A schedule shows the values in force, and the declared values where they differ."""
    declare(good_for_ms=60_000)
    schedules.change("report", {"priority": 3, "queue": "bulk"}, actor="ada", reason=WHY)

    html = body(boss, url("change"))
    rows = {line[0]: line[1:] for line in table(html, "horsies-definition")}

    assert rows["Queue"] == ["bulk ✎ Changed", "the task&#x27;s own"]
    assert rows["Priority"] == ["3 ✎ Changed", "the task&#x27;s own"]
    assert rows["Good for"] == ["60,000 ms", ""]
    assert html.count("horsies-overridden") == 3
    says(html, WHY, "priority: the task&#x27;s own → 3", "?subject=report")


# Forms


def opened(client: Client, address: str) -> dict[str, Any]:
    """Return what a browser would post of an unchanged form."""
    page = client.get(address)
    assert page.status_code == 200

    form = page.context["form"]
    values = {"seen": page.context["seen"]}

    for field in form:
        value = (
            field.field.prepare_value(field.value())
            if hasattr(field.field, "prepare_value")
            else field.value()
        )

        if field.name == "enabled":
            values |= {"enabled": "on"} if value else {}
        else:
            values[field.html_name] = "" if value is None else value

        if field.field.show_hidden_initial:
            values[field.html_initial_name] = "" if value is None else str(value)

    return values


def post(client: Client, page: str, name: str = "report", /, **values: Any) -> Any:
    """Post a form with the given values, as its page gave it, and follow the redirect.

    A value of None removes its field.
    """
    address = reverse(ADD) if page == "add" else url(page, name)
    posted = {**opened(client, address), **values}
    return client.post(
        address, {key: value for key, value in posted.items() if value is not None}, follow=True
    )


@pytest.mark.parametrize(
    "name", ["a/b", "add", "a_2Fb", "50%_25", "import_50", "q/edit", "?x=1#y", "schlüssel"]
)
def test_a_schedule_or_a_queue_of_any_name_is_found_by_its_links(boss: Client, name: str) -> None:
    make(name)
    limit(name, max_concurrency=2)

    for model, verb in (("schedule", "disable"), ("queue", "pause")):
        change, form = (
            reverse(f"admin:horsies_{model}_{page}", args=(quote(name),))
            for page in ("change", verb)
        )

        assert f'href="{change}"' in body(boss, reverse(f"admin:horsies_{model}_changelist"))
        assert f'href="{form}"' in body(boss, change)
        boss.post(form, {"seen": boss.get(form).context["seen"], "reason": WHY})

    assert f'<a href="{change}">' in body(boss, page_of(TaskFactory(queue_name=name)))
    assert (row(name).definition["enabled"], Queue.objects.get(name=name).paused_by) == (
        False,
        "boss",
    )


def test_hidden_arguments_survive_an_edit_of_another_field() -> None:
    """Arguments that a user may not see are unchanged when the user edits another field."""
    declare()
    schedules.change("report", {"kwargs": {"to": "secret@example.org"}}, actor="ada")
    plain = client_with("view_schedule", "configure_queue", "view_auditentry")

    assert "arguments: changed" in body(plain, reverse("admin:horsies_auditentry_changelist"))

    post(plain, "edit", priority="5", reason=WHY)
    assert (row().definition["kwargs"], row().definition["priority"]) == (
        {"to": "secret@example.org"},
        5,
    )


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"task": 5, "pattern": None, "zone": []},
        {**DEFINITION, "zone": "Mars/Olympus"},
        {**DEFINITION, "kwargs": [1]},
        {**DEFINITION, "pattern": "every " + "9" * 5_000 + " minutes"},
        {**DEFINITION, "colour": {"red": 1}},
        {
            **DEFINITION,
            "queue": {"a": 1},
            "priority": "x",
            "most": None,
            "enabled": "yes",
            "catch_up": ["a"],
            "jitter_ms": 1.5,
        },
        {**DEFINITION, "overlap": ["a"]},
    ],
)
def test_a_definition_that_cannot_be_read_can_be_corrected(
    boss: Client, definition: Mapping[str, Any]
) -> None:
    make()
    force(changes=dict(definition))

    assert "✕</span> Error" in body(boss, reverse(LIST))
    assert "The definition is invalid." in body(boss, url("change"))

    response = post(
        boss,
        "edit",
        reason=WHY,
        enabled="on",
        kwargs='{"to": "a@b"}',
        most="7",
        priority="",
        task=NAME,
        pattern="daily at 05:00",
        zone="UTC",
        catch_up="all",
        jitter_ms="5",
        queue="",
        overlap="skip",
    )

    if "colour" in definition:
        assert "unknown key 'colour'".capitalize() in str(response.context["form"].errors).replace(
            "&#x27;", "'"
        )
    else:
        assert messages(response)[-1][1] == "success"
        assert row().definition["pattern"] == "daily at 05:00"
        assert "horsies-problem" not in body(boss, url("change"))


def test_run_now_sends_one_task_and_records_the_reason() -> None:
    """ "Run now" sends one task and is audited with the reason."""
    make()
    client = client_with("view_schedule", "configure_queue", "view_payload", "view_task")

    assert client.get(url("run_now")).status_code == 200
    assert not Task.objects.exists()

    response = post(client, "run_now", reason=WHY)

    task = Task.objects.get()
    assert (task.task_name, task.kwargs, task.queue_name) == (NAME, {"to": "a@b"}, "mail")
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.subject, entry.reason) == ("schedule.run_now", "report", WHY)
    assert entry.after == {"task_id": str(task.pk)}

    html = response.content.decode()
    assert f'a task was sent, <a href="{page_of(task)}">{task.pk}</a>' in html
    assert table(html, "horsies-audit")[0][2] == "Run now"


@pytest.mark.parametrize(
    "change", [{"task": "tests.no_such_task"}, {"kwargs": {"to": 5}}, {"pattern": "never"}]
)
def test_a_refused_run_now_is_reported_and_writes_nothing(
    boss: Client, change: dict[str, Any]
) -> None:
    make()
    force(changes={**DEFINITION, **change})
    before = AuditEntry.objects.count()

    response = post(boss, "run_now")

    assert response.context["form"].non_field_errors()
    assert (Task.objects.count(), AuditEntry.objects.count()) == (0, before)


def test_a_schedule_is_disabled_and_deleted_from_its_page(
    boss: Client,
) -> None:
    """The page of a schedule offers to disable, enable, revert and delete it."""

    def offered(name: str = "report") -> set[str]:
        html = body(boss, url("change", name))
        return {verb for verb in VERBS if f'href="{url(verb, name)}"' in html}

    declare()
    assert offered() == {"run_now", "disable", "edit"}

    assert messages(post(boss, "disable", reason=WHY)) == [
        ("Schedule report: Disabled; enabled: yes → no.", "success")
    ]
    assert (row().definition["enabled"], row().next_at) == (False, None)
    assert offered() == {"run_now", "enable", "edit", "revert"}

    post(boss, "enable")
    assert row().definition["enabled"] is True

    schedules.change("report", {"pattern": "hourly at :05", "priority": 9}, actor="ada")
    post(boss, "revert", reason="it is over")
    assert (row().changes, row().definition) == ({}, row().declared)

    written = AuditEntry.objects.order_by("pk").filter(actor="boss").values_list("action", "reason")
    done = [("schedule.disable", WHY), ("schedule.enable", None), ("schedule.revert", "it is over")]
    assert list(written) == done

    force(gone_at=now())
    assert offered() == {"run_now", "edit", "delete"}

    make("made by hand", priority=4)
    response = post(boss, "delete", "made by hand", reason=WHY)
    assert (response.redirect_chain, messages(response)[0][1]) == (
        [(reverse(LIST), 302)],
        "success",
    )
    assert list(written.all()) == [*done, ("schedule.delete", WHY)]
    assert not Schedule.objects.filter(name="made by hand").exists()


def test_an_edit_stores_only_the_changed_values(boss: Client) -> None:
    declare()
    assert "send the task" in body(boss, url("change"))

    altered = {"pattern": "daily at 05:00", "queue": "bulk", "overlap": "skip"}
    response = post(boss, "edit", **altered, good_for_ms="60000", reason=WHY)

    (told,) = messages(response)
    assert told == (
        "Schedule report: Edited; pattern: 30 4 * * mon-fri → daily at 05:00; queue: the task's "
        "own → bulk; "
        "good for: no limit → 60,000 ms; overlap: send the task → skip the fire time.",
        "success",
    )
    assert row().changes == {**altered, "good_for_ms": 60_000}

    html = response.content.decode()
    assert "skip the fire time" in html
    assert [line[0][14:20] for line in table(html, "horsies-coming")] == [" 05:00"] * 5

    post(boss, "edit", good_for_ms="", queue="", enabled=None, reason=WHY)
    emptied = {"good_for_ms": None, "queue": None, "enabled": False}
    assert {key: row().definition[key] for key in (*emptied, "overlap")} == {
        **emptied,
        "overlap": "skip",
    }

    post(boss, "edit", overlap="allow", reason=WHY)
    assert row().definition["overlap"] == "allow"


def test_arguments_with_custom_types_are_edited_as_json(boss: Client) -> None:
    """The arguments of a task that have types of the project are edited as JSON."""
    declare(task=tasks.mirror.name, kwargs={"point": tasks.Point(1, 2)})

    told = (
        "Schedule report: nothing was changed, because its state did not need or allow the change."
    )
    assert messages(post(boss, "edit", reason=WHY)) == [(told, "info")]
    assert row().changes == {}

    post(boss, "edit", kwargs='{"point": {"x": 3, "y": 4}}', priority="8", reason=WHY)
    assert (row().definition["kwargs"], row().definition["priority"]) == (
        {"point": {"x": 3, "y": 4}},
        8,
    )

    response = post(boss, "edit", kwargs='{"point": {"x": "three"}}', reason=WHY)
    assert set(response.context["form"].errors) == {"kwargs"}


def test_a_change_made_while_the_form_was_open_is_kept(boss: Client) -> None:
    """A change that another user made while the form was open is kept and reported."""
    declare()
    values = {**opened(boss, url("edit")), "priority": "8", "reason": WHY}
    schedules.change("report", {"pattern": "daily at 05:00", "most": 5}, actor="ada")

    others, mine = messages(boss.post(url("edit"), values, follow=True))

    assert others == (
        "While the form was open, ada also changed schedule report: Edited; pattern: 30 4 * * "
        "mon-fri → daily at 05:00; "
        "maximum missed fire times: 100 → 5. The last change applies.",
        "warning",
    )
    assert mine == ("Schedule report: Edited; priority: the task's own → 8.", "success")
    assert row().changes == {"pattern": "daily at 05:00", "most": 5, "priority": 8}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "os.remove"),
        ("task", "tests.no_such_task"),
        ("queue", "nowhere"),
        ("catch_up", "some"),
        ("overlap", "some"),
        ("kwargs", "[1]"),
        ("kwargs", '{"to": 5}'),
        ("kwargs", '"to"'),
        ("pattern", "now and then"),
        ("pattern", "x" * 201),
        ("kwargs", "[" * 100_000),
        ("kwargs", f'{{"to": {"1" * 5_000}}}'),
        ("kwargs", '{"to": "\\ud800"}'),
        ("pattern", "every " + "9" * 150 + " minutes"),
        ("zone", ""),
        ("zone", "../../etc/passwd"),
        ("zone", "a\x00b"),
        ("priority", "0"),
        ("priority", "9" * 400),
        ("most", "0"),
        ("jitter_ms", ""),
        ("reason", "   "),
        ("task", ""),
        ("pattern", "0 0 31 4 *"),
        ("zone", "Mars/Olympus"),
        ("kwargs", "["),
        ("good_for_ms", "5"),
        ("jitter_ms", "-1"),
    ],
)
def test_an_invalid_edit_is_reported_at_its_field(boss: Client, field: str, value: str) -> None:
    declare()

    response = post(boss, "edit", **{"most": "7", "reason": WHY, field: value})

    assert response.status_code == 200
    assert set(response.context["form"].errors) == {field}
    assert "Nothing was changed." in response.content.decode()
    assert row().changes == {}


def test_the_form_offers_only_tasks_of_the_code(boss: Client) -> None:
    """The form offers only tasks of the code; a task that is missing there is marked."""
    make()
    force(changes={**DEFINITION, "task": "shop.tasks.gone"})

    choices = dict(boss.get(url("edit")).context["form"].fields["task"].choices)

    assert choices["shop.tasks.gone"] == "shop.tasks.gone (not in the code)"
    assert choices[NAME] == NAME

    response = post(boss, "edit", priority="4", reason=WHY)
    assert set(response.context["form"].errors) == {"task"}

    assert "shop.tasks.gone" not in dict(
        boss.get(reverse(ADD)).context["form"].fields["task"].choices
    )


def test_a_schedule_is_added_and_fires_from_then_on(boss: Client) -> None:
    assert reverse(ADD) in body(boss, reverse(LIST))

    values = {
        "task": NAME,
        "pattern": "weekly on mon, thu at 09:00",
        "zone": "Europe/Berlin",
        "kwargs": '{"to": "a@b"}',
    }

    response = post(boss, "add", name="letters", **values, reason=WHY)

    assert response.redirect_chain == [(url("change", "letters"), 302)]
    made = row("letters")
    assert (made.declared_in, made.next_at is None) == (None, False)
    assert made.definition == {
        **values,
        "kwargs": {"to": "a@b"},
        "queue": None,
        "priority": None,
        "good_for_ms": None,
        "catch_up": "latest",
        "most": 100,
        "jitter_ms": 0,
        "enabled": True,
    }

    ((text, level),) = messages(response)
    assert text.startswith("Schedule letters: Created; task: – → tests.apps.project.tasks.mail")
    assert level == "success"

    entry = AuditEntry.objects.latest("pk")
    assert (entry.actor, entry.action, entry.subject, entry.reason) == (
        "boss",
        "schedule.create",
        "letters",
        WHY,
    )
    assert f'<a href="{url("change", "letters")}">letters</a>' in body(boss, page_of(entry))


def test_a_schedule_needs_a_name_of_its_own(
    boss: Client,
) -> None:
    """A schedule needs a name that no other one has, and all errors are reported at once."""
    make()

    for name in ("", "report", "x" * 256, "a\x00b", "two\nlines"):
        response = post(
            boss, "add", name=name, task=NAME, pattern="every minute", kwargs='{"to": "a@b"}'
        )
        assert set(response.context["form"].errors) == {"name"}

    wrong = post(boss, "add", kwargs='{"nobody": 1}', most="0", priority="x").context["form"].errors
    assert set(wrong) == {"name", "task", "pattern", "most", "priority"}

    wrong = (
        post(boss, "edit", pattern="0 0 31 4 *", kwargs='{"from": "x"}', reason="")
        .context["form"]
        .errors
    )
    assert set(wrong) == {"pattern", "kwargs", "reason"}
    assert "never fires" in str(wrong["pattern"])

    assert Schedule.objects.count() == 1
