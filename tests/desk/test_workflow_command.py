"""``manage.py horsies_workflow``: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from horsies_django import Workflow
from horsies_django.models import AuditEntry, Task
from horsies_django.monitoring import workflows
from horsies_django.testing import drain
from tests.apps.project import flows

pytestmark = pytest.mark.django_db


def run(*words: Any) -> str:
    """Run the command here and return what it printed."""
    out = io.StringIO()
    call_command("horsies_workflow", *map(str, words), stdout=out, stderr=out)
    return out.getvalue()


def machine(*words: Any) -> Any:
    return json.loads(run(*words, "--json"))


def sent(name: str = "book", key: str | None = None, **options: Any) -> Any:
    """Send a chain of two nodes whose second one has not run."""
    flow = Workflow(name, key=key, **options)
    flow.add(flows.plus, flow.add(flows.number, 1))
    return flow.send()


def failed(secret: int = 4711) -> Any:
    flow = Workflow("fails")
    flow.add(flows.plus, flow.add(flows.broken, secret))
    handle = flow.send()
    drain(raise_errors=False)
    return handle


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def ids(*words: Any) -> list[str]:
    return [one["id"] for one in machine("list", *words)]


def test_the_list_shows_how_far_each_run_is_the_newest_first() -> None:
    first, second = failed(), sent(key="book 7")
    heading, newest, oldest = lines(run("list"))
    assert heading.startswith("RUN NAME KEY STATUS PROGRESS")
    assert newest.startswith(f"{second.workflow_id} book book 7 RUNNING 0 % ")
    assert oldest.startswith(f"{first.workflow_id} fails - FAILED 100 % ")
    assert oldest.endswith(" UNHANDLED_ERROR")
    (one, other) = machine("list")
    assert one["progress"] == {"total": 2, "completed": 0, "failed": 0, "skipped": 0, "open": 2}
    assert other["progress"] == {"total": 2, "completed": 0, "failed": 1, "skipped": 1, "open": 0}


def test_the_list_is_narrowed_by_status_name_and_key() -> None:
    bad, book, other = failed(), sent(key="7"), sent("other")
    other.pause()
    assert ids("--status=running") == [str(book.workflow_id)]
    assert ids("--status=PAUSED") == [str(other.workflow_id)]
    assert ids("--status=PAUSED", "--name=book") == []
    assert ids("--status=FAILED", "--name=fails") == [str(bad.workflow_id)]
    assert ids("--name=other") == [str(other.workflow_id)]
    assert ids("--key=7") == [str(book.workflow_id)]
    assert ids("--key=8") == []
    assert ids("--limit=2") == [str(other.workflow_id), str(book.workflow_id)]
    assert run("list", "--name=nothing") == "There are no such runs.\n"
    with pytest.raises(CommandError, match="invalid choice"):
        run("list", "--status=SLEEPING")


def test_a_search_without_an_index_looks_no_farther_back_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "DEEPEST", 2)
    oldest = failed()
    paused = sent()
    paused.pause()
    sent()
    assert ids("--status=FAILED") == []
    assert ids("--status=PAUSED") == [str(paused.workflow_id)], (
        "the index of unfinished runs has it among the newest two"
    )
    assert ids("--name=fails") == [str(oldest.workflow_id)], "names have an index of their own"


def test_a_run_is_shown_with_its_nodes_and_who_changed_it() -> None:
    handle = failed()
    handle.retry(actor="ada", reason="the network was down")
    drain(raise_errors=False)
    printed = lines(run("show", handle.workflow_id))
    assert f"run {handle.workflow_id}" in printed
    assert "status FAILED" in printed
    assert "progress 100 % of 2: 1 failed, 1 skipped" in printed
    task = Task.objects.get(node__isnull=False).pk
    assert f"0 broken task FAILED - - tests.apps.project.flows.broken {task} UNHANDLED_ERROR" in printed
    assert "1 plus task SKIPPED 1/1 - tests.apps.project.flows.plus - -" in printed
    assert printed[-1].endswith("ada workflow.retry the network was down")
    found = machine("show", handle.workflow_id)
    assert (found["name"], found["status"], found["error_node"]) == ("fails", "FAILED", 0)
    assert [node["status"] for node in found["nodes"]] == ["FAILED", "SKIPPED"]
    assert [one["reason"] for one in found["history"]] == ["the network was down"]


def test_messages_of_tasks_are_shown_only_on_request() -> None:
    handle = failed(4711)
    for words in ((), ("--json",)):
        assert "4711" not in run("show", handle.workflow_id, *words)
        assert "broken 4711" in run("show", handle.workflow_id, "--payload", *words)


def test_a_large_run_is_cut_and_says_so() -> None:
    handle = sent()
    assert "Only the first 1 nodes are shown." in run("show", handle.workflow_id, "--nodes=1")
    assert machine("show", handle.workflow_id, "--nodes=1")["more_nodes"] is True
    assert machine("show", handle.workflow_id, "--nodes=2")["more_nodes"] is False


def test_maps_and_child_runs_are_shown() -> None:
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("parent")
    flow.map(flows.plus, a=[1, 2, 3])
    flow.add(child)
    handle = flow.send()
    printed = run("show", handle.workflow_id)
    assert "0/3" in printed
    inner = machine("show", handle.workflow_id)["nodes"][1]["task_id"]
    assert f"parent {handle.workflow_id}, node 1" in lines(run("show", inner))


def test_a_node_is_explained_by_name_or_number() -> None:
    handle = sent()
    printed = run("explain", handle.workflow_id, "plus")
    assert "WAITING_FOR_NODES: It waits for 1 of its 1 upstream nodes: 'number' is ENQUEUED." in printed
    assert printed == run("explain", handle.workflow_id, 1)
    found = machine("explain", handle.workflow_id, "number")
    assert [reason["code"] for reason in found["reasons"]][0] == "TASK"
    assert found["workflow_id"] == str(handle.workflow_id)


def test_pause_resume_and_cancel_say_whether_anything_changed_and_are_audited() -> None:
    handle = sent()
    id_ = handle.workflow_id
    assert run("pause", id_, "--reason=look") == f"{id_} is paused.\n"
    assert run("pause", id_) == f"Nothing changed: {id_} is PAUSED.\n"
    entry = AuditEntry.objects.get(action="workflow.pause")
    assert entry.actor.startswith("shell:")
    assert entry.reason == "look"
    assert machine("resume", id_) == {"id": str(id_), "status": "RUNNING", "changed": True}
    assert machine("resume", id_) == {"id": str(id_), "status": "RUNNING", "changed": False}
    assert run("cancel", id_) == f"{id_} is cancelled.\n"
    assert handle.status() == "CANCELLED"


def test_retry_runs_the_failed_nodes_again_or_says_why_not() -> None:
    handle = failed()
    assert run("retry", handle.workflow_id) == f"{handle.workflow_id}: its failed nodes run again.\n"
    assert handle.status() == "RUNNING"
    with pytest.raises(CommandError, match="none of its nodes has failed"):
        run("retry", sent().workflow_id)


def test_a_node_is_skipped_by_name_or_number_or_it_says_why_not() -> None:
    handle = sent()
    assert run("skip", handle.workflow_id, "plus", "--reason=no") == f"{handle.workflow_id}: node 1 is skipped.\n"
    assert AuditEntry.objects.get(action="workflow.skip").reason == "no"
    with pytest.raises(CommandError, match="has finished"):
        run("skip", handle.workflow_id, 1)
    with pytest.raises(CommandError, match="no node 'nothing'"):
        run("skip", handle.workflow_id, "nothing")


@pytest.mark.parametrize("verb", ["show", "explain", "pause", "resume", "cancel", "retry", "skip"])
def test_a_run_that_does_not_exist_is_named(verb: str) -> None:
    more = ["0"] if verb in ("explain", "skip") else []
    id_ = uuid.uuid4()
    with pytest.raises(CommandError, match=f"horsies_workflow: there is no workflow run {id_}"):
        run(verb, id_, *more)
    with pytest.raises(CommandError, match="UUID"):
        run(verb, "book", *more)


def waiting() -> Any:
    flow = Workflow("waits")
    paid = flow.signal("paid", key="7", timeout=60)
    flow.signal("sent", timeout=60, on_timeout="skip")
    flow.gate("approve", permission="shop.approve", after=flow.sleep(60, after=paid))
    flow.gate("look")
    handle = flow.send()
    drain()
    return handle


def test_show_lists_what_nodes_wait_for_and_signals_that_none_took() -> None:
    handle = waiting()
    run("signal", handle.workflow_id, "paid", "--data", '{"secret": 4711}', "--key", "8")
    shown = run("show", handle.workflow_id)
    begin = lines(shown).index("WAITS FOR UNTIL AFTER THAT")
    table = lines(shown)[begin : begin + 5]
    assert [" ".join(line.split()[:2]) for line in table] == ["WAITS FOR", "paid signal", "sent signal", "look a", ""]
    assert table[1].startswith("paid signal paid, key 7 ")
    assert table[1].endswith(" FAILED")
    assert table[2].endswith(" SKIPPED")
    assert table[3] == "look a decision - -"
    assert "UNUSED SIGNAL NAME KEY SENT BY" in lines(shown)
    assert "4711" not in shown
    assert "4711" in run("show", handle.workflow_id, "--payload")
    found = machine("show", handle.workflow_id)
    assert [(one["name"], one["kind"], one["signal_key"]) for one in found["waits"]] == [
        ("paid", "signal", "7"), ("sent", "signal", None), ("look", "gate", None)
    ]  # fmt: skip
    (unused,) = found["unused_signals"]
    assert (unused["name"], unused["key"], "data" in unused) == ("paid", "8", False)
    assert machine("show", handle.workflow_id, "--payload")["unused_signals"][0]["data"] == {"secret": 4711}


def test_a_signal_and_decisions_continue_a_run() -> None:
    handle = waiting()
    assert "the signal paid is sent" in run("signal", handle.workflow_id, "paid", "--data", "[1]", "--key", "7")
    assert machine("signal", handle.workflow_id, "sent")["changed"]
    drain(until=dt.timedelta(minutes=2))
    assert "the gate approve is approved" in run("approve", handle.workflow_id, "approve", "--reason", "fine")
    run("reject", handle.workflow_id, "look", "--reason", "ugly")
    drain()
    results = handle.results()
    assert (results["paid"].ok_value, results["sent"].ok_value) == ([1], None)
    assert results["approve"].ok_value["reason"] == "fine"
    assert results["look"].err_value.message.endswith(": ugly")
    assert "ugly" not in run("show", handle.workflow_id)
    assert "ugly" in run("show", handle.workflow_id, "--payload")
    told = [one["reason"] for one in machine("show", handle.workflow_id)["history"]]
    assert told == [None, None], "the reasons of decisions are payload"
    assert [one["reason"] for one in machine("show", handle.workflow_id, "--payload")["history"]] == ["fine", "ugly"]
    reasons = {entry.action: entry.reason for entry in AuditEntry.objects.filter(subject=str(handle.workflow_id))}
    assert reasons == {"workflow.approve": "fine", "workflow.reject": "ugly"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("signal", "paid", "--data", "{"), "--data must be JSON"),
        (("signal", "pay"), "waits for the signal 'pay'; its signals are 'paid', 'sent'"),
        (("approve", "paid"), "is not a gate but a signal"),
        (("reject", "now"), "its gates are 'approve', 'look'"),
    ],
)
def test_a_signal_or_a_decision_that_nobody_waits_for_is_refused(words: tuple[str, ...], problem: str) -> None:
    verb, *rest = words
    with pytest.raises(CommandError, match=problem):
        run(verb, waiting().workflow_id, *rest)
