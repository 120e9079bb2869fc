"""Selections of tasks, which are shown in lists or on which operations act.

An operation acts on all tasks of a selection, in transactions of 500 tasks.

No index contains the status, because each start of a task would have to update it. There are
partial indexes of the waiting tasks, of the tasks in flight, of the finished tasks by time, and of
the finished tasks that did not complete. The other attributes of a selection filter the rows of one
of these indexes. So a list reads at most the newest 30,000 entries of its index. An operation reads
all entries, 10,000 at a time.
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
from horsies_django.core.codec.jsondata import plain_json, write_json
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import FINAL_STATUSES, Status
from horsies_django.core.texts import NEEDS_REASON, storable_actor
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.tasks import IN_FLIGHT, IS_FINISHED, NOT_COMPLETED, PENDING
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
    "newest_tasks",
    "preview",
]

TASKS_PER_TRANSACTION = 500
READ = 10_000  # the most entries of an index that are read for a batch
# The most entries of an index that a page reads, and the most tasks of a preview
MOST_SCANNED = 30_000
MOST_EXAMPLES = 5
UNSUCCESSFUL = "UNSUCCESSFUL"
FINISHED = "FINISHED"
GROUPS = {
    UNSUCCESSFUL: sorted(FINAL_STATUSES - {Status.COMPLETED.value}),
    FINISHED: sorted(FINAL_STATUSES),
}
FAILED = frozenset({UNSUCCESSFUL, *GROUPS[UNSUCCESSFUL]})
UNFINISHED = frozenset(status.value for status in Status) - FINAL_STATUSES
ENDED = FINAL_STATUSES | {UNSUCCESSFUL, FINISHED}

# The operations on all tasks of a selection, and the statuses that allow them
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
    """Return the selection of the tasks that have all of these attributes.

    For the attributes, see ``Selection``. ``name`` is the name of a task, or a part of names that
    are in the code or in the history. If a code, a site or an exception is given without a status,
    only tasks that did not complete are selected. Raises ValueError if tasks of the status do not
    have one of the attributes, or a partition is given without a queue.
    """
    if (code or site or exception) and (status := status or UNSUCCESSFUL) not in FAILED:
        raise ValueError(
            "only tasks that did not complete have an error code, a site or an exception; the "
            f"status {status} cannot be combined with one"
        )
    if partition is not None and queue is None:
        raise ValueError("a partition belongs to a queue: pass the queue, too")

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

    The text is the stored key, a JSON object of the arguments in the partition rule, or one
    argument as ``customer_id=7``, whose value is a text if it is not JSON. Raises ValueError if the
    key cannot be written as JSON.
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
        return SelectionStore(connections[config().database]).key(write_json(plain_json(found)))
    except CodecError as error:
        raise ValueError(
            f"the partition {text!r:.200} cannot be written as JSON: {error}"
        ) from None


def matching(status: str, *, until: dt.datetime | None = None, **attributes: Any) -> Selection:
    """Return the selection of the tasks with these attributes, without tasks of a later time.

    The selection ends now, or at ``until`` if that is earlier, so tasks that match later are not in
    it. For the attributes and the exceptions, see ``described``.
    """
    return as_of_now(described(status, until=until, **attributes))


def as_of_now(chosen: Selection) -> Selection:
    now = base.now(connections[config().database])
    return chosen._replace(until=min(chosen.until or now, now))


def names_with(text: str) -> list[str]:
    """Return the names of tasks that match a text.

    If the text is a known name, return only that name. Otherwise return the known names that
    contain the text, and the text itself, because old tasks may have a name that is not known.
    """
    if text in registry.names():
        return [text]
    known = known_names()
    return [text] if text in known else [text, *sorted(name for name in known if text in name)]


def known_names() -> set[str]:
    """Return the names of the tasks in the code and in the history."""
    return set(registry.names()) | HistoryStore(connections[config().database]).names()


def fitting(chosen: Selection, rows: QuerySet[Task]) -> QuerySet[Task]:
    """Return the tasks among ``rows`` that are in a selection, in no order.

    Tasks of workflow runs are included.
    """
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


def newest_tasks(
    chosen: Selection, rows: QuerySet[Task] | None = None
) -> tuple[QuerySet[Task], bool]:
    """Return the tasks of a selection among ``rows``, and whether only the newest were searched.

    Tasks of workflow runs are included. The newest come first, which are the tasks that finished
    last for a final status, and the tasks that were sent last otherwise. Waiting tasks are in the
    order in which they will start, queue by queue. Tasks whose partition is at its limit come last.
    One query finds where the newest 30,000 entries of the index end.
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
        index = NOT_COMPLETED if chosen.status in FAILED else IS_FINISHED
        order = ("-finished_at", "-pk")
        ends = {"finished_at__gte": chosen.since, "finished_at__lte": chosen.until}
        index &= Q(**{column: value for column, value in ends.items() if value is not None})
    else:
        index = Q()
        order = ("-pk",)

    found = found.filter(index).order_by(*order)
    if chosen == Selection():  # nothing is filtered, so a page reads no more rows than it shows
        return found, False

    column = order[0].removeprefix("-")
    # For the reason of F, see Moment.
    window = everything.filter(index).order_by(order[0]).values_list(F(column), flat=True)

    last = next(iter(window[MOST_SCANNED - 1 : MOST_SCANNED]), None)
    return (found, False) if last is None else (found.filter(**{f"{column}__gte": last}), True)


