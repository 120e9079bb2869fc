"""``horsies_task retry``, ``cancel`` and ``redact`` for all tasks that match: their options, the question, and what was done."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from horsies_django.core.status import Status
from horsies_django.core.texts import close_to
from horsies_django.management.quantities import actor, ago, duration
from horsies_django.management.reports import layout
from horsies_django.tasks import selection

GIVEN = ("queue", "name", "code", "site", "since", "until", "worker")
OF_MANY = ("retry", "cancel", "redact")
USUAL = {"retry": Status.FAILED.value, "cancel": Status.PENDING.value, "terminate": Status.RUNNING.value}


def add_selection(parser: ArgumentParser, verb: str) -> None:
    """Add the options that describe tasks, instead of an id."""
    usual = USUAL.get(verb)
    parser.add_argument(
        "--status", type=str.upper, choices=sorted(selection.VERBS[verb]),
        help="instead of ID, all tasks of this status" + (f"; {usual} if another one of these options is given" if usual else ""),
    )  # fmt: skip
    parser.add_argument("--queue", metavar="QUEUE", help="all tasks of this queue")
    parser.add_argument("--name", metavar="TEXT", help="all tasks of this name, or whose name has this part")
    if verb != "cancel":
        parser.add_argument("--code", metavar="CODE", help="all tasks with this error code")
        parser.add_argument("--site", metavar="SITE", help="all tasks that failed here: 'shop/tasks.py in charge'")
    when = "sent" if verb == "cancel" else "finished"
    parser.add_argument(
        "--since", metavar="WHEN", type=ago, help=f"all tasks {when} since then: 30m, 2h, 7d, or a datetime"
    )
    parser.add_argument("--until", metavar="WHEN", type=ago, help=f"all tasks {when} until then")
    parser.add_argument("--worker", metavar="ID", type=worker_id, help="all tasks of this worker")
    if verb == "retry":
        parser.add_argument(
            "--spread",
            metavar="TIME",
            type=duration,
            help="let them be due within this time from now, at random: 10m, 1h",
        )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many tasks there are, of which names and codes"
    )
    parser.add_argument(
        "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask for confirmation"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def worker_id(text: str) -> uuid.UUID:
    """Parse an option that takes the id of a worker."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a worker, as the page of workers shows it") from None


def is_of_many(options: Mapping[str, Any]) -> bool:
    """Return whether the options describe tasks. Raises ValueError unless there is either a description or an id."""
    described = any(options.get(name) is not None for name in ("status", *GIVEN))
    if described == (options["task"] is not None):
        raise ValueError(
            "give the id of a task, or else what describes all of them: --status, --queue, --name, --code, --since"
        )
    return described


def act(options: Mapping[str, Any], write: Callable[[str], object], confirm: Callable[[str, bool], object]) -> None:
    """Do something to all tasks that the options describe, after a question. Raises what ``selection.matching`` raises."""
    verb = "terminate" if options.get("terminate") else options["verb"]
    status = options["status"] or USUAL.get(verb)
    if status is None:
        raise ValueError(f"{verb} needs --status, one of {', '.join(sorted(selection.VERBS[verb]))}")
    chosen = selection.matching(status, **{name: options.get(name) for name in GIVEN})
    found = selection.preview(chosen)
    if not options["json"]:
        write(told(found, status))
        if not found.many and options["name"]:
            write_advice(options["name"], write)
    verdicts: Counter[str] = Counter()
    if found.many and not options["dry_run"]:
        confirm(f"{verb.capitalize()} {'all' if found.more else f'{found.many:,}'}?", options["interactive"])
        how = {"actor": actor(), "reason": options["reason"], "spread": options.get("spread")}
        for step in selection.act_on_all(chosen, verb, **how):
            verdicts.update(step.verdicts)
    if options["json"]:
        write(layout.as_json({"matched": found.many, "more": found.more, "verdicts": dict(verdicts)}))
    elif not options["dry_run"]:
        write(", ".join(f"{many:,} {verdict}" for verdict, many in verdicts.most_common()) or "Nothing changed.")


def write_advice(name: str, write: Callable[[str], object]) -> None:
    """Say so if no known name has this part."""
    known = selection.known_names()
    if not any(name in one for one in known):
        write(f"No name is known that contains {name!r}{close_to(name, known)}")


def told(found: selection.Preview, status: str) -> str:
    """Return how many tasks there are, and of which names and codes."""
    more = "more than " if found.more else ""
    lines = [f"{more}{found.many:,} {status} task{'' if found.many == 1 else 's'}"]
    lines += [f"{many:>9,}  {name}  {code or ''}".rstrip() for name, code, many in found.kinds[:20]]
    if others := len(found.kinds) - 20:
        lines += [f"           and {others} more names and codes"] if others > 0 else []
    return "\n".join(lines)
