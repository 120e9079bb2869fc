"""The admin shows workflow runs and their nodes; permitted users change them."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, quorum
from horsies_django.admin import workflows as pages
from horsies_django.admin.base import readonly
from horsies_django.admin.base.html import SHAPES
from horsies_django.admin.workflows import nodes, picture
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowRun
from horsies_django.monitoring import workflows
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import sql
from tests.desk.test_admin import TASKS, body, client_with, page_of, says, table
from tests.desk.test_admin import listed as listed_tasks
from tests.desk.test_admin_speed import rows_read
from tests.desk.test_workflow_command import saga
from tests.support.factories import TaskFactory
from tests.support.refusing import refused
from tests.support.runs import failed, sent

pytestmark = pytest.mark.django_db

RUNS = "admin:horsies_workflowrun_changelist"
EVIL = "<script>alert(1)</script>"
ENDLESS = (
    "SELECT count(*) FROM generate_series(1, 1000000000) AS n, generate_series(1, 1000000000) AS m"
)


def url(handle: Any, page: str = "change", *args: Any) -> str:
    id_ = getattr(handle, "workflow_id", handle)
    return reverse(f"admin:horsies_workflowrun_{page}", args=(id_, *args))


def node_url(handle: Any, number: int) -> str:
    return url(handle, "node", number)


def listed(client: Client, **query: str) -> list[uuid.UUID]:
    response = client.get(reverse(RUNS), query)
    assert response.status_code == 200, response.headers
    return [run.pk for run in response.context["cl"].result_list]


def messages(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# The list


def test_the_list_shows_status_key_and_progress_of_runs(boss: Client) -> None:
    """The list shows status, key, progress and error of each run, the newest first."""
    bad = failed()
    book = sent(key="book 7")
    book.pause()

    assert listed(boss) == [book.workflow_id, bad.workflow_id]

    html = body(boss, reverse(RUNS))
    says(
        html,
        "book 7",
        "UNHANDLED_ERROR",
        ">0 of 2</span>",
        ">2 of 2, 1 failed, 1 skipped</span>",
        '<progress class="horsies-progress" max="100" value="0" aria-hidden="true"></progress> 0 %',
        '<progress class="horsies-progress horsies-progress-failed" max="100" value="100"',
        '<span class="horsies-badge horsies-paused"><span aria-hidden="true">{}</span> '
        "{}</span>".format(*SHAPES["PAUSED"]),
    )


def test_the_list_shows_the_reason_why_each_run_waits(
    boss: Client,
) -> None:
    """The list shows what each run waits for, and a filter finds the runs that need a person."""

    def waits_of(**query: str) -> dict[Any, str]:
        return {
            row.pk: row.waits_for
            for row in boss.get(reverse(RUNS), query).context["cl"].result_list
        }

    day = dt.timedelta(days=1)
    flow = Workflow("waits")
    flow.gate("sign <b>", timeout=day)
    flow.sleep(day, name="rest")
    flow.signal("paid", name="payment")
    gated = flow.send()
    done = sent()

    flow = Workflow("rests")
    flow.sleep(day, name="nap")
    resting = flow.send()

    stopped = failed()
    undone = failed()
    WorkflowRun.objects.filter(pk=stopped.workflow_id).update(
        status="PAUSED", error_code="OH_NO", finished_at=None
    )
    WorkflowRun.objects.filter(pk=undone.workflow_id).update(error_code="COMPENSATION_FAILED")

    by_hand = sent()
    running = sent()
    by_hand.pause()

    assert waits_of() == {
        gated.workflow_id: "the decision of a person (sign <b>); its time (rest); …",
        done.workflow_id: "–",
        resting.workflow_id: "its time (nap)",
        stopped.workflow_id: "a person: a failure paused it",
        undone.workflow_id: "a person: it was not undone completely",
        by_hand.workflow_id: "a person: it is paused",
        running.workflow_id: "its tasks",
    }

    assert set(waits_of(needs="1")) == {gated.workflow_id, stopped.workflow_id, undone.workflow_id}
    assert set(waits_of(needs="1", status="PAUSED")) == {stopped.workflow_id}

    html = body(boss, reverse(RUNS), needs="1")
    says(html, "the decision of a person (sign &lt;b&gt;)", "Only the newest 1,000 halted runs")


def test_filters_and_searches_find_their_runs_and_no_others(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Workflow("child")
    parent = Workflow("parent")
    child.add(flows.number, 1)
    parent.add(child)

    bad = failed()
    outer = parent.send()
    paused = sent(key="book 7")
    paused.pause()
    inner = WorkflowRun.objects.get(parent_id=outer.workflow_id)

    for query, found in (
        ({"status": "RUNNING"}, [inner.pk, outer.workflow_id]),
        ({"status": "FAILED"}, [bad.workflow_id]),
        ({"status": "FAILED", "name": "book"}, []),
        *(
            ({key: value}, [paused.workflow_id])
            for key, value in {"status": "PAUSED", "name": "book"}.items()
        ),
        *(
            ({"q": words}, [paused.workflow_id])
            for words in (str(paused.workflow_id), " book 7 ", "book")
        ),
        ({"q": "boo"}, []),
        ({"child": "1"}, [inner.pk]),
        ({"child": "0", "status": "RUNNING"}, [outer.workflow_id]),
    ):
        assert listed(boss, **query) == found, query

    html = body(boss, reverse(RUNS))
    for name in ("book", "child", "fails", "parent"):
        assert f"?name={name}" in html

    monkeypatch.setattr("horsies_django.admin.workflows.listing.MOST_FILTER_NAMES", 1)
    assert "?name=parent" not in body(boss, reverse(RUNS)), "names are offered only if they are few"


# The page of a run


def test_a_run_shows_its_nodes_with_links_to_tasks_maps_and_runs(boss: Client) -> None:
    child = Workflow("child")
    flow = Workflow("parent", max_in_flight=10)
    child.add(flows.number, 1)

    first = flow.add(flows.number, 1)
    flow.map(flows.plus, a=[1, 2, 3])
    inner = flow.add(child)
    flow.returns(flow.add(flows.number, 1, after=[first, inner], name="end"))
    handle = flow.send()

    html = body(boss, url(handle))
    rows = table(html, "horsies-nodes")

    assert [row[:3] for row in rows] == [
        ["0", "number", "task"],
        ["1", "plus", "map"],
        ["2", "child", "workflow"],
        ["3", "end", "task"],
    ]

    assert [row[4] for row in rows] == [
        "◐ Sent Why?",
        "◐ Sent Why?",
        "◐ Sent Why?",
        "○ Pending Why?",
    ]

    assert rows[3][6] == "2 open"
    assert rows[1][7] == "0 of 3 completed, 3 in flight"

    task = Task.objects.get(workflow_id=handle.workflow_id, node=0)
    child_run = WorkflowRun.objects.get(parent_id=handle.workflow_id)
    tasks = f"{reverse('admin:horsies_task_changelist')}?workflow={handle.workflow_id}%3A1"

    assert f'<a href="{reverse("admin:horsies_task_change", args=(task.pk,))}">Task</a>' in html
    says(html, f'<a href="{tasks}">Tasks</a>', f'<a href="{url(child_run.pk)}">Run</a>')
    parent = f'<a href="{url(handle)}">parent</a>, <a href="{node_url(handle, 2)}">node 2</a>'
    assert parent in body(boss, url(child_run.pk))


def test_a_task_page_links_its_run_and_its_node(boss: Client) -> None:
    flow = Workflow("maps")
    flow.map(flows.plus, a=[5, 6])
    handle = flow.send()

    html = body(boss, page_of(Task.objects.get(node_index=1)))

    run = f'<a href="{url(handle)}">maps {handle.workflow_id}</a>'
    says(html, run, f'<a href="{node_url(handle, 0)}">plus</a>', "Element of the map")
    assert "Element of the map" not in body(boss, page_of(TaskFactory()))

    handle = failed()
    handle.retry()
    html = body(boss, page_of(Task.objects.get(workflow_id=handle.workflow_id, node__isnull=True)))
    says(html, "a retry of the run replaced this task", url(handle))


def test_nodes_are_filtered_by_status_and_shown_some_at_a_time(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PAGE", 2)
    flow = Workflow("many")
    for n in range(3):
        flow.add(flows.number, n)
    flow.add(flows.broken)
    handle = flow.send()
    drain(raise_errors=False)

    html = body(boss, url(handle))
    assert [row[0] for row in table(html, "horsies-nodes")] == ["0", "1"]
    says(html, "2 of 4 nodes are shown.", '<a rel="next" href="?nodes=&amp;from=2#horsies-nodes">')

    html = body(boss, url(handle), **{"nodes": "", "from": "2"})
    assert [row[0] for row in table(html, "horsies-nodes")] == ["2", "3"]
    assert 'rel="next"' not in html

    html = body(boss, url(handle), nodes="FAILED")
    assert [row[1] for row in table(html, "horsies-nodes")] == ["broken"]
    assert re.search(r'aria-current="true">Failed</a> <span class="horsies-quiet">1<', html)
    assert "?nodes=SKIPPED" not in html

    for query in ({"nodes": "x"}, {"from": "x"}, {"from": str(2**70)}):
        assert len(table(body(boss, url(handle), **query), "horsies-nodes")) == 2


# The page of a node


def test_a_node_shows_why_it_does_not_run(boss: Client) -> None:
    """A node shows why it does not run, with links to its neighbours."""
    flow = Workflow("node")
    page = flow.add(flows.page, "en", 3)
    other = flow.add(flows.number, 1)
    flow.add(
        flows.number, 1, after=other, join=quorum(1), when=page.matches("$.pages > 1"), name="end"
    )
    handle = flow.send()

    html = body(boss, node_url(handle, 2))

    assert "WAITING_FOR_NODES" in html
    assert (
        f'upstream: <a href="{node_url(handle, 0)}">page</a>, <a '
        f'href="{node_url(handle, 1)}">number</a>' in html
    )

    found = dict(table(html, "horsies-facts"))
    assert found["Join"] == "1 have to complete"
    assert found["Condition"] == "$.pages &gt; 1 on node 0"
    assert found["Upstream"] == "2 open"
    assert [row[1] for row in table(html, "horsies-upstream")] == ["page", "number"]

    html = body(boss, node_url(handle, 0))
    assert [row[1] for row in table(html, "horsies-downstream")] == ["end"]

    task = Task.objects.get(node=0)
    assert "NO_LIVE_WORKER" in html, "the reasons of the task follow"
    assert (
        f'<a href="{reverse("admin:horsies_task_change", args=(task.pk,))}">{task.task_name}</a>'
        in html
    )

    for number in (7, 2**70):
        assert "There is no node" in messages(boss.get(node_url(handle, number), follow=True))[0]


# Changes


def tools(client: Client, handle: Any) -> set[str]:
    """Return the verbs of the buttons on the page of a run."""
    return {
        tool.url.rstrip("/").rpartition("/")[2]
        for tool in client.get(url(handle)).context["tools"][1:]
    }


def test_operators_pause_resume_cancel_and_retry_a_run(
    boss: Client,
) -> None:
    """The page of a run offers operators to pause, resume, cancel and retry it."""
    handle = sent()
    client = client_with("view_workflowrun", "operate_workflow", name="ada")

    for verb, offered, after in (
        ("pause", {"pause", "skip", "cancel"}, "PAUSED"),
        ("resume", {"resume", "skip", "cancel"}, "RUNNING"),
        ("cancel", {"pause", "skip", "cancel"}, "CANCELLED"),
        ("retry", {"retry"}, "RUNNING"),
    ):
        assert tools(client, handle) == offered
        assert tools(client_with("view_workflowrun"), handle) == set()

        response = client.post(url(handle, verb), {"reason": "wrong book"}, follow=True)
        assert response.redirect_chain == [(url(handle), 302)]
        assert handle.status() == after
        entry = AuditEntry.objects.get(action=f"workflow.{verb}")
        assert (entry.actor, entry.reason) == ("ada", "wrong book")

        (message,) = messages(response)
        assert message.startswith(f"Workflow {WorkflowRun.objects.get()}: ")

    entries = table(body(boss, url(handle)), "horsies-audit")
    told = ["Workflow retried", "Workflow cancelled", "Workflow resumed", "Workflow paused"]
    assert [(entry[2], entry[4]) for entry in entries] == [(text, "wrong book") for text in told]

    html = body(boss, reverse("admin:horsies_auditentry_changelist"))
    says(html, f'<a href="{url(handle)}">{handle.workflow_id}</a>', "status: RUNNING → PAUSED")


def test_a_form_that_changes_nothing_reports_it(boss: Client) -> None:
    """A form that changes nothing reports that, and one that fails shows the cause."""
    handle = sent()

    assert "nothing was changed" in messages(boss.post(url(handle, "resume"), follow=True))[0]
    assert not AuditEntry.objects.filter(action__startswith="workflow.").exists()

    for verb, given, said in (
        ("retry", {}, "none of its nodes has failed"),
        ("skip", {"node": "nothing"}, "has no node &#x27;nothing&#x27;"),
    ):
        says(boss.post(url(handle, verb), given).content.decode(), said)

    with refused("horsies_workflows", code="55P03"):
        advice = "Another open transaction has locked one of these rows"
        says(boss.post(url(handle, "pause")).content.decode(), advice)
        data = {"action": "pause_runs", "_selected_action": [str(handle.workflow_id)]}
        assert advice in messages(boss.post(reverse(RUNS), data, follow=True))[0]


def test_a_node_is_skipped_from_its_page(boss: Client) -> None:
    handle = sent()
    (link,) = re.findall(r'href="([^"]+/skip/\?number=1)"', body(boss, node_url(handle, 1)))
    assert 'value="1"' in body(boss, link)

    says(boss.post(link, {"node": "1"}).content.decode(), "has no node", "A str is a name")
    for given in ({}, {"node": "number", "number": "1"}):
        says(boss.post(link, given).content.decode(), "Enter the name of the node or its number.")

    (message,) = messages(boss.post(link, {"number": "1", "reason": "not needed"}, follow=True))
    says(message, "Node skipped", "node: 1")

    assert WorkflowNode.objects.get(number=1).status == "SKIPPED"
    assert "/skip/" not in body(boss, node_url(handle, 1))
    says(boss.post(link, {"number": "1"}).content.decode(), "has finished")


@pytest.mark.parametrize("kind", ["task", "workflowrun"])
def test_lists_offer_no_action_of_the_whole_site(boss: Client, kind: str) -> None:
    """Fails if: an export of the project shows payload to users who may not see it."""
    sent()
    admin.site.add_action(lambda *_of: None, "export")

    try:
        html = body(boss, reverse(f"admin:horsies_{kind}_changelist"))
    finally:
        admin.site.disable_action("export")

    assert 'name="action"' in html
    assert 'value="export"' not in html


def test_actions_change_the_selected_runs_with_a_reason(
    boss: Client,
) -> None:
    """Actions change the selected runs with a reason and report how many were left unchanged."""
    bad = failed()
    first = sent()
    second = sent()

    def act(action: str) -> list[str]:
        ids = [str(one.workflow_id) for one in (first, second, bad)]
        data = {"action": action, "_selected_action": ids, "reason": " look "}
        return messages(boss.post(reverse(RUNS), data, follow=True))

    assert act("pause_runs") == [
        "2 runs were changed.",
        "1 run was left as it is, because of its status.",
    ]

    entries = AuditEntry.objects.filter(action__startswith="workflow.")
    assert {(entry.actor, entry.reason) for entry in entries} == {("boss", "look")}
    assert act("resume_runs")[0] == "2 runs were changed."

    *refused, done = act("retry_runs")
    assert [text.partition(": ")[2] for text in refused] == ["none of its nodes has failed"] * 2
    assert done == "1 run was changed."
    assert act("cancel_runs") == ["3 runs were changed."]


# Speed


def noise() -> None:
    sql(
        "INSERT INTO horsies_workflows (id, name, status, on_error, sent_at, finished_at, key)"
        " SELECT gen_random_uuid(), 'noise', 'COMPLETED', 'fail', now() - n * interval '1 s', "
        "now(), 'noise ' || n"
        " FROM generate_series(1, 1500) AS n"
    )


QUERIES: list[dict[str, str]] = [
    {},
    {"status": "RUNNING"},
    {"status": "PAUSED"},
    {"name": "book"},
    {"q": "book"},
    {"q": "book 7"},
]


def rows_of_runs(client: Client, **query: str) -> int:
    return rows_read(
        client, f"{reverse(RUNS)}?{urlencode(query)}", "horsies_workflows", "horsies_workflow_nodes"
    )


@pytest.mark.parametrize("analyzed", ["never", "when empty", "now"])
def test_a_list_reads_no_more_rows_the_larger_the_table_is(boss: Client, analyzed: str) -> None:
    # Empty pages and statistics that earlier tests left would make a scan of the table look cheap.
    sql("TRUNCATE horsies_workflows")
    sql("DELETE FROM pg_statistic WHERE starelid = 'horsies_workflows'::regclass")
    if analyzed == "when empty":
        sql("ANALYZE horsies_workflows")

    book = sent(key="book 7")
    runs = WorkflowRun.objects.filter(pk=book.workflow_id)
    runs.update(sent_at="2020-01-01T00:00Z")
    noise()
    if analyzed == "now":
        sql("ANALYZE horsies_workflows")

    for query in QUERIES:
        runs.update(status=query.get("status", "RUNNING"))
        assert rows_of_runs(boss, **query) < 300, query
        assert (book.workflow_id in listed(boss, **query)) == bool(query)


def test_a_filter_without_an_index_searches_the_newest_runs(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "DEEPEST_ROW", 100)
    old = failed()
    WorkflowRun.objects.filter(pk=old.workflow_id).update(sent_at="2020-01-01T00:00Z")
    noise()
    sql("ANALYZE horsies_workflows")

    for query in ({"status": "FAILED"}, {"child": "1"}):
        assert listed(boss, **query) == []
        assert rows_of_runs(boss, **query) < 600

    assert "Only the newest 100,000 runs were searched." in body(
        boss, reverse(RUNS), status="FAILED"
    )
    assert listed(boss, name="fails") == [old.workflow_id]


@pytest.mark.parametrize("analyzed", ["never", "when empty", "now"])
def test_the_tasks_of_a_map_are_listed_in_their_order(boss: Client, analyzed: str) -> None:
    """The tasks of a map are listed in their order, and no other tasks are read."""
    if analyzed == "when empty":
        sql("ANALYZE horsies_tasks")

    flow = Workflow("maps")
    for _ in range(2):
        flow.map(flows.plus, a=list(range(500)))
    handle = flow.send()

    if analyzed == "now":
        sql("ANALYZE horsies_tasks")

    assert rows_read(boss, f"{reverse(TASKS)}?workflow={handle.workflow_id}:1") < 200
    shown = listed_tasks(boss, workflow=f"{handle.workflow_id}:1")
    places = Task.objects.filter(node=1).in_bulk(shown)
    assert [places[id_].node_index for id_ in shown] == list(range(50))
    assert listed_tasks(boss, workflow=f"{handle.workflow_id}:{2**70}") == []


# The slow function, the page, the text that it shows, and the text that it leaves out.
SLOW: dict[str, tuple[Any, str, str, str]] = {
    "reasons": (
        (pages, "explain_node"),
        "node",
        "Finding the reasons took longer",
        "WAITING_FOR_NODES",
    ),
    "progress of all": ((workflows, "progress"), "list", "The progress is missing", "<progress"),
    "progress of one": ((workflows, "progress"), "change", "Nodes", "<progress"),
    "picture": ((picture, "_read"), "picture", "was stopped", 'class="horsies-drawing"'),
    "number of nodes": (
        (nodes, "Count"),
        "change",
        'rel="next" href="?nodes=&amp;from=1#',
        "nodes are shown",
    ),
}


@pytest.mark.parametrize("what", SLOW)
def test_what_takes_too_long_to_read_is_left_out_of_the_page(
    boss: Client, monkeypatch: Any, what: str
) -> None:
    handle = sent()
    (slow, page, said, left_out) = SLOW[what]
    monkeypatch.setattr(nodes, "PAGE", 1)
    address = {"list": reverse(RUNS), "node": node_url(handle, 1)}.get(page) or url(handle, page)

    assert left_out in body(boss, address)

    monkeypatch.setattr(*slow, lambda *_of: sql(ENDLESS))
    monkeypatch.setattr(pages, "PATIENCE_MS", 50)
    monkeypatch.setattr(readonly, "STATEMENT_TIMEOUT_MS", 50)

    html = body(boss, address)
    assert (said in html, left_out in html) == (True, False)


# Runs that are undone, and runs that continue as other runs


def test_an_undone_run_shows_its_undos_and_offers_no_retry(boss: Client) -> None:
    """A run that is undone shows its undos, and cannot be retried afterwards."""
    handle = saga()

    assert listed(boss, status="COMPENSATING") == [handle.workflow_id]
    assert tools(boss, handle) == {"skip"}
    html = body(boss, url(handle))
    says(html, "↶", "Compensating")

    numbers = dict(WorkflowNode.objects.values_list("name", "number"))
    rows = {row[1]: row for row in table(html, "horsies-nodes")}
    kind, task, status = rows["undo first"][2:5]
    assert (kind, task.replace(" ", ""), status) == ("undo", flows.refund.name, "○ Pending Why?")

    html = body(boss, node_url(handle, numbers["undo first"]))
    facts = dict(table(html, "horsies-facts"))
    assert (facts["Kind"], facts["Undoes"], "Join" in facts, "Added by" in facts) == (
        "undo",
        "first",
        False,
        False,
    )
    says(html, f'<a href="{node_url(handle, numbers["first"])}">first</a>', "It undoes")

    facts = dict(table(body(boss, node_url(handle, numbers["first"])), "horsies-facts"))
    assert facts["Undo"].replace(" ", "") == flows.refund.name

    drain(raise_errors=False)
    assert WorkflowRun.objects.get().error_code == "COMPENSATION_FAILED"
    assert "retry" in tools(boss, handle)

    boss.post(url(handle, "retry"))
    assert handle.status() == "COMPENSATING"

    handle.skip("undo second")
    drain(raise_errors=False)

    response = boss.post(url(handle, "retry"), {"reason": "again"}, follow=True)
    says(response.content.decode(), "its nodes were undone. Send the workflow again")
    assert (handle.status(), "retry" in tools(boss, handle)) == ("FAILED", False)


def test_runs_that_continue_one_another_are_linked(boss: Client) -> None:
    handle = flows.loop(0, 2, key="k").send()
    drain()
    middle = handle.successor()
    last = handle.latest()

    html = body(boss, url(middle))
    for other in (handle, last):
        assert f'<a href="{url(other)}">{other.workflow_id}</a>' in html

    number = WorkflowNode.objects.get(workflow_id=middle.workflow_id, kind="continue").number
    assert f'<a href="{url(last)}">Run</a>' in body(boss, node_url(middle, number))
