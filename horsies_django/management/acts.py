"""``horsies_task`` for all tasks that match: the options that describe them, the question before an act, and what was done."""

from __future__ import annotations

import datetime as dt
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from horsies_django.core.status import Status
from horsies_django.core.texts import amount, close_to
from horsies_django.management.reports import as_json
from horsies_django.management.shared import actor, ago, duration
from horsies_django.tasks import selection

GIVEN = ("queue", "name", "code", "site", "since", "until", "worker", "partition")
OF_MANY = ("retry", "cancel", "redact")
USUAL = {"retry": Status.FAILED.value, "cancel": Status.PENDING.value, "terminate": Status.RUNNING.value}


def add_selection(parser: ArgumentParser, verb: str) -> None:
    """Add the options that describe tasks, instead of an id."""
    allowed = {"list": selection.ENDED | selection.UNFINISHED, "purge": selection.ENDED}.get(verb) or selection.VERBS[
        verb
    ]
    usual = f"; {USUAL[verb]} if another one of these options is given" if verb in USUAL else ""
    helps = {"list": "only tasks of this status", "purge": "with --finished: only tasks of this status"}
    text = helps.get(verb, f"instead of ID, all tasks of this status{usual}")
    parser.add_argument("--status", type=str.upper, choices=sorted(allowed), help=text)
    which = "only" if verb == "list" else "all"
    when = {"cancel": "sent", "retry": "finished", "redact": "finished"}.get(
        verb, "finished, or if they have not, sent,"
    )
    texts: dict[str, tuple[str, Any, str]] = {
        "queue": ("QUEUE", str, "tasks of this queue"),
        "name": ("TEXT", str, "tasks of this name, or whose name has this part"),
        "code": ("CODE", str, "tasks with this error code"),
        "site": ("SITE", str, "tasks that failed here: 'shop/tasks.py in charge'"),
        "since": ("WHEN", ago, f"tasks {when} since then: 30m, 2h, 7d, or a datetime"),
        "until": ("WHEN", ago, f"tasks {when} until then"),
        "worker": ("ID", worker_id, "tasks of this worker"),
        "partition": ("KEY", str, "tasks of this partition of the queue, as it is stored"),
    }
    for name, (metavar, type_, text) in texts.items():
        if verb != "cancel" or name not in ("code", "site"):
            parser.add_argument(f"--{name}", metavar=metavar, type=type_, help=f"{which} {text}")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_act(parser: ArgumentParser, verb: str) -> None:
    """Add the options of an act on all tasks that match."""
    add_selection(parser, verb)
    if verb == "retry":
        spread = "let them be due within this time from now, at random: 10m, 1h"
        parser.add_argument("--spread", metavar="TIME", type=duration, help=spread)
    if verb == "purge":
        parser.add_argument("--all", action="store_true", help="tasks of all queues and names")
        parser.add_argument(
            "--finished", action="store_true", help="delete finished tasks; requires --older-than or --until"
        )
        older = "only tasks sent, or with --finished finished, longer ago: 30m, 7d"
        parser.add_argument("--older-than", metavar="TIME", dest="until", type=before, help=older)
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many tasks there are, of which names and codes"
    )
    parser.add_argument(
        "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask for confirmation"
    )


def before(text: str) -> dt.datetime:
    """Parse an option that takes an age."""
    try:
        return dt.datetime.now(dt.UTC) - duration(text)
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is longer than there is time") from None


def worker_id(text: str) -> uuid.UUID:
    """Parse an option that takes the id of a worker."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a worker, as the page of workers shows it") from None


def is_of_many(options: Mapping[str, Any]) -> bool:
    """Return whether the options describe tasks. Raises ValueError unless there is either a description or an id."""
    given = any(options.get(name) is not None for name in ("status", *GIVEN))
    if given == (options["task"] is not None):
        raise ValueError(
            "give the id of a task, or else what describes all of them: --status, --queue, --name, --code, --since"
        )
    return given


def described(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options.get(name) for name in GIVEN}


def purged(options: Mapping[str, Any]) -> str:
    """Return the status of the tasks that a purge concerns. Raises ValueError for options that do not go together."""
    if options["finished"] and options["until"] is None:
        raise ValueError("--finished deletes tasks with their results: say which, as in --older-than=7d")
    if options["status"] and not options["finished"]:
        raise ValueError("--status is for --finished: without it, waiting tasks are cancelled")
    if options["all"] == any(options[name] is not None for name in GIVEN if name not in ("since", "until")):
        raise ValueError("give --queue, --name or both, or else --all for the tasks of all queues")
    return options["status"] or (selection.FINISHED if options["finished"] else Status.PENDING.value)


def act(options: Mapping[str, Any], write: Callable[[str], object], confirm: Callable[[str, bool], object]) -> None:
    """Do something to all tasks that the options describe, after a question. Raises what ``selection.matching`` raises."""
    verb = "terminate" if options.get("terminate") else options["verb"]
    status = purged(options) if verb == "purge" else options["status"] or USUAL.get(verb)
    if status is None:
        raise ValueError(f"{verb} needs --status, one of {', '.join(sorted(selection.VERBS[verb]))}")
    chosen = selection.matching(status, **described(options))
    found = selection.preview(chosen)
    if not options["json"]:
        write(told(found, status))
        if not found.many and options["name"]:
            known = selection.known_names()
            if not any(options["name"] in one for one in known):
                write(f"No name is known that contains {options['name']!r}{close_to(options['name'], known)}")
    verdicts: Counter[str] = Counter()
    if found.many and not options["dry_run"]:
        asked = ("delete" if options["finished"] else "cancel") if verb == "purge" else verb
        confirm(f"{asked.capitalize()} {'all' if found.more else f'{found.many:,}'}?", options["interactive"])
        how = {"actor": actor(), "reason": options["reason"], "spread": options.get("spread")}
        for step in selection.act_on_all(chosen, verb, **how):
            verdicts.update(step.verdicts)
    if options["json"]:
        write(as_json({"matched": found.many, "more": found.more, "verdicts": dict(verdicts)}))
    elif not options["dry_run"]:
        write(", ".join(f"{many:,} {verdict}" for verdict, many in verdicts.most_common()) or "Nothing changed.")


def told(found: selection.Preview, status: str) -> str:
    """Return how many tasks there are, and of which names and codes."""
    lines = [amount(found.many, f"{status} task", found.more)]
    lines += [f"{many:>9,}  {name}  {code or ''}".rstrip() for name, code, many in found.kinds[:20]]
    if others := len(found.kinds) - 20:
        lines += [f"           and {others} more names and codes"] if others > 0 else []
    return "\n".join(lines)
