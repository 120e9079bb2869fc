"""The run of one task: find it by name, decode its arguments, call it, and encode the result.

The result is always a Reply, whatever user code does. Exceptions do not reach the executor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import sysconfig
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

import horsies_django
from horsies_django.conf import config
from horsies_django.core.codec import CodecError, encode_error, printable
from horsies_django.core.errors import (
    ContractCode,
    ErrorCode,
    OperationalErrorCode,
    OutcomeCode,
    Skip,
    TaskCancelled,
    TaskSendErrorCode,
    TaskTimeout,
)
from horsies_django.core.records import SNOOZED, Reply
from horsies_django.core.results import TaskError, TaskResult
from horsies_django.core.retry import Retry, Snooze, class_names, mapped_code
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask, running_task
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import too_large
from horsies_django.worker.child.interrupts import CANCEL, TIMEOUT, Run
from horsies_django.worker.child.middleware import call
from horsies_django.workflows import growth  # noqa: F401 - current_task().workflow needs it

logger = logging.getLogger("horsies.task")
# the folders of code that is not the project's: standard library, installed packages, this package
LIBRARY_FOLDERS = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(horsies_django.__file__).parent)}
)

TRACEBACK_CHARACTERS = 50_000
MESSAGE_CHARACTERS = 2_000
CONTEXT_CHARACTERS = 8_192  # of the context that the code of a task left for task_failed
TIMED_OUT = "the task was still running when its timeout passed"
STOPPED_ITSELF = "the task was cancelled while it ran"


def run_sync(run: Run, kwargs: str) -> Reply:
    """Run a task in the sync lane, and return its reply.

    Never raises.
    """
    try:
        found = resolve(run.current, kwargs)
        if isinstance(found, Reply):
            return found

        task, args, keywords = found
        running_task.set(run.current)

        try:
            try:
                log_start(run.current)
                run.begin()
                if task.lane == "sync":  # noqa: SIM108 - this line is part of each traceback
                    value = call(run, task, args, keywords)
                else:  # the function became async after it was sent
                    value = asyncio.run(call(run, task, args, keywords))
            finally:  # a timeout at this moment is handled below like any other
                run.end()
        except BaseException as error:
            return with_context(run, crashed(run, task, error))

        return returned(task, value)
    except BaseException as error:  # user code runs when exceptions are described
        return unexaminable_reply(error)


async def run_async(run: Run, kwargs: str) -> Reply:
    """Run a task in the async lane, and return its reply.

    Never raises.
    """
    try:
        found = resolve(run.current, kwargs)
        if isinstance(found, Reply):
            return found

        task, args, keywords = found
        running_task.set(run.current)

        try:
            log_start(run.current)
            run.begin()
            if task.lane == "async":
                value = await call(run, task, args, keywords)
            else:  # the function became sync after it was sent
                value = await sync_to_async(call)(run, task, args, keywords)
        except BaseException as error:
            return with_context(run, crashed(run, task, error))
        finally:
            run.end()

        return returned(task, value)
    except BaseException as error:
        return unexaminable_reply(error)


def log_start(current: CurrentTask) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s %s starts, attempt %s", current.name, current.task_id, current.attempt)


def resolve(
    current: CurrentTask, kwargs: str
) -> tuple[TaskDefinition, list[Any], dict[str, Any]] | Reply:
    """Return the task and its arguments, or a reply if the task cannot be run here."""
    name = current.name
    task = registry.find(name)
    if task is None:
        return failed(
            OperationalErrorCode.WORKER_RESOLUTION_ERROR,
            f"this worker has no task named {name!r}: deploy its code here, or, if its module is "
            f"not imported, {registry.unsure_advice([name.rpartition('.')[0] or name])}",
        )

    try:
        args, keywords = task.arguments.decode(kwargs)
    except CodecError as error:
        return failed(
            OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
            f"the stored arguments cannot be read: {error}",
        )

    return task, args, keywords


def crashed(run: Run, task: TaskDefinition, error: BaseException) -> Reply:
    """Return the reply for a task that raised.

    Code that was interrupted may raise any exception: a COMMIT that was broken off makes Django's
    ``atomic`` raise an error of its own. So the reason of the interrupt decides, unless the task
    raised Retry, Snooze or Skip.
    """
    described = describe_exception(error)
    if isinstance(error, Retry):
        return retry_reply(task, error, described)

    if isinstance(error, Snooze):
        snooze = {**error.stored, "most": config().max_snoozes}
        return Reply(SNOOZED, "{}", SNOOZED, printable(described["message"]) or None, retry=snooze)

    if isinstance(error, Skip):
        message = described["message"] or "the task skipped itself"
        return failure(TaskError.built_in(OutcomeCode.TASK_SKIPPED, message))._replace(
            status="CANCELLED"
        )

    if isinstance(error, TaskTimeout) or run.reason == TIMEOUT:
        return failure(TaskError.built_in(OutcomeCode.TASK_TIMEOUT, TIMED_OUT, exception=described))
    if isinstance(error, TaskCancelled) or run.reason == CANCEL:
        return cancelled(STOPPED_ITSELF)

    conf = config()
    code = (
        mapped_code(error, task.exception_mapper, conf.exception_mapper)
        or conf.default_unhandled_error_code
    )

    message = (
        f"{described['type']}: {described['message']}"
        if described["message"]
        else described["type"]
    )

    reply = failure(TaskError.built_in(code, message, exception=described))
    retry = None if task.decide is None else task.decide(error, run.current.attempt)
    if retry is not None and not isinstance(retry, bool):
        retry = float(retry)  # a plain float, because the message accepts no other numbers

    return reply._replace(retry=retry, classes=tuple(map(printable, class_names(error))))


def with_context(run: Run, reply: Reply) -> Reply:
    """Return a reply with the context that the code of the task left for ``task_failed``.

    A context that cannot be JSON or is too long is omitted.
    """
    context = run.current._failure_context
    if not context or reply.status != "FAILED":
        return reply

    try:
        text = json.dumps(context, default=str)
    except Exception:
        logger.warning(
            "%s %s: its failure_context cannot be JSON",
            run.current.name,
            run.current.task_id,
            exc_info=True,
        )
        return reply

    return reply._replace(context=text) if len(text) <= CONTEXT_CHARACTERS else reply


def unexaminable_reply(error: BaseException | None) -> Reply:
    """Return the reply for a task whose exception or result cannot be examined.

    Examining it raised ``error``. Metaclasses and properties of exceptions and results are user
    code, which is not run again here.
    """
    message = (
        "the exception or result of the task cannot be examined: reading it raised "
        f"{safe_class_name(type(error))}"
    )
    return failed(config().default_unhandled_error_code, message)


def cancelled(message: str) -> Reply:
    """Return the reply for a task that ended because it was cancelled."""
    return failure(TaskError.built_in(OutcomeCode.TASK_CANCELLED, message))._replace(
        status="CANCELLED"
    )


def retry_reply(task: TaskDefinition, error: Retry, described: dict[str, str]) -> Reply:
    """Return the reply for a task that raised Retry.

    The database decides by the policy in the row of the task whether it is retried.
    """
    message = error.message
    if task.retry_policy is None:
        message += (
            f" ({task.name} has no retry_policy: write @task(retry_policy=RetryPolicy.fixed([60, "
            "300])))"
        )

    exception = described if error.__cause__ is None else describe_exception(error.__cause__)
    code = error.code or OutcomeCode.RETRY_REQUESTED
    reply = failure(TaskError.built_in(code, message, data=error.data, exception=exception))
    return reply._replace(retry=True if error.delay_seconds is None else float(error.delay_seconds))


def returned(task: TaskDefinition, value: Any) -> Reply:
    if task.result.wraps_result:
        if isinstance(value, TaskResult):
            if value.is_err():
                return failure(value.err_value)._replace(returned=True)
            value = value.ok_value
        elif value is None:
            return failed(
                OperationalErrorCode.TASK_EXCEPTION,
                f"{task.name} is annotated '-> TaskResult[...]' and returned None: return "
                "TaskResult(ok=...) or TaskResult(err=...)",
            )

    try:
        result = task.result.encode_ok(value)
    except CodecError as error:
        misfit = error.kind == "type"
        code = (
            ContractCode.RETURN_TYPE_MISMATCH
            if misfit
            else OperationalErrorCode.WORKER_SERIALIZATION_ERROR
        )
        return failed(code, f"the return value of {task.name} cannot be stored: {error}")

    if excess := too_large(result):
        message = f"the result of {task.name} takes {excess}. Store the data and return its key"
        return failed(TaskSendErrorCode.PAYLOAD_TOO_LARGE, message)

    return Reply("COMPLETED", result)


def failed(code: ErrorCode | str, message: str) -> Reply:
    """Return the reply for a task that failed outside its own code."""
    return failure(TaskError.built_in(code, message))


def failure(error: TaskError) -> Reply:
    """Return the reply for a task that ended with ``error``.

    Data that is too large to be stored is omitted.
    """
    result = encode_error(error)
    if too_large(result):
        note = (
            f"{printable(error.message)[:MESSAGE_CHARACTERS]} (its data is omitted, because it is "
            "larger than HORSIES['MAX_PAYLOAD_BYTES'])"
        )
        result = encode_error(TaskError.built_in(error.error_code, note, exception=error.exception))

    message = printable(error.message)[:MESSAGE_CHARACTERS]
    return Reply("FAILED", result, printable(error.error_code), message)


def describe_exception(error: BaseException) -> dict[str, str]:
    """Return a description of an exception, in texts of limited length.

    The methods of the exception are user code and may raise any exception.
    """
    kind = safe_class_name(type(error))
    try:
        message = plain_str(str(error))
        shown = plain_str(repr(error))
    except BaseException as broken:
        message = shown = f"<{kind}, whose text is not available: {safe_class_name(type(broken))}>"

    site = None
    try:
        trace = plain_str("".join(traceback.format_exception(error)))
        site = site_of(error)
    except BaseException as broken:
        trace = f"<traceback not available: {safe_class_name(type(broken))}>"

    if len(trace) > TRACEBACK_CHARACTERS:
        half = TRACEBACK_CHARACTERS // 2
        trace = (
            f"{trace[:half]}\n... {len(trace) - 2 * half} characters left out ...\n{trace[-half:]}"
        )

    return {
        "type": kind,
        "module": safe_class_name(type(error), "__module__"),
        "message": message[:MESSAGE_CHARACTERS],
        "repr": shown[:MESSAGE_CHARACTERS],
        "traceback": trace,
        **({} if site is None else {"site": site[0], "line": str(site[1])}),
    }


def safe_class_name(kind: type, attribute: str = "__qualname__") -> str:
    """Return the name of a class without calling its metaclass."""
    name = type.__dict__[attribute].__get__(kind)
    return plain_str(name) if isinstance(name, str) else "?"


def plain_str(text: str) -> str:
    """Return a text as a plain str, because an instance of a subclass may not be picklable."""
    return str.__str__(text)


def site_of(error: BaseException) -> tuple[str, int] | None:
    """Return the last place of a traceback in the project's code, and its line.

    An example of a place is ``shop/tasks.py in charge``. Return None if there is no such place.
    """
    found = None
    entry = error.__traceback__
    while entry is not None:
        if (path := project_path(entry.tb_frame.f_code.co_filename)) is not None:
            found = f"{path} in {entry.tb_frame.f_code.co_name}", entry.tb_lineno
        entry = entry.tb_next

    return found


@lru_cache(maxsize=1_000)
def project_path(filename: str) -> str | None:
    """Return the path of a file of the project, relative to the folder of its import.

    Return None if the file does not belong to the project.
    """
    path = Path(filename)
    if filename.startswith("<") or any(path.is_relative_to(folder) for folder in LIBRARY_FOLDERS):
        return None

    roots = [root for root in sys.path if root and path.is_relative_to(root)]
    return str(path.relative_to(max(roots, key=len))) if roots else filename
