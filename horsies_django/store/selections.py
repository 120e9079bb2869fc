"""The statements that select tasks by their attributes, and act on many of them."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from horsies_django.store.base import Store

NO_SITE = "(none)"  # the site of attempts without a site, and the exception of those without one


class Selection(NamedTuple):
    """The tasks that have all of these attributes; None means any value.

    Actions skip tasks of workflow runs, and need a status and ``until``. ``status`` is a status,
    "UNSUCCESSFUL" for FAILED, CANCELLED and EXPIRED, or "FINISHED" for any final one. ``since`` and
    ``until`` are limits of the time when tasks finished, or were sent if they have not finished.
    ``site`` is where the last attempt failed, see ``TaskAttempt.site``, and ``exception`` the class
    that it raised, as ``TaskAttempt.exception_class``; ``NO_SITE`` for both means that there is
    none. ``worker`` is the worker that runs or ran the task; ``partition`` its key as it is stored.
    """

    status: str | None = None
    until: dt.datetime | None = None
    since: dt.datetime | None = None
    queue: str | None = None
    names: Sequence[str] | None = None
    code: str | None = None
    site: str | None = None
    worker: uuid.UUID | None = None
    partition: str | None = None
    exception: str | None = None


class Selected(NamedTuple):
    """A selected task."""

    id: uuid.UUID
    task_name: str
    error_code: str | None


class SelectionStore(Store):
    """The statements about selected tasks."""

    def page(
        self, selection: Selection, after: Any = None, *, many: int, read: int
    ) -> tuple[list[Selected], list[Any] | None]:
        """Return up to ``many`` tasks among the next ``read`` entries of the index.

        Return also the place where the next page begins, for ``after``, or None at the end.
        """
        given = {
            **selection._asdict(),
            "names": None if selection.names is None else list(selection.names),
        }
        after = None if after is None else json.dumps(after)
        *rows, (_id, _name, _code, end) = self.run(
            "horsies_selected", **given, after=after, many=many, read=read
        )

        found = [Selected(id_, name, code) for id_, name, code, _after in rows]
        return found, json.loads(end) if isinstance(end, str) else end

    def key(self, arguments: str) -> str:
        """Return the stored key of the partition with these arguments, a JSON object."""
        given = {
            "by_args": "[]",
            "by_task": False,
            "kwargs": arguments,
            "task_name": "",
            "codec": None,
        }
        ((key,),) = self.run("horsies_partition_key", **given)
        return str(key)

    def act(
        self,
        verb: str,
        ids: Sequence[uuid.UUID],
        channel: str,
        *,
        statuses: Sequence[str] | None,
        spread: dt.timedelta | None,
        actor: str,
        reason: str | None,
    ) -> dict[str, int]:
        """Act on tasks, and return the number of tasks for each verdict; see ``horsies_act``."""
        who = {"actor": actor, "reason": reason}
        params = {
            "verb": verb,
            "ids": list(ids),
            "statuses": statuses,
            "channel": channel,
            "spread": spread,
            **who,
        }
        rows = self.run("horsies_act", **params)
        self.report_written()
        return dict(rows)
