"""``manage.py horsies_workflow``: output, changes and errors; and its check of changed code."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from horsies_django import Results, TaskResult, Workflow  # noqa: F401 - parameters name them
from horsies_django.models import AuditEntry, Task, WorkflowNode, WorkflowRun
from horsies_django.monitoring import workflows
from horsies_django.tasks import registry
from horsies_django.tasks.definition import define
from horsies_django.tasks.registry import ImportProblem
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.support.commands import command, lines, ran
from tests.support.runs import failed, sent

pytestmark = pytest.mark.django_db
run, machine, refusal = command("horsies_workflow")


def ids(*words: Any) -> list[str]:
    return [one["id"] for one in machine("list", *words)]


def test_the_list_shows_the_progress_of_each_run() -> None:
    """The list shows the progress of each run, the newest first, and options restrict it."""
    first = failed()
    second = sent(key="book 7")

    heading, newest, oldest = lines(run("list"))
    assert heading.startswith("RUN NAME KEY STATUS PROGRESS")
    assert newest.startswith(f"{second.workflow_id} book book 7 RUNNING 0 % ")
    assert oldest.startswith(f"{first.workflow_id} fails - FAILED 100 % ")
    assert oldest.endswith(" UNHANDLED_ERROR")

    (one, other) = machine("list")
    assert one["progress"] == {"total": 2, "completed": 0, "failed": 0, "skipped": 0, "open": 2}
    assert other["progress"] == {"total": 2, "completed": 0, "failed": 1, "skipped": 1, "open": 0}

    other = sent("other")
    other.pause()
    for words, found in (
        (["--status=running"], [second]),
        (["--status=PAUSED"], [other]),
        (["--status=PAUSED", "--name=book"], []),
        (["--status=FAILED", "--name=fails"], [first]),
        (["--key=book 7"], [second]),
        (["--key=8"], []),
        (["--limit=2"], [other, second]),
    ):
        assert ids(*words) == [str(handle.workflow_id) for handle in found]

    assert run("list", "--name=nothing") == "There are no such runs.\n"
    assert "invalid choice" in refusal("list", "--status=SLEEPING")


def test_a_run_is_shown_with_its_nodes_and_who_changed_it() -> None:
    handle = failed()
    assert (
        run("retry", handle.workflow_id) == f"{handle.workflow_id}: its failed nodes run again.\n"
    )

    drain(raise_errors=False)
    handle.retry(actor="ada", reason="the network was down")
    drain(raise_errors=False)
    printed = lines(run("show", handle.workflow_id))
    task = Task.objects.get(node__isnull=False).pk

    assert set(printed) >= {
        f"run {handle.workflow_id}",
        "status FAILED",
        "progress 100 % of 2: 1 failed, 1 skipped",
        f"0 broken task FAILED - - tests.apps.project.flows.broken {task} UNHANDLED_ERROR",
        "1 plus task SKIPPED 1/1 - tests.apps.project.flows.plus - -",
    }
    assert printed[-1].endswith("ada workflow.retry the network was down")

    found = machine("show", handle.workflow_id)
    assert (found["name"], found["status"], found["error_node"]) == ("fails", "FAILED", 0)
    assert [node["status"] for node in found["nodes"]] == ["FAILED", "SKIPPED"]
    assert [one["reason"] for one in found["history"]] == [None, "the network was down"]

    for words in ((), ("--json",)):
        assert "4711" not in run("show", handle.workflow_id, *words), (
            "messages of tasks are shown only on request"
        )
        assert "broken 4711" in run("show", handle.workflow_id, "--payload", *words)

    assert "Only the first 1 nodes are shown." in run("show", handle.workflow_id, "--nodes=1")
    assert [
        machine("show", handle.workflow_id, f"--nodes={most}")["more_nodes"] for most in (1, 2)
    ] == [True, False]


def test_pause_resume_skip_and_cancel_are_audited() -> None:
    """``pause``, ``resume``, ``skip`` and ``cancel`` report their effect and are audited."""
    handle = sent()
    id_ = handle.workflow_id

    printed = run("explain", id_, "plus")
    assert (
        "WAITING_FOR_NODES: It waits for 1 of its 1 upstream nodes: 'number' is ENQUEUED."
        in printed
    )
    assert printed == run("explain", id_, "--number=1")

    found = machine("explain", id_, "number")
    assert (found["workflow_id"], found["reasons"][0]["code"]) == (str(id_), "TASK")

    assert run("pause", id_, "--reason=look") == f"{id_} is paused.\n"
    assert run("pause", id_) == f"Nothing changed: {id_} is PAUSED.\n"
    entry = AuditEntry.objects.get(action="workflow.pause")
    assert (entry.actor.partition(":")[0], entry.reason) == ("shell", "look")

    for changed in (True, False):
        assert machine("resume", id_) == {"id": str(id_), "status": "RUNNING", "changed": changed}

    assert run("skip", id_, "plus", "--reason=no") == f"{id_}: node 1 is skipped.\n"
    assert AuditEntry.objects.get(action="workflow.skip").reason == "no"

    for words, problem in [
        (("skip", id_, "--number=1"), "has finished"),
        (("skip", id_, "nothing"), "no node 'nothing'"),
        (("retry", id_), "none of its nodes has failed"),
    ]:
        assert problem in refusal(*words)

    assert run("cancel", id_) == f"{id_} is cancelled.\n"
    assert handle.status() == "CANCELLED"


def test_a_text_of_digits_is_a_name_and_the_number_an_option() -> None:
    flow = Workflow("orders")
    flow.gate("refund all")
    flow.add(flows.number, 1)
    handle = flow.send()
    drain()
    id_ = handle.workflow_id

    assert "no node '0'. A str is a name" in refusal("skip", id_, "0")
    assert "no node '0'. A str is a name" in refusal("explain", id_, "0")
    assert "has no gate '0'" in refusal("approve", id_, "0")
    for words in (("skip", id_), ("approve", id_)):
        assert "with --number" in refusal(*words)
        assert "is given twice" in refusal(*words, "refund all", "--number=0")

    assert "refund all" in run("explain", id_, "--number=0")
    assert run("approve", id_, "--number=0") == f"{id_}: the gate 0 is approved.\n"


def test_a_run_that_does_not_exist_is_named() -> None:
    id_ = uuid.uuid4()

    for verb in ("show", "explain", "pause", "resume", "cancel", "retry", "skip"):
        more = ["0"] if verb in ("explain", "skip") else []
        assert f"horsies_workflow: there is no workflow run {id_}" in refusal(verb, id_, *more)
        assert "UUID" in refusal(verb, "book", *more)


def test_signals_and_decisions_continue_a_run() -> None:
    """``show`` lists what the nodes wait for; signals and decisions continue the run."""
    flow = Workflow("waits")
    paid = flow.signal("paid", key="7", timeout=60)
    flow.signal("sent", timeout=60, on_timeout="skip")
    flow.gate("approve", permission="shop.approve", after=flow.sleep(60, after=paid))
    flow.gate("look")
    handle = flow.send()
    drain()

    id_ = handle.workflow_id
    run("signal", id_, "paid", "--data", '{"secret": 4711}', "--key", "8")

    shown = run("show", id_)
    begin = lines(shown).index("WAITS FOR UNTIL AFTER THAT")
    paid, sent_, look, end = lines(shown)[begin + 1 : begin + 5]
    assert re.fullmatch("paid signal paid, key 7 .* FAILED", paid)
    assert re.fullmatch("sent signal .* SKIPPED", sent_)
    assert (look, end) == ("look a decision - -", "")

    assert "UNUSED SIGNAL NAME KEY SENT BY" in lines(shown)
    assert ["4711" in text for text in (shown, run("show", id_, "--payload"))] == [False, True]

    found = machine("show", id_)
    told = [(one["name"], one["kind"], one["signal_key"]) for one in found["waits"]]
    assert told == [("paid", "signal", "7"), ("sent", "signal", None), ("look", "gate", None)]

    (unused,) = found["unused_signals"]
    assert (unused["name"], unused["key"], "data" in unused) == ("paid", "8", False)
    assert machine("show", id_, "--payload")["unused_signals"][0]["data"] == {"secret": 4711}

    assert "the signal paid is sent" in run("signal", id_, "paid", "--data", "[1]", "--key", "7")
    for wrong in ("{", "[" * 100_000):
        assert "--data must be JSON" in refusal("signal", id_, "paid", "--data", wrong)
    assert "is a signal, not a gate" in refusal("approve", id_, "paid")

    assert machine("signal", id_, "sent")["changed"]
    drain(until=dt.timedelta(minutes=2))
    assert "the gate approve is approved" in run("approve", id_, "approve", "--reason", "fine")
    run("reject", id_, "look", "--reason", "ugly")
    drain()

    results = handle.results()
    assert (results["paid"].ok_value, results["sent"].ok_value) == ([1], None)
    assert results["approve"].ok_value["reason"] == "fine"
    assert results["look"].err_value.message.endswith(": ugly")

    # The reasons of decisions are payload.
    for more, reasons in (([], [None, None]), (["--payload"], ["fine", "ugly"])):
        assert ("ugly" in run("show", id_, *more)) == bool(more)
        assert [one["reason"] for one in machine("show", id_, *more)["history"]] == reasons

    written = {entry.action: entry.reason for entry in AuditEntry.objects.filter(subject=str(id_))}
    assert written == {"workflow.approve": "fine", "workflow.reject": "ugly"}


PLUS = flows.plus.name
NUMBER = flows.number.name
TOTAL = flows.total_list.name
Deploy = Callable[[str, str | None], None]
LONG_AGO = "2026-01-01T00:00Z"


def check(*words: str) -> tuple[int, str]:
    """Return the exit code of the check and the printed text."""
    return ran("horsies_workflow", "check", *words)[:2]


def problems() -> list[dict[str, Any]]:
    code, printed = check("--json")
    found: list[dict[str, Any]] = json.loads(printed)["problems"]
    assert code == (1 if found else 0)
    return found


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Return a function that gives a task other parameters, as another release may.

    None removes the task.
    """

    def change(name: str, parameters: str | None) -> None:
        if parameters is None:
            monkeypatch.delitem(registry._tasks, name)
        else:
            space = dict(globals())
            exec(f"def function({parameters}) -> int: ...", space)
            monkeypatch.setitem(registry._tasks, name, define(space["function"], name=name))

    return change


