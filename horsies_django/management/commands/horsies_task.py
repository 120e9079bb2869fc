"""``manage.py horsies_task``: list, inspect, send, change and purge tasks."""

from __future__ import annotations

import json
import sys
import uuid
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from horsies_django.core.errors import HorsiesError
from horsies_django.core.queues import shown_priority
from horsies_django.core.records import TaskInfo
from horsies_django.core.results import TaskResult
from horsies_django.core.texts import close_to
from horsies_django.management.acts import OF_MANY, act, add_act, add_selection, described, is_of_many
from horsies_django.management.reports import as_json, moment, table
from horsies_django.management.shared import actor, add_reason, duration, read_json, refusing, seconds, whole
from horsies_django.monitoring import overview
from horsies_django.monitoring.overview import TaskList
from horsies_django.schedules import arguments_text
from horsies_django.tasks import operations, redaction, registry, selection
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import send_call
from horsies_django.tasks.handle import TaskHandle, get_handle
from horsies_django.tasks.options import SendOptions

REASONED = ("cancel", "retry", "copy", "purge")
CANCELLED = {
    "CANCELLED": "cancelled before it started",
    "REQUESTED": "running; asked to stop",
    "FINISHED": "already finished; nothing changed",
}

LABELS = {"lane": "runs as", "codec": "arguments"}  # where the name of the column needs an explanation


def send(name: str, kwargs: str, options: SendOptions) -> TaskHandle[Any]:
    """Send a task with arguments in JSON, checked as in any send. Raises LookupError, ValueError and TaskSendError."""
    task = find(name)
    given = read_json("--kwargs", kwargs)
    if not isinstance(given, dict):
        raise ValueError("""--kwargs must be a JSON object of arguments by name, as in '{"user_id": 7}'""")
    args, by_name = task.arguments.decode(arguments_text(task, given, True))
    return get_handle(send_call(task, options, tuple(args), by_name)[0])


def find(name: str) -> TaskDefinition:
    """Return the task of a name. Raises LookupError, which also says which modules of tasks cannot be imported."""
    if (task := registry.find_or_import(name)) is not None:
        return task
    failed = [f"; importing {problem.module} failed: {problem.error!r}" for problem in registry.autodiscover()]
    raise LookupError(f"there is no task named {name!r}{close_to(name, registry.names())}{''.join(failed)}")


def envelope(result: TaskResult[Any]) -> dict[str, Any]:
    if result.is_ok():
        return {"ok": result.ok}
    error = result.err_value
    return {"err": {"error_code": error.error_code, "message": error.message, "data": error.data}}


class Command(BaseCommand):
    """Shows or changes tasks; each verb has a method ``do_<verb>``."""

    help = "List, inspect, send, change and purge tasks. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

        def verb(name: str, help_: str, *, task: bool = True) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            if task:
                of_many = name in OF_MANY
                made.add_argument("task", metavar="ID", nargs="?" if of_many else None, help="the UUID of the task")
                if of_many:
                    add_act(made, name)
            if name in REASONED:
                add_reason(made)
            return made

        made = verb("show", "show a task and its attempts")
        made.add_argument("--payload", action="store_true", help="also show the result and error messages")
        made.add_argument("--json", action="store_true", help="print JSON")

        made = verb("cancel", "cancel waiting tasks, or ask running ones to stop")
        made.add_argument(
            "--terminate", action="store_true", help="kill the process of a running task that does not stop"
        )

        verb("retry", "run failed, expired or cancelled tasks again, or make a waiting retry due now")

        verb("copy", "send a finished task once more, under a new id")

        made = verb("redact", "permanently remove the arguments, the results and all messages of finished tasks")
        made.add_argument(
            "--reason",
            metavar="TEXT",
            required=True,
            help="the reason, recorded in the audit; it must not contain personal data",
        )
        made = verb("list", "list tasks, the newest first", task=False)
        add_selection(made, "list")
        made.add_argument("--limit", metavar="N", type=whole(1), default=50, help="the largest number of tasks (50)")

        made = verb("purge", "cancel all waiting tasks, or delete all finished ones, of a queue or name", task=False)
        add_act(made, "purge")
        add_send(verb("send", "send a task", task=False))

    def handle(self, **options: Any) -> None:
        with refusing("horsies_task", HorsiesError, LookupError, ValueError):
            if options["verb"] == "purge" or options["verb"] in OF_MANY and is_of_many(options):
                act(options, self.stdout.write, self.confirm)
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
        verdicts = operations.cancel([id_], terminate=options["terminate"], actor=actor(), reason=options["reason"])
        if id_ not in verdicts:
            raise LookupError(f"there is no task {id_}")
        self.stdout.write(f"{id_}: {CANCELLED[verdicts[id_]]}")

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
            f"Task {options['task']} is redacted." if done else "Nothing changed: it is already redacted."
        )

    def do_list(self, **options: Any) -> None:
        found = overview.tasks(selection.described(options["status"], **described(options)), options["limit"])
        self.stdout.write(as_json(found.tasks) if options["json"] else task_table(found))
        if found.partial:
            self.stderr.write("Only the newest 30,000 tasks were searched.")

    def do_send(self, **options: Any) -> None:
        chosen = {name: options[name] for name in ("queue", "priority", "delay")}
        handle = send(options["name"], options["kwargs"], SendOptions(**chosen, good_until=options["good_for"]))
        if not options["wait"]:
            self.stdout.write(as_json({"id": handle.task_id}) if options["json"] else str(handle.task_id))
            return
        if not options["json"]:
            self.stdout.write(str(handle.task_id))
            self.stdout.flush()
        timeout = options["timeout"]
        result = handle.get(None if timeout is None else timeout * 1000)
        if options["json"]:
            self.stdout.write(as_json({"id": handle.task_id, **envelope(result)}))
        elif result.is_ok():
            self.stdout.write(json.dumps(result.ok, indent=2, ensure_ascii=False))
        if result.is_err():
            error = result.err_value
            raise CommandError(f"horsies_task: {error.error_code}: {error.message}")

    def confirm(self, question: str, interactive: bool) -> None:
        """Ask, unless --no-input was given. Raises CommandError without a yes."""
        if not interactive:
            return
        if not sys.stdin.isatty():
            raise CommandError("horsies_task: nothing was changed: there is nobody to ask; add --no-input")
        if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise CommandError("horsies_task: nothing was changed")


