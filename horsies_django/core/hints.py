"""Hints for names from other task queues: errors about them say what to use instead.

The hints exist only at run time. They are not part of any type, so that type checkers report such names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

RETRIES = "use retry_policy=RetryPolicy.exponential(base_seconds=..., max_retries=..., auto_retry_for=[...])"
LATER = "use delay= of with_options(...), or schedule(when, ...), at the send"
CRASHES = "leave it out: the retry_policy decides whether a task is retried after a crash (WORKER_CRASHED)"
UNSTORED = "use keep_result=False; errors are always stored"
STORED_FOR = "use keep_result=timedelta(...); without it, HORSIES['RETENTION'] says when rows are deleted"
TIMEOUT = "use timeout_ms="
SENT = "use send(...), which is part of the open transaction: the task exists once it commits"

VERBS = {
    "delay": "use send(...)",
    "apply_async": "use send(...), with_options(queue=..., priority=..., delay=...).send(...) or schedule(when, ...)",
    "delay_on_commit": SENT,
    "apply_async_on_commit": SENT,
    "enqueue": "use send(...)",
    "aenqueue": "use asend(...)",
    "defer": "use send(...)",
    "defer_async": "use asend(...)",
    "send_with_options": "use with_options(...).send(...)",
    "using": "use with_options(...)",
    "configure": "use with_options(...)",
    "apply": "call the task like a function",
    "call_local": "call the task like a function",
    "run": "call the task like a function",
    "map": "use send_many([{...}, ...])",
    "starmap": "use send_many([{...}, ...])",
    "chunks": "use send_many([{...}, ...])",
    "s": "there are no signatures: send(...) takes the arguments",
    "si": "there are no signatures: send(...) takes the arguments",
    "signature": "there are no signatures: send(...) takes the arguments",
    "retry": "raise Retry(delay_seconds=...) inside the task",
    "request": "use current_task() inside the task",
    "AsyncResult": "use handle(task_id)",
    "get_result": "use handle(task_id)",
}
OPTIONS = {
    "base": "wrap the function in a decorator of your own below @task, for what the methods of the class did around each run",
    "bind": "leave it out: inside the task, current_task() has its id and attempt, and 'raise Retry(...)' retries it",
    "takes_context": "leave it out: inside the task, current_task() has its id and attempt",
    "rate_limit": "there are no rate limits; max_concurrency in HORSIES['QUEUES'] limits how many tasks run at once",
    "max_retries": RETRIES,
    "retries": RETRIES,
    "retry": RETRIES,
    "autoretry_for": RETRIES,
    "default_retry_delay": RETRIES,
    "retry_delay": RETRIES,
    "retry_kwargs": RETRIES,
    "retry_backoff": RETRIES,
    "retry_backoff_max": RETRIES,
    "retry_jitter": RETRIES,
    "retry_when": RETRIES,
    "countdown": LATER,
    "eta": LATER,
    "delay": LATER,
    "run_after": LATER,
    "expires": "use good_until= of with_options(...), at the send",
    "metadata": "use it at the send, with_options(metadata=...)",
    "headers": "use metadata= of with_options(...), at the send; inside the task, current_task().metadata has it",
    "good_until": "use it at the send, with_options(good_until=...)",
    "time_limit": TIMEOUT,
    "soft_time_limit": TIMEOUT,
    "timeout": TIMEOUT,
    "ignore_result": UNSTORED,
    "store_errors_even_if_ignored": UNSTORED,
    "result_ttl": STORED_FOR,
    "result_expires": STORED_FOR,
    "acks_late": CRASHES,
    "acks_on_failure_or_timeout": CRASHES,
    "reject_on_worker_lost": CRASHES,
    "track_started": "leave it out: RUNNING and started_at are always recorded",
    "serializer": "leave it out: arguments and results are stored as JSON, by their annotations",
    "throws": "use exception_mapper={SomeError: 'SOME_CODE'}",
    "queue_name": "use queue=",
    "routing_key": "use queue=",
    "crontab": "use schedule='0 3 * * *'",
}


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the AttributeError for a missing attribute, with a hint if there is one."""
    hint = f": {VERBS[name]}" if name in VERBS else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def explains_options(function: F) -> F:
    """Make a function raise TypeError with a hint for unknown keywords. Its signature is unchanged."""
    known = [name for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f": {OPTIONS[name]}" if name in OPTIONS else f": did you mean {near[0]}=?" if near else ""
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*args, **options)

    return cast(F, checked)
