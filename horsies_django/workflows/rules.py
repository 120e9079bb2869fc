"""The rules of the kinds of nodes: they turn the recorded calls of the builder into stored columns.

Each kind of node has a rule, which writes into the node and yields its problems, without the name
of the node. ``compiled`` applies the rule, and then the steps that all kinds have in common.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin

from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.advice import annotation_name
from horsies_django.core.codec.fits import bare_annotation, fits, optional
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.codec.type_texts import annotation_text
from horsies_django.core.errors import TaskDefinitionError, TaskSendError
from horsies_django.core.kinds import CONTINUE, INPUT
from horsies_django.core.metadata import without_metadata
from horsies_django.core.records import NewTasks
from horsies_django.core.texts import is_name, name_problem, text_problem
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import LONGEST_DELAY, SendOptions, prepare_send, too_large
from horsies_django.workflows import arguments
from horsies_django.workflows.arguments import Given, Results
from horsies_django.workflows.nodes import (
    Condition,
    Graph,
    Node,
    NodeOptions,
    Problems,
    Quorum,
    Rule,
    graph_problems,
    is_moment,
    json_object,
)

LONGEST_JSON_PATH = 10_000
RESULT = "result"  # the parameter of an undo that gets the value of the undone task
OnTimeout = Literal["fail", "skip", "complete"]
ON_TIMEOUT = get_args(OnTimeout)
Called = tuple[TaskDefinition, SendOptions]


def compiled(
    node: Node, options: NodeOptions, undo: Called | None, rule: Rule, *given: Any
) -> Problems:
    """Compile a node with the rule of its kind and the given arguments, and yield the problems."""
    yield from rule(node, *given)
    if excess := too_large(node.kwargs):
        yield f"the arguments take {excess}"

    yield from take_options(node, options)
    yield from arguments.unsure_arguments(node)

    if options.undo is not None and node.kind.runs:
        yield "undo= applies only to a task or a map, not to a workflow. Remove it"
    elif undo is not None and node.task is not None:
        yield from take_undo(node, node.task, *undo)


def take_options(node: Node, options: NodeOptions) -> Problems:
    """Set the join, the condition and the upstream nodes of a node, and yield the problems."""
    after = options.after
    when = options.when
    join = options.join
    several = isinstance(after, Iterable) and not isinstance(after, str | Node)

    yield from node.wait_after(after if several else [after])
    node.allow_failed = bool(options.allow_failed)
    if when is not None:
        yield from take_condition(node, when)

    if isinstance(join, Quorum) or join == "any":
        node.rule = "quorum"
        node.needs = join.needs if isinstance(join, Quorum) else 1
    elif join != "all":
        yield f"join must be 'all', 'any' or quorum(n), not {join!r:.80}"


def take_condition(node: Node, when: Any) -> Problems:
    """Make a node run only if the value of another node matches a path, and yield the problems."""
    if not isinstance(when, Condition):
        yield f"when= takes node.matches('...'), not {type(when).__name__}"
    elif when.node.kind.many:
        yield f"when= needs a single value, but {when.node.name} is a map"
    elif problem := node.flow.foreign(when.node):
        yield f"when=: {problem}"
    else:
        yield from arguments.dropped(when.node, "when=: ")
        node.when = when
        node.wait_for([when.node], counts=False)
        if not isinstance(when.path, str) or len(when.path) > LONGEST_JSON_PATH:
            yield f"the condition must be a JSON path of at most {LONGEST_JSON_PATH:,} characters"


def take_task(node: Node, called: Called | None, given: Given) -> Problems:
    """Make a node run a task, once or for each element of a list, and yield the problems.

    The list of a map is its first keyword argument.
    """
    if node.kind.many:
        node.over = next(iter(given.kwargs), None)
        if node.over is None:
            yield "map() takes the list as its first keyword argument"

    if called is None:
        return
    node.task, options = called
    node.type = arguments.result_type(node.task)

    if isinstance(options.delay, dt.datetime):
        yield "delay must be seconds or a timedelta, because it begins when the node is ready"
        options = options._replace(delay=None)
    if options.key is not None:
        yield "a node takes no key. Give the workflow a key, as in Workflow(..., key=...)"

    try:
        new = prepare_send(node.task, options, None)
    except TaskSendError as error:
        yield error.message
    else:
        until = new.good_until and new.good_until.isoformat()
        node.columns = {**task_columns(new), "codec": new.codec, "good_until": until}
        for name, span in (("good_for", new.good_for), ("delay", new.delay)):
            node.columns[name] = None if span is None else f"{span.total_seconds()} s"
        node.texts["options"] = new.options
        node.hashed["options"] = without_metadata(new.options)

    yield from arguments.take_arguments(node, node.task, given)


def take_undo(
    node: Node, task: TaskDefinition, undo: TaskDefinition, options: SendOptions
) -> Problems:
    """Make the task ``undo`` undo the task of a node, and yield the problems."""
    if options.delay is not None or options.good_until is not None or options.key is not None:
        yield (
            f"the undo {undo.name} takes no delay, no good_until and no key, because it must run "
            "whenever it is needed. Remove them"
        )
        return

    try:
        new = prepare_send(undo, options, None)
    except TaskSendError as error:
        yield f"undo=: {error.message}"
        return

    parameters: list[str] = []
    for name in undo.arguments.signature.parameters:
        if name in undo.arguments.names and (yield from takes(node, task, undo, name)):
            parameters.append(name)

    columns = {
        **task_columns(new),
        "parameters": parameters,
        **({"codec": new.codec} if new.codec else {}),
    }
    node.texts["undo"] = json_object(columns, {"options": new.options})
    node.hashed["undo"] = json_object(columns, {"options": without_metadata(new.options)})


def task_columns(new: NewTasks) -> dict[str, Any]:
    """Return the columns that are stored for the task of a node, and for its undo."""
    return {
        "task": new.task_name,
        "queue": new.queue_name,
        "lane": new.lane,
        "priority": new.priority,
        "max_retries": new.max_retries,
    }


def takes(node: Node, task: TaskDefinition, undo: TaskDefinition, name: str) -> Problems[bool]:
    """Return whether an undo gets a parameter, and yield the problems of the parameter."""
    subject = f"the undo {undo.name}"
    wanted = arguments.hints(undo).get(name, Any)
    required = name not in undo.arguments.optional

    if name == RESULT:
        yield from arguments.dropped(node, f"{subject}: ")
        own = arguments.result_type(task)
        source = "gives"

        if fits(own, wanted) and not fits(type(None), wanted):
            yield (
                f"{subject} gets None as 'result' if the outcome of {task.name} is unknown. "
                f"Annotate the parameter with {annotation_name(wanted)} | None"
            )
    elif name not in task.arguments.names and not task.arguments.takes_any:
        if required:
            yield (
                f"{subject} takes {name!r}, which is neither 'result' nor a parameter of "
                f"{task.name}. Rename it, or give it a default"
            )
        return False
    elif required and not always_given(node, name):
        yield (
            f"{subject} needs {name!r}, but {task.name} may be sent without it. Pass it here, or "
            "give the undo's parameter a default"
        )
        return False
    else:
        own = arguments.hints(task).get(name, Any)
        source = "takes"

    if not fits(own, wanted):
        found = f"{task.name} {source} {annotation_name(own)}"
        yield f"{subject} takes {annotation_name(wanted)} as {name!r}, but {found}"
    return True


def always_given(node: Node, name: str) -> bool:
    """Return whether the task of a node is always sent with this argument."""
    source = node.inputs.get(name)
    if source is not None:
        return source["as"] != "value" or not arguments.may_miss(node)
    return name == node.over or name in json.loads(node.kwargs)


def take_input(node: Node, annotation: Any) -> Problems:
    """Set the type of an input, and yield a problem if it is ``Results``."""
    node.type = bare_annotation(annotation)
    if get_origin(node.type) is Results:
        yield "the annotation of an input must be list[...], not Results[...]"


def complete_after(node: Node, delay: object) -> Problems:
    """Make a node complete a given time after it is ready, and yield the problems."""
    node.type = type(None)
    node.columns = {"on_timeout": "complete", "delay": (yield from take_interval("delay", delay))}


def complete_at(node: Node, moment: Any) -> Problems:
    """Make a node complete at a given time, and yield a problem if that is no aware datetime."""
    node.type = type(None)
    if not is_moment(moment):
        yield f"until() takes an aware datetime between the years 3 and 9998, not {moment!r:.80}"
        return
    node.columns = {"on_timeout": "complete", "due_at": moment.isoformat()}


def await_signal(
    node: Node, name: Any, key: Any, annotation: Any, timeout: object, on_timeout: object
) -> Problems:
    if problem := name_problem("the name of a signal", name, 200):
        yield problem
        name = None
    if key is not None and (problem := text_problem("key", key)):
        yield problem

    node.type = bare_annotation(annotation)
    yield from wait(
        node,
        timeout,
        on_timeout,
        signal=name,
        signal_key=key,
        signal_type=annotation_text(annotation),
    )


def await_decision(node: Node, permission: Any, timeout: object, on_timeout: object) -> Problems:
    """Make a node wait for a decision, and yield the problems."""
    if permission is not None and not (is_name(permission) and all(permission.partition("."))):
        yield f"permission must be a str like 'shop.approve', not {permission!r:.80}"
    node.type = dict[str, Any]
    yield from wait(node, timeout, on_timeout, signal=node.name, permission=permission)


def wait(node: Node, timeout: object, on_timeout: object, **columns: Any) -> Problems:
    """Make a node wait, at most for ``timeout``, and yield the problems.

    The value of the node may be None if a timeout completes it.
    """
    delay = None if timeout is None else (yield from take_interval("timeout", timeout))
    if on_timeout not in ON_TIMEOUT:
        yield f"on_timeout must be 'fail', 'skip' or 'complete', not {on_timeout!r:.80}"
    if delay is not None and on_timeout == "complete" and node.type is not Any:
        node.type = optional(node.type)

    node.columns = {"on_timeout": on_timeout, "delay": delay, **columns}


def take_interval(what: str, value: object) -> Problems[str]:
    """Return a time in the life of a ready node as an interval; yield a problem if it is wrong.

    The time is a timedelta or a number in seconds.
    """
    found = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = dt.timedelta(seconds=value)
        except (OverflowError, ValueError):
            found = None

    if isinstance(found, dt.timedelta) and dt.timedelta(0) <= found <= LONGEST_DELAY:
        return f"{found.total_seconds():f} s"
    yield f"{what} must be a timedelta or seconds, from 0 to 100 years, not {value!r:.80}"
    return "0 s"


def embed(node: Node, child: Graph, given: Given) -> Problems:
    """Make a node run another workflow, and yield the problems."""
    if child is node.flow:
        yield "a workflow cannot be a node of itself"
        return

    yield from take_graph(node, child, given)
    if child.key is not None:
        yield "a workflow that is a node cannot have a key. Remove key="

    if undone := [each.name for each in child.nodes if "undo" in each.texts]:
        yield (
            "a workflow that is a node cannot be undone: remove undo= from "
            f"{', '.join(undone[:20])}, or add these nodes to the "
            "workflow itself"
        )

    if any(each.kind is CONTINUE for each in child.nodes):
        yield "a workflow that is a node cannot continue as another run: remove continue_as()"

    output = node.output = child.output
    if output is None:
        node.type = type(None)
    else:
        node.type = GenericAlias(list, (output.type,)) if output.kind.many else output.type


def begin_successor(node: Node, successor: object, given: Given) -> Problems:
    """Make a node end the run and begin another one, and yield the problems."""
    node.type = type(None)
    if not isinstance(successor, Graph):
        yield f"continue_as() takes a Workflow, not {type(successor).__name__}"
    elif successor is node.flow:
        yield (
            "a workflow cannot contain itself. Call "
            "current_task().workflow.continue_as(...) in a task"
        )
    else:
        yield from take_graph(node, successor, given)
        if successor.key is not None:
            yield "a workflow that continues a run takes over the key of the run. Remove key="
        yield from misnamed(successor, None if node.flow.key is None else node.flow.name)


def misnamed(successor: Graph, keyed_name: str | None) -> Problems:
    """Yield a problem if a run with a key continues under another name.

    A run with a key is found by its name and key.
    """
    if keyed_name is not None and successor.name != keyed_name:
        yield (
            f"a run with a key must continue as a workflow of the same name, {keyed_name!r}, not "
            f"{successor.name!r:.300}"
        )


def take_graph(node: Node, child: Graph, given: Given) -> Problems:
    """Store the graph of a workflow and the values of its inputs, and yield the problems."""
    if given.args:
        yield "the inputs of a workflow must be keyword arguments"

    child.finish()
    problems = [*child.problems, *graph_problems(child)]
    yield from problems

    inputs = {each.name: each.type for each in child.nodes if each.kind is INPUT}
    yield from arguments.unclear(node, inputs, given.options, "the workflow has an input")
    for name in inputs.keys() - given.kwargs.keys() - set(given.options):
        yield f"the input {name!r} is missing"
    for name in given.kwargs.keys() - inputs.keys():
        yield f"the workflow has no input {name!r}; its inputs are {', '.join(inputs) or 'none'}"

    inputs_given = {name: value for name, value in given.kwargs.items() if name in inputs}
    constants = yield from arguments.connect_nodes(node, inputs_given, inputs)

    for name, value in constants.items():
        try:
            constants[name] = shape_of(inputs[name], name).encode(value, name)
        except (CodecError, TaskDefinitionError) as error:
            yield arguments.argument_problem(error, {name: value})
            constants[name] = None

    node.kwargs = write_json(constants)
    if not problems:
        node.texts["graph"] = child.json()
        node.hashed["graph"] = f'"{child.hash()}"'

    node.child = child
    node.levels += max((each.levels for each in child.nodes), default=1)
    child.outer.add(node.flow)
