"""Tasks of django.tasks in workflows: as nodes, elements of maps, undos and announcements, beside those of ``@task``."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from django.core.management import call_command

from horsies_django import Workflow, WorkflowDefinitionError, explain_node
from horsies_django.models import Task, WorkflowNode
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define
from horsies_django.tasks.options import SendOptions
from horsies_django.testing import drain, open_gate
from tests.apps.project import flows, plain
from tests.conftest import limit
from tests.db.conftest import sweep

pytestmark = pytest.mark.django_db(transaction=True)

Plain = dict[str, TaskDefinition]


class DjangoTask:
    """What a workflow needs of a Task of django.tasks."""

    def __init__(self, definition: TaskDefinition, **options: Any) -> None:
        self.definition = definition
        self.send_options = SendOptions(**options)


def stored(name: str) -> list[dict[str, Any]]:
    """Return the stored arguments of the tasks of a function."""
    name = plain.TASKS[name].name
    return list(Task.objects.filter(task_name=name).order_by("pk").values_list("kwargs", flat=True))


def test_results_become_arguments_of_a_plain_node_by_name(plain_tasks: Plain) -> None:
    """Naive: a promoted node has its arguments in the form of a typed task, which the plain function cannot be called with."""
    double, inner, flow = plain_tasks["double"], Workflow("inner"), Workflow("plain")
    inner.returns(inner.add(double.name, inner.input("n")))
    one = flow.add(DjangoTask(double), 3, name="one")
    two = flow.add(double.name, one, name="two")
    flow.add(plain_tasks["greet"].name, two, loud=True)
    flow.add(plain_tasks["listed"].name, [one, two])
    flow.add(flows.plus, two, b=1)
    flow.add(plain_tasks["at"].name, two, scale=2, name="positional only")
    flow.map(double.name, n=flow.map(double.name, n=[50, 51], name="map"), name="map over map")
    flow.add(inner, n=two)
    handle = flow.send()
    assert stored("double") == [{"args": [], "kwargs": {"n": n}} for n in (3, 50, 51)]
    drain()
    promoted = [each["kwargs"]["n"] for each in stored("double")[3:]]
    assert sorted(promoted) == [6, 12, 100, 102]
    assert all(each["args"] == [] for each in stored("double"))
    assert set(Task.objects.values_list("codec", flat=True)) == {"plain", None}
    assert {name: each.ok_value for name, each in handle.results().items()} == {
        "one": 6, "two": 12, "greet": "hello 12!", "listed": [6, 12], "plus": 13, "positional only": [24, 0],
        "map": [100, 102], "map over map": [200, 204], "inner": 24,
    }  # fmt: skip


def test_options_of_a_plain_node_count(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(DjangoTask(plain_tasks["double"], queue="mail", priority=201), 3)
    flow.send()
    (task,) = Task.objects.all()
    assert (task.queue_name, task.priority, task.options, task.codec) == ("mail", 201, {"wire": 2}, "plain")


@pytest.mark.parametrize("undo", ["halve", "typed_undo"])
@pytest.mark.parametrize("undone", ["double", "number"])
def test_a_plain_task_undoes_and_is_undone_with_the_arguments_by_name(
    plain_tasks: Plain, undo: str, undone: str
) -> None:
    """Naive: an undo looks for the parameters of its function in {"args": ..., "kwargs": ...}, and gets none."""
    flow = Workflow("plain")
    task = plain_tasks["double"].name if undone == "double" else flows.number
    first = flow.add(task, 4, undo=DjangoTask(plain_tasks[undo]) if undone == "number" else plain_tasks[undo].name)
    flow.add(flows.broken, after=first)
    handle = flow.send()
    drain(raise_errors=False)
    result, before = (8, 1) if undone == "double" else (4, 0)
    assert plain.RAN[before:] == [(undo, (4, result), {"comment": "undone"} if undo == "halve" else {})]
    assert handle.get(0).err_value.data["undone"] == 1


def test_a_gate_is_announced_by_a_plain_task(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.gate("review", announce=plain_tasks["tell"].name)
    handle = flow.send()
    drain()
    assert plain.RAN == [("tell", ("review",), {})]
    open_gate(handle, "review")
    drain()
    assert handle.status() == "COMPLETED"


def test_a_partition_counts_plain_tasks_that_are_promoted_or_found_by_a_sweep(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(plain_tasks["double"].name, 9)
    flow.map(plain_tasks["double"].name, n=flow.add(plain_tasks["listed"].name, [7]))
    flow.send()
    limit("default", partition_by_args=["n"], partition_max_concurrency=1)
    sweep(many=10)
    drain()
    doubles = Task.objects.filter(task_name=plain_tasks["double"].name).order_by("pk")
    assert list(doubles.values_list("partition_key", flat=True)) == ['{"n": 9}', '{"n": 7}']


def test_a_retry_of_a_run_sends_plain_nodes_in_their_form(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(plain_tasks["breaks"].name, "again")
    handle = flow.send()
    drain(raise_errors=False)
    handle.retry()
    drain(raise_errors=False)
    assert stored("breaks") == [{"args": [], "kwargs": {"message": "again"}}] * 2


def test_problems_of_plain_nodes_are_named_at_send(plain_tasks: Plain) -> None:
    """Naive: a plain function takes what comes, so that a misspelt name fails when the node runs."""
    flow = Workflow("plain")
    flow.add(plain_tasks["greet"].name)
    flow.add(plain_tasks["greet"].name, nmae="Ann")
    flow.add(plain_tasks["greet"].name, object())
    flow.add(plain_tasks["note"].name, 1)
    flow.add(plain_tasks["double"].name, flow.add(flows.number, 1), allow_failed=True)
    flow.add(flows.number, 1, undo=plain_tasks["greet"].name)
    flow.add(flows.number, 1, undo=42)
    flow.add(plain_tasks["double"].name, flow.add(flows.number, 1, name="fits"), name="fits-2")
    flow.add(flows.plus, flow.add(plain_tasks["listed"].name, [1], name="fits-3"), name="fits-4")
    flow.add(plain_tasks["note"].name, anything=flow.add(flows.number, 1, name="fits-5"), name="fits-6")
    with pytest.raises(WorkflowDefinitionError) as refused:
        flow.send()
    found = str(refused.value)
    for said in (
        "greet: greet() missing a required argument: 'name'",
        "greet-2: greet() got an unexpected keyword argument 'nmae'",
        "greet-3: argument 'name': expected plain JSON",
        "note: note() gets arguments for *args, which have no name",
        "double: it may run without a value for 'n': give it a default",
        "its undo tests.apps.project.plain.greet takes 'name', which is neither 'result' nor a parameter of",
        "undo= takes a task, what its with_options() returns, or the name of a task, not int",
    ):
        assert said in found
    assert "TaskResult" not in found
    assert "fits" not in found


def check() -> list[dict[str, Any]]:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("horsies_workflow", "check", "--json", stdout=out)
    return list(json.loads(out.getvalue())["problems"])


def test_the_check_of_workflows_knows_plain_signatures(plain_tasks: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: *args and **kwargs are taken for parameters, or the arguments are compared with types."""
    flow = Workflow("waiting")
    first, name = flow.add(flows.number, 1), plain_tasks["greet"].name
    flow.add(plain_tasks["note"].name, after=first, anything=1)
    flow.add(name, "Ann", after=first)
    flow.send()
    assert check() == []

    def greet(who, name=1):  # type: ignore[no-untyped-def]
        pass

    def untouched(name):  # type: ignore[no-untyped-def]
        pass

    def typed(name: str) -> str:
        return name

    monkeypatch.setitem(registry._tasks, name, plain.define_plain(greet, name=name))
    assert [(one["code"], one["argument"]) for one in check()] == [("MISSING_ARGUMENT", "who")]
    monkeypatch.setitem(registry._tasks, name, plain.define_plain(untouched, name=name))
    assert check() == []
    monkeypatch.setitem(registry._tasks, name, define(typed, name=name))
    (found,) = check()
    said = "it takes typed arguments by name now, and they are written for what it was before"
    assert (found["code"], found["problem"]) == ("OTHER_FORM", said)


def test_a_running_plain_task_adds_plain_nodes(plain_tasks: Plain) -> None:
    flow = Workflow("growing")
    flow.add(plain_tasks["grows"].name, 21)
    handle = flow.send()
    drain()
    assert handle.status() == "COMPLETED"
    assert stored("double") == [{"args": [], "kwargs": {"n": 21}}]
    node = WorkflowNode.objects.get(name="added")
    assert (node.codec, node.status) == ("plain", "COMPLETED")
    assert explain_node(handle.workflow_id, node.number).status == "COMPLETED"
