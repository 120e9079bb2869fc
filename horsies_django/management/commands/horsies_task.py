"""``manage.py horsies_task``: list, inspect, send, change and purge tasks.

A verb acts on one task, or on all tasks that match the options.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from horsies_django.core.errors import HorsiesError
from horsies_django.core.queues import shown_priority
from horsies_django.core.records import TaskInfo
from horsies_django.core.results import TaskResult
from horsies_django.core.status import Status
from horsies_django.core.texts import amount, close_to, visible
from horsies_django.management import shared
from horsies_django.management.reports import as_json, table, timestamp
from horsies_django.management.shared import (
    actor,
    add_reason,
    ago,
    duration_option,
    read_json_option,
    refusing,
    seconds_type,
    whole_number_type,
)
from horsies_django.monitoring import overview
from horsies_django.monitoring.overview import TaskList
from horsies_django.schedules import arguments_text
from horsies_django.tasks import operations, redaction, registry, selection
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import send_call
from horsies_django.tasks.handle import TaskHandle, get_handle
from horsies_django.tasks.options import SendOptions

SELECTION_OPTIONS = (
    "queue",
    "name",
    "code",
    "site",
    "exception",
    "since",
    "until",
    "worker",
    "partition",
)
OF_MANY = ("retry", "cancel", "redact")
USUAL_STATUSES = {
    "retry": Status.FAILED.value,
    "cancel": Status.PENDING.value,
    "terminate": Status.RUNNING.value,
}

REASONED = ("cancel", "retry", "copy", "purge")
CANCEL_TEXTS = {
    "CANCELLED": "cancelled before it started",
    "REQUESTED": "running; asked to stop",
    "FINISHED": "already finished; nothing changed",
}

# The labels of columns whose names need an explanation.
FACT_LABELS = {"lane": "runs as", "codec": "arguments"}


def add_selection(parser: ArgumentParser, verb: str) -> None:
    """Add the options that describe tasks, in place of an id."""
    statuses = {
        **selection.VERBS,
        "list": selection.ENDED | selection.UNFINISHED,
        "purge": selection.ENDED,
    }

    usual = (
        f"; {USUAL_STATUSES[verb]} if another one of these options is given"
        if verb in USUAL_STATUSES
        else ""
    )
    helps = {
        "list": "only tasks of this status",
        "purge": "with --finished: only tasks of this status",
    }
    text = helps.get(verb, f"instead of ID, all tasks of this status{usual}")
    parser.add_argument("--status", type=str.upper, choices=sorted(statuses[verb]), help=text)

    which = "only" if verb == "list" else "all"
    when = {"cancel": "sent", "retry": "finished", "redact": "finished"}.get(
        verb, "finished, or sent if they have not finished,"
    )

    texts: dict[str, tuple[str, Any, str]] = {
        "queue": ("QUEUE", str, "tasks of this queue"),
        "name": ("TEXT", str, "tasks whose name contains this text"),
        "code": ("CODE", str, "tasks with this error code"),
        "site": ("SITE", str, "tasks that failed at this place: 'shop/tasks.py in charge'"),
        "exception": (
            "CLASS",
            str,
            "tasks whose last attempt raised this class: 'builtins.ValueError'",
        ),
        "since": ("WHEN", ago, f"tasks {when} since this time: 30m, 2h, 7d, or a datetime"),
        "until": ("WHEN", ago, f"tasks {when} until this time"),
        "worker": ("ID", worker_id, "tasks of this worker"),
        "partition": (
            "KEY",
            str,
            "tasks of this partition of the queue: customer_id=7, a JSON object of several "
            "arguments, or the stored key",
        ),
    }

    for name, (metavar, type_, text) in texts.items():
        if verb != "cancel" or name not in ("code", "site", "exception"):
            parser.add_argument(f"--{name}", metavar=metavar, type=type_, help=f"{which} {text}")

    parser.add_argument("--json", action="store_true", help="print JSON")


def add_act(parser: ArgumentParser, verb: str) -> None:
    """Add the options of a verb that acts on all tasks that match."""
    add_selection(parser, verb)
    if verb == "retry":
        spread = "make the tasks due at random times within this time from now: 10m, 1h"
        parser.add_argument("--spread", metavar="TIME", type=duration_option, help=spread)

    if verb == "purge":
        parser.add_argument("--all", action="store_true", help="tasks of all queues and names")
        parser.add_argument(
            "--finished",
            action="store_true",
            help="delete finished tasks; requires --older-than or --until",
        )
        older = "only tasks sent (with --finished: finished) longer ago than this: 30m, 7d"
        parser.add_argument("--older-than", metavar="TIME", dest="until", type=before, help=older)

    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the number of matching tasks, by name and code",
    )
    parser.add_argument(
        "--no-input",
        "--noinput",
        action="store_false",
        dest="interactive",
        help="do not ask for confirmation",
    )


def before(text: str) -> dt.datetime:
    """Parse an option that takes an age, and return the datetime of that age before now."""
    try:
        return dt.datetime.now(dt.UTC) - duration_option(text)
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long: no datetime is that long ago") from None


def worker_id(text: str) -> uuid.UUID:
    """Parse an option that takes the id of a worker."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not the id of a worker. The page of workers in the admin shows the ids"
        ) from None


