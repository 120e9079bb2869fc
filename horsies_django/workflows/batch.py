"""``Batch``: tasks that do not depend on one another, and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horsies_django.workflows.builder import Workflow
from horsies_django.workflows.nodes import Node


class Batch(Workflow):
    """Tasks that do not depend on one another, with callbacks for when they have all finished."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._callbacks: list[Node] = []

    def on_success(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a task that runs when all have finished and none failed."""
        return self._callback("succeeded", what, args, kwargs)

    def on_failure(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a task that runs when all have finished and one failed."""
        return self._callback("failed", what, args, kwargs)

    def on_finish(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a task that runs when all have finished."""
        return self._callback("finished", what, args, kwargs)

    def finish(self) -> None:
        """Let the callbacks wait for all other nodes."""
        others = {node.number for node in self.nodes if node not in self._callbacks}
        for node in self._callbacks:
            node.upstream = set(others)

    def _callback(self, rule: str, what: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
        node = self.add(what, *args, **kwargs)
        if node.upstream:
            self.problems.append(f"{node.name}: a callback of a batch takes no results")
        node.rule = rule
        self._callbacks.append(node)
        return node
