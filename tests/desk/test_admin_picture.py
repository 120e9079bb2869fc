"""The picture of a run: nodes as boxes with their states, lines, and gates that wait."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Workflow
from horsies_django.admin.base.html import SHAPES
from horsies_django.admin.workflows import picture
from horsies_django.admin.workflows.picture import short_time
from horsies_django.core.status import NODE_STATUSES, RUN_STATUSES
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import sql
from tests.desk.test_admin import body, client_with, says
from tests.desk.test_admin_speed import queries, rows_read
from tests.desk.test_admin_workflows import EVIL, messages, node_url, table, url
from tests.support.runs import failed, sent

pytestmark = pytest.mark.django_db
SVG = "{http://www.w3.org/2000/svg}"


def change(handle: Any, number: int, **columns: Any) -> None:
    """Write columns of a node as the statements of the store would."""
    names = ", ".join(f"{name} = %s" for name in columns)
    values = [*columns.values(), getattr(handle, "workflow_id", handle), number]
    sql(f"UPDATE horsies_workflow_nodes SET {names} WHERE workflow_id = %s AND number = %s", values)


def drawing(client: Client, handle: Any) -> ElementTree.Element:
    html = body(client, url(handle, "picture"))
    (found,) = re.findall(r'<svg class="horsies-drawing".*?</svg>', html, re.DOTALL)
    return ElementTree.fromstring(found)


def labels(client: Client, handle: Any) -> dict[int, str]:
    """Return the labels of the boxes for screen readers, by the numbers of their nodes."""
    links = drawing(client, handle).iter(f"{SVG}a")
    found = {link.get("id", ""): link.get("aria-label", "") for link in links}
    return {
        int(id_.removeprefix("horsies-node-")): text
        for id_, text in found.items()
        if "-node-" in id_
    }


def texts(client: Client, handle: Any, number: int) -> list[str]:
    link = drawing(client, handle).find(f".//{SVG}a[@id='horsies-node-{number}']")
    return [text.text or "" for text in link.iter(f"{SVG}text")]


def test_every_node_is_a_link_in_the_order_of_the_layers(
    boss: Client,
) -> None:
    """Every node is a link with its name, kind and state, in the order of the layers."""
    flow = Workflow("picture")
    last = flow.add(
        flows.total, [flow.add(flows.number, 1, name="one"), flow.add(flows.number, 2, name="two")]
    )
    flow.add(flows.number, 3, after=last, name="end")
    handle = flow.send()

    told = ["one, task, sent", "two, task, sent", "total, task, pending", "end, task, pending"]
    assert labels(boss, handle) == dict(enumerate(told))

    links = [link.get("href") for link in drawing(boss, handle).iter(f"{SVG}a")]
    assert links == [node_url(handle, number) for number in range(4)]

    html = body(boss, url(handle, "picture"))
    assert "4 nodes in 3 layers" in " ".join(html.split())
    says(html, f'<a href="{url(handle)}">Run</a>', f'<a href="{url(handle, "pause")}">Pause</a>')
    assert not re.search(
        r'style="|<style|onclick|<script>|javascript:', html.partition("</header>")[2]
    )

    assert f'<a href="{url(handle, "picture")}">Picture</a>' in body(boss, url(handle))
    assert f'href="{url(handle, "picture")}#horsies-node-1"' in body(boss, node_url(handle, 1))

    drain()
    assert re.fullmatch(r"one, task, completed, took \d+ ms", labels(boss, handle)[0])


def test_durations_are_those_of_the_tasks_and_of_the_child_runs(boss: Client) -> None:
    child = Workflow("child")
    child.add(flows.number, 1)

    flow = Workflow("times")
    flow.add(flows.number, 1, name="done")
    flow.add(flows.number, 1, name="runs")
    flow.add(child, name="child")
    handle = flow.send()

    done, runs = (
        Task.objects.get(workflow_id=handle.workflow_id, node=number).pk for number in (0, 1)
    )

    columns = (
        "claimed_by = gen_random_uuid(), claimed_at = now(), started_at = now() - interval '90 s'"
    )
    sql(f"UPDATE horsies_tasks SET status = 'RUNNING', {columns} WHERE id = %s", [runs])

    columns = "started_at = now() - interval '3 s', finished_at = now(), result = '{\"ok\": 1}'"
    sql(f"UPDATE horsies_tasks SET status = 'COMPLETED', {columns} WHERE id = %s", [done])
    sql(
        "UPDATE horsies_workflows SET sent_at = now() - interval '2 h' WHERE parent_id = %s",
        [handle.workflow_id],
    )

    found = labels(boss, handle)

    assert found[0] == "done, task, sent, took 3.0 s", "its run does not know of the end yet"
    assert found[1] == "runs, task, running, for 1 min 30 s"
    assert found[2] == "child, workflow, running, for 2 h"
    assert texts(boss, handle, 1) == ["runs", "Running · 1 min 30 s"]

    inner = WorkflowRun.objects.get(parent_id=handle.workflow_id)
    links = {
        link.get("aria-label"): link.get("href") for link in drawing(boss, handle).iter(f"{SVG}a")
    }
    assert links["Picture of child"] == url(inner.pk, "picture")
    assert len(labels(boss, inner.pk)) == 1


def test_a_map_is_one_box_with_its_counts_and_a_bar(boss: Client) -> None:
    flow = Workflow("maps")
    flow.map(flows.odd_fails, n=list(range(5)))
    handle = flow.send()

    assert texts(boss, handle, 0) == ["odd_fails", "Map · 0 / 5"]
    assert labels(boss, handle) == {0: "odd_fails, map, running, 0 of 5 completed"}

    drain(raise_errors=False)
    assert labels(boss, handle) == {
        0: "odd_fails, map, failed, 3 of 5 completed, 2 failed, MAP_FAILED"
    }
    assert texts(boss, handle, 0) == ["odd_fails", "Map · 3 / 5, 2 failed"]

    bars = [
        bar
        for bar in drawing(boss, handle).iter(f"{SVG}rect")
        if "horsies-bar-" in bar.get("class", "")
    ]
    assert [int(bar.get("width", 0)) for bar in bars] == [81, 54]
    assert int(bars[0].get("x", 0)) + 81 == int(bars[1].get("x", 0)) - 1, (
        "side by side, but for rounding"
    )


def test_the_label_of_a_waiting_node_shows_its_cause(boss: Client) -> None:
    handle = sent()

    for kind, columns, said in (
        ("timer", {"due_at": "2030-01-02T03:04Z"}, "until 2030-01-0"),
        ("signal", {"due_at": None, "signal": "paid"}, "waits for “paid”"),
        ("gate", {"signal": "wait"}, "needs a decision"),
    ):
        change(handle, 1, name="wait", status="WAITING", kind=kind, **columns)
        assert labels(boss, handle)[1].startswith(f"wait, {kind}, waiting, {said}")
        outline = f"#horsies-outline-{kind}"
        assert outline in [use.get("href") for use in drawing(boss, handle).iter(f"{SVG}use")]


def test_a_time_of_today_is_given_without_the_date() -> None:
    now = dt.datetime(2026, 11, 23, 9, 0, tzinfo=dt.UTC)

    assert re.fullmatch(r"\d\d:05", short_time(now + dt.timedelta(hours=1, minutes=5), now))
    assert len(short_time(now + dt.timedelta(days=2), now)) == len("2026-11-25 10:00")


def test_kinds_and_statuses_of_a_newer_version_are_drawn_plainly(boss: Client) -> None:
    handle = sent()
    change(handle, 0, kind="oracle", status="DREAMING")

    assert labels(boss, handle)[0] == "number, oracle, dreaming"
    assert texts(boss, handle, 0) == ["number", "Oracle · DREAMING"]
    says(body(boss, url(handle, "picture")), "#horsies-outline-task", "horsies-is-unknown")


def test_an_undo_is_drawn_below_its_node_on_a_dashed_line(boss: Client) -> None:
    flow = Workflow("saga")
    flow.add(flows.number, 1, name="charge")
    flow.add(flows.number, 2, name="refund")
    handle = flow.send()
    change(handle, 1, kind="undo", undoes=0, total=1)

    assert labels(boss, handle)[1] == "refund, undo, sent", "only undos of maps have counts"

    svg = drawing(boss, handle)
    tops = [
        int(re.findall(r"\d+", group.get("transform", ""))[1])
        for group in svg.findall(f"{SVG}g[@transform]")
    ]

    assert tops[0] < tops[1]
    assert [
        path.get("class") for path in svg.iter(f"{SVG}path") if "head" not in path.get("class", "")
    ] == ["horsies-line horsies-line-undo"]


def test_nodes_that_a_task_added_are_drawn_below_it(
    boss: Client,
) -> None:
    """Nodes that a task added are drawn below it, and edges to deleted nodes are left out."""
    flow = Workflow("grows")
    flow.add(flows.grows, 2)
    handle = flow.send()
    drain()

    html = body(boss, url(handle, "picture"))

    says(html, "horsies-line-grown", "added by")
    assert list(labels(boss, handle).values())[0].startswith("grows, task, completed")

    numbers = sorted(labels(boss, handle))
    chain = sent()
    WorkflowNode.objects.filter(number=0).delete()

    assert sorted(labels(boss, handle)) == numbers[1:]
    assert sorted(labels(boss, chain)) == [1]


def test_every_status_has_its_own_icon(
    boss: Client,
) -> None:
    """Every status has an icon of its own, and the legend lists the statuses of the run."""
    html = body(boss, url(failed(), "picture"))
    icons = dict(re.findall(r'<symbol id="horsies-icon-(\w+)"[^>]*>(.*?)</symbol>', html))

    assert set(SHAPES) >= {*NODE_STATUSES, *RUN_STATUSES}
    assert set(icons) >= {status.lower() for status in SHAPES} | {"unknown"}
    assert len(set(icons.values())) == len(icons)

    (legend,) = re.findall(r'<ul class="horsies-legend".*?</ul>', html, re.DOTALL)
    words = re.sub(r"<[^>]+>|\s+", " ", legend).split()
    assert words == ["Failed", "1", "Skipped", "1"]

    ids = re.findall(r'\sid="([^"]+)"', html)
    assert [one for one in ids if ids.count(one) > 1] == []
    used = re.findall(r'(?:<use [^>]*href="#|aria-labelledby="|aria-describedby=")([^"]+)"', html)
    assert [one for one in used if one not in ids] == []


def test_only_the_picture_of_an_active_run_is_live(boss: Client) -> None:
    """Only the response for an active run has ``data-live``, without which the script stops."""
    handle = sent()

    live = body(boss, url(handle, "picture"), live="")

    assert ('<div data-live="2000">' in live, "<html" in live) == (True, False)
    assert {"status", "progress", "gates", "legend", "drawing", "note"} == set(
        re.findall(r'data-part="(\w+)"', live)
    )

    drain()
    live = body(boss, url(handle, "picture"), live="")
    assert ("data-live" in live, 'data-part="note"' in live) == (False, False)


def test_a_run_that_is_too_large_is_shown_as_a_table_instead(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = sent()

    assert 'class="horsies-drawing"' in body(boss, url(handle, "picture"))

    for name, most, told in (
        ("MOST_NODES_DRAWN", 1, "1 nodes or 10,000"),
        ("MOST_EDGES_DRAWN", 0, "2,000 nodes or 0"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(picture, name, most)
            html = body(boss, url(handle, "picture"))

        link = f'<a href="{node_url(handle, 1)}">plus</a>'
        says(html, "too large for a picture", f"more than {told} edges", link)
        assert 'class="horsies-drawing"' not in html


def test_the_picture_does_not_read_the_tasks_of_maps(boss: Client) -> None:
    """The tasks of maps are neither read nor counted for the picture."""
    flow = Workflow("maps")
    flow.map(flows.plus, a=list(range(200)))
    flow.add(flows.number, 1)
    address = url(flow.send(), "picture")

    assert rows_read(boss, address) < 10
    assert not [
        text for text in queries(boss, address) if "COUNT(" in text and "horsies_tasks" in text
    ]


# Gates


def gated(permission: str | None = None) -> Any:
    """Send a run whose gate waits for a decision."""
    flow = Workflow("shipping")
    flow.add(flows.number, 1, after=flow.gate("approve", permission=permission), name="ship")
    handle = flow.send()
    drain()
    return handle


def test_open_gates_are_listed_for_users_who_may_decide(
    boss: Client,
) -> None:
    """Gates that wait are listed above the picture, with a link for users who may decide."""
    handle = gated("horsies.configure_queue")
    link = f'<a class="button" href="{node_url(handle, 0)}#horsies-decision">'

    assert link in body(boss, url(handle, "picture"))
    assert 'id="horsies-decision"' in body(boss, node_url(handle, 0))

    operator = ("view_workflowrun", "operate_workflow")
    for has, lacked in (
        (operator[:1], "horsies.operate_workflow"),
        (operator, "horsies.configure_queue"),
    ):
        client = client_with(*has)
        html = body(client, url(handle, "picture"))
        assert link not in html
        assert f"needs the permission {lacked}" in html

        html = body(client, node_url(handle, 0))
        assert f"You need the permission {lacked} to decide." in html
        assert "<textarea" not in html

    handle.approve("approve", actor="ada")
    drain()

    assert "Waiting for a decision" not in body(boss, url(handle, "picture"))
    assert "Waiting for a decision" not in body(boss, node_url(handle, 0))


def test_a_gate_is_skipped_with_its_permission_only() -> None:
    handle = gated("horsies.configure_queue")
    may = ("view_workflowrun", "operate_workflow")
    client = client_with(*may, "configure_queue")
    viewer = client_with(*may)
    values = {"number": "0", "reason": "not needed"}

    assert f"{url(handle, 'skip')}?" not in body(viewer, node_url(handle, 0))
    assert viewer.post(url(handle, "skip"), values).status_code == 403
    assert WorkflowNode.objects.get(workflow_id=handle.workflow_id, number=0).status == "WAITING"

    assert f"{url(handle, 'skip')}?" in body(client, node_url(handle, 0))
    client.post(url(handle, "skip"), values)
    assert WorkflowNode.objects.get(workflow_id=handle.workflow_id, number=0).status == "SKIPPED"


@pytest.mark.parametrize(("verb", "after"), [("approve", "COMPLETED"), ("reject", "FAILED")])
def test_the_form_of_a_gate_decides_with_the_user_and_the_reason(verb: str, after: str) -> None:
    """The form of a gate decides under the name of the user, and the reason is treated as payload.

    Fails if: the value of the gate is hidden, but the audit on the same page shows the reason.
    """
    handle = gated("horsies.configure_queue")
    may = ("view_workflowrun", "view_auditentry", "operate_workflow")
    client = client_with(*may, "configure_queue", "view_payload")
    viewer = client_with(*may)

    html = body(client, node_url(handle, 0))
    says(
        html,
        "csrfmiddlewaretoken",
        *(f'action="{url(handle, name)}"' for name in ("approve", "reject")),
    )

    values = {"node": "0", "opening": "1"}
    assert viewer.post(url(handle, verb), values).status_code == 403, (
        "without the permission of the gate"
    )
    assert not AuditEntry.objects.filter(action__startswith="workflow.").exists()

    handle.pause(actor="ada", reason="a short break")
    handle.resume()

    response = client.post(
        url(handle, verb), {**values, "reason": "The stock was counted."}, follow=True
    )
    user = response.context["user"].get_username()
    (message,) = messages(response)
    assert "gate: approve" in message

    entry = AuditEntry.objects.get(action=f"workflow.{verb}")
    assert (entry.actor, entry.reason) == (user, "The stock was counted.")

    drain()
    assert WorkflowNode.objects.get(workflow_id=handle.workflow_id, number=0).status == after
    assert [
        (row[0], row[2], row[4]) for row in table(body(client, url(handle)), "horsies-gates")
    ] == [("approve", "horsies.configure_queue", user)]

    response = client.post(url(handle, verb), values)
    assert f"by {user} at" in response.content.decode()

    entries = reverse("admin:horsies_auditentry_changelist")
    pages = [
        url(handle),
        node_url(handle, 0),
        entries,
        reverse("admin:horsies_auditentry_change", args=[entry.pk]),
    ]
    for page in pages:
        shown = ["The stock was counted." in body(one, page) for one in (viewer, client)]
        assert shown == [False, True], page

    assert "The stock was counted." not in body(viewer, url(handle, "picture"))
    assert "view_payload" in body(viewer, pages[-1])
    assert "a short break" in body(viewer, entries)


def test_a_decision_about_a_node_that_is_no_gate_is_refused(boss: Client) -> None:
    handle = gated()

    for number in ("1", "7"):
        answer = boss.post(
            url(handle, "approve"), {"node": number, "opening": "1"}
        ).content.decode()
        assert f"has no gate with the number {number}" in answer

    for wrong in ({"node": "0"}, {"node": "0", "opening": "x"}, {"node": "9" * 30, "opening": "1"}):
        assert boss.post(url(handle, "approve"), wrong).status_code == 200

    drain()
    assert handle.status() == "RUNNING"


# Signals


def test_the_page_of_a_run_shows_which_node_took_a_signal(
    boss: Client,
) -> None:
    """The page of a run shows which node took each signal, and which signals are unused."""
    flow = Workflow("paying")
    flow.add(flows.number, 1, after=flow.signal("paid", timeout=dt.timedelta(days=1)), name="ship")
    handle = flow.send()

    assert "horsies-signals" not in body(boss, url(handle))

    drain()
    for number in (4711, 4712):
        handle.signal("paid", {"card": number}, key=f"order {number}", actor=EVIL)

    rows = table(body(boss, url(handle)), "horsies-signals")
    assert [row[4] for row in rows] == ["not yet", "not yet"]

    drain()
    rows = table(body(boss, url(handle)), "horsies-signals")
    taken = [("paid", "order 4712", "■ Unused"), ("paid", "order 4711", "paid")]
    assert [(row[0], row[1], row[4]) for row in rows] == taken
    assert "4712" in rows[0][5]

    with CaptureQueriesContext(connection) as captured:
        html = body(client_with("view_workflowrun"), url(handle))

    assert "card" not in html
    assert not [
        item
        for item in captured
        if "horsies_workflow_signals" in item["sql"] and '"data"' in item["sql"]
    ]
    assert EVIL not in html
