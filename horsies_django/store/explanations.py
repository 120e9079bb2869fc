"""The statement that reads what decides whether a task runs."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

from horsies_django.store.base import Connection, run

HOLDERS = 20  # named at most
BEFORE = 1_000  # counted at most


class ExplanationStore:
    """Runs the statement on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def facts(
        self, task_id: uuid.UUID, *, claimed: bool, threshold: dt.timedelta, grace: dt.timedelta
    ) -> dict[str, Any] | None:
        """Return the facts about a task, None when there is no such task.

        ``claimed``: claims hold permits of the caps (hard mode). A worker without a beat for ``threshold`` takes no part;
        for ``grace`` workers leave to others what they do not know.
        """
        params = {
            "id": task_id,
            "claimed": claimed,
            "threshold": threshold,
            "grace": grace,
            "many": HOLDERS,
            "bound": BEFORE,
        }
        found = run(self.connection, "monitoring/explain", params)[0][0]
        return None if found is None else json.loads(found)