class Preview(NamedTuple):
    """The tasks on which an operation would act, as numbers and examples.

    ``many`` is their number, which is counted up to 30,000. ``more`` is True if there may be more.
    ``kinds`` has the number for each task name and error code.
    """

    many: int
    more: bool
    kinds: list[tuple[str, str | None, int]]
    examples: list[Selected]


def preview(selection: Selection, *, first: bool = False) -> Preview:
    """Return how many tasks an operation on a selection would act on, and some of them.

    The tasks are read without locks. With ``first``, only 30,000 entries of the index are read.
    """
    store = SelectionStore(connections[config().database])
    found: list[Selected] = []
    after = None
    more = True

    while more and len(found) < MOST_SCANNED:
        page, after = store.page(
            selection, after, many=MOST_SCANNED - len(found), read=MOST_SCANNED
        )
        found, more = found + page, after is not None

        if first and after and after[-1]:  # the next page is in the same index
            break

    kinds = Counter((task.task_name, task.error_code) for task in found)
    return Preview(
        len(found),
        more,
        [(*kind, many) for kind, many in kinds.most_common()],
        found[:MOST_EXAMPLES],
    )


class Step(NamedTuple):
    """One step of an operation on a selection.

    ``tasks`` is the number of its tasks, and ``verdicts`` their number by verdict. ``after`` is the
    position at which the next step begins, or None if there are no more tasks.
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
    """Run an operation on up to 500 tasks of a selection, in one transaction.

    The step begins at ``after``, and has an entry in the audit. ``verb`` is a key of ``VERBS``.
    With ``spread``, retries are due at random times within that time. Rows that other transactions
    have locked are skipped, and counted as LOCKED. ``act_id`` is the same for all steps of an
    operation.

    Raises ValueError if the status does not allow the verb, if the actor or the reason cannot be
    stored, and if a redaction has no reason.
    """
    actor, reason = check_operation(selection, verb, actor, reason)

    connection = connections[config().database]
    with transaction.atomic(using=connection.alias):
        found, end = SelectionStore(connection).page(
            selection, after, many=TASKS_PER_TRANSACTION, read=READ
        )
        if not found:
            return Step(0, {}, end)

        ids = [task.id for task in found]
        noted = {"act": str(act_id or uuid7()), "selection": selection_json(selection)}
        arguments = {"actor": actor, "reason": reason, "spread": spread}
        return Step(
            len(ids),
            _act(verb, ids, selection.queue or CLUSTER, noted, selection.status, **arguments),
            end,
        )


def act_on(
    ids: Sequence[uuid.UUID], verb: str, *, actor: str, reason: str | None = None
) -> dict[str, int]:
    """Run an operation on tasks in one transaction, and return their number by verdict.

    The operation has one entry in the audit. ``verb`` is "copy" or a key of ``VERBS``. Rows that
    other transactions have locked are skipped, and counted as LOCKED. Raises ValueError if the
    actor or the reason cannot be stored.
    """
    actor, reason = storable_actor(ValueError, f"{verb}: no task was changed", actor, reason)
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
    **options: Any,
) -> dict[str, int]:
    """Run an operation on tasks, and write the entry in the audit.

    Tasks that no longer have the status are skipped. With the status None, no task is skipped for
    its status.
    """
    connection = connections[config().database]
    statuses = None if status is None else GROUPS.get(status, [status])
    done = "cancel" if verb == "purge" and status == Status.PENDING else verb

    verdicts = SelectionStore(connection).act(
        done, ids, channel_prefix(connection), statuses=statuses, **options
    )

    noted = {**noted, "verdicts": json.dumps(verdicts)}
    TaskStore(connection).note(subject, f"task.{verb}", options["actor"], options["reason"], noted)
    return verdicts


def act_on_all(selection: Selection, verb: str, **options: Any) -> Iterator[Step]:
    """Run an operation on all tasks of a selection, and yield each step.

    For the arguments and the exceptions, see ``act``.
    """
    options = {"act_id": uuid7(), "after": None, **options}

    while True:
        began = time.monotonic()
        step = act(selection, verb, **options)
        seconds = time.monotonic() - began
        yield step

        if step.after is None:
            return
        options["after"] = step.after
        rest(seconds)


def rest(seconds: float) -> None:
    """Pause after a step that took so many seconds, so that the server has time for workers.

    With this pause, workers keep 0.87 of their rate during an operation.
    """
    time.sleep(2 * seconds)


def check_operation(
    selection: Selection, verb: str, actor: str, reason: str | None
) -> tuple[str, str | None]:
    """Return the actor and the reason of an operation as they are stored.

    Raises ValueError if the status of the selection does not allow the verb, if the actor or the
    reason cannot be stored, and if a redaction has no reason.
    """
    if (allowed := VERBS.get(verb)) is None:
        raise ValueError(f"{verb!r} is not one of {', '.join(VERBS)}")
    if selection.status not in allowed:
        raise ValueError(
            f"{verb} applies only to tasks that are {', '.join(sorted(allowed))}, not "
            f"{selection.status}"
        )

    actor, reason = storable_actor(ValueError, f"{verb}: no task was changed", actor, reason)
    if verb == "redact" and not (reason or "").strip():
        raise ValueError(NEEDS_REASON)

    return actor, reason


def selection_json(selection: Selection) -> str:
    """Return a selection as JSON for the audit.

    The key of a partition is replaced by "...", because it contains values of arguments.
    """
    given = {key: value for key, value in selection._asdict().items() if value is not None}
    if "partition" in given:
        given["partition"] = "..."
    return json.dumps(given, default=str)
