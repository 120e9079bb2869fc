"""Workflow runs and their nodes, for the admin and for commands, and runs that would fail.

``check_code`` compares the open nodes of unfinished runs with the code of this process. The module
only reads.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import DateTimeField, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Coalesce

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.codec.advice import annotation_name
from horsies_django.core.status import UNFINISHED_RUNS
from horsies_django.core.texts import close_to, text_problem
from horsies_django.models import WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.monitoring.reading import DEEPEST_ROW
from horsies_django.store.workflows import OpenCalls, Progress
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.workflows.arguments import form_and_type, hints
from horsies_django.workflows.operations import reading

GIVEN_TEXTS = {
    "value": "a value",
    "result": "a TaskResult",
    "list": "a list of values",
    "results": "Results",
}

RUNS = 1_000  # runs that are compared at a time


class Misfit(NamedTuple):
    """A reason why calls fail with this code, and its remedy.

    ``argument`` is None if the reason is not an argument.
    """

    code: str
    argument: str | None
    problem: str
    advice: str


def misfits(calls: OpenCalls, queues: Collection[str]) -> Iterator[Misfit]:
    """Yield the misfits of a group of calls. ``queues`` are the declared queues."""
    task = registry.find(calls.task)
    if task is not None and calls.codec != task.codec:
        form = "typed arguments by name" if task.codec is None else "the arguments of django.tasks"
        wrong = f"it takes {form} now, but the calls were stored in another form"
        yield Misfit(
            "OTHER_FORM",
            None,
            wrong,
            "Keep the former task under this name until these runs have ended",
        )

    if calls.queue not in queues:
        wrong = f"the queue {calls.queue!r} is not declared, so no worker serves it"
        yield Misfit(
            "UNDECLARED_QUEUE",
            None,
            wrong,
            "Keep the queue in HORSIES['QUEUES'] until these runs have ended",
        )

    if task is None:
        wrong = f"there is no task of this name{close_to(calls.task, registry.names())}"
        yield Misfit(
            "UNKNOWN_TASK",
            None,
            wrong,
            f"Keep a task of this name until these runs have ended: @task(name={calls.task!r})",
        )
    else:
        arguments = task.arguments
        for name in [] if arguments.takes_any else sorted(calls.given.keys() - arguments.names):
            yield Misfit(
                "UNKNOWN_ARGUMENT",
                name,
                f"it has no argument {name!r}",
                "Keep the argument until these runs have ended",
            )

        for name in arguments.signature.parameters:
            if name in arguments.names - arguments.optional - calls.given.keys():
                wrong = f"it requires the argument {name!r}, which the calls do not pass"
                yield Misfit("MISSING_ARGUMENT", name, wrong, "Give the argument a default")

        yield from of_values(task, calls.given, calls.constants)


def of_values(
    task: TaskDefinition, given: Mapping[str, str], constants: Collection[str]
) -> Iterator[Misfit]:
    """Yield a misfit for each constant or result that does not fit the annotation of its parameter.

    A constant does not fit if it cannot be decoded. A result does not fit if its form was chosen
    for another annotation.
    """
    types = hints(task) if task.codec is None else dict.fromkeys(given, Any)
    advice = "Accept both types until these runs have ended, or add a parameter with a default"

    for name in sorted(given.keys() & types.keys()):
        many = given[name] in ("list", "results")
        if given[name] not in GIVEN_TEXTS:
            continue

        form, wanted = form_and_type(types[name], many=many)
        if form != given[name] or wanted is None:
            annotated = annotation_name(types[name])
            problem = f"{name!r} is annotated {annotated}, and gets {GIVEN_TEXTS[given[name]]}"
            yield Misfit("OTHER_TYPE", name, problem, advice)

    found = {}
    for text in constants:
        for name, value in json.loads(text).items():
            if name in task.arguments.names:
                try:
                    task.arguments.decode_one(name, value)
                except CodecError as error:
                    found[name] = Misfit("OTHER_TYPE", name, str(error), advice)

    yield from found.values()


class RunOverview(NamedTuple):
    """A run of a workflow. ``progress`` is None if the run has no nodes."""

    id: uuid.UUID
    name: str
    key: str | None
    status: str
    sent_at: dt.datetime
    finished_at: dt.datetime | None
    error_code: str | None
    on_error: str
    max_in_flight: int | None
    good_until: dt.datetime | None
    parent_id: uuid.UUID | None
    parent_node: int | None
    error_node: int | None
    continues: uuid.UUID | None
    continued_as: uuid.UUID | None
    progress: Progress | None


# The columns in reports of a run, a node, a node that waits, and a signal; see the models.
RUN_COLUMNS = RunOverview._fields[:-1]
NODE_COLUMNS = (
    "number",
    "name",
    "kind",
    "status",
    "task_name",
    "task_id",
    "open",
    "ok",
    "bad",
    "total",
    "in_flight",
    "items_ok",
    "items_bad",
    "finished_at",
    "error_code",
    "error",
    "undoes",
)
WAIT_COLUMNS = (
    "number",
    "name",
    "kind",
    "signal",
    "signal_key",
    "due_at",
    "on_timeout",
    "permission",
)
SIGNAL_COLUMNS = ("id", "name", "key", "sent_at", "actor", "data")
MOST_PER_RUN = 500


def runs(
    *, status: str | None = None, name: str | None = None, key: str | None = None, limit: int = 50
) -> list[RunOverview]:
    """Return runs, the newest first."""
    rows = WorkflowRun.objects.using(config().database)
    if key:
        chosen = {
            column: value
            for column, value in (("status", status), ("name", name))
            if value is not None
        }
        found = rows.filter(pk__in=keyed(rows.db, key), **chosen).order_by("key", "-sent_at")
    else:
        found, _partial = newest_runs(rows, status=status, name=name)

    return overviews(found, limit)


def read_run(id_: uuid.UUID) -> RunOverview | None:
    """Return a run, or None if it does not exist."""
    return next(
        iter(overviews(WorkflowRun.objects.using(config().database).filter(pk=id_), 1)), None
    )


def overviews(rows: QuerySet[WorkflowRun], limit: int) -> list[RunOverview]:
    found = [RunOverview._make([*row, None]) for row in rows.values_list(*RUN_COLUMNS)[:limit]]
    counts = progress([one.id for one in found])
    return [one._replace(progress=counts.get(one.id)) for one in found]


def progress(ids: list[uuid.UUID]) -> dict[uuid.UUID, Progress]:
    """Return the numbers of finished and open nodes of runs, by the id of the run."""
    return reading().progress(ids) if ids else {}


def nodes(id_: uuid.UUID, limit: int = MOST_PER_RUN) -> list[Any]:
    """Return the first nodes of a run, by number, as named tuples with the NODE_COLUMNS."""
    rows = WorkflowNode.objects.using(config().database).filter(workflow_id=id_).order_by("number")
    return list(rows.values_list(*NODE_COLUMNS, named=True)[:limit])


def waiting_nodes(id_: uuid.UUID) -> list[Any]:
    """Return the first nodes of a run that wait, by number, with the WAIT_COLUMNS."""
    rows = WorkflowNode.objects.using(config().database).filter(
        workflow_id=id_, status="WAITING", finished_at=None
    )
    return list(rows.order_by("number").values_list(*WAIT_COLUMNS, named=True)[:MOST_PER_RUN])


def unused_signals(id_: uuid.UUID) -> list[Any]:
    """Return the oldest signals to a run that no node has taken, with the SIGNAL_COLUMNS."""
    rows = WorkflowSignal.objects.using(config().database).filter(workflow_id=id_, used_at=None)
    return list(
        rows.order_by("sent_at", "pk").values_list(*SIGNAL_COLUMNS, named=True)[:MOST_PER_RUN]
    )


def run_names(limit: int) -> list[str]:
    """Return up to ``limit`` names of runs, in order."""
    return reading().names(limit)


def keyed(alias: str, key: str) -> list[uuid.UUID]:
    """Return the ids of the runs with a key.

    The caller reads these runs again by id, in an order that no index has. The planner might read
    all runs to get the order of an index.
    """
    found = WorkflowRun.objects.using(alias).filter(key=key).values_list("pk", flat=True)
    return [] if text_problem("key", key) else list(found[:1_000])


def newest_runs(
    rows: QuerySet[WorkflowRun],
    *,
    status: str | None = None,
    name: str | None = None,
    child: bool | None = None,
) -> tuple[QuerySet[WorkflowRun], bool]:
    """Return runs, the newest first, and whether only the newest 100,000 of an index are searched.

    The runs are in the order of that index. There is one of unfinished runs and one of names; other
    conditions are filters. ``child`` restricts the runs to nodes of other runs if it is true, and
    to runs that are not nodes if it is false.
    """
    indexed = Q()
    other = Q()

    if status in UNFINISHED_RUNS:
        indexed = Q(finished_at__isnull=True)
        other = Q(status=status)
    elif status is not None:
        other = Q(status=status, finished_at__isnull=False)

    if name is not None and indexed:
        other &= Q(name=name)
    elif name is not None:
        indexed = Q(name=name)
    if child is not None:
        other &= Q(parent_id__isnull=not child)

    if other:
        last = (
            WorkflowRun.objects.using(rows.db)
            .filter(indexed)
            .order_by("-sent_at")
            .values("sent_at")
        )
        oldest = Coalesce(
            Subquery(last[DEEPEST_ROW - 1 : DEEPEST_ROW]), Cast(Value("-infinity"), DateTimeField())
        )
        rows = rows.filter(sent_at__gte=oldest)

    return rows.filter(indexed & other).order_by("-sent_at", "-pk"), bool(other)


class CodeProblem(NamedTuple):
    """Calls of a task that would fail with this code.

    ``undo`` is true if they undo a node. ``run`` and ``node`` are an example.
    """

    task: str
    undo: bool
    code: str
    argument: str | None
    problem: str
    advice: str
    nodes: int
    runs: int
    run: uuid.UUID
    node: str


class CodeCheck(NamedTuple):
    """The numbers of open nodes and unfinished runs that were compared, and the problems."""

    nodes: int
    runs: int
    problems: list[CodeProblem]


def check_code() -> CodeCheck:
    """Compare the open nodes of unfinished runs with the tasks of this code.

    1,000 runs are read at a time, and their nodes are grouped by the database. Raises
    ImproperlyConfigured if a ``tasks`` module cannot be imported.
    """
    if failed := registry.autodiscover():
        raise ImproperlyConfigured(f"{failed[0].module} cannot be imported: {failed[0].error!r}")

    conf = config()
    store = reading()
    unfinished = (
        WorkflowRun.objects.using(conf.database)
        .filter(finished_at__isnull=True)
        .order_by("sent_at")
    )
    ids = unfinished.values_list("pk", flat=True).iterator(RUNS)

    nodes = 0
    runs = 0
    found = dict[tuple[str, bool, Misfit], CodeProblem]()

    while chunk := list(islice(ids, RUNS)):
        runs += len(chunk)
        affected = defaultdict[tuple[str, bool, Misfit], set[uuid.UUID]](set)

        for calls in store.open_calls(chunk):
            nodes += 0 if calls.undo else calls.nodes
            for misfit in misfits(calls, conf.queues):
                key = (calls.task, calls.undo, misfit)
                problem = found.get(key) or CodeProblem(
                    calls.task, calls.undo, *misfit, 0, 0, calls.run, calls.node
                )

                # Each run is in only one chunk, so the numbers of chunks can be added up.
                more = len(affected[key].union(calls.runs)) - len(affected[key])
                affected[key].update(calls.runs)
                found[key] = problem._replace(
                    nodes=problem.nodes + calls.nodes, runs=problem.runs + more
                )

    return CodeCheck(
        nodes,
        runs,
        sorted(found.values(), key=lambda one: (one.task, one.undo, one.code, one.argument or "")),
    )
