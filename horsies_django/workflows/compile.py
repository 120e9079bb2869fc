"""Compiles a node: what the builder recorded becomes what is stored, and everything that is wrong with it is named.

Each kind of node has a rule, which writes into the node and yields problems without its name: ``take_task`` and ``take_input``,
or one of ``embed`` or ``waits``. ``compiled`` applies it, and does what all kinds have in common.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, get_origin

from horsies_django.conf import config
from horsies_django.core.codec.fits import plain
from horsies_django.core.errors import TaskSendError
from horsies_django.core.metadata import without_metadata
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import SendOptions, prepare
from horsies_django.workflows.arguments import Given, dropped, produced, take_arguments, unsure
from horsies_django.workflows.nodes import Condition, Node, Options, Problems, Quorum, Rule
from horsies_django.workflows.results import Results
from horsies_django.workflows.undo import take_undo, task_columns

LONGEST_PATH = 10_000
Called = tuple[TaskDefinition, SendOptions]


def compiled(node: Node, rule: Rule, options: Options, undo: Called | None) -> Problems:
    """Compile a node by the rule of its kind; yield what is wrong with it."""
    yield from rule(node)
    size, limit = len(node.kwargs.encode()), config().max_payload_bytes
    if size > limit:
        yield f"the arguments take {size:,} bytes of JSON; HORSIES['MAX_PAYLOAD_BYTES'] allows {limit:,}"
    yield from take_options(node, options)
    yield from unsure(node)
    if options.undo is not None and node.kind.runs:
        yield "undo= is for a task or a map, not for a workflow"
    elif undo is not None and node.task is not None:
        yield from take_undo(node, node.task, *undo)


def take_task(node: Node, called: Called | None, given: Given) -> Problems:
    """Let a node run a task, once or per element of a list: the first keyword argument."""
    if node.kind.many:
        node.over = next(iter(given.kwargs), None)
        if node.over is None:
            yield "map() takes what it maps over as its first keyword argument"
    if called is None:
        return
    node.task, options = called
    node.type = produced(node.task)
    if isinstance(options.delay, dt.datetime):
        yield "delay must be seconds or a timedelta, counted from when the node is ready"
        options = options._replace(delay=None)
    if options.key is not None:
        yield "a node takes no key: give the workflow one, as in Workflow(..., key=...)"
    try:
        new = prepare(node.task, options, None)
    except TaskSendError as error:
        yield error.message
    else:
        spans = {name: getattr(new, name) for name in ("good_for", "delay") if getattr(new, name) is not None}
        node.columns = {
            **task_columns(new),
            **({"codec": new.codec} if new.codec else {}),
            **({"good_until": new.good_until.isoformat()} if new.good_until else {}),
            **{name: f"{span.total_seconds()} s" for name, span in spans.items()},
        }
        if new.options is not None:
            node.texts["options"] = new.options
        if (lasting := without_metadata(new.options)) != new.options:
            node.hashed["options"] = lasting
    yield from take_arguments(node, node.task, given)


def take_input(node: Node, annotation: Any) -> Problems:
    """Let a node have the value that another workflow gives."""
    node.type = plain(annotation)
    if get_origin(node.type) is Results:
        yield "an input takes list[...], not Results[...]"


def take_options(node: Node, options: Options) -> Problems:
    """Let a node wait for others, and for a condition."""
    after, when, join = options.after, options.when, options.join
    several = isinstance(after, Iterable) and not isinstance(after, str | Node)
    yield from node.wait_after(after if several else [after])
    node.allow_failed = bool(options.allow_failed)
    if isinstance(when, Condition):
        yield from take_condition(node, when)
    elif when is not None:
        yield f"when= takes node.matches('...'), not {type(when).__name__}"
    if isinstance(join, Quorum) or join == "any":
        node.rule, node.needs = "quorum", join.needs if isinstance(join, Quorum) else 1
    elif join != "all":
        yield f"join must be 'all', 'any' or quorum(n), not {join!r:.80}"


def take_condition(node: Node, when: Condition) -> Problems:
    """Let a node run only if the value of another one matches a path."""
    if when.node.kind.many:
        yield f"when= looks at one value; {when.node.name} is a map"
    elif problem := node.flow.foreign(when.node):
        yield f"when=: {problem}"
    else:
        yield from dropped(when.node, "when=: ")
        node.when = when
        node.wait_for([when.node], counts=False)
        if not isinstance(when.path, str) or len(when.path) > LONGEST_PATH:
            yield f"the condition must be a JSON path of at most {LONGEST_PATH:,} characters"
