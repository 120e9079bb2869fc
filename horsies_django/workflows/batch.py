"""``Batch``: tasks that do not depend on one another, and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horsies_django.tasks.decorator import Sender
from horsies_django.workflows.builder import Workflow
from horsies_django.workflows.nodes import N, Node, T

CALLBACKS = ("succeeded", "failed", "finished")  # their rules


class Batch(Workflow[T]):
    """Tasks that do not depend on one another, with callbacks for when they have all finished."""

    def on_success(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished and none failed."""
        return self._callback("succeeded", what, args, kwargs)

    def on_failure(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished and one failed."""
        return self._callback("failed", what, args, kwargs)

    def on_finish(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished."""
        return self._callback("finished", what, args, kwargs)

    def finish(self) -> None:
        """Let the callbacks wait for all other nodes."""
        others = {node.number for node in self.nodes if node.rule not in CALLBACKS}
        for node in self.nodes:
            if node.rule in CALLBACKS:
                node.upstream = set(others)

    def _callback(self, rule: str, what: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
        node: Node = self.add(what, *args, **kwargs)
        if node.upstream:
            self.problems.append(f"{node.name}: a callback of a batch takes no results")
        node.rule = rule
        return node