def test_runs_that_fit_are_counted_and_the_exit_code_is_0(deploy: Deploy) -> None:
    assert check() == (0, "0 nodes of 0 runs fit the code.\n")

    sent(b=5)
    inner = Workflow("inner")
    inner.add(flows.plus, inner.input("a", int))

    flow = Workflow("all kinds")
    numbers = flow.add(flows.numbers, 3)
    flow.add(flows.total, flow.map(flows.plus, a=numbers))
    flow.map(flows.plus, a=[1, 2], b=3)
    one = flow.add(flows.number, 1)
    flow.add(inner, a=one)
    flow.add(flows.describe, one, allow_failed=True)
    flow.send()

    deploy(PLUS, "a: int, b: int = 7, c: str = ''")  # which old arguments fit
    assert check() == (0, "9 nodes of 2 runs fit the code.\n")
    assert json.loads(check("--json")[1]) == {"nodes": 9, "runs": 2, "problems": []}


def test_a_started_workflow_counts_once() -> None:
    """A nested workflow that has started counts once.

    An undo is counted with the node that it undoes.
    """
    inner = Workflow("inner")
    flow = Workflow("outer")
    inner.add(flows.number, 1)
    flow.add(inner)
    handle = flow.send()

    assert check() == (0, "1 node of 2 runs fits the code.\n")
    child = machine("show", handle.workflow_id)["nodes"][0]["task_id"]
    assert f"parent {handle.workflow_id}, node 0" in lines(run("show", child))

    sent()
    WorkflowNode.objects.filter(name="plus").update(kind="undo", kwargs={}, inputs=None)
    assert check() == (0, "2 nodes of 3 runs fit the code.\n")


