"""``manage.py horsies_workflow``: list, inspect and change runs of workflows."""

from __future__ import annotations

import json
import sys
import uuid
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from horsies_django.core.errors import HorsiesError
from horsies_django.core.status import RUN_STATUSES
from horsies_django.core.texts import amount, visible
from horsies_django.management import shared
from horsies_django.management.reports import as_json, table, timestamp
from horsies_django.management.shared import (
    actor,
    add_reason,
    read_json_option,
    refusing,
    verbs_of,
    whole_number_type,
)
from horsies_django.monitoring import workflows
from horsies_django.monitoring.explain import explain_node, find_node
from horsies_django.monitoring.workflows import CodeCheck, RunOverview, check_code
from horsies_django.store.workflows import Progress
from horsies_django.workflows import operations
from horsies_django.workflows.handle import Change, get_workflow

# The help of each verb, and the words in the message after it.
DECISIONS = {
    "approve": ("approve a gate of a run, so that it opens", "approved"),
    "reject": ("reject a gate of a run, so that it fails", "rejected"),
}
DECIDED = ("workflow.approve", "workflow.reject")
CONTROLS = {
    "pause": ("start no more nodes of a run; running tasks finish", "is paused"),
    "resume": ("continue a paused run", "runs again"),
    "cancel": ("end a run; running tasks are asked to stop", "is cancelled"),
}


class Command(shared.Command):
    """The command that lists, shows, explains and changes runs.

    Each verb that is neither in ``DECISIONS`` nor in ``CONTROLS`` has a method ``do_<verb>``.
    """

    help = "List, inspect and change runs of workflows. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_verb = verbs_of(parser, required=True)

        def verb(
            name: str, help_: str, *, node: bool = False, change: bool = False
        ) -> ArgumentParser:
            made = add_verb(name, help_)
            if name not in ("list", "check"):
                made.add_argument("run", metavar="ID", help="the UUID of the run")
            if node:
                add_target(made, "node")
            return add_reason(made) if change else made

        made = verb("list", "list runs, the newest first")
        made.add_argument(
            "--status", choices=RUN_STATUSES, type=str.upper, help="only runs of this status"
        )
        made.add_argument("--name", metavar="NAME", help="only runs of the workflow of this name")
        made.add_argument("--key", metavar="KEY", help="only runs with this key")
        made.add_argument(
            "--limit",
            metavar="N",
            type=whole_number_type(1),
            default=50,
            help="the largest number of runs (default: 50)",
        )

        verb(
            "check",
            "find unfinished runs that this code would fail, before it is deployed; exit code 1 if "
            "there are any",
        )

        made = verb("show", "show a run, its nodes, and who changed it")
        made.add_argument(
            "--payload",
            action="store_true",
            help="also show error messages, data of signals, and the reasons of decisions",
        )
        made.add_argument(
            "--nodes",
            metavar="N",
            type=whole_number_type(0),
            default=500,
            help="the largest number of nodes (default: 500)",
        )

        verb("explain", "explain why a node is not running, or report what it is doing", node=True)
        for name, (help_, _) in CONTROLS.items():
            verb(name, help_, change=True)
        verb(
            "retry",
            "run the failed nodes of a run again; completed nodes do not run again",
            change=True,
        )
        verb("skip", "skip a node that has not begun", node=True, change=True)

        made = verb("signal", "send a signal to a run")
        made.add_argument("name", metavar="NAME", help="the name of the signal")
        made.add_argument(
            "--data",
            metavar="JSON",
            default="null",
            help=(
                "the data of the signal, which becomes the value of the node that receives it "
                "(default: null)"
            ),
        )
        made.add_argument(
            "--key",
            metavar="KEY",
            help="the key of the signal, for nodes that wait for signals with this key",
        )

        for name, (help_, _) in DECISIONS.items():
            add_target(verb(name, help_, change=True), "gate")

    def handle(self, **options: Any) -> None:
        with refusing("horsies_workflow", HorsiesError, LookupError, ValueError):
            verb = options["verb"]
            if verb in CONTROLS:
                self.control(verb, options)
            elif verb in DECISIONS:
                self.decide(verb, options)
            else:
                getattr(self, f"do_{verb}")(**options)

    def do_list(self, **options: Any) -> None:
        found = workflows.runs(
            **{name: options[name] for name in ("status", "name", "key", "limit")}
        )
        self.stdout.write(as_json(found) if options["json"] else run_table(found))

    def do_check(self, **options: Any) -> None:
        found = check_code()
        self.stdout.write(as_json(found) if options["json"] else code_check_text(found))
        if found.problems:
            sys.exit(1)

    def do_show(self, **options: Any) -> None:
        handle = get_workflow(options["run"])
        found = workflows.read_run(handle.workflow_id)
        if found is None:
            raise operations.missing(handle.workflow_id)

        nodes = workflows.nodes(found.id, options["nodes"] + 1)
        shown = nodes[: options["nodes"]]
        more = len(nodes) > options["nodes"]
        history = [
            # The reason of a decision is payload, like the value of the gate.
            each if options["payload"] or each.action not in DECIDED else each._replace(reason=None)
            for each in handle.history()
        ]

        waits = workflows.waiting_nodes(found.id)
        unused = workflows.unused_signals(found.id)

        if not options["json"]:
            self.stdout.write(
                run_text(
                    found, shown, history, waits, unused, payload=options["payload"], more=more
                )
            )
            return

        rows = [node._asdict() for node in shown]
        kept = [signal._asdict() for signal in unused]
        if not options["payload"]:
            for row in kept:
                del row["data"]
            for row in rows:
                del row["error"]

        lists = {
            "nodes": rows,
            "more_nodes": more,
            "waits": waits,
            "unused_signals": kept,
            "history": history,
        }
        self.stdout.write(as_json({**found._asdict(), **lists}))

    def do_explain(self, **options: Any) -> None:
        found = explain_node(options["run"], target_node(options, "node"))
        self.stdout.write(as_json(found) if options["json"] else str(found))

    def do_retry(self, **options: Any) -> None:
        run = get_workflow(options["run"]).workflow_id
        operations.retry(run, actor=actor(), reason=options["reason"])
        self.print_change(run, f"{run}: its failed nodes run again", True, options)

    def do_skip(self, **options: Any) -> None:
        run = get_workflow(options["run"]).workflow_id
        number = find_node(run, target_node(options, "node"))
        operations.skip(run, number, actor=actor(), reason=options["reason"])
        self.print_change(run, f"{run}: node {number} is skipped", True, options)

    def do_signal(self, **options: Any) -> None:
        run = get_workflow(options["run"]).workflow_id
        data = read_json_option("--data", options["data"])
        operations.signal(run, options["name"], data, key=options["key"], actor=actor())
        self.print_change(run, f"{run}: the signal {options['name']} is sent", True, options)

    def decide(self, verb: str, options: dict[str, Any]) -> None:
        """Approve or reject a gate."""
        run = get_workflow(options["run"]).workflow_id
        gate = target_node(options, "gate")
        operations.decide(
            run, gate, approved=verb == "approve", actor=actor(), reason=options["reason"]
        )
        self.print_change(run, f"{run}: the gate {gate} is {DECISIONS[verb][1]}", True, options)

    def control(self, verb: str, options: dict[str, Any]) -> None:
        """Pause, resume or cancel a run, and print whether its status changed."""
        handle = get_workflow(options["run"]).latest()
        run = handle.workflow_id
        changed = operations.control(run, verb, actor=actor(), reason=options["reason"])
        text = (
            f"{run} {CONTROLS[verb][1]}"
            if changed
            else f"Nothing changed: {run} is {handle.status()}"
        )
        self.print_change(run, text, changed, options)

    def print_change(
        self, run: uuid.UUID, text: str, changed: bool, options: dict[str, Any]
    ) -> None:
        if options["json"]:
            self.stdout.write(
                as_json({"id": run, "status": get_workflow(run).status(), "changed": changed})
            )
        else:
            self.stdout.write(f"{text}.")


