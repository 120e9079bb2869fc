"""Checks of a graph as a whole, when it is sent, or becomes a node of another one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from horsies_django.core.kinds import CONTINUE, GATE, INPUT
from horsies_django.core.texts import is_name, text_problem
from horsies_django.workflows.nodes import Graph, Node, Problems

ON_ERROR = ("fail", "stop", "pause")
MOST_LEVELS = 100  # PostgreSQL begins workflows in one another on one stack, which ends at 165 to 190 of them


def graph_problems(flow: Graph) -> Problems:
    """Yield what is wrong with a graph as a whole."""
    if not is_name(flow.name):
        yield f"a workflow's name must be a str of 1 to 255 printable characters, not {flow.name!r:.80}"
    if flow.on_error not in ON_ERROR:
        yield f"on_error must be 'fail', 'stop' or 'pause', not {flow.on_error!r:.80}"
    if flow.key is not None and (problem := text_problem("key", flow.key)):
        yield problem
    many, until = flow.max_in_flight, flow.good_until
    if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
        yield f"max_in_flight must be an int of at least 1, not {many!r}"
    if not (until is None or is_moment(until) or (isinstance(until, dt.timedelta) and until > dt.timedelta(0))):
        yield f"good_until must be an aware datetime or a timedelta from sending, not {until!r:.80}"
    if all(node.kind is INPUT for node in flow.nodes):
        yield "it has no nodes: add() gives it one"
    yield from circle(flow.nodes)
    ends = {node.number for node in flow.nodes if node.kind is CONTINUE}
    for node in flow.nodes:
        if node.upstream & ends:
            end = flow.nodes[min(node.upstream & ends)]
            yield f"{node.name}: the run ends at {end.name}, so nothing can wait for that"
    named = [(node.columns["signal"], node.kind is GATE) for node in flow.nodes if node.columns.get("signal")]
    for name in sorted({name for name, gate in named if gate} & {name for name, gate in named if not gate}):
        yield both(name)
    for node in flow.nodes:
        yield from impossible(node)


def both(name: str) -> str:
    """Return the problem of a run in which a gate and a signal have the same name."""
    return f"{name!r} is the name of a gate and of a signal: give one of them another, so that no message looks like a decision"


def impossible(node: Node) -> Problems:
    """Yield whether a node needs more branches than it has; some may be added after it."""
    if node.rule != "quorum":
        return
    needs, most = node.needs, len(node.branches)
    if isinstance(needs, bool) or not isinstance(needs, int) or not 1 <= needs <= most:
        yield (
            f"{node.name}: a quorum of {needs!r} of {most} branches is impossible: it counts the nodes in "
            "after= and in lists of nodes, not those of when=, inputs, and nodes that are arguments by themselves"
        )


def circle(nodes: Sequence[Node]) -> Problems:
    """Yield a sentence that names the nodes of a cycle, if there is one."""
    if all(max(node.upstream, default=-1) < node.number for node in nodes):  # quick, and nearly always so
        return
    try:
        TopologicalSorter({node.number: node.upstream for node in nodes}).prepare()
    except CycleError as error:
        numbers: list[int] = error.args[1][1:]
        first = numbers.index(min(numbers)) + 1
        names = [nodes[number].name for number in (*numbers[first:], *numbers[:first])]
        shown = " -> ".join([*names[:20], *(["..."] if len(names) > 20 else []), names[0]])
        yield f"its nodes wait for one another in a circle: {shown}"


def outermost(nodes: Sequence[Node]) -> Problems:
    """Yield what is wrong with nodes of a run that is no node of another one: too many levels, and inputs without a value."""
    levels = max((node.levels for node in nodes), default=1)
    if levels > MOST_LEVELS:
        yield (
            f"its workflows are nested {levels} levels deep, and {MOST_LEVELS} are possible: let a task of the innermost one add "
            "the rest by current_task().workflow.add(...)"
        )
    for node in nodes:
        if node.kind is INPUT:
            yield f"its input {node.name!r} has no value: only a node of another workflow gets one"


def is_moment(value: object) -> bool:
    """Return whether a value is an aware datetime that PostgreSQL and Python can both count with in any time zone."""
    return isinstance(value, dt.datetime) and value.utcoffset() is not None and 2 < value.year < 9999
