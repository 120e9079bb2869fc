"""Mistakes of which other checks only see the consequences: nodes inside of values, and options that are parameters, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from horsies_django.workflows.nodes import Node

OPTIONS = {"after": (), "join": "all", "allow_failed": False, "when": None, "name": None, "undo": None}  # with defaults


def given(**options: Any) -> set[str]:
    """Return the options of add() and map() that differ from their defaults."""
    return {name for name, value in options.items() if value != OPTIONS[name]}


def unclear(node: Node, places: int, options: Collection[str]) -> list[str]:
    """Return the problems of options that are names of parameters, too, unless these are among the first ``places``.

    They may be meant for either.
    """
    assert node.task is not None
    verb, instead = ("map", "rename it") if node.kind == "map" else ("add", "give it by position, or rename it")
    return [
        f"{node.name}: {name}= is an option of {verb}(), and {node.task.name} has a parameter {name!r}: {instead}"
        for name in list(node.task.arguments.signature.parameters)[places:]
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