def add_target(parser: ArgumentParser, kind: str) -> None:
    """Add the arguments that name a node or a gate: its name, or else its number."""
    parser.add_argument(kind, metavar=kind.upper(), nargs="?", help=f"the name of the {kind}")
    parser.add_argument(
        "--number",
        metavar="N",
        type=whole_number_type(0),
        help=f"the number of the {kind}, in place of its name",
    )


def target_node(options: dict[str, Any], kind: str) -> str | int:
    """Return the name of a node or gate, or its number.

    Raises ValueError if both or none of them are given.
    """
    name: str | None = options[kind]
    number: int | None = options["number"]

    if name is not None and number is not None:
        raise ValueError(
            f"the {kind} is given twice, as {name!r} and as --number={number}: remove one"
        )

    if name is not None:
        return name
    if number is not None:
        return number
    raise ValueError(f"give the name of the {kind}, or its number with --number")


def run_table(runs: Sequence[RunOverview]) -> str:
    if not runs:
        return "There are no such runs."

    headings = ("RUN", "NAME", "KEY", "STATUS", "PROGRESS", "SENT", "FINISHED", "ERROR")
    rows = (
        (
            run.id,
            run.name,
            run.key or "-",
            run.status,
            part(run.progress),
            timestamp(run.sent_at),
            timestamp(run.finished_at),
            run.error_code or "-",
        )
        for run in runs
    )
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
    """Return a report about a run.

    It contains the run line by line, its nodes, the waits, the unused signals, and who changed the
    run.
    """
    facts: dict[str, Any] = {
        "run": run.id,
        "name": run.name,
        "key": run.key,
        "status": run.status,
        "error": run.error_code,
        "failed node": run.error_node,
        "on error": run.on_error,
        "in flight": run.max_in_flight,
        "parent": None if run.parent_id is None else f"{run.parent_id}, node {run.parent_node}",
        "continues": run.continues,
        "continued as": run.continued_as,
        "progress": counts(run.progress),
        "sent": timestamp(run.sent_at),
        "finished": run.finished_at and timestamp(run.finished_at),
        "good until": run.good_until and timestamp(run.good_until),
    }

    blocks = [
        "\n".join(
            f"{label:<14}{visible(value)}" for label, value in facts.items() if value is not None
        )
    ]

    if nodes:
        blocks.append(node_lines(nodes, payload=payload))
    if more:
        blocks.append(f"Only the first {len(nodes):,} nodes are shown.")

    if waits:
        headings = ("WAITS", "FOR", "UNTIL", "AFTER THAT")
        rows = (
            (
                one.name,
                awaited_text(one),
                one.due_at and timestamp(one.due_at) or "-",
                after_that(one),
            )
            for one in waits
        )
        blocks.append(table(headings, rows))

    if unused:
        headings = ("UNUSED SIGNAL", "NAME", "KEY", "SENT", "BY", *(("DATA",) if payload else ()))
        rows = (
            (
                one.id,
                one.name,
                one.key or "-",
                timestamp(one.sent_at),
                one.actor,
                *([json.dumps(one.data)] * payload),
            )
            for one in unused
        )
        blocks.append(table(headings, rows))

    if history:
        headings = ("AT", "BY", "ACTION", "REASON")
        rows = ((timestamp(one.at), one.actor, one.action, one.reason or "-") for one in history)
        blocks.append(table(headings, rows))

    return "\n\n".join(blocks)


