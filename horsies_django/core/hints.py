"""What other task queues call things that are called otherwise here: errors about such names say what to use.

Only at runtime: types know nothing of these names, so that a type checker refuses them where they are written.
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
CRASHES = "leave it out: the retry_policy says whether a task is tried again after a crash, by WORKER_CRASHED"
STORED = "leave it out: every result is stored, and deleted after the times of HORSIES['RETENTION']"
TIMEOUT = "use timeout_ms="
SENT = "use send(...), which is part of the transaction that is open: the task exists once that commits"

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
    "apply": "call the task as the function that it is",
    "call_local": "call the task as the function that it is",
    "run": "call the task as the function that it is",
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
    "bind": "leave it out: inside the task, current_task() tells its id and attempt, and 'raise Retry(...)' has it tried again",
    "takes_context": "leave it out: inside the task, current_task() tells its id and attempt",
    "rate_limit": "there is no limit per time; HORSIES['QUEUES'] bounds how many run at once, by max_concurrency",
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
    "good_until": "use it at the send, with_options(good_until=...)",
    "time_limit": TIMEOUT,
    "soft_time_limit": TIMEOUT,
    "timeout": TIMEOUT,
    "ignore_result": STORED,
    "store_errors_even_if_ignored": STORED,
    "acks_late": CRASHES,
    "acks_on_failure_or_timeout": CRASHES,
    "reject_on_worker_lost": CRASHES,
    "track_started": "leave it out: the status RUNNING and started_at are always written",
    "serializer": "leave it out: arguments and results travel as JSON, by their annotations",
    "throws": "use exception_mapper={SomeError: 'SOME_CODE'}",
    "queue_name": "use queue=",
    "routing_key": "use queue=",
    "crontab": "use schedule='0 3 * * *'",
}


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error of an attribute that there is not."""
    hint = f": {VERBS[name]}" if name in VERBS else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def explains_options(function: F) -> F:
    """Have unknown keywords of a function refused with what to use instead. Its signature stays what it is."""
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
