"""Checks of a workflow that is being built. Each problem is a sentence in ``flow.problems``; nothing is raised.

Among them: nodes inside of values, options that are parameters, too, and results that do not fit a parameter by their
annotations.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import types
import typing
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.advice import name_of
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.codec.signatures import hints_of
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.options import drops_result
from horsies_django.core.results import TaskResult
from horsies_django.core.texts import text_problem
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.workflows.nodes import Node
from horsies_django.workflows.results import Results

VERBS = {"map": "map", "continue": "continue_as"}  # of kinds of nodes; add() without
DEFAULTS = {"after": (), "join": "all", "allow_failed": False, "when": None, "name": None, "undo": None}
LONGEST_PATH = 10_000
ON_ERROR = ("fail", "stop", "pause")
WAITERS = ("gate", "signal")


def hints(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task; empty if they cannot be resolved yet, or its values are plain JSON."""
    if task.codec is not None:
        return {}
    try:
        return resolved(task)
    except TaskDefinitionError:
        return {}


@functools.cache
def resolved(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task. Raises TaskDefinitionError."""
    return {name: plain(hint) for name, hint in hints_of(task.function).items()}


def plain(annotation: Any) -> Any:
    """Return an annotation without Annotated, NewType and named aliases."""
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if hasattr(annotation, "__supertype__"):
        return plain(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return plain(annotation.__value__)
    return annotation


def produced(task: TaskDefinition) -> Any:
    """Return the type of the values that a task returns."""
    found = hints(task).get("return", Any)
    if get_origin(found) is TaskResult:
        return plain(get_args(found)[0])
    return type(None) if found is None else found


def way(parameter: Any, *, many: bool) -> tuple[str, Any]:
    """Return how results become an argument ("value", "result", "results", "list"), and the type that each must have."""
    origin, args = get_origin(parameter), get_args(parameter)
    if origin is Results:
        return "results", plain(args[0])
    if origin is TaskResult and not many:
        return "result", plain(args[0])
    if many:
        return "list", element(parameter)
    return "value", parameter


def element(annotation: Any) -> Any:
    """Return the type of the elements of a list or a tuple, None if it is neither."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return Any
    if annotation is list or (origin is list and not args):
        return Any
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return plain(args[0])
    return None


def list_of(annotation: Any) -> Any:
    """Return the type of a list of such values."""
    return types.GenericAlias(list, (annotation,))


def fits(result: Any, parameter: Any) -> bool:
    """Return whether every value of the type ``result`` can be an argument of the type ``parameter``."""
    if result is parameter or Any in (result, parameter) or result == parameter:
        return True
    if is_union(result):
        return all(fits(plain(each), parameter) for each in get_args(result))
    if is_union(parameter):
        return any(fits(result, plain(each)) for each in get_args(parameter))
    if (result, parameter) in ((int, float), (bool, int)):
        return True
    if (one := element(result)) is not None and (other := element(parameter)) is not None:
        return fits(one, other)
    if get_origin(result) is dict and parameter is dict or result is dict and get_origin(parameter) is dict:
        return True
    if get_origin(result) is dict and get_origin(parameter) is dict:
        return fits(plain(get_args(result)[1]), plain(get_args(parameter)[1]))
    return False


def optional(annotation: Any) -> Any:
    """Return the type of such values and None."""
    return Union[annotation, None]  # noqa: UP007 - it need not be a class


def is_union(annotation: Any) -> bool:
    """Return whether an annotation is ``A | B``."""
    return get_origin(annotation) in (Union, types.UnionType, typing.Union)


def shown(annotation: Any) -> str:
    """Return an annotation as source code."""
    return name_of(annotation)


class Given(NamedTuple):
    """The arguments of a node as they were given, and the options beside them that could be meant as arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Collection[str] = ()


def given(flow: Any, args: tuple[Any, ...], kwargs: Any, others: dict[str, Any], **options: Any) -> Given:
    """Return what add() and its siblings were given: ``kwargs=``, which leaves no doubt about options, and ``others``."""
    if kwargs is None:
        return Given(args, others, {name for name, value in options.items() if value != DEFAULTS[name]})
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        flow.problems.append(f"kwargs= takes a dict of arguments by name, not {kwargs!r:.80}")
        return Given(args, others)
    flow.problems += [
        f"the argument {name!r:.80} is given twice: in kwargs= and beside it" for name in kwargs if name in others
    ]
    return Given(args, {**kwargs, **others})


def unclear(node: Node, names: Collection[str], options: Collection[str]) -> list[str]:
    """Return the problems of options that are ``names`` of parameters or inputs, too: they may be meant for either."""
    verb = VERBS.get(node.kind, "add")
    what = f"{node.task.name} has a parameter" if node.task else "the workflow has an input"
    return [
        f"{node.name}: {name}= is an option of {verb}(), and {what} {name!r}: give that in kwargs={{{name!r}: ...}}, with which "
        f"{name}= is the option"
        for name in names
        if name in options
    ]


def why_not(error: Exception, values: Mapping[str, Any]) -> str:
    """Return why values cannot be arguments: the error, unless nodes inside of one of them are the reason."""
    inside = [name for name, value in values.items() if holds_node(value)]
    return (
        f"{inside[0]!r} has nodes inside: a node is an argument by itself, or in one list of nodes"
        if inside
        else str(error)
    )


def holds_node(value: Any, levels: int = 50) -> bool:
    """Return whether there is a node in lists and tables, however deep."""
    if isinstance(value, Mapping | list | tuple | set | frozenset) and levels:
        return any(holds_node(each, levels - 1) for each in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, Node)


def close_to(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, or nothing."""
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def has_nodes(value: Any) -> bool:
    """Return whether a value is a list of nodes."""
    return isinstance(value, list | tuple) and any(isinstance(each, Node) for each in value)


def take_arguments(flow: Any, node: Node, given: Given) -> None:
    """Give a node its arguments: constants are encoded, nodes become inputs."""
    if node.task is None:
        return
    codec = node.task.arguments
    if mistakes := unclear(node, list(codec.signature.parameters)[len(given.args) :], given.options):
        flow.problems += mistakes
        return
    try:
        bound = codec.bind(given.args, given.kwargs)
    except CodecError as error:
        flow.problems.append(f"{node.name}: {error}")
        return
    expected = hints(node.task)
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
        flow.problems.append(f"{node.name}: {why_not(error, constants)}")


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
            flow.problems.append(f"{node.name}: element {place}: {why_not(error, {node.over: element})}")
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
    how, wanted = way(annotation, many=many)
    if many and wanted is None:
        flow.problems.append(
            f"{node.name}: {parameter!r} takes {shown(annotation)}, and gets a list: annotate it list[...] or Results[...]"
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
    found = element(several[0].type)
    if found is None:
        flow.problems.append(
            f"{node.name}: it maps over {several[0].name}, which gives {shown(several[0].type)}, not a list"
        )
        return []
    return [(f"an element of {several[0].name}", found)]


def judge_types(flow: Any, node: Node, parameter: str, given: Iterable[tuple[str, Any]], wanted: Any) -> None:
    """Note upstream results that do not fit a parameter."""
    for name, result in given:
        if not fits(result, wanted):
            flow.problems.append(f"{node.name}: {parameter!r} takes {shown(wanted)}, but {name} gives {shown(result)}")
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
