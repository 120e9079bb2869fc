"""Acts on all tasks that match a description: retry, cancel or redact thousands, in transactions of 500."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.db import connections, transaction

from horsies_django.conf import config
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import FINAL, Status
from horsies_django.core.texts import refuse_who
from horsies_django.store import base
from horsies_django.store.history import HistoryStore
from horsies_django.store.notify import channel_prefix
from horsies_django.store.selections import Selected, Selection, SelectionStore
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.ids import uuid7

__all__ = ["VERBS", "Preview", "Selection", "Step", "act", "act_on_all", "matching", "preview"]

BATCH = 500  # tasks in a transaction
READ = 10_000  # entries of an index for one batch
MOST_COUNTED = 100_000  # tasks in a preview
EXAMPLES = 5
UNSUCCESSFUL, FINISHED = "UNSUCCESSFUL", "FINISHED"
FAILED = (FINAL | {UNSUCCESSFUL}) - {Status.COMPLETED.value}
UNFINISHED = frozenset(status.value for status in Status) - FINAL

# What can be done to all tasks of a selection, and the statuses that allow it
VERBS = {
    "retry": FAILED,
    "cancel": UNFINISHED,
    "terminate": UNFINISHED,
    "redact": FINAL | {UNSUCCESSFUL, FINISHED},
}


def matching(
    status: str,
    *,
    queue: str | None = None,
    name: str | None = None,
    code: str | None = None,
    site: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    worker: uuid.UUID | None = None,
    partition: str | None = None,
) -> Selection:
    """Return the tasks that have all of these attributes as of now, or ``until``: later ones are not among them.

    ``name`` is the name of a task, or a part of names that are known from the code or from the history. Raises ValueError for
    attributes that tasks of that status do not have.
    """
    if (code or site) and status not in FAILED:
        raise ValueError(f"only tasks that did not complete have an error code or a site, not those that are {status}")
    if partition is not None and queue is None:
        raise ValueError("a partition is one of a queue: name the queue, too")
    connection = connections[config().database]
    until = base.now(connection) if until is None else min(until, base.now(connection))
    names = None if name is None else names_with(name)
    return Selection(status, until, since, queue, names, code, site, worker, partition)


def names_with(text: str) -> list[str]:
    """Return the known names that contain a text; the text alone if it is one, or if there are none."""
    known = known_names()
    return [text] if text in known else sorted(name for name in known if text in name) or [text]


def known_names() -> set[str]:
    """Return the names of the tasks in the code, and of those that were counted in the history."""
    return set(registry.names()) | HistoryStore(connections[config().database]).names()


class Preview(NamedTuple):
    """How many tasks an act would concern, up to 100,000 (``more``: there are more), by name and code, and some of them."""

    many: int
    more: bool
    kinds: list[tuple[str, str | None, int]]
    examples: list[Selected]


def preview(selection: Selection) -> Preview:
    """Return what an act on a selection would concern. Reads, without locks."""
    store = SelectionStore(connections[config().database])
    found: list[Selected] = []
    after, more = None, True
    while more and len(found) < MOST_COUNTED:
        page, after = store.page(selection, after, many=MOST_COUNTED - len(found), read=MOST_COUNTED)
        found, more = found + page, after is not None
    kinds = Counter((task.task_name, task.error_code) for task in found)
    return Preview(len(found), more, [(*kind, many) for kind, many in kinds.most_common()], found[:EXAMPLES])


class Step(NamedTuple):
    """A part of an act: how many tasks there were, of each verdict, and where to go on; None: that was all."""

    tasks: int
    verdicts: dict[str, int]
    after: list[Any] | None


def act(
    selection: Selection,
    verb: str,
    *,
    actor: str,
    reason: str | None = None,
    after: Sequence[Any] | None = None,
    spread: dt.timedelta | None = None,
    act_id: uuid.UUID | None = None,
) -> Step:
    """Do something to up to 500 tasks of a selection, in one transaction with an entry of the audit, from ``after`` on.

    ``verb`` is a key of ``VERBS``. ``spread``: retries are due within that time, at random. Rows that others hold are left, and
    counted as LOCKED. ``act_id`` is the same for all parts of an act. Raises ValueError for a verb that the status does not
    allow, and for an actor or a reason that cannot be stored; a redaction needs a reason.
    """
    refuse(selection, verb, actor, reason)
    alias = config().database
    connection = connections[alias]
    with transaction.atomic(using=alias):
        store = SelectionStore(connection)
        found, end = store.page(selection, after, many=BATCH, read=READ)
        if not found:
            return Step(0, {}, end)
        ids = [task.id for task in found]
        verdicts = store.act(verb, ids, channel_prefix(connection), spread=spread, actor=actor, reason=reason)
        noted = {"act": str(act_id or uuid7()), "selection": described(selection), "verdicts": json.dumps(verdicts)}
        TaskStore(connection).note(selection.queue or CLUSTER, f"task.{verb}", actor, reason, noted)
    return Step(len(found), verdicts, end)


def act_on_all(selection: Selection, verb: str, **how: Any) -> Iterator[Step]:
    """Do something to all tasks of a selection, and yield each part; see ``act``."""
    how = {"act_id": uuid7(), "after": None, **how}
    while True:
        step = act(selection, verb, **how)
        yield step
        if step.after is None:
            return
        how["after"] = step.after


def refuse(selection: Selection, verb: str, actor: str, reason: str | None) -> None:
    """Raise ValueError if a verb is not allowed for these tasks, or by whom and why cannot be stored."""
    if (allowed := VERBS.get(verb)) is None:
        raise ValueError(f"{verb!r} is not one of {', '.join(VERBS)}")
    if selection.status not in allowed:
        raise ValueError(f"{verb} is for tasks that are {', '.join(sorted(allowed))}, not {selection.status}")
    refuse_who(ValueError, f"{verb}: no task was changed", actor, reason)
    if verb == "redact" and not (reason or "").strip():
        raise ValueError(
            "a redaction needs a reason, which is recorded in the audit and must not contain personal data"
        )


def described(selection: Selection) -> str:
    """Return a selection as JSON for the audit; the key of a partition has values of arguments, and is left out."""
    given = {key: value for key, value in selection._asdict().items() if value is not None}
    if "partition" in given:
        given["partition"] = "..."
    return json.dumps(given, default=str)
