"""A workflow as a node of another one, or as the successor of a run: its graph, and the values of its inputs.

The functions write into the node, and yield what is wrong, without its name.
"""

from __future__ import annotations

from types import GenericAlias

from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.kinds import CONTINUE, INPUT
from horsies_django.workflows.arguments import Given, connected, unclear, why_not
from horsies_django.workflows.graph_checks import graph_problems
from horsies_django.workflows.nodes import Graph, Node, Problems


def embed(node: Node, child: Graph, given: Given) -> Problems:
    """Let a node run another workflow."""
    if child is node.flow:
        yield "a workflow cannot be a node of itself"
        return
    yield from take_graph(node, child, given)
    if child.key is not None:
        yield "a workflow that is a node has no key of its own"
    if undone := [each.name for each in child.nodes if "undo" in each.texts]:
        yield (
            f"a workflow that is a node cannot be undone: remove undo= from {', '.join(undone[:20])}, or add these nodes to the "
            "workflow itself"
        )
    if any(each.kind is CONTINUE for each in child.nodes):
        yield "a workflow that is a node cannot continue as another run: remove continue_as()"
    output = node.output = child.output
    if output is None:
        node.type = type(None)
    else:
        node.type = GenericAlias(list, (output.type,)) if output.kind.many else output.type


def follow(node: Node, successor: object, given: Given) -> Problems:
    """Let a node end the run and begin another one."""
    node.type = type(None)
    if not isinstance(successor, Graph):
        yield f"continue_as() takes a Workflow, not {type(successor).__name__}"
    elif successor is node.flow:
        yield "a workflow cannot contain itself: let a task call current_task().workflow.continue_as(...)"
    else:
        yield from take_graph(node, successor, given)
        if successor.key is not None:
            yield "the workflow that continues a run takes over its key, and has none of its own"
        yield from misnamed(successor, None if node.flow.key is None else node.flow.name)


def misnamed(successor: Graph, keyed_name: str | None) -> Problems:
    """Yield whether the successor of a run with a key, which is found by name and key, has another name."""
    if keyed_name is not None and successor.name != keyed_name:
        yield (
            f"a run with a key continues under its name, {keyed_name!r}, so that the key finds it; not {successor.name!r:.300}"
        )


def take_graph(node: Node, child: Graph, given: Given) -> Problems:
    """Give a node the graph of a workflow, and the values of its inputs."""
    if given.args:
        yield "the inputs of a workflow are given by name"
    child.finish()
    problems = [*child.problems, *graph_problems(child)]
    yield from problems
    inputs = {each.name: each.type for each in child.nodes if each.kind is INPUT}
    yield from unclear(node, inputs, given.options, "the workflow has an input")
    for name in inputs.keys() - given.kwargs.keys() - set(given.options):
        yield f"its input {name!r} is missing"
    for name in given.kwargs.keys() - inputs.keys():
        yield f"it has no input {name!r}; its inputs are {', '.join(inputs) or 'none'}"
    known = {name: value for name, value in given.kwargs.items() if name in inputs}
    constants = yield from connected(node, known, inputs)
    for name, value in constants.items():
        try:
            constants[name] = shape_of(inputs[name], name).encode(value, name)
        except (CodecError, TaskDefinitionError) as error:
            yield why_not(error, {name: value})
            constants[name] = None
    node.kwargs = write_json(constants)
    if not problems:
        node.texts["graph"], node.hashed["graph"] = child.json(), f'"{child.hash()}"'
    node.child = child
    node.levels += max((each.levels for each in child.nodes), default=1)
    child.outer.add(node.flow)
