"""Finds unfinished runs of workflows that this code would fail: ``horsies_workflow check``. Only reads."""

from __future__ import annotations

import uuid
from collections import defaultdict
from itertools import islice
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured

from horsies_django.conf import config
from horsies_django.models import WorkflowRun
from horsies_django.tasks import registry
from horsies_django.workflows.database import reading
from horsies_django.workflows.fitting import Misfit, misfits

RUNS = 1_000  # compared at a time


class CodeProblem(NamedTuple):
    """Calls of a task that fail with this code; ``undo``: those that undo a node. ``run`` and ``node`` are an example."""

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
    """How many open nodes of how many unfinished runs were compared with this code, and what does not fit."""

    nodes: int
    runs: int
    problems: list[CodeProblem]


def check_code() -> CodeCheck:
    """Compare the nodes that unfinished runs have not finished with the tasks of this code.

    Reads 1,000 runs at a time, grouped by the database. Raises ImproperlyConfigured if a ``tasks`` module cannot be imported.
    """
    if failed := registry.autodiscover():
        raise ImproperlyConfigured(f"{failed[0].module} cannot be imported: {failed[0].error!r}")
    conf, store = config(), reading()
    unfinished = WorkflowRun.objects.using(conf.database).filter(finished_at__isnull=True).order_by("sent_at")
    ids = unfinished.values_list("pk", flat=True).iterator(RUNS)
    nodes, runs, found = 0, 0, dict[tuple[str, bool, Misfit], CodeProblem]()
    while chunk := list(islice(ids, RUNS)):
        runs += len(chunk)
        affected = defaultdict[tuple[str, bool, Misfit], set[uuid.UUID]](set)
        for calls in store.open_calls(chunk):
            nodes += 0 if calls.undo else calls.nodes
            for misfit in misfits(calls, conf.queues):
                key = (calls.task, calls.undo, misfit)
                known = found.get(key) or CodeProblem(calls.task, calls.undo, *misfit, 0, 0, calls.run, calls.node)
                more = len(affected[key].union(calls.runs)) - len(affected[key])  # a run is in one chunk only
                affected[key].update(calls.runs)
                found[key] = known._replace(nodes=known.nodes + calls.nodes, runs=known.runs + more)
    return CodeCheck(
        nodes, runs, sorted(found.values(), key=lambda one: (one.task, one.undo, one.code, one.argument or ""))
    )
