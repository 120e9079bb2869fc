"""``horsies_workflow check``: what it finds when the code under unfinished runs was changed."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from horsies_django import Results, TaskResult, Workflow
from horsies_django.models import WorkflowNode
from horsies_django.monitoring import workflows
from horsies_django.tasks import registry
from horsies_django.tasks.definition import define
from horsies_django.tasks.registry import ImportProblem
from horsies_django.testing import drain
from tests.apps.project import flows

pytestmark = pytest.mark.django_db
PLUS, NUMBER, TOTAL = flows.plus.name, flows.number.name, flows.total_list.name


def check(*words: str) -> tuple[int, str]:
    """Run the command here; return its exit code and what it printed."""
    out = io.StringIO()
    try:
        call_command("horsies_workflow", "check", *words, stdout=out, stderr=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def problems() -> list[dict[str, Any]]:
    code, printed = check("--json")
    found: list[dict[str, Any]] = json.loads(printed)["problems"]
    assert code == (1 if found else 0)
    return found


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts other code under the name of a task; None takes the task away."""

    def change(name: str, function: Callable[..., Any] | None) -> None:
        if function is None:
            monkeypatch.delitem(registry._tasks, name)
        else:
            monkeypatch.setitem(registry._tasks, name, define(function, name=name))

    return change


def chain(name: str = "chain", **constants: Any) -> Any:
    """Send a run whose second node takes the result of the first."""
    flow = Workflow(name)
    flow.add(flows.plus, flow.add(flows.number, 1), **constants)
    return flow.send()


def test_runs_that_fit_are_counted_and_the_exit_code_is_0() -> None:
    chain()
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
    assert check() == (0, "9 nodes of 2 runs fit the code.\n")
    assert json.loads(check("--json")[1]) == {"nodes": 9, "runs": 2, "problems": []}


def test_without_runs_there_is_nothing_to_fit() -> None:
    assert check() == (0, "0 nodes of 0 runs fit the code.\n")


def no_a(b: int = 1) -> int:
    return b


def also_c(a: int, c: str, b: int = 1) -> int:
    return a + b


def text_b(a: int, b: str = "1") -> int:
    return a


def result_a(a: TaskResult[int], b: int = 1) -> int:
    return b


def another_default(a: int, b: int = 7, c: str = "") -> int:
    return a + b


@pytest.mark.parametrize(
    ("code", "kind", "argument", "said"),
    [
        (None, "UNKNOWN_TASK", None, "there is no task of this name"),
        (no_a, "UNKNOWN_ARGUMENT", "a", "it takes no 'a'"),
        (also_c, "MISSING_ARGUMENT", "c", "it needs 'c', which they do not give"),
        (text_b, "OTHER_TYPE", "b", "argument 'b': expected str, got int"),
        (result_a, "OTHER_TYPE", "a", "'a' is annotated TaskResult[int, TaskError], and gets a value"),
    ],
)
def test_a_change_that_fails_waiting_nodes_is_found(
    deploy: Callable[..., None], code: Callable[..., Any] | None, kind: str, argument: str | None, said: str
) -> None:
    first, second = chain(b=5), chain("other", b=6)
    deploy(PLUS, code)
    (found,) = problems()
    assert said in found.pop("problem")
    assert len(found.pop("advice")) > 10
    assert found == {
        "task": PLUS, "undo": False, "code": kind, "argument": argument, "nodes": 2, "runs": 2,
        "run": min(str(first.workflow_id), str(second.workflow_id)), "node": "plus",
    }  # fmt: skip
    status, printed = check()
    line, total = printed.splitlines()
    assert status == 1
    assert line.startswith(f"{PLUS}: ")
    assert said in line
    assert line.endswith(f"Concerns 2 nodes of 2 runs, for example 'plus' of {found['run']}.")
    assert total == "1 problem in 4 nodes of 2 runs."


def test_a_change_that_old_arguments_fit_is_none(deploy: Callable[..., None]) -> None:
    chain(b=5)
    deploy(PLUS, another_default)
    assert problems() == []


def lazy(values: Results[int]) -> int:
    return 0


def single(values: int) -> int:
    return 0


@pytest.mark.parametrize(("code", "said"), [(lazy, "Results[int]"), (single, "int")])
def test_a_list_of_results_keeps_the_form_in_which_it_was_sent(
    deploy: Callable[..., None], code: Callable[..., Any], said: str
) -> None:
    flow = Workflow("join")
    flow.add(flows.total_list, [flow.add(flows.number, 1), flow.add(flows.number, 2)])
    flow.send()
    deploy(TOTAL, code)
    (found,) = problems()
    assert found["problem"] == f"'values' is annotated {said}, and gets a list of values"


def unresolved(a: int, b: Missing = 1) -> int:  # noqa: F821 - on purpose  # type: ignore[name-defined]
    return a


def test_a_signature_that_cannot_be_resolved_is_told_like_any_problem(deploy: Callable[..., None]) -> None:
    chain(b=5)
    deploy(PLUS, unresolved)
    (found,) = problems()
    assert "an annotation cannot be resolved" in found["problem"]


def text_a(a: str, b: int = 1) -> str:
    return a