def node_lines(nodes: Sequence[Any], *, payload: bool) -> str:
    """Return a table with a line for each node.

    It contains error messages only if ``payload`` is true.
    """
    headings = ("NODE", "NAME", "KIND", "STATUS", "UPSTREAM", "ELEMENTS", "TASK", "ID", "ERROR")
    rows = (
        (
            node.number,
            node.name,
            node.kind,
            node.status,
            upstream_progress(node),
            elements_cell(node),
            node.task_name or "-",
            node.task_id or "-",
            node_error_text(node, payload),
        )
        for node in nodes
    )
    return table(headings, rows)


def awaited_text(wait: Any) -> str:
    if wait.kind == "timer":
        return "its time"
    if wait.kind == "gate":
        return f"a decision ({wait.permission})" if wait.permission else "a decision"
    return (
        f"signal {wait.signal}"
        if wait.signal_key is None
        else f"signal {wait.signal}, key {wait.signal_key}"
    )


def after_that(wait: Any) -> str:
    """Return the status of a wait after its timeout, or "-" if it has no timeout."""
    return (
        "-"
        if wait.due_at is None
        else {"fail": "FAILED", "skip": "SKIPPED"}.get(wait.on_timeout, "COMPLETED")
    )


def part(progress: Progress | None) -> str:
    """Return how much of a run is done, as a percentage."""
    return "-" if progress is None else f"{int(progress.share * 100)} %"


def counts(progress: Progress | None) -> str:
    """Return how much of a run is done, as a percentage and as counts of its nodes."""
    if progress is None:
        return "-"

    named = {name: getattr(progress, name) for name in ("completed", "failed", "skipped", "open")}
    counted = ", ".join(f"{count:,} {name}" for name, count in named.items() if count)
    return f"{part(progress)} of {progress.total:,}{f': {counted}' if counted else ''}"


def upstream_progress(node: Any) -> str:
    count = node.open + node.ok + node.bad
    return f"{count - node.open:,}/{count:,}" if count else "-"


def elements_cell(node: Any) -> str:
    """Return how many elements of a node have finished, or "-" if it has none.

    The elements of a map are its tasks.
    """
    return "-" if node.total is None else f"{node.items_ok + node.items_bad:,}/{node.total:,}"


def node_error_text(node: Any, payload: bool) -> str:
    return ": ".join(filter(None, [node.error_code, node.error if payload else None])) or "-"


def code_check_text(found: CodeCheck) -> str:
    """Return a text with a line for each problem, or with the fact that there is none."""
    compared = f"{amount(found.nodes, 'node')} of {amount(found.runs, 'run')}"
    if not found.problems:
        return f"{compared} {'fits' if found.nodes == 1 else 'fit'} the code."

    lines = []
    for one in found.problems:
        where = (
            f"{amount(one.nodes, 'node')} of {amount(one.runs, 'run')}, for example {one.node!r} "
            f"of {one.run}"
        )
        task = f"{one.task}{' (undo)' if one.undo else ''}"
        lines.append(visible(f"{task}: {one.problem}. {one.advice}. Concerns {where}."))

    return "\n".join([*lines, f"{amount(len(lines), 'problem')} in {compared}."])