@pytest.mark.parametrize(
    ("code", "kind", "argument", "said"),
    [
        (None, "UNKNOWN_TASK", None, "there is no task of this name"),
        ("b: int = 1", "UNKNOWN_ARGUMENT", "a", "it has no argument 'a'"),
        (
            "a: int, c: str, b: int = 1",
            "MISSING_ARGUMENT",
            "c",
            "it requires the argument 'c', which the calls do not pass",
        ),
        ("a: int, b: str = '1'", "OTHER_TYPE", "b", "argument 'b': expected str, got int"),
        (
            "a: TaskResult[int], b: int = 1",
            "OTHER_TYPE",
            "a",
            "'a' is annotated TaskResult[int, TaskError], and gets",
        ),
        ("a: int, b: Missing = 1", "OTHER_TYPE", "b", "an annotation cannot be resolved"),
    ],
)
def test_a_change_under_waiting_nodes_is_found(
    deploy: Deploy, code: Any, kind: str, argument: Any, said: str
) -> None:
    first = sent(b=5)
    second = sent("other", b=6)
    deploy(PLUS, code)

    (found,) = problems()

    assert said in found.pop("problem")
    assert len(found.pop("advice")) > 10
    assert found == {
        "task": PLUS,
        "undo": False,
        "code": kind,
        "argument": argument,
        "nodes": 2,
        "runs": 2,
        "run": min(str(first.workflow_id), str(second.workflow_id)),
        "node": "plus",
    }

    status, printed = check()
    line, total = printed.splitlines()

    assert status == 1
    assert line.startswith(f"{PLUS}: ")
    assert said in line
    assert line.endswith(f"Concerns 2 nodes of 2 runs, for example 'plus' of {found['run']}.")
    assert total == "1 problem in 4 nodes of 2 runs."


