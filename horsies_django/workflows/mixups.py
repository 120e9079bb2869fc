"""Mistakes of which other checks only see the consequences: nodes inside of values, and options that are parameters, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from horsies_django.workflows.nodes import Node

VERBS = {"map": "map", "continue": "continue_as"}  # of kinds of nodes; add() without
DEFAULTS = {"after": (), "join": "all", "allow_failed": False, "when": None, "name": None, "undo": None}


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
