"""Explains why a task, or a node of a workflow, is not running.

The module only reads, without locks.
"""

from __future__ import annotations

import datetime as dt
import uuid

from django.db import connections
from django.utils import timezone

from horsies_django.conf import Config, config
from horsies_django.core.explanations import (
    Explanation,
    NodeExplanation,
    NodeReasonCode,
    Reason,
    ReasonCode,
)
from horsies_django.core.node_reasoning import node_reasoned
from horsies_django.core.reasoning import Timing, reasoned
from horsies_django.core.texts import text_problem
from horsies_django.store.overviews import OverviewStore
from horsies_django.tasks.handle import TaskHandle
from horsies_django.workflows.handle import WorkflowHandle
from horsies_django.workflows.operations import is_number, missing, number_advice, numbered, rows

__all__ = [
    "Explanation",
    "NodeExplanation",
    "NodeReasonCode",
    "Reason",
    "ReasonCode",
    "explain",
    "explain_node",
    "find_node",
]


def explain(task_id: uuid.UUID | str) -> Explanation:
    """Explain why a task is not running, or which state it is in instead.

    Returns all reasons that apply, the most decisive first; ``str()`` of the return value is a
    text. Raises LookupError if there is no such task, and ValueError if the id is not a UUID.
    """
    id_ = TaskHandle(task_id).task_id
    conf = config()
    store = OverviewStore(connections[conf.database])
    limits = timing(conf)

    # Claims hold permits, unless tasks are prefetched.
    facts = store.facts(id_, claimed=not conf.prefetch_buffer, threshold=limits.threshold)
    if facts is None:
        raise LookupError(
            f"there is no task {id_} in the database {conf.database!r}: it was deleted, rolled "
            "back, or never sent"
        )

    return reasoned(facts, limits)


def timing(conf: Config) -> Timing:
    return Timing(
        poll=dt.timedelta(milliseconds=conf.resilience.notify_poll_interval_ms),
        # A worker is silent after two missed heartbeats, and counts as dead later.
        silence=dt.timedelta(milliseconds=conf.recovery.claimer_heartbeat_interval_ms * 2),
        threshold=dt.timedelta(milliseconds=conf.recovery.running_stale_threshold_ms),
        grace=dt.timedelta(milliseconds=conf.unknown_task_grace_ms),
        zone=timezone.get_current_timezone(),
    )


def explain_node(workflow_id: uuid.UUID | str, node: str | int) -> NodeExplanation:
    """Explain why a node of a run is not running, or which state it is in instead.

    ``node`` is its name or number. Returns all reasons that apply, the most decisive first, and
    then those of its task; ``str()`` of the return value is a text. Raises LookupError if there is
    no such run or node, and ValueError if the id is not a UUID.
    """
    conf = config()
    run = WorkflowHandle(workflow_id).workflow_id
    number = find_node(run, node)
    facts = OverviewStore(connections[conf.database]).node_facts(run, number)
    if facts is None:
        raise missing(run)

    found = node_reasoned(facts, timing(conf))
    if found.task_id is None:
        return found

    try:
        return found._replace(reasons=(*found.reasons, *explain(found.task_id).reasons))
    except LookupError:  # the task was withdrawn since
        return found


def find_node(run: uuid.UUID, node: str | int) -> int:
    """Return the number of a node that is given by its name, a str, or by its number, an int.

    Raises LookupError if there is no such node, or if several have the name.
    """
    nodes = rows("WorkflowNode", workflow_id=run)
    if is_number(node):
        named = numbered(nodes, node)
    elif text_problem("node", node, 200) is None:
        named = nodes.filter(name=node).order_by("number")
    else:
        named = nodes.none()

    found: list[int] = list(named.values_list("number", flat=True)[:2])
    if len(found) == 1:
        return found[0]

    if found:
        raise LookupError(
            f"run {run} has several nodes named {node!r}: give the number of one as an int, as in "
            f"{found[0]}"
        )

    if not nodes.exists():
        raise missing(run)
    raise LookupError(f"run {run} has no node {node!r}{number_advice(node)}")
