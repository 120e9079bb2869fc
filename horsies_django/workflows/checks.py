"""Checks of a workflow that is being built. Each problem is a sentence in ``flow.problems``; nothing is raised."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, get_origin

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.jsontext import write_json
from horsies_django.core.options import drops_result
from horsies_django.core.texts import text_problem
from horsies_django.workflows import mixups, types
from horsies_django.workflows.nodes import Node
from horsies_django.workflows.results import Results

LONGEST_PATH = 10_000
ON_ERROR = ("fail", "stop", "pause")
WAITERS = ("gate", "signal")


def close_to(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, or nothing."""
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def has_nodes(value: Any) -> bool:
    """Return whether a value is a list of nodes."""
    return isinstance(value, list | tuple) and any(isinstance(each, Node) for each in value)


def take_arguments(flow: Any, node: Node, given: mixups.Given) -> None:
    """Give a node its arguments: constants are encoded, nodes become inputs."""
    if node.task is None:
        return
    codec = node.task.arguments
    if mistakes := mixups.unclear(node, list(codec.signature.parameters)[len(given.args) :], given.options):
        flow.problems += mistakes
        return
    try:
        bound = codec.bind(given.args, given.kwargs)
    except CodecError as error:
        flow.problems.append(f"{node.name}: {error}")
        return
    expected = types.hints(node.task)
    constants = {}
    for parameter, value in bound.items():
        if isinstance(value, Node) or has_nodes(value):
            connect(flow, node, parameter, value, expected.get(parameter, Any))
        elif parameter == node.over:
            take_elements(flow, node, value)
        else:
            constants[parameter] = value
    try:
        node.kwargs = codec.encode_values(constants)
    except CodecError as error:
        flow.problems.append(f"{node.name}: {mixups.why_not(error, constants)}")


def take_elements(flow: Any, node: Node, elements: Any) -> None:
    """Give a map the plain values that it maps over."""
    assert node.task is not None
    assert node.over is not None
    if not isinstance(elements, list | tuple):
        flow.problems.append(
            f"{node.name}: the first keyword argument of map() is what it maps over, a list or a node; {node.over!r} is "
            f"{type(elements).__name__}: pass list(...)"
        )
        return
    stored = []
    for place, element in enumerate(elements):
        try:
            stored.append(json.loads(node.task.arguments.encode_values({node.over: element}))[node.over])
        except CodecError as error:
            flow.problems.append(f"{node.name}: element {place}: {mixups.why_not(error, {node.over: element})}")
            return
    node.value = write_json(stored)