def is_of_many(options: Mapping[str, Any]) -> bool:
    """Return True if the options describe tasks, False if they name one by its id.

    Raises ValueError if there are both or neither.
    """
    given = any(options.get(name) is not None for name in ("status", *SELECTION_OPTIONS))
    if given == (options["task"] is not None):
        raise ValueError(
            "give either the id of a task, or options that describe the tasks: --status, --queue, "
            "--name, --code, --since"
        )
    return given


def given_attributes(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options.get(name) for name in SELECTION_OPTIONS}
    if given["partition"] is not None:
        given["partition"] = selection.stored_key(given["partition"])
    return given


def purged(options: Mapping[str, Any]) -> str:
    """Return the status of the tasks that a purge concerns.

    Raises ValueError for options that cannot be combined.
    """
    if options["finished"] and options["until"] is None:
        raise ValueError(
            "--finished deletes tasks with their results, so it requires --older-than or --until, "
            "as in --older-than=7d"
        )
    if options["status"] and not options["finished"]:
        raise ValueError(
            "--status requires --finished, because purge cancels waiting tasks without it"
        )
    if options["all"] == any(
        options[name] is not None for name in SELECTION_OPTIONS if name not in ("since", "until")
    ):
        raise ValueError(
            "give options such as --queue or --name, or --all for the tasks of all queues, but "
            "not both"
        )

    return options["status"] or (
        selection.FINISHED if options["finished"] else Status.PENDING.value
    )


def preview_text(found: selection.Preview, status: str) -> str:
    """Return the number of tasks, in all and for each name and error code."""
    lines = [amount(found.many, f"{status} task", found.more)]
    kinds = [(many, visible(name), visible(code or "")) for name, code, many in found.kinds[:20]]
    lines += [f"{many:>9,}  {name}  {code}".rstrip() for many, name, code in kinds]

    if found.kinds[20:]:
        lines.append(f"           and {len(found.kinds) - 20} more names and codes")
    return "\n".join(lines)


def send(name: str, kwargs: str, options: SendOptions) -> TaskHandle[Any]:
    """Send a task with arguments in JSON, which are validated as in any send.

    Raises LookupError, ValueError or TaskSendError if the task cannot be sent.
    """
    task = find_definition(name)
    given = read_json_option("--kwargs", kwargs)
    if not isinstance(given, dict):
        raise ValueError(
            """--kwargs must be a JSON object of arguments by name, as in '{"user_id": 7}'"""
        )

    args, by_name = task.arguments.decode(arguments_text(task, given, True))
    return get_handle(send_call(task, options, tuple(args), by_name)[0])


