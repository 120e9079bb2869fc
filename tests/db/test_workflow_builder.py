"""Errors of the builder of workflows, which contain what to write instead, and the limits of its
input.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pytest

from horsies_django import Workflow, WorkflowDefinitionError, get_workflow, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.db.drives import Hand, inside
from tests.db.test_workflows import run, statuses

pytestmark = pytest.mark.django_db


def problems_of(flow: Workflow) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    return raised.value.problems


def test_parameters_named_like_options_are_given_in_kwargs() -> None:
    """Parameters and inputs with the names of options are given in ``kwargs`` or by position."""
    child = Workflow("child")
    child.returns(
        child.add(flows.planned, kwargs={"when": "now", "name": child.input("name", str)})
    )

    flow = Workflow("kwargs")
    first = flow.add(flows.planned, kwargs={"when": "tomorrow", "name": "ada"}, name="first")
    flow.map(
        flows.planned, kwargs={"name": ["bob", "cyd"], "when": first}, after=first, name="second"
    )
    flow.add(child, kwargs={"name": first}, name="third")
    flow.add(flows.planned, "tomorrow", "eve", name="by position")

    results = run(flow).results()

    assert results["second"].ok_value == ["tomorrow ada bob", "tomorrow ada cyd"]
    assert results["third"].ok_value == "now tomorrow ada"
    assert results["by position"].ok_value == "tomorrow eve"


@pytest.mark.parametrize("change", ["add", "map", "sleep", "after", "returns"])
@pytest.mark.parametrize("how", ["add", "continue_as"])
def test_a_workflow_that_changes_inside_another_is_refused(change: str, how: str) -> None:
    """A workflow that changes after it became part of another one is refused.

    Fails if: the other workflow keeps the old graph, and the added nodes never run.
    """
    late = Workflow("late")
    first = late.add(flows.number, 1, name="first")
    second = late.add(flows.number, 2, name="second")
    middle = Workflow("middle")
    outer = Workflow("outer")

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
        assert problem.startswith("the workflow 'late' got ")
        assert "after it was added to 'middle'. Complete" in problem

    complete = Workflow("complete")
    complete.add(late)
    assert run(complete).status() == "COMPLETED"

    late.add(flows.number, 4, name="later")  # a run that was sent stays as it is
    assert "later" in statuses(run(late))


@pytest.mark.django_db(transaction=True)
def test_an_impossible_addition_by_a_running_task_raises_at_once(hand: Hand) -> None:
    """Fails if: the builder accepts an impossible node and inserts nothing, or a webhook's message
    {"approved": true} counts as a decision.
    """
    flow = Workflow("grows", key="k")
    nested = Workflow("nested")
    flow.signal("paid", name="message")
    flow.gate("legal")
    flow.add(flows.act, name="adder")
    nested.add(flows.act, name="nested")
    flow.add(nested)

    hand.send(flow)
    growing = inside(hand.claims["adder"])

    inner = child(adds_one, "inner")
    node = growing.add(inner)
    complete = "after it was added to 'the workflow of the current task'. Complete"

    adds: list[tuple[Callable[[], object], str]] = [
        (lambda: inner.add(flows.number, 2), f"'inner' got the node 'number-2' {complete}"),
        (
            lambda: node.after(node),
            "inner: after() cannot be called any more, because the node is already inserted. Pass",
        ),
        (
            lambda: growing.input("n", int),
            "the input 'n' has no value. Add the workflow to another one",
        ),
        (lambda: growing.gate("paid"), "'paid' is the name of a gate and of a signal"),
        (lambda: growing.signal("legal"), "'legal' is the name of a gate and of a signal"),
        (
            lambda: growing.continue_as(child(adds_one)),
            "continue: a run with a key must continue as a workflow of the same name, 'grows'",
        ),
        (
            lambda: inside(hand.claims["nested"]).continue_as(child(adds_one)),
            "continue: the run is a node of another one, and",
        ),
    ]

    for add, problem in adds:
        with pytest.raises(WorkflowDefinitionError) as raised:
            add()
        assert problem in raised.value.problems[0]

    assert WorkflowNode.objects.filter(added_by__gte=0).count() == 1


def levels_of(many: int, task: Any = flows.number) -> Workflow:
    inner = Workflow("level 1")
    inner.returns(inner.add(task, 7))

    for level in range(2, many + 1):
        outer = Workflow(f"level {level}")
        outer.returns(outer.add(inner))
        inner = outer

    return inner


def test_nested_workflows_run_to_the_allowed_depth() -> None:
    """Nested workflows run to the allowed depth, and deeper ones are refused.

    Fails if: deeper ones are sent, and the innermost fail at the stack limit of the database.
    """
    assert run(levels_of(100)).get(0).ok_value == 7
    assert problems_of(levels_of(101)) == [
        "workflows are nested 101 levels deep, but at most 100 levels are possible. Add the deeper "
        "workflows in a task of the innermost one, by "
        "current_task().workflow.add(...)"
    ]


def test_operations_reach_the_innermost_of_many_workflows() -> None:
    handle = levels_of(100, flows.broken).send()
    innermost = get_workflow(WorkflowRun.objects.get(name="level 1").id)

    assert handle.pause()
    assert innermost.status() == "PAUSED"
    assert handle.resume()

    drain(raise_errors=False)
    assert (handle.status(), innermost.status()) == ("FAILED", "FAILED")

    handle.retry()
    drain(raise_errors=False)
    assert (handle.status(), innermost.status(), Task.objects.count()) == ("FAILED", "FAILED", 2)

    handle = levels_of(100, flows.broken).send()
    assert handle.cancel()
    assert WorkflowRun.objects.get(name="level 1", status="CANCELLED").id != innermost.workflow_id


# bad input


DELAY = "sleep: delay must be a timedelta or seconds, from 0 to 100 years, not"
BAD_NAME = "the name of a signal must be a str of 1 to 200"
NODES_INSIDE = "has nodes inside. Pass a node as an argument, or in a list of nodes"
BAD_KWARGS = "kwargs= takes a dict of arguments by name, not"
OPTIONAL = {"annotation": int, "timeout": 1, "on_timeout": "complete"}


def child(build: Callable[[Workflow], object], name: str = "child", **options: Any) -> Workflow:
    """Return a workflow with the nodes that a function adds."""
    flow = Workflow(name, **options)
    build(flow)
    return flow


def named() -> Workflow:
    """Return a workflow that has an input with the name of an option."""
    return child(lambda flow: flow.add(flows.planned, "now", flow.input("name", str)))


def adds_one(flow: Workflow, **how: Any) -> Any:
    return flow.add(flows.number, 1, **how)


def ints(flow: Workflow) -> list[Any]:
    """Add a task and a map whose values are ints."""
    return [flow.add(flows.number, 1), flow.map(flows.number, n=[1])]


def undone(flow: Workflow, undo: Any = flows.refund) -> None:
    flow.add(flows.charge, 1, undo=undo)


def continues(flow: Workflow) -> None:
    flow.continue_as(child(adds_one))


def keyed(flow: Workflow, following: Workflow) -> None:
    """Give a run with a key a successor."""
    flow.key = "k"
    flow.continue_as(following, name="next")


def joined(flow: Workflow, join: Any, many: int) -> None:
    """Add a node with an argument, a condition and ``many`` branches."""
    page = flow.add(flows.number, 1)
    other = flow.add(flows.number, 2)

    how: dict[str, Any] = {
        "after": [page, other][:many],
        "join": join,
        "when": page.matches("$ == 1"),
    }
    flow.add(flows.act, flow.add(flows.number, 3), **how, name="end")


@pytest.mark.parametrize(
    ("problem", "build"),
    [
        *[
            (f"{DELAY} {bad!r}", lambda flow, bad=bad: flow.sleep(bad))
            for bad in ("1 day", -1, math.nan, True, None)
        ],
        (DELAY, lambda flow: flow.sleep(1e300)),
        (
            "until: until() takes an aware datetime",
            lambda flow: flow.until(dt.datetime(2030, 1, 1)),  # noqa: DTZ001
        ),
        *[(BAD_NAME, lambda flow, bad=bad: flow.signal(bad)) for bad in ("", 7, "a\nb")],
        ("a: key must be a str", lambda flow: flow.signal("a", key=7)),
        ("a: timeout must be", lambda flow: flow.signal("a", timeout=-1)),
        (
            "a: on_timeout must be 'fail', ",
            lambda flow: flow.signal("a", timeout=1, on_timeout="retry"),
        ),
        (
            "a: permission must be a str like 'shop.approve'",
            lambda flow: flow.gate("a", permission="approve"),
        ),
        ("a node's name must be a str", lambda flow: flow.gate("a" * 300)),
        ("two nodes have the name 'a'", lambda flow: (flow.gate("a"), flow.gate("a"))),
        (
            "'a' is the name of a gate and of a signal",
            lambda flow: (flow.gate("a"), flow.signal("a", name="b")),
        ),
        (
            "announce a: number() got an unexpected",
            lambda flow: flow.gate("a", announce=flows.number),
        ),
        (
            "'a' takes int, but a gives str",
            lambda flow: flow.add(flows.plus, flow.signal("a", annotation=str)),
        ),
        (
            "'a' takes int, but a gives int | None",
            lambda flow: flow.add(flows.plus, flow.signal("a", **OPTIONAL)),
        ),
        ("'a' takes int, but sleep gives None", lambda flow: flow.add(flows.plus, flow.sleep(1))),
        (
            "'values' takes str, but number gives int",
            lambda flow: flow.add(flows.lengths, ints(flow)),
        ),
        (
            "'language' takes str, but number gives int",
            lambda flow: flow.map(flows.page, language=ints(flow), pages=1),
        ),
        (
            "may add a workflow by current_task().workflow.add()",
            lambda flow: flow.map(named(), n=[1, 2]),
        ),
        *[
            (
                f"number: after(): {wrong!r} is not a node of",
                lambda flow, wrong=wrong: adds_one(flow, after=wrong),
            )
            for wrong in (flows.number, "number", 3)
        ],
        (
            "number: after(): 'number' is not a node of",
            lambda flow: adds_one(flow, after=["number"]),
        ),
        ("returns(): 'number' is not a node of", lambda flow: flow.returns("number")),
        (
            "'n' is given twice: in kwargs= and as a keyword",
            lambda flow: flow.add(flows.number, kwargs={"n": 1}, n=2),
        ),
        (NODES_INSIDE, lambda flow: flow.add(flows.total_list, [[adds_one(flow)]])),
        (NODES_INSIDE, lambda flow: flow.map(flows.plus, a=[1, [adds_one(flow)]])),
        (NODES_INSIDE, lambda flow: flow.add(named(), kwargs={"name": {"a": adds_one(flow)}})),
        (f"{BAD_KWARGS} ['n']", lambda flow: flow.add(flows.number, kwargs=["n"])),
        (f"{BAD_KWARGS} {{1: 2}}", lambda flow: flow.add(flows.number, kwargs={1: 2})),
        ("ada: name= is an option of add(), and the", lambda flow: flow.add(named(), name="ada")),
        (
            "ada: name= is an option of continue_as(), and the",
            lambda flow: flow.continue_as(named(), name="ada"),
        ),
        (
            "ada: name= is an option of add(), and tests.",
            lambda flow: flow.add(flows.planned, "now", name="ada"),
        ),
        (
            "planned: when= is an option of add(), and tests.",
            lambda flow: flow.add(flows.planned, when="tomorrow"),
        ),
        (
            "planned: when= is an option of map(), and tests.",
            lambda flow: flow.map(flows.planned, when=["tomorrow"]),
        ),
        (
            "inner: good_until must be an aware",
            lambda flow: flow.add(Workflow("a", good_until="soon"), name="inner"),
        ),
        (
            "inner: a workflow's name must be a str",
            lambda flow: flow.continue_as(Workflow(3), name="inner"),
        ),
        ("there is no task named 'refnd'", lambda flow: flow.add(flows.number, 1, undo="refnd")),
        ("number: undo= takes a task, the result", lambda flow: flow.add(flows.number, 1, undo=3)),
        (
            "takes 'a', which is neither 'result' nor",
            lambda flow: flow.add(flows.number, 1, undo=flows.plus),
        ),
        (
            "takes int | None as 'result', but",
            lambda flow: flow.add(flows.page, "en", pages=1, undo=flows.refund),
        ),
        (
            "gets None as 'result' if the outcome",
            lambda flow: flow.add(flows.number, 1, undo=flows.strict_refund),
        ),
        (
            "no delay, no good_until and no key",
            lambda flow: undone(flow, flows.refund.with_options(delay=1)),
        ),
        (
            "queue 'nowhere' is not declared",
            lambda flow: undone(flow, flows.refund.with_options(queue="nowhere")),
        ),
        ("needs 'customer', but", lambda flow: undone(flow, flows.refund_customer)),
        ("child: a workflow that is a node cannot be undone", lambda flow: flow.add(child(undone))),
        (
            "child: undo= applies only to a task or a map, not to a",
            lambda flow: flow.add(named(), undo=flows.refund),
        ),
        ("a workflow cannot be a node of itself", lambda flow: flow.add(flow)),
        (
            "the workflow 'wrong' got the node 'child' after",
            lambda flow: flow.add(child(lambda inner: inner.add(flow))),
        ),
        ("continue: a workflow cannot contain itself", lambda flow: flow.continue_as(flow)),
        ("continue: continue_as() takes a Workflow, not int", lambda flow: flow.continue_as(3)),
        (
            "next: a workflow that continues a run",
            lambda flow: keyed(flow, child(adds_one, "wrong", key="mine")),
        ),
        (
            "next: a run with a key must continue as a workflow of the same name, 'wrong'",
            lambda flow: keyed(flow, child(adds_one)),
        ),
        ("continue: the input 'name' is missing", lambda flow: flow.continue_as(named())),
        (
            "continue: the workflow has no input 'other'",
            lambda flow: flow.continue_as(named(), other=1),
        ),
        (
            "number: a node cannot wait for continue, because",
            lambda flow: adds_one(flow, after=flow.continue_as(child(adds_one))),
        ),
        (
            "child: a workflow that is a node cannot continue",
            lambda flow: flow.add(child(continues)),
        ),
        (
            "a quorum of 1 of 0 branches is impossible. Branches",
            lambda flow: joined(flow, "any", 0),
        ),
        (
            "a quorum of 3 of 2 branches is impossible. Branches",
            lambda flow: joined(flow, quorum(3), 2),
        ),
    ],
)
def test_bad_input_is_named(build: Callable[[Workflow], object], problem: str) -> None:
    flow = Workflow("wrong")
    build(flow)

    said = problems_of(flow)

    assert [each for each in said if problem in each], said
    assert not WorkflowNode.objects.exists()