def connect(flow: Any, node: Node, parameter: str, value: Any, annotation: Any) -> None:
    """Let the results of nodes be an argument of ``node``."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(each, Node) for each in several):
        flow.problems.append(f"{node.name}: the list for {parameter!r} mixes nodes and values: give nodes only")
        return
    if not all(flow.owns(each, f"{node.name}: {parameter}=") for each in several):
        return
    for each in several:
        judge_kept(flow, node.name, each)
    node.wait_for(several, counts=value is not several[0])
    source: dict[str, Any] = {"nodes": [each.number for each in several]} if value is not several[0] else {}
    source = source or {"node": several[0].number}
    if parameter == node.over:
        node.inputs[parameter] = {**source, "as": "elements"}
        judge_types(flow, node, parameter, elements_of(flow, node, value, several), annotation)
        return
    many = "nodes" in source or several[0].kind == "map"
    how, wanted = types.way(annotation, many=many)
    if many and wanted is None:
        flow.problems.append(
            f"{node.name}: {parameter!r} takes {types.shown(annotation)}, and gets a list: annotate it list[...] or Results[...]"
        )
        return
    if how == "results" and not many:
        flow.problems.append(
            f"{node.name}: {parameter!r} takes Results, which come from a map or from a list of nodes; annotate it "
            f"list[...] to take the list that {several[0].name} gives"
        )
        return
    node.inputs[parameter] = {**source, "as": how}
    judge_types(flow, node, parameter, [(each.name, each.type) for each in several], wanted)


def judge_kept(flow: Any, taker: str, node: Node) -> None:
    """Note if the value of a node is taken, by a node or by the run, and its task does not keep it."""
    if node.new is not None and drops_result(node.new.options):
        flow.problems.append(
            f"{taker}: it takes the result of {node.name}, whose task does not keep it: remove keep_result=False there, or add "
            "the task with_options(keep_result=True)"
        )


def elements_of(flow: Any, node: Node, value: Any, several: list[Node]) -> list[tuple[str, Any]]:
    """Return the types of the elements that a map takes, with the names of the nodes that give them."""
    if isinstance(value, list | tuple) or several[0].kind == "map":
        return [(each.name, each.type) for each in several]
    found = types.element(several[0].type)
    if found is None:
        flow.problems.append(
            f"{node.name}: it maps over {several[0].name}, which gives {types.shown(several[0].type)}, not a list"
        )
        return []
    return [(f"an element of {several[0].name}", found)]


def judge_types(flow: Any, node: Node, parameter: str, given: Iterable[tuple[str, Any]], wanted: Any) -> None:
    """Note upstream results that do not fit a parameter."""
    for name, result in given:
        if not types.fits(result, wanted):
            flow.problems.append(
                f"{node.name}: {parameter!r} takes {types.shown(wanted)}, but {name} gives {types.shown(result)}"
            )
            return


def judge_inputs(flow: Any, node: Node) -> None:
    """Note arguments that may be missing when a node runs although upstream nodes did not complete."""
    if not node.allow_failed and node.rule != "quorum":
        return
    arguments = None if node.task is None else node.task.arguments
    for parameter, source in node.inputs.items():
        needed = arguments is None or parameter in arguments.names - arguments.optional
        if source["as"] == "value" and needed:
            instead = "" if node.task is not None and node.task.codec else ", or annotate it TaskResult[...]"
            flow.problems.append(
                f"{node.name}: it may run without a value for {parameter!r}: give it a default{instead}"
            )
        elif source["as"] == "elements":
            flow.problems.append(f"{node.name}: a map needs the list it maps over: it cannot run without {parameter!r}")


def graph_problems(flow: Any) -> list[str]:
    """Return what is wrong with a graph as a whole."""
    problems = []
    if not isinstance(flow.name, str) or not flow.name.isprintable() or not 1 <= len(flow.name) <= 255:
        problems.append(f"a workflow's name must be a str of 1 to 255 printable characters, not {flow.name!r:.80}")
    if flow.on_error not in ON_ERROR:
        problems.append(f"on_error must be 'fail', 'stop' or 'pause', not {flow.on_error!r:.80}")
    if flow.key is not None and (problem := text_problem("key", flow.key, 255)):
        problems.append(problem)
    many = flow.max_in_flight
    if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
        problems.append(f"max_in_flight must be an int of at least 1, not {many!r}")
    problems += until_problems(flow.good_until)
    if not any(node.kind != "input" for node in flow.nodes):
        problems.append("it has no nodes: add() gives it one")
    problems += cycle_problems(flow.nodes)
    ends = {node.number for node in flow.nodes if node.kind == "continue"}
    problems += [
        f"{node.name}: the run ends at {flow.nodes[min(node.upstream & ends)].name}, so nothing can wait for that"
        for node in flow.nodes
        if node.upstream & ends
    ]
    named = {
        kind: {one.wait.signal for one in flow.nodes if one.kind == kind and isinstance(one.wait.signal, str)}
        for kind in WAITERS
    }
    problems += [both(name) for name in sorted(named["gate"] & named["signal"])]
    for node in flow.nodes:
        problems += node_problems(node)
    return problems


def both(name: str) -> str:
    """Return the problem of a run in which a gate and a signal have the same name."""
    return f"{name!r} is the name of a gate and of a signal: give one of them another, so that no message looks like a decision"


def node_problems(node: Node) -> list[str]:
    """Return what is wrong with a node, apart from its arguments."""
    problems = []
    if node.kind == "map" and node.over is None:
        problems.append(f"{node.name}: map() takes what it maps over as its first keyword argument")
    if node.rule == "quorum" and (
        isinstance(node.needs, bool) or not isinstance(node.needs, int) or not 1 <= node.needs <= len(node.branches)
    ):
        problems.append(
            f"{node.name}: a quorum of {node.needs!r} of {len(node.branches)} branches is impossible: it counts the nodes in "
            "after= and in lists of nodes, not those of when=, inputs, and nodes that are arguments by themselves"
        )
    if node.when is not None and (not isinstance(node.when.path, str) or len(node.when.path) > LONGEST_PATH):
        problems.append(f"{node.name}: the condition must be a JSON path of at most {LONGEST_PATH:,} characters")
    if get_origin(node.type) is Results and node.kind == "input":
        problems.append(f"{node.name}: an input takes list[...], not Results[...]")
    if size := size_problem(node.kwargs, node.name):
        problems.append(size)
    return problems


def size_problem(text: str, name: str) -> str | None:
    """Return the problem with arguments that are too large, None if they are not."""
    limit = config().max_payload_bytes
    if len(text) <= limit // 4 or len(text.encode()) <= limit:
        return None
    return f"{name}: the arguments take {len(text.encode()):,} bytes of JSON; HORSIES['MAX_PAYLOAD_BYTES'] allows {limit:,}"


def until_problems(until: Any) -> list[str]:
    """Return what is wrong with the deadline of a workflow."""
    if until is None or (isinstance(until, dt.timedelta) and until > dt.timedelta(0)):
        return []
    if isinstance(until, dt.datetime) and until.utcoffset() is not None and 2 < until.year < 9999:
        return []
    return [f"good_until must be an aware datetime or a timedelta from sending, not {until!r:.80}"]


def cycle_problems(nodes: Sequence[Node]) -> list[str]:
    """Return a sentence that names the nodes of a cycle, if there is one."""
    waits = {node.number: len(node.upstream) for node in nodes}
    downstream = defaultdict(list)
    for node in nodes:
        for number in node.upstream:
            downstream[number].append(node.number)
    free = [number for number, many in waits.items() if not many]
    while free:
        for number in downstream[free.pop()]:
            waits[number] -= 1
            if not waits[number]:
                free.append(number)
    left = {number for number, many in waits.items() if many}
    if not left:
        return []
    number, path = min(left), list[int]()
    while number not in path:  # every node that is left waits for another one that is left
        path.append(number)
        number = min(nodes[number].upstream & left)
    names = [nodes[each].name for each in reversed(path[path.index(number) :])]
    shown = " -> ".join([*names[:20], *(["..."] if len(names) > 20 else []), names[0]])
    return [f"its nodes wait for one another in a circle: {shown}"]
