"""``undo=`` of a node: the task that undoes it, checked against the task that it undoes."""

from __future__ import annotations

import json
from typing import Any

from horsies_django.core.codec.advice import name_of
from horsies_django.core.codec.fits import fits
from horsies_django.core.errors import TaskSendError
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import SendOptions, prepare
from horsies_django.workflows.arguments import dropped, hints, may_miss, produced
from horsies_django.workflows.nodes import Node, Problems, task_members

RESULT = "result"  # the parameter of an undo that takes the value of the undone task


def take_undo(node: Node, task: TaskDefinition, undo: TaskDefinition, options: SendOptions) -> Problems:
    """Let ``undo`` undo the task of a node; yield what is wrong, without the name of the node."""
    if options.delay is not None or options.good_until is not None:
        yield f"its undo {undo.name} has to run whenever it is needed: it takes no delay and no good_until"
        return
    try:
        new = prepare(undo, options, None)
    except TaskSendError as error:
        yield f"its undo: {error.message}"
        return
    stored = task_members(new) | {"parameters": []} | ({"codec": new.codec} if new.codec else {})
    node.undo, node.undo_options = stored, new.options
    for name in undo.arguments.signature.parameters:
        if name == RESULT:
            yield from dropped(node, f"its undo {undo.name}: ")
        if name in undo.arguments.names:
            yield from (f"its undo {undo.name} {problem}" for problem in take_parameter(node, task, undo, name))


def take_parameter(node: Node, task: TaskDefinition, undo: TaskDefinition, name: str) -> Problems:
    """Let an undo get a parameter, if it can; yield what is wrong with it."""
    assert node.undo is not None
    given, wanted = task.arguments, hints(undo).get(name, Any)
    required = name not in undo.arguments.optional
    if name == RESULT:
        value = produced(task)
        if not fits(value, wanted):
            yield f"takes {name_of(wanted)} as 'result', but {task.name} gives {name_of(value)}"
        elif not fits(type(None), wanted):
            yield (
                f"gets None as 'result' if it is not known how {task.name} ended: annotate it {name_of(wanted)} | None"
            )
    elif name not in given.names and not given.takes_any:
        if required:
            yield (
                f"takes {name!r}, which is neither 'result' nor a parameter of {task.name}: rename it, or give it a default"
            )
        return
    elif required and not always_given(node, name):
        yield (
            f"needs {name!r}, which {task.name} may not be given: give it here, or give the undo's parameter a default"
        )
        return
    elif not fits(own := hints(task).get(name, Any), wanted):
        yield f"takes {name_of(wanted)} as {name!r}, but {task.name} takes {name_of(own)}"
    node.undo["parameters"].append(name)


def always_given(node: Node, name: str) -> bool:
    """Return whether the task of a node is sent with an argument in any case."""
    source = node.inputs.get(name)
    if source is not None:
        return source["as"] != "value" or not may_miss(node)
    return name == node.over or name in json.loads(node.kwargs)