def add_send(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the task, such as shop.tasks.welcome")
    parser.add_argument("--kwargs", metavar="JSON", default="{}", help="""its arguments by name: '{"user_id": 7}'""")
    parser.add_argument("--queue", metavar="QUEUE", help="the queue, instead of that of the task")
    parser.add_argument("--priority", metavar="N", type=int, help="the priority, instead of that of the task")
    parser.add_argument("--delay", metavar="TIME", type=duration, help="run it after this time: 30s, 2h, 7d")
    parser.add_argument("--good-for", metavar="TIME", type=duration, help="do not start it later than after this time")
    parser.add_argument(
        "--wait", action="store_true", help="wait for the task and print its result; exit with 1 if it failed"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="wait no longer (default: without limit)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def task_text(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    """Return a task line by line, followed by its copies and attempts; the payload only if ``payload``."""
    known = {**facts(info, payload), "priority": shown_priority(info.priority, info.codec)}
    lines = [f"{LABELS.get(name, name):<14}{shown(value)}" for name, value in known.items() if value not in (None, "")]
    lines += [f"{'run again as':<14}{copy}" for copy in copies]
    for attempt in info.attempts:
        message = f": {attempt.error_message}" if payload and attempt.error_message else ""
        end = f" {attempt.error_code}{message}" if attempt.error_code or message else ""
        again = ", retried" if attempt.will_retry else ""
        seconds = (attempt.finished_at - attempt.started_at).total_seconds()
        lines.append(
            f"attempt {attempt.attempt}: {attempt.outcome}{end}{again}, {shown(attempt.started_at)}, "
            f"{seconds:.3f} s, worker {attempt.worker_id}, process {attempt.child_pid or '-'}"
            + (f", in {attempt.site}, line {attempt.site_line}" if attempt.site else "")
        )
    return "\n".join(lines)


def task_json(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    hidden = () if payload else ("error_message", "exception_class", "traceback")
    attempts = [
        {name: value for name, value in attempt._asdict().items() if name not in hidden} for attempt in info.attempts
    ]
    found = {**facts(info, payload), "copies": copies, "attempts": attempts}
    return json.dumps(found, default=str, indent=2)


def facts(info: TaskInfo, payload: bool) -> dict[str, Any]:
    """Return the columns of a task."""
    hidden = ("attempts",) if payload else ("attempts", "result")
    return {name: value for name, value in info._asdict().items() if name not in hidden}


def shown(value: Any) -> Any:
    """Return a datetime as text, and any other value unchanged."""
    if not hasattr(value, "utcoffset"):
        return value
    return (timezone.localtime(value) if timezone.is_aware(value) else value).isoformat(" ", "milliseconds")


def task_table(found: TaskList) -> str:
    headings = ("ID", "NAME", "QUEUE", "STATUS", "SENT", "STARTED", "FINISHED", "ERROR")
    rows = (
        (
            task.id, task.task_name, task.queue_name, task.status, moment(task.sent_at), moment(task.started_at),
            moment(task.finished_at), task.error_code or "-",
        )
        for task in found.tasks
    )  # fmt: skip
    return table(headings, rows) if found.tasks else "There are no such tasks."
