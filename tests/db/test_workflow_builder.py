"""What the builder of workflows refuses, with what to write instead, and the limits of what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horsies_django import Workflow, WorkflowDefinitionError, get_workflow
from horsies_django.models import Task, WorkflowRun
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


def problems_of(flow: Workflow) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    return raised.value.problems


def test_a_workflow_per_element_is_refused_with_what_to_write_instead() -> None:
    child = Workflow("child")
    child.add(flows.number, child.input("n", int))
    flow = Workflow("map")
    flow.map(child, n=[1, 2])  # type: ignore[arg-type]
    (problem,) = problems_of(flow)
    assert "may add a workflow by current_task().workflow.add()" in problem
    assert problem.endswith("it takes a task or its name, not Workflow")


def test_nodes_inside_of_other_values_are_refused_as_such() -> None:
    """Also deep in an argument, in a table, in an element of a map, and in the input of a workflow."""
    child = Workflow("child")
    child.add(flows.total_list, child.input("values", list[int]))
    flow = Workflow("nested")
    node = flow.add(flows.number, 1)
    flow.add(flows.total_list, [[node]], name="list")
    flow.add(flows.act, value={"a": [node]}, name="dict")
    flow.map(flows.plus, a=[1, [node]], name="map")
    flow.add(child, values={"a": node}, name="child")
    problems = problems_of(flow)
    assert [problem.partition(":")[0] for problem in problems] == ["list", "dict", "map", "child"]
    said = "has nodes inside: a node is an argument by itself, or in one list of nodes"
    assert all(problem.endswith(said) for problem in problems), problems


def test_an_option_that_is_a_parameter_too_is_refused_unless_that_has_its_place() -> None:
    """Naive: the node is called so, and the parameter keeps its default."""
    flow = Workflow("options")
    flow.add(flows.planned, "tomorrow", name="ada")
    flow.add(flows.planned, when="tomorrow")
    flow.map(flows.planned, when=["today", "tomorrow"])
    planned = "tests.apps.project.flows.planned has a parameter"
    assert [problem for problem in problems_of(flow) if "parameter" in problem] == [
        f"{node}: {name}= is an option of {verb}(), and {planned} {name!r}: give that in kwargs={{{name!r}: ...}}, with which "
        f"{name}= is the option"
        for node, name, verb in (("ada", "name", "add"), ("planned", "when", "add"), ("planned-2", "when", "map"))
    ]
    flow = Workflow("by position")
    flow.returns(flow.add(flows.planned, "tomorrow", "ada", name="both"))
    assert run(flow).get(0).ok_value == "tomorrow ada"


def test_parameters_and_inputs_with_the_names_of_options_are_given_in_kwargs() -> None:
    child = Workflow("child")
    child.returns(child.add(flows.planned, kwargs={"when": "now", "name": child.input("name", str)}))
    flow = Workflow("kwargs")
    first = flow.add(flows.planned, kwargs={"when": "tomorrow", "name": "ada"}, name="first")
    flow.map(flows.planned, kwargs={"name": ["bob", "cyd"], "when": first}, after=first, name="second")
    flow.add(child, kwargs={"name": first}, name="third")
    results = run(flow).results()
    assert results["second"].ok_value == ["tomorrow ada bob", "tomorrow ada cyd"]
    assert results["third"].ok_value == "now tomorrow ada"


@pytest.mark.parametrize("verb", ["add", "continue_as"])
def test_an_input_that_add_takes_for_an_option_is_refused(verb: str) -> None:
    child = Workflow("child")
    child.add(flows.planned, "now", child.input("name", str))
    outer = Workflow("outer")
    getattr(outer, verb)(child, name="ada")
    (problem,) = problems_of(outer)
    told = f"ada: name= is an option of {verb}(), and the workflow has an input 'name': give that in kwargs="
    assert problem.startswith(told)


def test_kwargs_that_are_none_or_given_twice_are_refused() -> None:
    flow = Workflow("twice")
    flow.add(flows.planned, kwargs={"when": "now"}, when=None, name="b")
    flow.add(flows.number, kwargs={"n": 1}, n=2)
    flow.add(flows.number, kwargs=["n"])  # type: ignore[arg-type]
    flow.add(flows.number, kwargs={1: 2})  # type: ignore[dict-item]
    problems = problems_of(flow)
    assert "the argument 'n' is given twice: in kwargs= and beside it" in problems
    assert "kwargs= takes a dict of arguments by name, not ['n']" in problems
    assert "kwargs= takes a dict of arguments by name, not {1: 2}" in problems


@pytest.mark.parametrize("change", ["add", "map", "sleep", "after", "returns"])
@pytest.mark.parametrize("how", ["add", "continue_as"])
def test_a_workflow_that_changes_after_it_became_part_of_another_is_refused(change: str, how: str) -> None:
    """Naive: the other one keeps the graph as it was, and the rest never runs."""
    late = Workflow("late")
    first, second = late.add(flows.number, 1, name="first"), late.add(flows.number, 2, name="second")
    middle, outer = Workflow("middle"), Workflow("outer")
    getattr(middle, how)(late)
    if how == "add":
        outer.add(middle)
    changes: dict[str, Callable[[], Any]] = {
        "add": lambda: late.add(flows.number, 3),
        "map": lambda: late.map(flows.number, n=[3]),
        "sleep": lambda: late.sleep(0),
        "after": lambda: second.after(first),
        "returns": lambda: late.returns(first),
    }
    changes[change]()
    for flow in (middle, outer) if how == "add" else (middle,):
        (problem,) = problems_of(flow)
        assert problem.startswith("'late' got ")
        assert problem.endswith("after it was added to 'middle': add it when it is complete")
    complete = Workflow("complete")
    complete.add(late)
    assert run(complete).status() == "COMPLETED"
    late.add(flows.number, 4, name="later")  # what was sent stays as it is
    assert "later" in statuses(run(late))


def test_a_workflow_that_changes_after_a_running_task_added_it_is_refused_at_the_change() -> None:
    flow = Workflow("grows")
    flow.returns(flow.add(flows.adds_and_changes))
    assert run(flow).get(0).ok_value.splitlines() == [
        "'inner' got the node 'number-2' after it was added to 'the workflow of the current task': add it when it is complete",
        "inner: after() comes too late, the node is inserted already: give add() after=...",
    ]


def test_a_task_adds_no_input_to_its_run() -> None:
    """Naive: the builder takes it, and nothing is inserted."""
    flow = Workflow("input")
    flow.returns(flow.add(flows.adds_an_input))
    problem = "its input 'n' has no value: only a node of another workflow gets one"
    assert run(flow).get(0).ok_value == problem


@pytest.mark.parametrize("verb", ["add", "continue_as"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"name": "child", "good_until": "tomorrow"},
            "good_until must be an aware datetime or a timedelta from sending",
        ),
        ({"name": 3}, "a workflow's name must be a str of 1 to 255 printable characters, not 3"),
    ],
)
def test_what_is_wrong_with_the_options_of_a_workflow_that_is_a_node_is_named(
    verb: str, options: dict[str, Any], problem: str
) -> None:
    """Naive: its graph is encoded all the same, which raises AttributeError or TypeError."""
    flow = Workflow("outer")
    getattr(flow, verb)(Workflow(**options), name="inner")
    assert any(each.startswith(f"inner: {problem}") for each in problems_of(flow))


def nested(levels: int, task: Any = flows.number) -> Workflow:
    inner = Workflow("level 1")
    inner.returns(inner.add(task, 7))
    for level in range(2, levels + 1):
        outer = Workflow(f"level {level}")
        outer.returns(outer.add(inner))
        inner = outer
    return inner


def test_workflows_in_workflows_run_to_the_depth_that_is_allowed_and_none_is_sent_below_it() -> None:
    """Naive: they are sent, and the innermost ones fail with the stack of the database."""
    assert run(nested(100)).get(0).ok_value == 7
    assert problems_of(nested(101)) == [
        "its workflows are nested 101 levels deep, and 100 are possible: let a task of the innermost one add the rest by "
        "current_task().workflow.add(...)"
    ]


def test_operations_reach_the_innermost_of_many_workflows() -> None:
    handle = nested(100, flows.broken).send()
    innermost = get_workflow(WorkflowRun.objects.get(name="level 1").id)
    assert handle.pause()
    assert innermost.status() == "PAUSED"
    assert handle.resume()
    drain(raise_errors=False)
    assert (handle.status(), innermost.status()) == ("FAILED", "FAILED")
    handle.retry()
    drain(raise_errors=False)
    assert (handle.status(), innermost.status(), Task.objects.count()) == ("FAILED", "FAILED", 2)
    handle = nested(100, flows.broken).send()
    assert handle.cancel()
    assert WorkflowRun.objects.get(name="level 1", status="CANCELLED").id != innermost.workflow_id
