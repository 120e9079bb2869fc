"""``undo=`` of a node: the task that undoes it, checked against the task that it undoes."""

from __future__ import annotations

import json
from typing import Any

from horsies_django.core.codec.advice import name_of
from horsies_django.core.codec.fits import fits
from horsies_django.core.errors import TaskSendError
from horsies_django.core.metadata import without_metadata
from horsies_django.core.records import NewTasks
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import SendOptions, prepare
from horsies_django.workflows.arguments import dropped, hints, may_miss, produced
from horsies_django.workflows.nodes import Node, Problems, json_object

RESULT = "result"  # the parameter of an undo that takes the value of the undone task


def take_undo(node: Node, task: TaskDefinition, undo: TaskDefinition, options: SendOptions) -> Problems:
    """Let ``undo`` undo the task of a node; yield what is wrong, without the name of the node."""
    if options.delay is not None or options.good_until is not None or options.key is not None:
        yield f"its undo {undo.name} has to run whenever it is needed: it takes no delay, no good_until and no key"
        return
    try:
        new = prepare(undo, options, None)
    except TaskSendError as error:
        yield f"its undo: {error.message}"
        return
    parameters: list[str] = []
    for name in undo.arguments.signature.parameters:
        if name in undo.arguments.names and (yield from takes(node, task, undo, name)):
            parameters.append(name)
    columns = {**task_columns(new), "parameters": parameters, **({"codec": new.codec} if new.codec else {})}
    node.texts["undo"] = json_object(columns, {"options": new.options})
    node.hashed["undo"] = json_object(columns, {"options": without_metadata(new.options)})


def task_columns(new: NewTasks) -> dict[str, Any]:
    """Return what is stored of the task of a node, and of the one that undoes it."""
    return {
        "task": new.task_name, "queue": new.queue_name, "lane": new.lane, "priority": new.priority,
        "max_retries": new.max_retries,
    }  # fmt: skip


def takes(node: Node, task: TaskDefinition, undo: TaskDefinition, name: str) -> Problems[bool]:
    """Return whether an undo gets a parameter; yield what is wrong with it."""
    says = f"its undo {undo.name}"
    wanted, required = hints(undo).get(name, Any), name not in undo.arguments.optional
    if name == RESULT:
        yield from dropped(node, f"{says}: ")
        own, source = produced(task), "gives"
        if fits(own, wanted) and not fits(type(None), wanted):
            yield f"{says} gets None as 'result' if it is not known how {task.name} ended: annotate it {name_of(wanted)} | None"
    elif name not in task.arguments.names and not task.arguments.takes_any:
        if required:
            yield (
                f"{says} takes {name!r}, which is neither 'result' nor a parameter of {task.name}: rename it, or give it a "
                "default"
            )
        return False
    elif required and not always_given(node, name):
        yield (
            f"{says} needs {name!r}, which {task.name} may not be given: give it here, or give the undo's parameter a default"
        )
        return False
    else:
        own, source = hints(task).get(name, Any), "takes"
    if not fits(own, wanted):
        yield f"{says} takes {name_of(wanted)} as {name!r}, but {task.name} {source} {name_of(own)}"
    return True


def always_given(node: Node, name: str) -> bool:
    """Return whether the task of a node is sent with an argument in any case."""
    source = node.inputs.get(name)
    if source is not None:
        return source["as"] != "value" or not may_miss(node)
    return name == node.over or name in json.loads(node.kwargs)