def test_elements_of_a_map_are_compared_with_the_code(
    deploy: Deploy,
) -> None:
    """The check includes lists, elements of maps, and nodes of a workflow that has not started."""
    innermost = Workflow("innermost")
    inner = Workflow("inner")
    flow = Workflow("outer")

    innermost.add(flows.plus, 1, name="deep")
    inner.add(innermost, name="middle")
    flow.map(
        flows.plus, a=[1, 2], after=flow.add(inner, after=flow.add(flows.number, 1), name="whole")
    )
    flow.send()

    deploy(PLUS, "a: str, b: int = 1")
    assert [(one["argument"], one["nodes"], one["runs"]) for one in problems()] == [("a", 2, 1)]

    deploy(PLUS, None)
    assert [(one["nodes"], one["node"]) for one in problems()] == [(2, "plus")]

    WorkflowNode.objects.filter(name="plus").update(status="SKIPPED", finished_at=LONG_AGO)
    assert [one["node"] for one in problems()] == ["whole / middle / deep"]

    flow = Workflow("join")
    flow.add(flows.total_list, [flow.add(flows.number, 1), flow.add(flows.number, 2)])
    flow.send()

    for annotation in ("Results[int]", "int"):  # the list keeps the form in which it was sent
        deploy(TOTAL, f"values: {annotation}")
        told = [one["problem"] for one in problems() if one["task"] == TOTAL]
        assert told == [f"'values' is annotated {annotation}, and gets a list of values"]


def test_the_task_of_an_undo_has_to_fit_after_its_node_completed(deploy: Deploy) -> None:
    """The task of an undo has to fit the code even after its node has completed."""
    handle = sent()
    drain(until=None, raise_errors=False)
    assert handle.status() == "COMPLETED"

    sent("skipped").skip("plus")
    handle = sent()
    rows = WorkflowNode.objects.filter(name="plus")
    rows.update(undo={"task": NUMBER, "queue": "default", "parameters": ["n"]})
    rows.filter(workflow_id=handle.workflow_id).update(status="COMPLETED", finished_at=LONG_AGO)
    assert problems() == []

    deploy(NUMBER, "number: int")
    found = [(one["undo"], one["code"], one["argument"], one["nodes"]) for one in problems()]
    assert found == [
        (False, "MISSING_ARGUMENT", "number", 2),
        (False, "UNKNOWN_ARGUMENT", "n", 2),
        (True, "MISSING_ARGUMENT", "number", 1),
        (True, "UNKNOWN_ARGUMENT", "n", 1),
    ]

    deploy(NUMBER, None)
    assert [(one["undo"], one["nodes"], one["node"]) for one in problems()] == [
        (False, 2, "number"),
        (True, 1, "plus"),
    ]
    assert f"{NUMBER} (undo): there is no task of this name" in check()[1]


