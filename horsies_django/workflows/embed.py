"""A workflow as a node of another one, or as the successor of a run: its graph, and the values of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.workflows import checks
from horsies_django.workflows.nodes import Node

MOST_LEVELS = 100  # PostgreSQL begins workflows in one another on one stack, which ends at 165 to 190 of them


def embed(flow: Any, node: Node, child: Any, given: checks.Given) -> None:
    """Let a node run another workflow. Problems are noted in the flow."""
    take_graph(flow, node, child, given)
    if child is flow:
        return
    if child.key is not None:
        flow.problems.append(f"{node.name}: a workflow that is a node has no key of its own")
    if undone := [each.name for each in child.nodes if each.undo is not None]:
        flow.problems.append(
            f"{node.name}: a workflow that is a node cannot be undone: remove undo= from {', '.join(undone[:20])}, or add these "
            "nodes to the workflow itself"
        )
    if any(each.kind == "continue" for each in child.nodes):
        flow.problems.append(
            f"{node.name}: a workflow that is a node cannot continue as another run: remove continue_as()"
        )
    output = node.output = child.output
    node.type = type(None) if output is None else checks.list_of(output.type) if output.kind == "map" else output.type


def follow(flow: Any, node: Node, successor: Any, given: checks.Given) -> None:
    """Let a node end the run and begin another one. Problems are noted in the flow."""
    if not hasattr(successor, "finish"):
        flow.problems.append(f"{node.name}: continue_as() takes a Workflow, not {type(successor).__name__}")
    elif successor is flow:
        flow.problems.append(
            f"{node.name}: a workflow cannot contain itself: let a task call current_task().workflow.continue_as(...)"
        )
    else:
        take_graph(flow, node, successor, given)
        if successor.key is not None:
            flow.problems.append(
                f"{node.name}: the workflow that continues a run takes over its key, and has none of its own"
            )
        judge_name(flow, node, None if flow.key is None else flow.name, successor.name)
    node.type = type(None)


def judge_name(flow: Any, node: Node, keyed_name: str | None, name: str) -> None:
    """Note if the successor of a run with a key, which is found by name and key, has another name."""
    if keyed_name is not None and name != keyed_name:
        flow.problems.append(
            f"{node.name}: a run with a key continues under its name, {keyed_name!r}, so that the key finds it; not {name!r:.300}"
        )


def take_graph(flow: Any, node: Node, child: Any, given: checks.Given) -> None:
    """Give a node the graph of a workflow, and the values of its inputs."""
    kwargs = given.kwargs
    if given.args:
        flow.problems.append(f"{node.name}: the inputs of a workflow are given by name")
    if child is flow:
        flow.problems.append(f"{node.name}: a workflow cannot be a node of itself")
        return
    child.finish()
    flow.problems += [f"{node.name}: {problem}" for problem in [*child.problems, *checks.graph_problems(child)]]
    inputs = {each.name: each for each in child.nodes if each.kind == "input"}
    flow.problems += checks.unclear(node, inputs, given.options)
    for name in inputs.keys() - kwargs.keys() - set(given.options):
        flow.problems.append(f"{node.name}: its input {name!r} is missing")
    for name in kwargs.keys() - inputs.keys():
        flow.problems.append(f"{node.name}: it has no input {name!r}; its inputs are {', '.join(inputs) or 'none'}")
    constants = {}
    for name, value in kwargs.items():
        if name not in inputs:
            continue
        if isinstance(value, Node) or checks.has_nodes(value):
            checks.connect(flow, node, name, value, inputs[name].type)
        else:
            try:
                constants[name] = shape_of(inputs[name].type, name).encode(value, name)
            except (CodecError, TaskDefinitionError) as error:
                flow.problems.append(f"{node.name}: {checks.why_not(error, {name: value})}")
    node.kwargs = write_json(constants)
    node.graph, node.graph_hash = child.json(), child.hash()
    node.levels += max((each.levels for each in child.nodes), default=1)
    child.outer.add(flow)


def level_problems(nodes: Iterable[Node]) -> list[str]:
    """Return the problem of nodes with too many workflows in one another."""
    levels = max((node.levels for node in nodes), default=1)
    if levels <= MOST_LEVELS:
        return []
    return [
        f"its workflows are nested {levels} levels deep, and {MOST_LEVELS} are possible: let a task of the innermost one add the "
        "rest by current_task().workflow.add(...)"
    ]
