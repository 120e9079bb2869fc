"""``undo=`` of a node: the task that undoes it, checked against the task that it undoes."""

from __future__ import annotations

import json
from typing import Any

from horsies_django.core.errors import TaskSendError
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import prepare
from horsies_django.workflows import checks
from horsies_django.workflows.nodes import Node

RESULT = "result"  # the parameter of an undo that takes the value of the undone task


def take_undo(flow: Any, node: Node, what: Any) -> None:
    """Let a task undo a node. Problems are noted in the flow."""
    if what is None:
        return
    if node.kind == "workflow":
        flow.problems.append(f"{node.name}: undo= is for a task or a map, not for a workflow")
        return
    undo, options = flow._task(
        what, f"{node.name}: undo= takes a task, what its with_options() returns, or the name of a task"
    )
    if undo is None or node.task is None:
        return
    if options.delay is not None or options.good_until is not None:
        flow.problems.append(
            f"{node.name}: its undo {undo.name} has to run whenever it is needed: it takes no delay and no good_until"
        )
        return
    try:
        new = prepare(undo, options, None)
    except TaskSendError as error:
        flow.problems.append(f"{node.name}: its undo: {error.message}")
        return
    stored = {
        "task": new.task_name,
        "queue": new.queue_name,
        "lane": new.lane,
        "priority": new.priority,
        "max_retries": new.max_retries,
        "parameters": parameters(flow, node, undo),
    }
    if new.codec is not None:
        stored["codec"] = new.codec
    node.undo, node.undo_options = json.dumps(stored), new.options


def parameters(flow: Any, node: Node, undo: TaskDefinition) -> list[str]:
    """Return the parameters of an undo that it gets; note those that it cannot get, or whose type does not fit."""
    assert node.task is not None
    own, hints = checks.hints(node.task), checks.hints(undo)
    found = []
    given = node.task.arguments
    for name in (each for each in undo.arguments.signature.parameters if each in undo.arguments.names):
        annotation = hints.get(name, Any)
        required = name not in undo.arguments.optional
        if name == RESULT:
            judge_result(flow, node, undo, annotation)
            checks.judge_kept(flow, f"{node.name}: its undo {undo.name}", node)
            found.append(name)
        elif name not in given.names and not given.takes_any:
            if required:
                flow.problems.append(
                    f"{node.name}: its undo {undo.name} takes {name!r}, which is neither 'result' nor a parameter of "
                    f"{node.task.name}: rename it, or give it a default"
                )
        elif required and not always_given(node, name):
            flow.problems.append(
                f"{node.name}: its undo {undo.name} needs {name!r}, which {node.task.name} may not be given: give it here, or "
                "give the undo's parameter a default"
            )
        else:
            found.append(name)
            if not checks.fits(own.get(name, Any), annotation):
                flow.problems.append(
                    f"{node.name}: its undo {undo.name} takes {checks.shown(annotation)} as {name!r}, but {node.task.name} takes "
                    f"{checks.shown(own[name])}"
                )
    return found


def judge_result(flow: Any, node: Node, undo: TaskDefinition, annotation: Any) -> None:
    """Note if the parameter ``result`` of an undo does not take the value of the undone task, or None."""
    assert node.task is not None
    value = checks.produced(node.task)
    if not checks.fits(value, annotation):
        flow.problems.append(
            f"{node.name}: its undo {undo.name} takes {checks.shown(annotation)} as 'result', but {node.task.name} gives "
            f"{checks.shown(value)}"
        )
    elif not checks.fits(type(None), annotation):
        flow.problems.append(
            f"{node.name}: its undo {undo.name} gets None as 'result' if it is not known how {node.task.name} ended: annotate it "
            f"{checks.shown(annotation)} | None"
        )


def always_given(node: Node, name: str) -> bool:
    """Return whether the task of a node is sent with an argument in any case."""
    source = node.inputs.get(name)
    if source is not None:
        return source["as"] != "value" or not (node.allow_failed or node.rule == "quorum")
    return name == node.over or name in json.loads(node.kwargs)