def test_check_reports_undeclared_queues_and_broken_modules(
    settings: Any, monkeypatch: Any
) -> None:
    """A queue that was removed and a module that cannot be imported are reported."""
    flow = Workflow("mail")
    flow.add(flows.number.with_options(queue="mail"), 1)
    flow.send()

    queues = {name: rules for name, rules in settings.HORSIES["QUEUES"].items() if name != "mail"}
    settings.HORSIES = {**settings.HORSIES, "QUEUES": queues}

    (found,) = problems()
    assert (found["code"], found["task"]) == ("UNDECLARED_QUEUE", NUMBER)
    assert "'mail' is not declared" in found["problem"]

    broken = [ImportProblem("shop.tasks", ValueError("not today"))]
    monkeypatch.setattr(registry, "autodiscover", lambda: broken)
    assert "shop.tasks cannot be imported: ValueError('not today')" in refusal("check")


def test_runs_are_read_in_chunks_and_one_problem_stays_one(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "RUNS", 2)
    for place in range(5):
        sent(f"run {place}", **({"b": place} if place % 2 else {}))

    flow = Workflow("two groups")
    flow.add(flows.plus, 1)
    flow.add(flows.plus, 1, b=2)
    flow.send()

    deploy(PLUS, "a: int, c: str, b: int = 1")
    (found,) = problems()

    assert (found["nodes"], found["runs"]) == (7, 6), (
        "the last run is in two groups, and counts once"
    )

    WorkflowRun.objects.update(status="PAUSED")
    assert len(problems()) == 1


def test_both_ends_of_the_constants_of_a_group_are_decoded(deploy: Deploy) -> None:
    for value in ("2026-01-01", "later", "2027-01-01"):
        flow = Workflow(value)
        flow.add(flows.page, value, 1)
        flow.send()

    deploy(flows.page.name, "language: dt.date, pages: int")
    (found,) = problems()

    assert (found["argument"], found["nodes"]) == ("language", 3)


def saga() -> Any:
    """Send a run, and make it fail with one undo that fails and one that waits."""
    flow = Workflow("trip")
    first = flow.add(flows.charge, 1, undo=flows.refund, name="first")
    second = flow.add(
        flows.charge,
        2,
        after=first,
        undo=flows.broken_undo.with_options(queue="mail"),
        name="second",
    )
    flow.add(flows.broken, after=second)

    handle = flow.send()
    drain(queues=["default"], raise_errors=False)
    assert handle.status() == "COMPENSATING"
    return handle


def test_the_command_shows_maps_undos_and_continued_runs() -> None:
    """The command shows maps, undos and continued runs."""
    flow = Workflow("maps")
    flow.map(flows.plus, a=[1, 2, 3])
    assert "0/3" in run("show", flow.send().workflow_id)

    handle = saga()
    assert ids("--status", "COMPENSATING") == [str(handle.workflow_id)]
    assert any("undo first undo PENDING" in line for line in lines(run("show", handle.workflow_id)))

    by_name = {node["name"]: node for node in machine("show", handle.workflow_id)["nodes"]}
    assert by_name["undo first"]["undoes"] == by_name["first"]["number"]
    assert "UNDO: It undoes 'second'." in run("explain", handle.workflow_id, "undo second")
    assert run("cancel", handle.workflow_id).startswith("Nothing changed:")

    loop = flows.loop(0, 2, key="k").send()
    drain(queues=["default"])
    middle = loop.successor()
    last = loop.latest()

    shown = lines(run("show", middle.workflow_id))
    assert {f"continues {loop.workflow_id}", f"continued as {last.workflow_id}"} <= set(shown)
    assert machine("show", loop.workflow_id)["continued_as"] == str(middle.workflow_id)
