"""Workflow runs as text for a terminal; the JSON output has the same content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from horsies_django.core.texts import amount
from horsies_django.management.reports.layout import moment, table, visible
from horsies_django.monitoring.workflows import CodeCheck, CodeProblem, RunOverview
from horsies_django.store.workflows import Progress
from horsies_django.workflows.handle import Change


def run_table(runs: Sequence[RunOverview]) -> str:
    if not runs:
        return "There are no such runs."
    headings = ("RUN", "NAME", "KEY", "STATUS", "PROGRESS", "SENT", "FINISHED", "ERROR")
    rows = (
        (
            run.id, run.name, run.key or "-", run.status, part(run.progress), moment(run.sent_at), moment(run.finished_at),
            run.error_code or "-",
        )
        for run in runs
    )  # fmt: skip
    return table(headings, rows)


def run_text(
    run: RunOverview,
    nodes: Sequence[Any],
    history: Sequence[Change],
    waits: Sequence[Any] = (),
    unused: Sequence[Any] = (),
    *,
    payload: bool,
    more: bool,
) -> str:
    """Return a run line by line, its nodes, what they wait for, the signals that none of them took, and who changed it."""
    facts: dict[str, Any] = {
        "run": run.id, "name": run.name, "key": run.key, "status": run.status, "error": run.error_code,
        "failed node": run.error_node, "on error": run.on_error, "in flight": run.max_in_flight,
        "parent": None if run.parent_id is None else f"{run.parent_id}, node {run.parent_node}",
        "continues": run.continues, "continued as": run.continued_as,
        "progress": counts(run.progress), "sent": moment(run.sent_at),
        "finished": run.finished_at and moment(run.finished_at), "good until": run.good_until and moment(run.good_until),
    }  # fmt: skip
    blocks = ["\n".join(f"{label:<14}{value}" for label, value in facts.items() if value is not None)]
    if nodes:
        blocks.append(node_table(nodes, payload=payload))
    if more:
        blocks.append(f"Only the first {len(nodes):,} nodes are shown.")
    if waits:
        headings = ("WAITS", "FOR", "UNTIL", "AFTER THAT")
        rows = ((one.name, waits_for(one), one.due_at and moment(one.due_at) or "-", after_that(one)) for one in waits)
        blocks.append(table(headings, rows))
    if unused:
        headings = ("UNUSED SIGNAL", "NAME", "KEY", "SENT", "BY", *(("DATA",) if payload else ()))
        blocks.append(table(headings, (signal_row(one, payload=payload) for one in unused)))
    if history:
        headings = ("AT", "BY", "ACTION", "REASON")
        rows = ((moment(one.at), one.actor, one.action, one.reason or "-") for one in history)
        blocks.append(table(headings, rows))
    return "\n\n".join(blocks)


def node_table(nodes: Sequence[Any], *, payload: bool) -> str:
    """Return a line per node; messages of errors only if ``payload``."""
    headings = ("NODE", "NAME", "KIND", "STATUS", "UPSTREAM", "ELEMENTS", "TASK", "ID", "ERROR")
    rows = (
        (
            node.number, node.name, node.kind, node.status, upstream(node), elements(node), node.task_name or "-",
            node.task_id or "-", error(node, payload),
        )
        for node in nodes
    )  # fmt: skip
    return table(headings, rows)


def waits_for(wait: Any) -> str:
    if wait.kind == "timer":
        return "its time"
    if wait.kind == "gate":
        return f"a decision ({wait.permission})" if wait.permission else "a decision"
    return f"signal {wait.signal}" if wait.signal_key is None else f"signal {wait.signal}, key {wait.signal_key}"


def after_that(wait: Any) -> str:
    """Return what becomes of a wait whose time is over."""
    return "-" if wait.due_at is None else {"fail": "FAILED", "skip": "SKIPPED"}.get(wait.on_timeout, "COMPLETED")


def signal_row(signal: Any, *, payload: bool) -> tuple[Any, ...]:
    """Return a signal that no node has taken, with its data only if ``payload``."""
    row = (signal.id, signal.name, signal.key or "-", moment(signal.sent_at), signal.actor)
    return (*row, json.dumps(signal.data)) if payload else row


def part(progress: Progress | None) -> str:
    """Return how far a run is, as a percentage."""
    return "-" if progress is None else f"{int(progress.share * 100)} %"


def counts(progress: Progress | None) -> str:
    """Return how far a run is, in numbers."""
    if progress is None:
        return "-"
    named = {name: getattr(progress, name) for name in ("completed", "failed", "skipped", "open")}
    told = ", ".join(f"{count:,} {name}" for name, count in named.items() if count)
    return f"{part(progress)} of {progress.total:,}{f': {told}' if told else ''}"


def upstream(node: Any) -> str:
    count = node.open + node.ok + node.bad
    return f"{count - node.open:,}/{count:,}" if count else "-"


def elements(node: Any) -> str:
    """Return how many tasks of a map have finished."""
    return "-" if node.total is None else f"{node.items_ok + node.items_bad:,}/{node.total:,}"


def error(node: Any, payload: bool) -> str:
    return ": ".join(filter(None, [node.error_code, node.error if payload else None])) or "-"


def check_text(found: CodeCheck) -> str:
    """Return a line per problem, or that there is none."""
    compared = f"{amount(found.nodes, 'node')} of {amount(found.runs, 'run')}"
    if not found.problems:
        return f"{compared} {'fits' if found.nodes == 1 else 'fit'} the code."
    lines = [problem_line(one) for one in found.problems]
    return "\n".join([*lines, f"{amount(len(lines), 'problem')} in {compared}."])


def problem_line(one: CodeProblem) -> str:
    """Return a problem in one line: what is wrong, what to do, and where it occurs."""
    where = f"{amount(one.nodes, 'node')} of {amount(one.runs, 'run')}, for example {one.node!r} of {one.run}"
    return visible(f"{one.task}{' (undo)' if one.undo else ''}: {one.problem}. {one.advice}. Concerns {where}.")
