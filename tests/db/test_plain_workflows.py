"""Tasks of django.tasks in workflows: as nodes, elements of maps, undos and announcements, beside those of ``@task``."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from horsies_django import Workflow, WorkflowDefinitionError, explain_node
from horsies_django.models import Task, WorkflowNode
from horsies_django.store.queues import QueueStore
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define
from horsies_django.tasks.options import SendOptions
from horsies_django.testing import drain, open_gate
from tests.apps.project import flows, plain
from tests.conftest import limit

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


def problems(flow: Workflow) -> str:
    with pytest.raises(WorkflowDefinitionError) as refused:
        flow.send()
    return str(refused.value)


def test_results_become_arguments_of_a_plain_node_by_name(plain_tasks: Plain) -> None:
    """Naive: a promoted node has its arguments in the form of a typed task, which the plain function cannot be called with."""
    flow = Workflow("plain")
    one = flow.add(DjangoTask(plain_tasks["double"]), 3)
    two = flow.add(plain_tasks["double"].name, one)
    both = flow.add(plain_tasks["greet"].name, two, loud=True)
    whole = flow.add(plain_tasks["listed"].name, [one, two])
    typed = flow.add(flows.plus, two, b=1)
    handle = flow.send()
    assert stored("double") == [{"args": [], "kwargs": {"n": 3}}]
    drain()
    assert stored("double") == [{"args": [], "kwargs": {"n": 3}}, {"args": [], "kwargs": {"n": 6}}]
    assert set(Task.objects.values_list("codec", flat=True)) == {"plain", None}
    results = handle.results()
    assert {name: results[name].ok_value for name in (one.name, two.name, both.name, whole.name, typed.name)} == {
        "double": 6, "double-2": 12, "greet": "hello 12!", "listed": [6, 12], "plus": 13,
    }  # fmt: skip


def test_options_of_a_plain_node_count(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(DjangoTask(plain_tasks["double"], queue="mail", priority=201), 3)
    flow.send()
    (task,) = Task.objects.all()
    assert (task.queue_name, task.priority, task.options, task.codec) == ("mail", 201, {"wire": 2}, "plain")


def test_a_map_over_a_plain_function(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    made = flow.map(plain_tasks["double"].name, n=[1, 2])
    again = flow.map(plain_tasks["double"].name, n=made)
    flow.returns(again)
    handle = flow.send()
    drain()
    assert handle.get(0).ok_value == [4, 8]
    assert {json.dumps(each) for each in stored("double")} == {
        json.dumps({"args": [], "kwargs": {"n": n}}) for n in (1, 2, 4)
    }


@pytest.mark.parametrize("undo", ["halve", "typed_undo"])
def test_a_plain_task_undoes_and_is_undone_with_the_arguments_by_name(plain_tasks: Plain, undo: str) -> None:
    """Naive: an undo looks for the parameters of its function in {"args": ..., "kwargs": ...}, and gets none."""
    flow = Workflow("plain")
    first = flow.add(plain_tasks["double"].name, 4, undo=plain_tasks[undo].name)
    flow.add(flows.broken, after=first)
    handle = flow.send()
    drain(raise_errors=False)
    assert plain.RAN[1:] == [(undo, (4, 8), {"comment": "undone"} if undo == "halve" else {})]
    assert handle.get(0).err_value.data["undone"] == 1


def test_a_typed_node_is_undone_by_a_plain_task(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    first = flow.add(flows.number, 4, undo=DjangoTask(plain_tasks["halve"]))
    flow.add(flows.broken, after=first)
    flow.send()
    drain(raise_errors=False)
    assert plain.RAN == [("halve", (4, 4), {"comment": "undone"})]


def test_a_gate_is_announced_by_a_plain_task(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.gate("review", announce=plain_tasks["tell"].name)
    handle = flow.send()
    drain()
    assert plain.RAN == [("tell", ("review",), {})]
    open_gate(handle, "review")
    drain()
    assert handle.status() == "COMPLETED"


def test_positional_only_parameters_of_a_node_get_their_arguments(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.returns(flow.add(plain_tasks["at"].name, flow.add(flows.number, 3), scale=2))
    handle = flow.send()
    drain()
    assert handle.get(0).ok_value == [6, 0]


def test_a_partition_counts_promoted_plain_tasks(plain_tasks: Plain) -> None:
    limit("default", partition_by_args=["n"], partition_max_concurrency=1)
    flow = Workflow("plain")
    flow.map(plain_tasks["double"].name, n=flow.add(plain_tasks["listed"].name, [7]))
    flow.send()
    drain()
    assert Task.objects.get(task_name=plain_tasks["double"].name).partition_key == '{"n": 7}'


def test_a_retry_of_a_run_sends_plain_nodes_in_their_form(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(plain_tasks["breaks"].name, "again")
    handle = flow.send()
    drain(raise_errors=False)
    handle.retry()
    drain(raise_errors=False)
    assert stored("breaks") == [{"args": [], "kwargs": {"message": "again"}}] * 2


def test_a_workflow_as_a_node_has_plain_nodes(plain_tasks: Plain) -> None:
    inner = Workflow("inner")
    inner.returns(inner.add(plain_tasks["double"].name, inner.input("n")))
    flow = Workflow("outer")
    flow.returns(flow.add(inner, n=flow.add(flows.number, 5)))
    handle = flow.send()
    drain()
    assert handle.get(0).ok_value == 10
    assert stored("double") == [{"args": [], "kwargs": {"n": 5}}]


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
    found = problems(flow)
    for said in (
        "greet: greet() missing a required argument: 'name'",
        "greet-2: greet() missing a required argument: 'name'",
        "greet-3: argument 'name': expected plain JSON",
        "note: note() gets arguments for *args, which have no name",
        "double: it may run without a value for 'n': give it a default",
        "its undo tests.apps.project.plain.greet takes 'name', which is neither 'result' nor a parameter of",
        "undo= takes a task, what its with_options() returns, or the name of a task, not int",
    ):
        assert said in found
    assert "TaskResult" not in found


def test_any_result_fits_an_untyped_parameter(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(plain_tasks["double"].name, flow.add(flows.number, 1))
    flow.add(flows.plus, flow.add(plain_tasks["listed"].name, [1]))
    flow.add(plain_tasks["note"].name, anything=flow.add(flows.number, 1))
    flow.send()


def check() -> list[dict[str, Any]]:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("horsies_workflow", "check", "--json", stdout=out)
    return list(json.loads(out.getvalue())["problems"])


def waiting(task: TaskDefinition, *args: Any, **kwargs: Any) -> None:
    """Send a run with a plain node that waits for another one."""
    flow = Workflow("waiting")
    flow.add(task.name, *args, after=flow.add(flows.number, 1), **kwargs)
    flow.send()


def test_the_check_of_workflows_knows_plain_signatures(plain_tasks: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: *args and **kwargs are taken for parameters, or the arguments are compared with types."""
    waiting(plain_tasks["note"], anything=1)
    waiting(plain_tasks["greet"], "Ann")
    assert check() == []

    def greet(who, name=1):  # type: ignore[no-untyped-def]
        pass

    def untouched(name):  # type: ignore[no-untyped-def]
        pass

    name = plain_tasks["greet"].name
    monkeypatch.setitem(registry._tasks, name, plain.define_plain(greet, name=name))
    assert [(one["code"], one["argument"]) for one in check()] == [("MISSING_ARGUMENT", "who")]
    monkeypatch.setitem(registry._tasks, name, plain.define_plain(untouched, name=name))
    assert check() == []


def test_the_check_of_workflows_finds_a_task_that_changed_its_kind(
    plain_tasks: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(name: str) -> str:
        return name

    waiting(plain_tasks["greet"], "Ann")
    name = plain_tasks["greet"].name
    monkeypatch.setitem(registry._tasks, name, define(greet, name=name))
    (found,) = check()
    assert (found["code"], found["problem"]) == (
        "OTHER_FORM", "it takes typed arguments by name now, and they are written for what it was before",
    )  # fmt: skip


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


def test_a_sweep_after_a_change_of_the_rule_finds_promoted_tasks(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(plain_tasks["double"].name, 9)
    flow.send()
    limit("default", partition_by_args=["n"], partition_max_concurrency=1)
    while QueueStore(connection).sweep("default", 10):
        pass
    assert Task.objects.get().partition_key == '{"n": 9}'