def test_the_elements_of_a_map_and_the_nodes_of_a_workflow_that_has_not_started_are_compared(
    deploy: Callable[..., None],
) -> None:
    innermost = Workflow("innermost")
    innermost.add(flows.plus, 1, name="deep")
    inner = Workflow("inner")
    inner.add(innermost, name="middle")
    flow = Workflow("outer")
    flow.map(flows.plus, a=[1, 2], after=flow.add(inner, after=flow.add(flows.number, 1), name="whole"))
    flow.send()
    deploy(PLUS, text_a)
    found = problems()
    assert [(one["argument"], one["nodes"], one["runs"]) for one in found] == [("a", 2, 1)]
    deploy(PLUS, None)
    assert [(one["nodes"], one["node"]) for one in problems()] == [(2, "plus")]
    WorkflowNode.objects.filter(name="plus").update(status="SKIPPED", finished_at="2026-01-01T00:00Z")
    assert [one["node"] for one in problems()] == ["whole / middle / deep"]


def test_a_workflow_that_has_started_counts_once() -> None:
    inner = Workflow("inner")
    inner.add(flows.number, 1)
    flow = Workflow("outer")
    flow.add(inner)
    flow.send()
    assert check()[1] == "1 node of 2 runs fits the code.\n"


def test_a_task_that_would_undo_a_node_has_to_fit_also_after_the_node(deploy: Callable[..., None]) -> None:
    handle = chain()
    drain(until=None, raise_errors=False)
    assert handle.status() == "COMPLETED"
    chain("skipped").skip("plus")
    handle = chain()
    rows = WorkflowNode.objects.filter(name="plus")
    rows.update(undo={"task": NUMBER, "queue": "default", "parameters": ["n"]})
    rows.filter(workflow_id=handle.workflow_id).update(status="COMPLETED", finished_at="2026-01-01T00:00Z")
    assert problems() == []
    deploy(NUMBER, other_name)
    found = [(one["undo"], one["code"], one["argument"], one["nodes"]) for one in problems()]
    assert found == [
        (False, "MISSING_ARGUMENT", "number", 2), (False, "UNKNOWN_ARGUMENT", "n", 2),
        (True, "MISSING_ARGUMENT", "number", 1), (True, "UNKNOWN_ARGUMENT", "n", 1),
    ]  # fmt: skip
    deploy(NUMBER, None)
    assert [(one["undo"], one["nodes"], one["node"]) for one in problems()] == [(False, 2, "number"), (True, 1, "plus")]
    assert f"{NUMBER} (undo): there is no task of this name" in check()[1]


def other_name(number: int) -> int:
    return number


def test_a_node_that_undoes_another_one_is_judged_by_what_it_undoes() -> None:
    chain()
    WorkflowNode.objects.filter(name="plus").update(kind="undo", kwargs={}, inputs=None)
    assert check() == (0, "1 node of 1 run fits the code.\n")


def test_a_queue_that_is_gone_is_told(settings: Any) -> None:
    flow = Workflow("mail")
    flow.add(flows.number.with_options(queue="mail"), 1)
    flow.send()
    queues = {name: rules for name, rules in settings.HORSIES["QUEUES"].items() if name != "mail"}
    settings.HORSIES = {**settings.HORSIES, "QUEUES": queues}
    (found,) = problems()
    assert (found["code"], found["task"]) == ("UNDECLARED_QUEUE", NUMBER)
    assert "'mail' is not declared" in found["problem"]


def test_what_has_ended_is_not_compared(deploy: Callable[..., None]) -> None:
    chain().cancel()
    ended = chain()
    drain()
    assert ended.status() == "COMPLETED"
    half = chain()
    WorkflowNode.objects.filter(workflow_id=half.workflow_id, name="number").update(
        status="COMPLETED", finished_at="2026-01-01T00:00Z"
    )
    deploy(NUMBER, None)
    assert check() == (0, "1 node of 1 run fits the code.\n")


def test_runs_are_read_in_chunks_and_one_problem_stays_one(
    deploy: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "RUNS", 2)
    for place in range(5):
        chain(f"run {place}", **({"b": place} if place % 2 else {}))
    flow = Workflow("two groups")
    flow.add(flows.plus, 1)
    flow.add(flows.plus, 1, b=2)
    flow.send()
    deploy(PLUS, also_c)
    (found,) = problems()
    assert (found["nodes"], found["runs"]) == (7, 6), "the last run is in two groups, and counts once"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_workflows SET status = 'PAUSED'")
    assert len(problems()) == 1


def test_both_ends_of_the_constants_of_a_group_are_decoded(deploy: Callable[..., None]) -> None:
    for value in ("2026-01-01", "later", "2027-01-01"):
        flow = Workflow(value)
        flow.add(flows.page, value, 1)
        flow.send()
    deploy(flows.page.name, dated)
    (found,) = problems()
    assert (found["argument"], found["nodes"]) == ("language", 3)


def dated(language: dt.date, pages: int) -> dict[str, str | int]:
    return {}


def test_a_tasks_module_that_cannot_be_imported_is_not_taken_for_missing_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [ImportProblem("shop.tasks", ValueError("not today"))]
    monkeypatch.setattr(registry, "autodiscover", lambda: broken)
    with pytest.raises(CommandError, match=r"shop.tasks cannot be imported: ValueError\('not today'\)"):
        check()
