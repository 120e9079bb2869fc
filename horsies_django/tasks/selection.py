"""Which tasks are meant: one description for lists, and for acts on all that match, in transactions
of 500.

No index has the status, because each start of a task would have to update it. Partial indexes have
the tasks that wait, those in flight, those that finished, by time, and of these those that did not
complete; the rest of a description filters their rows. So a list reads at most the newest 30,000
entries of its index, an act all of them, 10,000 at a time.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.jsondata import plain, write_json
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import FINAL, Status
from horsies_django.core.texts import NEEDS_REASON, storable_who
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.tasks import FINISHED as ANY_FINISHED
from horsies_django.models.tasks import IN_FLIGHT, PENDING
from horsies_django.models.tasks import UNSUCCESSFUL as NOT_COMPLETED
from horsies_django.store import base
from horsies_django.store.history import HistoryStore
from horsies_django.store.notify import channel_prefix
from horsies_django.store.selections import NO_SITE, Selected, Selection, SelectionStore
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.ids import uuid7

__all__ = [
    "VERBS",
    "Preview",
    "Selection",
    "Step",
    "act",
    "act_on",
    "act_on_all",
    "described",
    "fitting",
    "matching",
    "newest",
    "preview",
]

BATCH = 500  # tasks in a transaction
READ = 10_000  # entries of an index for one batch
DEEPEST = 30_000  # entries of an index that a page reads, and tasks in a preview
EXAMPLES = 5
UNSUCCESSFUL = "UNSUCCESSFUL"
FINISHED = "FINISHED"
GROUPS = {UNSUCCESSFUL: sorted(FINAL - {Status.COMPLETED.value}), FINISHED: sorted(FINAL)}
FAILED = frozenset({UNSUCCESSFUL, *GROUPS[UNSUCCESSFUL]})
UNFINISHED = frozenset(status.value for status in Status) - FINAL
ENDED = FINAL | {UNSUCCESSFUL, FINISHED}

# What can be done to all tasks of a selection, and the statuses that allow it
VERBS = {
    "retry": FAILED,
    "cancel": UNFINISHED,
    "terminate": UNFINISHED,
    "redact": ENDED,
    "purge": ENDED | {Status.PENDING.value},
}


def described(
    status: str | None = None,
    *,
    name: str | None = None,
    queue: str | None = None,
    code: str | None = None,
    site: str | None = None,
    partition: str | None = None,
    exception: str | None = None,
    **times: Any,
) -> Selection:
    """Return the tasks that have all of these attributes: those of ``Selection``.

    ``name`` is the name of a task, or a part of names that are known from the code or from the
    history. A code, a site or an exception without a status means tasks that did not complete.
    Raises ValueError for attributes that tasks of that status do not have.
    """
    if (code or site or exception) and (status := status or UNSUCCESSFUL) not in FAILED:
        raise ValueError(
            "only tasks that did not complete have an error code, a site or an exception, not "
            f"those that are {status}"
        )
    if partition is not None and queue is None:
        raise ValueError("a partition is one of a queue: name the queue, too")

    names = None if name is None else names_with(name)
    return Selection(
        status,
        queue=queue,
        names=names,
        code=code,
        site=site,
        partition=partition,
        exception=exception,
        **times,
    )


def stored_key(text: str) -> str:
    """Return the key of a partition, which a person has entered, as it is stored.

    It is given as stored, as a JSON object of the arguments in its rule, or of one argument as
    ``customer_id=7``, where a value that is not JSON is a text.
    """
    name, separator, value = text.partition("=")
    if separator and name.isidentifier():
        try:
            found: Any = {name: json.loads(value)}
        except (ValueError, RecursionError):
            found = {name: value}
    else:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):  # a long key is stored cut off, with a hash
            found = None

    if not isinstance(found, dict):
        return text

    try:
        return SelectionStore(connections[config().database]).key(write_json(plain(found)))
    except CodecError as error:
        raise ValueError(
            f"the partition {text!r:.200} cannot be written as JSON: {error}"
        ) from None


def matching(status: str, *, until: dt.datetime | None = None, **attributes: Any) -> Selection:
    """Return what is described as of now, or ``until``, for an act: what fits later is not in it.

    See ``described``.
    """
    return as_of_now(described(status, until=until, **attributes))


def as_of_now(chosen: Selection) -> Selection:
    now = base.now(connections[config().database])
    return chosen._replace(until=min(chosen.until or now, now))


def names_with(text: str) -> list[str]:
    """Return a text that is a known name; else the known names that contain it, and itself: tasks
    of long ago have names, too.
    """
    if text in registry.names():
        return [text]
    known = known_names()
    return [text] if text in known else [text, *sorted(name for name in known if text in name)]


def known_names() -> set[str]:
    """Return the names of the tasks in the code, and of those that were counted in the history."""
    return set(registry.names()) | HistoryStore(connections[config().database]).names()


def fitting(chosen: Selection, rows: QuerySet[Task]) -> QuerySet[Task]:
    """Return those of ``rows`` that are in a selection, those of workflow runs too, in no order."""
    at = "finished_at" if chosen.status in ENDED else "sent_at"
    wanted = {
        "status__in": GROUPS.get(chosen.status or "", chosen.status and [chosen.status]),
        "queue_name": chosen.queue,
        "task_name__in": chosen.names,
        "error_code": chosen.code,
        "claimed_by": chosen.worker,
        "partition_key": chosen.partition,
        f"{at}__gte": chosen.since,
        f"{at}__lte": chosen.until,
    }
    found = rows.filter(**{column: value for column, value in wanted.items() if value is not None})

    of_last = {"site": chosen.site, "exception_class": chosen.exception}
    given = {column: value for column, value in of_last.items() if value is not None}
    if not given:
        return found

    last = TaskAttempt.objects.filter(task_id=OuterRef("pk"), finished_at=OuterRef("finished_at"))
    for column, value in given.items():
        last = last.filter(**({f"{column}__isnull": True} if value == NO_SITE else {column: value}))

    return found.filter(Exists(last))


def newest(chosen: Selection, rows: QuerySet[Task] | None = None) -> tuple[QuerySet[Task], bool]:
    """Return the tasks of a selection among ``rows``, with those of workflow runs, and whether only
    the newest were searched.

    The newest come first: those of a final status that finished last, else those sent last. Those
    that wait are in the order in which they will start, queue by queue, those whose partition is at
    its limit last. Reads how far 30,000 entries go.
    """
    everything = Task.objects.using(config().database)
    found = fitting(chosen, everything if rows is None else rows)

    if chosen.status in (Status.CLAIMED, Status.RUNNING):
        return found.filter(IN_FLIGHT).order_by("-sent_at", "-pk"), False

    if chosen.status == Status.PENDING:
        orders = (
            "queue_name lane priority enqueued_at id",
            "queue_name partition_key lane priority enqueued_at id",
        )
        claim, parked = (
            found.filter(PENDING, parked=n == 1).order_by(*orders[n].split()) for n in (0, 1)
        )
        return claim.union(parked, all=True), False

    order: tuple[str, ...]
    if chosen.status in ENDED:
        index = NOT_COMPLETED if chosen.status in FAILED else ANY_FINISHED
        order = ("-finished_at", "-pk")
        ends = {"finished_at__gte": chosen.since, "finished_at__lte": chosen.until}
        index &= Q(**{column: value for column, value in ends.items() if value is not None})
    else:
        index = Q()
        order = ("-pk",)

    found = found.filter(index).order_by(*order)
    if chosen == Selection():  # whatever is read is shown
        return found, False

    column = order[0].removeprefix("-")
    # F: see Moment.
    window = everything.filter(index).order_by(order[0]).values_list(F(column), flat=True)

    last = next(iter(window[DEEPEST - 1 : DEEPEST]), None)
    return (found, False) if last is None else (found.filter(**{f"{column}__gte": last}), True)


class Preview(NamedTuple):
    """How many tasks an act would concern, up to 30,000 (``more``: or more), by name and code, and
    some of them.
    """

    many: int
    more: bool
    kinds: list[tuple[str, str | None, int]]
    examples: list[Selected]


def preview(selection: Selection, *, first: bool = False) -> Preview:
    """Return what an act on a selection would concern.

    Reads, without locks. ``first``: only 30,000 entries of the index.
    """
    store = SelectionStore(connections[config().database])
    found: list[Selected] = []
    after = None
    more = True

    while more and len(found) < DEEPEST:
        page, after = store.page(selection, after, many=DEEPEST - len(found), read=DEEPEST)
        found, more = found + page, after is not None

        if first and after and after[-1]:  # it goes on in the same index
            break

    kinds = Counter((task.task_name, task.error_code) for task in found)
    return Preview(
        len(found), more, [(*kind, many) for kind, many in kinds.most_common()], found[:EXAMPLES]
    )


class Step(NamedTuple):
    """A part of an act: how many tasks there were, of each verdict, and where to go on; None: that
    was all.
    """

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
    """Do something to up to 500 tasks of a selection, in one transaction with an entry of the
    audit, from ``after`` on.

    ``verb`` is a key of ``VERBS``. ``spread``: retries are due within that time, at random. Rows
    that others hold are left, and counted as LOCKED. ``act_id`` is the same for all parts of an
    act. Raises ValueError for a verb that the status does not allow, and for an actor or a reason
    that cannot be stored; a redaction needs a reason.
    """
    actor, reason = refuse(selection, verb, actor, reason)

    connection = connections[config().database]
    with transaction.atomic(using=connection.alias):
        found, end = SelectionStore(connection).page(selection, after, many=BATCH, read=READ)
        if not found:
            return Step(0, {}, end)

        ids = [task.id for task in found]
        noted = {"act": str(act_id or uuid7()), "selection": as_json(selection)}
        who = {"actor": actor, "reason": reason, "spread": spread}
        return Step(
            len(ids),
            _act(verb, ids, selection.queue or CLUSTER, noted, selection.status, **who),
            end,
        )


def act_on(
    ids: Sequence[uuid.UUID], verb: str, *, actor: str, reason: str | None = None
) -> dict[str, int]:
    """Do something to these tasks in one transaction with one entry of the audit, and return how
    many there are of each verdict.

    ``verb`` is "copy", or a key of ``VERBS``. Rows that others hold are left, and counted as
    LOCKED. Raises ValueError for an actor or a reason that cannot be stored.
    """
    actor, reason = storable_who(ValueError, f"{verb}: no task was changed", actor, reason)
    if not ids:
        return {}

    noted = {"act": str(uuid7()), "tasks": json.dumps(ids, default=str)}
    with transaction.atomic(using=config().database):
        return _act(
            verb,
            ids,
            ids[0] if len(ids) == 1 else CLUSTER,
            noted,
            None,
            actor=actor,
            reason=reason,
            spread=None,
        )


def _act(
    verb: str,
    ids: Sequence[uuid.UUID],
    subject: Any,
    noted: dict[str, str],
    status: str | None,
    **how: Any,
) -> dict[str, int]:
    """Do it to those of these tasks that still have the status (None: any), and write the entry of
    the audit.
    """
    connection = connections[config().database]
    statuses = None if status is None else GROUPS.get(status, [status])
    done = "cancel" if verb == "purge" and status == Status.PENDING else verb

    verdicts = SelectionStore(connection).act(
        done, ids, channel_prefix(connection), statuses=statuses, **how
    )

    noted = {**noted, "verdicts": json.dumps(verdicts)}
    TaskStore(connection).note(subject, f"task.{verb}", how["actor"], how["reason"], noted)
    return verdicts


def act_on_all(selection: Selection, verb: str, **how: Any) -> Iterator[Step]:
    """Do something to all tasks of a selection, and yield each part; see ``act``."""
    how = {"act_id": uuid7(), "after": None, **how}

    while True:
        began = time.monotonic()
        step = act(selection, verb, **how)
        seconds = time.monotonic() - began
        yield step

        if step.after is None:
            return
        how["after"] = step.after
        rest(seconds)


def rest(seconds: float) -> None:
    """Leave the server to others after a part of an act that took so long: workers beside it keep
    0.87 of their rate.
    """
    time.sleep(2 * seconds)


def refuse(
    selection: Selection, verb: str, actor: str, reason: str | None
) -> tuple[str, str | None]:
    """Return who acts and why, as they are stored.

    Raises ValueError if a verb is not allowed for these tasks, or for them.
    """
    if (allowed := VERBS.get(verb)) is None:
        raise ValueError(f"{verb!r} is not one of {', '.join(VERBS)}")
    if selection.status not in allowed:
        raise ValueError(
            f"{verb} is for tasks that are {', '.join(sorted(allowed))}, not {selection.status}"
        )

    actor, reason = storable_who(ValueError, f"{verb}: no task was changed", actor, reason)
    if verb == "redact" and not (reason or "").strip():
        raise ValueError(NEEDS_REASON)

    return actor, reason


def as_json(selection: Selection) -> str:
    """Return a selection as JSON for the audit; the key of a partition has values of arguments, and
    is left out.
    """
    given = {key: value for key, value in selection._asdict().items() if value is not None}
    if "partition" in given:
        given["partition"] = "..."
    return json.dumps(given, default=str)