def find_definition(name: str) -> TaskDefinition:
    """Return the task of a name.

    Raises LookupError if there is no such task. Its message also names modules of tasks that cannot
    be imported.
    """
    if (task := registry.find_or_import(name)) is not None:
        return task
    failed = [
        f"; importing {problem.module} failed: {problem.error!r}"
        for problem in registry.autodiscover()
    ]
    raise LookupError(
        f"there is no task named {name!r}{close_to(name, registry.names())}{''.join(failed)}"
    )


def readable_json(value: Any) -> str:
    """Return JSON with the letters of all languages.

    If some characters are not safe for a terminal, all characters outside ASCII are escaped.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if visible(text, keep="\n") == text else json.dumps(value, indent=2)


def envelope(result: TaskResult[Any]) -> dict[str, Any]:
    if result.is_ok():
        return {"ok": result.ok}
    error = result.err_value
    return {"err": {"error_code": error.error_code, "message": error.message, "data": error.data}}


class Command(shared.Command):
    """The command that lists, shows, sends, changes and purges tasks.

    Each verb for one task has a method ``do_<verb>``. Verbs for many tasks run ``act``.
    """

    help = "List, inspect, send, change and purge tasks. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

        def verb(name: str, help_: str, *, task: bool = True) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            if task:
                of_many = name in OF_MANY
                made.add_argument(
                    "task",
                    metavar="ID",
                    nargs="?" if of_many else None,
                    help="the UUID of the task",
                )
                if of_many:
                    add_act(made, name)
            if name in REASONED:
                add_reason(made)
            return made

        made = verb("show", "show a task and its attempts")
        made.add_argument(
            "--payload", action="store_true", help="also show the result and error messages"
        )
        made.add_argument("--json", action="store_true", help="print JSON")

        made = verb("cancel", "cancel waiting tasks, or ask running ones to stop")
        made.add_argument(
            "--terminate",
            action="store_true",
            help="kill the process of a running task that does not stop",
        )

        verb(
            "retry", "run failed, expired or cancelled tasks again, or make a waiting retry due now"
        )

        verb("copy", "send a finished task once more, under a new id")

        made = verb(
            "redact",
            "permanently remove the arguments, the results and all messages of finished tasks",
        )
        made.add_argument(
            "--reason",
            metavar="TEXT",
            required=True,
            help="the reason, recorded in the audit; it must not contain personal data",
        )

        made = verb("list", "list tasks, the newest first", task=False)
        add_selection(made, "list")
        made.add_argument(
            "--limit",
            metavar="N",
            type=whole_number_type(1),
            default=50,
            help="the largest number of tasks (default: 50)",
        )

        made = verb(
            "purge",
            "cancel all waiting tasks, or delete all finished ones, of a queue or name",
            task=False,
        )
        add_act(made, "purge")
        add_send(verb("send", "send a task", task=False))

    def handle(self, **options: Any) -> None:
        with refusing("horsies_task", HorsiesError, LookupError, ValueError):
            if options["verb"] == "purge" or (options["verb"] in OF_MANY and is_of_many(options)):
                self.act(options)
            else:
                getattr(self, f"do_{options['verb']}")(**options)

    def do_show(self, **options: Any) -> None:
        info = get_handle(options["task"]).info()
        if info is None:
            raise LookupError(f"there is no task {options['task']}")

        copies = [copy.pk for copy in overview.copies([info.task_id]).get(info.task_id, [])]
        report = task_json if options["json"] else task_text
        self.stdout.write(report(info, options["payload"], copies))

    def do_cancel(self, **options: Any) -> None:
        id_ = get_handle(options["task"]).task_id
        verdicts = operations.cancel(
            [id_], terminate=options["terminate"], actor=actor(), reason=options["reason"]
        )
        if id_ not in verdicts:
            raise LookupError(f"there is no task {id_}")
        self.stdout.write(f"{id_}: {CANCEL_TEXTS[verdicts[id_]]}")

    def do_retry(self, **options: Any) -> None:
        id_ = get_handle(options["task"]).task_id
        operations.retry(id_, actor=actor(), reason=options["reason"])
        self.stdout.write(f"{id_}: due now")

    def do_copy(self, **options: Any) -> None:
        id_ = get_handle(options["task"]).task_id
        new = operations.copy(id_, actor=actor(), reason=options["reason"])
        self.stdout.write(f"{id_}: sent again as {new}")

    def do_redact(self, **options: Any) -> None:
        done = redaction.redact(options["task"], actor=actor(), reason=options["reason"])
        self.stdout.write(
            f"Task {options['task']} is redacted."
            if done
            else "Nothing changed: the task is already redacted."
        )

    def do_list(self, **options: Any) -> None:
        found = overview.tasks(
            selection.described(options["status"], **given_attributes(options)), options["limit"]
        )
        self.stdout.write(as_json(found.tasks) if options["json"] else task_table(found))
        if found.partial:
            self.stderr.write("Only the newest 30,000 tasks were searched.")

    def do_send(self, **options: Any) -> None:
        chosen = {name: options[name] for name in ("queue", "priority", "delay")}
        handle = send(
            options["name"],
            options["kwargs"],
            SendOptions(**chosen, good_until=options["good_for"]),
        )

        if not options["wait"]:
            self.stdout.write(
                as_json({"id": handle.task_id}) if options["json"] else str(handle.task_id)
            )
            return

        if not options["json"]:
            self.stdout.write(str(handle.task_id))
            self.stdout.flush()

        timeout = options["timeout"]
        result = handle.get(None if timeout is None else timeout * 1000)

        if options["json"]:
            self.stdout.write(as_json({"id": handle.task_id, **envelope(result)}))
        elif result.is_ok():
            self.stdout.write(readable_json(result.ok))

        if result.is_err():
            error = result.err_value
            raise CommandError(f"horsies_task: {error.error_code}: {error.message}")

    def act(self, options: Mapping[str, Any]) -> None:
        """Act on all tasks that match the options, after a confirmation.

        Raises the errors of ``selection.matching``, and CommandError if the user does not confirm.
        """
        verb = "terminate" if options.get("terminate") else options["verb"]
        status = (
            purged(options) if verb == "purge" else options["status"] or USUAL_STATUSES.get(verb)
        )
        if status is None:
            raise ValueError(
                f"{verb} requires --status, one of {', '.join(sorted(selection.VERBS[verb]))}"
            )

        chosen = selection.matching(status, **given_attributes(options))
        found = selection.preview(chosen)

        if not options["json"]:
            self.stdout.write(preview_text(found, status))
            if not found.many and options["name"]:
                known = selection.known_names()
                if not any(options["name"] in one for one in known):
                    self.stdout.write(
                        "There is no task name that contains "
                        f"{options['name']!r}{close_to(options['name'], known)}"
                    )

        verdicts: Counter[str] = Counter()
        if found.many and not options["dry_run"]:
            question_verb = verb
            if verb == "purge":
                question_verb = "delete" if options["finished"] else "cancel"
            self.confirm(
                f"{question_verb.capitalize()} {'all' if found.more else f'{found.many:,}'}?",
                options["interactive"],
            )

            arguments = {
                "actor": actor(),
                "reason": options["reason"],
                "spread": options.get("spread"),
            }
            for step in selection.act_on_all(chosen, verb, **arguments):
                verdicts.update(step.verdicts)

        if options["json"]:
            self.stdout.write(
                as_json({"matched": found.many, "more": found.more, "verdicts": dict(verdicts)})
            )
        elif not options["dry_run"]:
            self.stdout.write(
                ", ".join(f"{many:,} {verdict}" for verdict, many in verdicts.most_common())
                or "Nothing changed."
            )

    def confirm(self, question: str, interactive: bool) -> None:
        """Ask the user for confirmation, unless --no-input was given.

        Raises CommandError if the answer is not yes.
        """
        if not interactive:
            return
        if not sys.stdin.isatty():
            raise CommandError(
                "horsies_task: nothing was changed: the command cannot ask for confirmation, "
                "because the input is not a terminal. Add --no-input"
            )
        if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise CommandError("horsies_task: nothing was changed")


def add_send(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="the name of the task, such as shop.tasks.welcome"
    )
    parser.add_argument(
        "--kwargs", metavar="JSON", default="{}", help="""its arguments by name: '{"user_id": 7}'"""
    )

    parser.add_argument("--queue", metavar="QUEUE", help="the queue (default: that of the task)")
    parser.add_argument(
        "--priority", metavar="N", type=int, help="the priority (default: that of the task)"
    )
    parser.add_argument(
        "--delay",
        metavar="TIME",
        type=duration_option,
        help="run the task after this time: 30s, 2h, 7d",
    )
    parser.add_argument(
        "--good-for",
        metavar="TIME",
        type=duration_option,
        help="the time after which the task expires if it has not started: 30s, 2h, 7d",
    )

    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the task and print its result; exit with 1 if it failed",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds_type,
        help="the longest time to wait (default: no limit)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def task_text(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    """Return a report about a task, line by line, followed by its copies and attempts.

    It contains payload only if ``payload`` is true.
    """
    known = {
        **columns_of_task(info, payload),
        "priority": shown_priority(info.priority, info.codec),
    }
    given = {name: value for name, value in known.items() if value not in (None, "")}
    lines = [
        f"{FACT_LABELS.get(name, name):<14}{visible(readable(value))}"
        for name, value in given.items()
    ]
    lines += [f"{'run again as':<14}{copy}" for copy in copies]

    for attempt in info.attempts:
        message = (
            f": {indented(attempt.error_message)}" if payload and attempt.error_message else ""
        )
        end = f" {visible(attempt.error_code)}{message}" if attempt.error_code or message else ""
        again = ", retried" if attempt.will_retry else ""

        seconds = (attempt.finished_at - attempt.started_at).total_seconds()
        lines.append(
            f"attempt {attempt.attempt}: {visible(attempt.outcome)}{end}{again}, "
            f"{readable(attempt.started_at)}, "
            f"{seconds:.3f} s, worker {attempt.worker_id}, process {attempt.child_pid or '-'}"
            + (f", in {visible(attempt.site)}, line {attempt.site_line}" if attempt.site else "")
        )

    return "\n".join(lines)


def indented(text: str) -> str:
    """Return a message whose further lines cannot be mistaken for lines of the report."""
    return "\n    ".join(visible(line, keep="\t") for line in text.split("\n"))


def task_json(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    hidden = () if payload else ("error_message", "exception_class", "traceback")
    attempts = [
        {name: value for name, value in attempt._asdict().items() if name not in hidden}
        for attempt in info.attempts
    ]
    found = {**columns_of_task(info, payload), "copies": copies, "attempts": attempts}
    return json.dumps(found, default=str, indent=2)


def columns_of_task(info: TaskInfo, payload: bool) -> dict[str, Any]:
    """Return the columns of a task, with the result only if ``payload`` is true."""
    hidden = ("attempts",) if payload else ("attempts", "result")
    return {name: value for name, value in info._asdict().items() if name not in hidden}


def readable(value: Any) -> Any:
    """Return a datetime as text, and any other value unchanged."""
    if not hasattr(value, "utcoffset"):
        return value
    return (timezone.localtime(value) if timezone.is_aware(value) else value).isoformat(
        " ", "milliseconds"
    )


def task_table(found: TaskList) -> str:
    headings = ("ID", "NAME", "QUEUE", "STATUS", "SENT", "STARTED", "FINISHED", "ERROR")
    rows = (
        (
            task.id,
            task.task_name,
            task.queue_name,
            task.status,
            timestamp(task.sent_at),
            timestamp(task.started_at),
            timestamp(task.finished_at),
            task.error_code or "-",
        )
        for task in found.tasks
    )
    return table(headings, rows) if found.tasks else "There are no such tasks."
