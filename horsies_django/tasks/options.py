"""The options of a send, their validation, and the metadata of a send.

The metadata consists of that of the settings and that of the sender, which has precedence.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from django.utils.module_loading import import_string

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.errors import TaskSendError, TaskSendErrorCode
from horsies_django.core.metadata import encode_metadata, with_metadata
from horsies_django.core.options import options_text
from horsies_django.core.records import NewTasks
from horsies_django.core.retry import RetryPolicy
from horsies_django.core.texts import text_problem
from horsies_django.tasks.definition import (
    TaskDefinition,
    keep_problem,
    milliseconds,
    policy_problem,
    priority_problem,
    timeout_problem,
)

LONGEST_DELAY = dt.timedelta(days=36_500)
NEVER_RUNS = (
    "good_until={good_until!s} is not after the time at which the task is due, {due!s}: the "
    "task could never run"
)
When = float | dt.timedelta | dt.datetime
T = TypeVar("T", dt.datetime, dt.timedelta)
# The current time in a test that uses drain(until=...) or travel(), or None for the database's
# clock.
simulated_now: ContextVar[dt.datetime | None] = ContextVar("horsies_simulated_now", default=None)


def metadata_of(task_name: str, given: Mapping[str, Any] | None) -> str | None:
    """Return the metadata of a send as JSON text, or None if there is none.

    Raises TaskSendError if the metadata is invalid or too large.
    """
    paths = config().metadata
    if given is None and not paths:
        return None

    try:
        found: dict[str, Any] = {}
        for path in paths:
            found.update(metadata_from(path))

        if given is not None:
            if not isinstance(given, Mapping):
                raise CodecError(
                    f"it must be a dict, not {type(given).__name__}", subject="metadata"
                )
            found.update(given)

        return encode_metadata(found) if found else None
    except CodecError as error:
        raise TaskSendError(TaskSendErrorCode.VALIDATION_FAILED, f"{task_name}: {error}") from error


def metadata_from(path: str) -> Mapping[str, Any]:
    """Call a function that HORSIES["METADATA"] names, and return its metadata.

    Raises CodecError if the function raises an exception or does not return a dict.
    """
    subject = f"HORSIES['METADATA'] {path!r}"
    try:
        found = import_string(path)()
    except Exception as error:
        raise CodecError(f"it raised {type(error).__name__}: {error}", subject=subject) from error

    if found is None or isinstance(found, Mapping):
        return found or {}
    raise CodecError(f"it returned {type(found).__name__} instead of a dict", subject=subject)


class SendOptions(NamedTuple):
    """The options of a send. An option that is None is that of the task."""

    queue: str | None = None
    priority: int | None = None
    good_until: dt.datetime | dt.timedelta | None = None
    retry_policy: RetryPolicy | None = None
    timeout_ms: int | dt.timedelta | None = None
    delay: When | None = None
    metadata: Mapping[str, Any] | None = None
    keep_result: bool | dt.timedelta | None = None
    key: str | None = None


def send_error(
    message: str, code: TaskSendErrorCode = TaskSendErrorCode.VALIDATION_FAILED
) -> TaskSendError:
    return TaskSendError(code, message)


def too_large(text: str) -> str | None:
    """Return the size of a JSON text and the limit of the settings, as a part of a sentence.

    Return None if the text is not too large.
    """
    limit = config().max_payload_bytes
    # No character takes more than four bytes, so a short text need not be encoded.
    if len(text) <= limit // 4 or (size := len(text.encode())) <= limit:
        return None
    return f"{size:,} bytes of JSON; HORSIES['MAX_PAYLOAD_BYTES'] allows {limit:,}"


def prepare_send(task: TaskDefinition, options: SendOptions, when: When | None) -> NewTasks:
    """Validate the options of a send, and return NewTasks without calls.

    Raises TaskSendError if an option is invalid.
    """
    conf = config()
    queue = options.queue or task.queue or "default"
    if queue not in conf.queues:
        raise send_error(
            f"{task.name}: queue {queue[:100]!r} is not declared. HORSIES['QUEUES'] has: "
            f"{', '.join(sorted(conf.queues))}"
        )

    priority = task.priority if options.priority is None else options.priority
    if problem := priority_problem(priority, task.lowest_priority):
        raise send_error(f"{task.name}: {problem}")

    later = when is not None or options.delay is not None
    if conf.queues[queue].ordered and (later or priority != task.usual_priority):
        problem = (
            f"remove the priority {priority}, or send the task to another queue. The queue itself "
            "may have a priority"
        )
        if later:
            problem = (
                "a task that is due later would block the others. Send it when it is due, or to "
                "another queue"
            )

        raise send_error(
            f"{task.name}: the queue {queue!r} is ordered, so its tasks run in the order in which "
            f"they were sent: {problem}"
        )

    policy = task.retry_policy if options.retry_policy is None else options.retry_policy
    timeout = task.timeout_ms if options.timeout_ms is None else options.timeout_ms
    keep = task.keep_result if options.keep_result is None else options.keep_result
    if problem := policy_problem(policy) or timeout_problem(timeout) or keep_problem(keep):
        raise send_error(f"{task.name}: {problem}")

    if when is not None and options.delay is not None:
        raise send_error(
            f"{task.name}: the time is given twice, as with_options(delay=...) and schedule(when): "
            "remove one"
        )
    if options.key is not None and (problem := text_problem("key", options.key)):
        raise send_error(f"{task.name}: {problem}")

    delay, due_at = (
        delay_and_time(task, "when", when)
        if options.delay is None
        else delay_and_time(task, "delay", options.delay)
    )
    good_until, good_for = deadline(task, options.good_until)
    if could_never_run(delay, good_for) or could_never_run(due_at, good_until):
        problem = NEVER_RUNS.format(good_until=good_until or good_for, due=due_at or delay)
        raise send_error(f"{task.name}: {problem}")

    text = options_text(
        policy, milliseconds(timeout), keep_result=keep, plain=task.codec is not None
    )
    stored = with_metadata(text, metadata_of(task.name, options.metadata))

    return NewTasks(
        task.name,
        queue,
        task.lane,
        priority,
        [],
        [],
        delay,
        due_at,
        good_until,
        0 if policy is None else policy.max_retries,
        stored,
        good_for,
        simulated_now.get(),
        task.codec,
    )


def delay_and_time(
    task: TaskDefinition, name: str, when: When | None
) -> tuple[dt.timedelta | None, dt.datetime | None]:
    """Return the delay and the datetime of ``when``, one of which is None.

    Return None for both if ``when`` is None. ``name`` is the name of the option in messages. Raises
    TaskSendError if ``when`` is invalid.
    """
    if when is None:
        return None, None
    if isinstance(when, dt.datetime):
        refuse_naive(task, name, when)
        return None, when

    if isinstance(when, int | float) and not isinstance(when, bool):
        try:
            when = dt.timedelta(seconds=when)
        except (OverflowError, ValueError) as error:
            raise send_error(
                f"{task.name}: {name}={when!r} is not a valid number of seconds"
            ) from error

    if not isinstance(when, dt.timedelta):
        raise send_error(
            f"{task.name}: {name} must be seconds, a timedelta or an aware datetime, not "
            f"{type(when).__name__}"
        )
    if not dt.timedelta(0) <= when <= LONGEST_DELAY:
        raise send_error(
            f"{task.name}: {name}={when!s} must be from 0 seconds to 100 years in the future"
        )

    return when, None


def deadline(
    task: TaskDefinition, good_until: dt.datetime | dt.timedelta | None
) -> tuple[dt.datetime | None, dt.timedelta | None]:
    """Return the datetime of a deadline and the time until the deadline, one of which is None.

    Return None for both if there is no deadline. Raises TaskSendError if it is invalid.
    """
    if not isinstance(good_until, dt.timedelta):
        if good_until is not None:
            refuse_naive(task, "good_until", good_until)
        return good_until, None

    if not dt.timedelta(0) < good_until <= LONGEST_DELAY:
        raise send_error(
            f"{task.name}: good_until={good_until!s} must be more than 0 seconds and at most 100 "
            "years from now"
        )
    return None, good_until


def refuse_late(new: NewTasks) -> None:
    """Raise TaskSendError if tasks that are sent now could not run before their ``good_until``."""
    if new.good_until is None and (new.good_for is None or new.due_at is None):
        return

    now = new.now or dt.datetime.now(dt.UTC)
    end = new.good_until or now + (new.good_for or LONGEST_DELAY)
    due_at = new.due_at or now + (new.delay or dt.timedelta(0))

    if end <= now:
        raise send_error(
            f"{new.task_name}: good_until={end.isoformat()} is in the past: the task could never "
            "run"
        )
    if end <= due_at:
        problem = NEVER_RUNS.format(good_until=new.good_until or new.good_for, due=due_at)
        raise send_error(f"{new.task_name}: {problem}")


def could_never_run(due: T | None, end: T | None) -> bool:
    """Return whether a task with this due time and this end could never run.

    Return False if one of them is None.
    """
    return due is not None and end is not None and end <= due


def refuse_naive(task: TaskDefinition, name: str, value: object) -> None:
    """Raise TaskSendError unless ``value`` is an aware datetime between the years 3 and 9998."""
    if not isinstance(value, dt.datetime):
        kind = "an aware datetime or a timedelta" if name == "good_until" else "an aware datetime"
        raise send_error(f"{task.name}: {name} must be {kind}, not {type(value).__name__}")

    if value.utcoffset() is None:
        raise send_error(
            f"{task.name}: {name}={value.isoformat()} has no time zone, so it is ambiguous. "
            "Pass an aware datetime, such as timezone.now() of django.utils with USE_TZ"
        )
    if not 2 < value.year < 9999:
        raise send_error(
            f"{task.name}: {name}={value.isoformat()} is not between the years 3 and 9998"
        )
