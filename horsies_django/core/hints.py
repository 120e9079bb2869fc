"""Hints for names from other task queues.

Errors about such names contain the name to use instead. The hints exist only at run time. They are
not part of any type, so that type checkers report such names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE_HINTS = {
    **dict.fromkeys(("delay", "enqueue", "defer"), "use send(...)"),
    **dict.fromkeys(("aenqueue", "defer_async"), "use asend(...)"),
    "apply_async": (
        "use send(...), with_options(queue=..., priority=..., delay=...).send(...) or "
        "schedule(when, ...)"
    ),
    **dict.fromkeys(
        ("delay_on_commit", "apply_async_on_commit"),
        "use send(...): the task is part of the open transaction, and exists once that commits",
    ),
    "send_with_options": "use with_options(...).send(...)",
    **dict.fromkeys(("using", "configure"), "use with_options(...)"),
    **dict.fromkeys(("apply", "call_local", "run"), "call the task like a function"),
    **dict.fromkeys(("map", "starmap", "chunks"), "use send_many([{...}, ...])"),
    **dict.fromkeys(
        ("s", "si", "signature"), "there are no signatures: send(...) takes the arguments"
    ),
    "retry": "raise Retry(delay_seconds=...) inside the task",
    "request": "use current_task() inside the task",
    **dict.fromkeys(("AsyncResult", "get_result"), "use handle(task_id)"),
}
OF_RETRIES = (
    "max_retries",
    "retries",
    "retry",
    "autoretry_for",
    "default_retry_delay",
    "retry_delay",
    "retry_kwargs",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_when",
)
OPTIONS = {
    "base": (
        "replace the methods of the class, which run around each attempt, by a decorator of your "
        "own below @task"
    ),
    "bind": (
        "remove it: inside the task, current_task() has its id and attempt, and 'raise "
        "Retry(...)' retries it"
    ),
    "takes_context": "remove it: inside the task, current_task() has its id and attempt",
    "rate_limit": (
        "there are no rate limits; max_concurrency in HORSIES['QUEUES'] limits how many tasks run "
        "at once"
    ),
    **dict.fromkeys(
        OF_RETRIES,
        "use retry_policy=RetryPolicy.exponential(base_seconds=..., max_retries=..., "
        "auto_retry_for=[...])",
    ),
    **dict.fromkeys(
        ("countdown", "eta", "delay", "run_after"),
        "use delay= of with_options(...), or schedule(when, ...), at the send",
    ),
    "expires": "use good_until= of with_options(...), at the send",
    "metadata": "pass it at the send, as with_options(metadata=...)",
    "headers": (
        "use metadata= of with_options(...), at the send; inside the task, current_task().metadata "
        "has it"
    ),
    "good_until": "pass it at the send, as with_options(good_until=...)",
    **dict.fromkeys(("time_limit", "soft_time_limit", "timeout"), "use timeout_ms="),
    **dict.fromkeys(
        ("ignore_result", "store_errors_even_if_ignored"),
        "use keep_result=False; errors are always stored",
    ),
    **dict.fromkeys(
        ("result_ttl", "result_expires"),
        "use keep_result=timedelta(...); without it, HORSIES['RETENTION'] sets when rows are "
        "deleted",
    ),
    **dict.fromkeys(
        ("acks_late", "acks_on_failure_or_timeout", "reject_on_worker_lost"),
        "remove it: the retry_policy decides whether a task is retried after a crash "
        "(WORKER_CRASHED)",
    ),
    "track_started": "remove it: RUNNING and started_at are always recorded",
    "serializer": "remove it: arguments and results are stored as JSON, by their annotations",
    "throws": "use exception_mapper={SomeError: 'SOME_CODE'}",
    **dict.fromkeys(("queue_name", "routing_key"), "use queue="),
    "crontab": "use schedule='0 3 * * *'",
}


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the AttributeError for a missing attribute, with a hint if there is one."""
    hint = f": {ATTRIBUTE_HINTS[name]}" if name in ATTRIBUTE_HINTS else ""
    return AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner
    )


def explains_options(function: F) -> F:
    """Return a form of a function that raises TypeError with a hint if a keyword is unknown.

    The signature of the function does not change.
    """
    known = [
        name
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    ]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, 1)
                if name in OPTIONS:
                    hint = f": {OPTIONS[name]}"
                else:
                    hint = f": did you mean {near[0]}=?" if near else ""

                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}"
                )

        return function(*args, **options)

    return cast(F, checked)
