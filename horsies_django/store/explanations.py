"""The statements that read what decides whether a task or a node of a workflow runs."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

from horsies_django.store.base import Connection, run

BEFORE = 1_000  # tasks before this one are counted up to here


class ExplanationStore:
    """Runs the statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def facts(self, task_id: uuid.UUID, *, claimed: bool, threshold: dt.timedelta) -> dict[str, Any] | None:
        """Return the facts about a task, or None if there is no such task.

        ``claimed``: claims hold permits of the caps (hard mode). Workers without a heartbeat for ``threshold`` are left out.
        """
        # The largest number of permit holders to return
        params = {"id": task_id, "claimed": claimed, "threshold": threshold, "many": 20, "bound": BEFORE}
        found = run(self.connection, "monitoring/explain", params)[0][0]
        return None if found is None else json.loads(found)

    def node_facts(self, workflow: uuid.UUID, number: int) -> dict[str, Any] | None:
        """Return the facts about a node of a run, or None if there is no such node."""
        params = {"workflow": workflow, "number": number, "many": 10}  # the largest number of upstream nodes to return
        found = run(self.connection, "monitoring/explain_node", params)[0][0]
        return None if found is None else json.loads(found)
