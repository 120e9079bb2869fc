"""The reasons why a node of a workflow is not running, from facts of the database.

The reasons of tasks are in ``core/reasoning.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from horsies_django.core import kinds
from horsies_django.core.explanations import (
    Facts,
    NodeExplanation,
    NodeReasonCode,
    Reason,
    parse_time,
    pick,
)
from horsies_django.core.reasoning import BaseCase, Timing

WAIT_FACTS = ("kind", "signal", "signal_key", "due_at", "on_timeout", "permission")
MOVES_ON = "; the run continues when a worker advances it"
AFTER_TIMEOUT = {
    "fail": "then it fails",
    "skip": "then it is skipped",
    "complete": "then it completes without a value",
}


def node_reasoned(facts: Facts, timing: Timing) -> NodeExplanation:
    """Return the explanation of a node for the facts that ``horsies_explain_node`` returned.

    The explanation does not contain the reasons of the node's task.
    """
    node = facts["node"]
    task = facts["task"]
    return NodeExplanation(
        uuid.UUID(node["workflow_id"]),
        node["number"],
        node["name"],
        node["status"],
        None if task is None else uuid.UUID(task),
        tuple(NodeCase(facts, timing).reasons()),
    )


class NodeCase(BaseCase):
    """One node at one moment."""

    def __init__(self, facts: Facts, timing: Timing) -> None:
        super().__init__(facts, timing)
        self.node: Facts = facts["node"]
        self.kind = kinds.kind_of(self.node["kind"])
        self.run: Facts = facts["run"]

    def reasons(self) -> Iterator[Reason]:
        """Yield all reasons, the most decisive first."""
        status = self.node["status"]
        if self.node["finished_at"]:
            yield self.skipped() if status == "SKIPPED" else self.ended()
            return

        if self.run["finished_at"]:
            yield self.run_ended()
        elif self.run["status"] == "PAUSED" and status not in ("ENQUEUED", "WAITING"):
            yield self.paused()
        elif self.kind is kinds.UNDO:
            yield self.undoes()
        elif self.run["status"] == "COMPENSATING":
            yield self.compensating()

        if status == "ADDED":
            yield self.not_admitted()
            yield from self.unattended()
        elif status == "PENDING":
            yield self.waiting()
        elif status == "WAITING":
            yield from self.held()
        elif status == "READY":
            yield from self.ready()
        else:
            yield self.sent()

    def ended(self) -> Reason:
        text = self.ended_as(self.node)
        return Reason(
            NodeReasonCode.ENDED, text, pick(self.node, "status", "finished_at", "error_code")
        )

    def skipped(self) -> Reason:
        node = self.node
        if node["by_hand"]:
            text = (
                "It was skipped by hand at "
                f"{self.at(node['finished_at'])}{self.actor_and_reason(self.facts['change'])}."
            )
            return Reason(NodeReasonCode.SKIPPED_BY_HAND, text, {"change": self.facts["change"]})

        if self.kind is kinds.WORKFLOW and node["task_id"] is not None:
            text = "It was skipped because the node that its run returns was skipped."
            return Reason(NodeReasonCode.SKIPPED_ITSELF, text, pick(node, "task_id"))
        if node["error_code"] == "TASK_SKIPPED":
            text = "Its task skipped itself: it raised Skip."
            return Reason(NodeReasonCode.SKIPPED_ITSELF, text, pick(node, "task_id", "task_name"))

        if node["error_code"] == "WAIT_TIMED_OUT":
            text = (
                f"It was skipped because {self.awaited()} did not arrive before "
                f"{self.at(node['due_at'])}."
            )
            return Reason(NodeReasonCode.TIMED_OUT, text, pick(node, *WAIT_FACTS))

        columns = ("workflow_id", "rule", "needs", "allow_failed", "ok", "bad")
        details = {"upstream": self.facts["bad"], **pick(node, *columns)}
        passed = node["bad"] if node["allow_failed"] else 0

        if node["rule"] == "quorum" and node["ok"] + passed < node["needs"]:
            text = (
                f"It was skipped because fewer than {node['needs']} of its branches could "
                f"complete{self.because()}."
            )
        elif node["rule"] == "all" and node["bad"] and not node["allow_failed"]:
            text = f"It was skipped because an upstream node did not complete{self.because()}."
        elif node["rule"] == "failed":
            text = "It was skipped because it runs only after a failure, and no node failed."
        elif node["rule"] == "succeeded":
            text = f"It was skipped because it runs only if no node fails{self.because()}."
        else:
            name = self.facts["when_node"]
            path = node["when_path"]
            text = (
                f"It was skipped because the value of {name!r} does not match its condition {path}."
            )
            return Reason(
                NodeReasonCode.CONDITION_FALSE, text, pick(node, "when_node", "when_path")
            )

        return Reason(NodeReasonCode.UPSTREAM_NOT_COMPLETED, text, details)

    def run_ended(self) -> Reason:
        text = f"Its run ended as {self.run['status']} at {self.at(self.run['finished_at'])}"
        text += (
            ": its task is being cancelled."
            if self.node["status"] == "ENQUEUED"
            else ": it will be cancelled."
        )
        return Reason(
            NodeReasonCode.RUN_ENDED, text, pick(self.run, "status", "finished_at", "error_code")
        )

    def paused(self) -> Reason:
        run = self.run
        if run["on_error"] == "pause" and run["error_code"]:
            change = None
            failed = (
                f"node {self.facts['error_node']!r}" if run["error_node"] is not None else "a node"
            )
            cause = f" because {failed} failed with {run['error_code']}"
        else:
            change = self.facts["change"]
            cause = (
                f" since {self.at(change['at'])}{self.actor_and_reason(change)}" if change else ""
            )

        text = (
            f"The run is paused{cause.removesuffix('.')}. No other node starts until it is resumed."
        )
        return Reason(
            NodeReasonCode.RUN_PAUSED,
            text,
            {"change": change, **pick(run, "error_node", "error_code")},
        )

    def undoes(self) -> Reason:
        undone = self.facts["undoes"]
        return Reason(
            NodeReasonCode.UNDO,
            f"It undoes {undone!r}.",
            {"node": undone, **pick(self.node, "undoes")},
        )

    def compensating(self) -> Reason:
        text = "The run will be undone: the task of this node is being cancelled."
        return Reason(
            NodeReasonCode.RUN_ENDED, text, pick(self.run, "status", "error_node", "error_code")
        )

    def not_admitted(self) -> Reason:
        text = (
            f"Node {self.facts['added_by']!r} added it. It becomes part of the run when a worker "
            "advances the run."
        )
        return Reason(NodeReasonCode.NOT_ADMITTED, text, pick(self.node, "added_by"))

    def waiting(self) -> Reason:
        node = self.node
        nodes = self.facts["waits"]
        columns = ("workflow_id", "rule", "needs", "allow_failed", "branches", "open", "ok", "bad")
        details = {"upstream": nodes, **pick(node, *columns)}
        named = self.named(nodes, node["open"])

        if node["rule"] == "quorum":
            passed = node["ok"] + (node["bad"] if node["allow_failed"] else 0)
            to = "finish" if node["allow_failed"] else "complete"
            left = node["branches"] - node["ok"] - node["bad"]

            text = (
                f"It waits for {node['needs']} of its {node['branches']:,} branches to {to}: "
                f"{passed:,} did, {left:,} open"
            )
            text += (
                f"; and for {node['open'] - left:,} other upstream nodes"
                if node["open"] > left
                else ""
            )
            text = f"{text} ({named})." if named else f"{text}."
        else:
            count = node["open"] + node["ok"] + node["bad"]
            text = (
                f"It waits for {node['open']:,} of its {count:,} upstream "
                f"nodes{f': {named}' if named else ''}."
            )

        return Reason(NodeReasonCode.WAITING_FOR_NODES, text, details)

    def held(self) -> Iterator[Reason]:
        """Yield the reasons of a node that has begun to wait.

        The first is the event for which it waits. The others are reasons why the node may not
        continue after the event.
        """
        node = self.node
        until = "" if node["due_at"] is None else f" until {self.at(node['due_at'])}"

        if self.kind is kinds.TIMER:
            yield Reason(
                NodeReasonCode.WAITING_FOR_TIME, f"It waits{until}.", pick(node, *WAIT_FACTS)
            )
        else:
            decided = self.kind is kinds.GATE
            code = (
                NodeReasonCode.WAITING_FOR_DECISION
                if decided
                else NodeReasonCode.WAITING_FOR_SIGNAL
            )
            then = f"; {AFTER_TIMEOUT[node['on_timeout']]}" if until else ""
            yield Reason(
                code, f"It waits for {self.awaited()}{until}{then}.", pick(node, *WAIT_FACTS)
            )

        if self.run["status"] == "PAUSED" and not self.run["finished_at"]:
            yield self.paused()
        yield from self.unattended()

    def awaited(self) -> str:
        """Return the name of the event for which a node waits."""
        node = self.node
        allowed = f" who has the permission {node['permission']}" if node["permission"] else ""
        keyed = f" with the key {node['signal_key']!r}" if node["signal_key"] is not None else ""
        return self.kind.awaits.format(allowed=allowed, keyed=keyed, **node)

    def ready(self) -> Iterator[Reason]:
        node = self.node
        run = self.run
        limit = run["max_in_flight"]
        taken = self.facts["in_flight"]

        if self.kind.many and node["total"] is not None:
            yield self.map_running()
        if run["status"] not in ("RUNNING", "COMPENSATING"):
            return

        if limit is not None and taken >= limit and not self.kind.waits:
            text = (
                f"The run is at its limit: max_in_flight is {limit:,}, and it has {taken:,} "
                "tasks that were sent and have not finished."
            )
            yield Reason(
                NodeReasonCode.MAX_IN_FLIGHT, text, {"max_in_flight": limit, "in_flight": taken}
            )
            return

        unattended = list(self.unattended())
        yield from unattended
        if not unattended:
            text = f"It is ready: a worker {self.kind.sends} when it next advances the run."
            yield Reason(NodeReasonCode.READY, text, {})

    def unattended(self) -> Iterator[Reason]:
        last_heartbeat = self.facts["heard_at"]
        if last_heartbeat is None or parse_time(last_heartbeat) < self.now - self.timing.threshold:
            text = "There is no live worker to advance the run: start one."
            yield Reason(NodeReasonCode.NO_WORKER, text, {"heard_at": last_heartbeat})

    def sent(self) -> Reason:
        node = self.node
        child = self.facts["child"]
        if self.kind.many or (self.kind is kinds.UNDO and node["task_id"] is None):
            return self.map_running()

        if self.kind is kinds.WORKFLOW:
            state = f"is {child['status']}" if child else "was deleted"
            more = MOVES_ON if child and child["finished_at"] else ""
            text = f"It is a workflow of its own, and its run {node['task_id']} {state}{more}."
            return Reason(NodeReasonCode.CHILD_RUN, text, {"run": child})

        if self.facts["task"] is None:
            text = f"Its task {node['task_id']} has finished{MOVES_ON}."
        else:
            text = f"Its task is {self.facts['task']}."
        return Reason(NodeReasonCode.TASK, text, pick(node, "task_id", "task_name"))

    def map_running(self) -> Reason:
        node = self.node
        total = node["total"]
        done = node["items_ok"] + node["items_bad"]

        text = (
            f"{done + node['in_flight']:,} of its {total:,} tasks are sent; {done:,} of them have "
            "finished"
        )
        text += f", {node['items_bad']:,} without completing." if node["items_bad"] else "."
        if self.facts["task"] is not None:
            text += f" The first task that has not finished is {self.facts['task']}."

        details = pick(node, "task_name", "total", "in_flight", "items_ok", "items_bad")
        return Reason(NodeReasonCode.MAP_RUNNING, text, {"task_id": self.facts["task"], **details})

    def because(self) -> str:
        named = self.named(self.facts["bad"], self.node["bad"])
        return f": {named}" if named else ""

    def named(self, nodes: Sequence[Facts], count: int) -> str:
        shown = []
        for one in nodes[:5]:
            code = f" ({one['error_code']})" if one.get("error_code") else ""
            shown.append(f"{one['name']!r} is {one['status']}{code}")

        more = count - len(shown)
        return ", ".join([*shown, *([f"and {more:,} more"] if shown and more > 0 else [])])

    def actor_and_reason(self, change: Any) -> str:
        """Return a phrase with the actor and the reason of a change, or "" without a change."""
        if not change:
            return ""
        return f" by {change['actor']}{': ' + change['reason'] if change['reason'] else ''}"
