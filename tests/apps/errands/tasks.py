"""Tasks of ``django.tasks`` as in any app, and tasks of ``backends`` that are tried again."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection

from horsies_django import Retry, Snooze, backends
from tests.apps.errands.api import task

CALLS: list[Any] = []  # the calls in this process


@task
def add(a, b=0):  # type: ignore[no-untyped-def]
    return a + b


@task()
def note(*args, **kwargs):  # type: ignore[no-untyped-def]
    CALLS.append((args, kwargs))


@task()
async def later(n):  # type: ignore[no-untyped-def]
    await Group.objects.acount()
    return n + 1


@task(takes_context=True)
def which(context, wanted="id"):  # type: ignore[no-untyped-def]
    return str(getattr(context.task_result, wanted)) if wanted != "attempt" else context.attempt


@task(takes_context=True)
def refreshes(context):  # type: ignore[no-untyped-def]
    context.task_result.refresh()
    return [str(context.task_result.status), context.attempt]


@task(takes_context=True)
async def which_async(context):  # type: ignore[no-untyped-def]
    result = context.task_result
    return [result.id, context.attempt, str(result.enqueued_at), result.backend]


@task()
def fails(kind="ValueError", message="no"):  # type: ignore[no-untyped-def]
    raise {"ValueError": ValueError, "KeyError": KeyError, "SystemExit": SystemExit}[kind](message)


@task()
async def fails_async():  # type: ignore[no-untyped-def]
    raise ValueError("no, later")


@task()
def interrupted():  # type: ignore[no-untyped-def]
    raise KeyboardInterrupt


@task()
def returns(what):  # type: ignore[no-untyped-def]
    return {"function": add.func, "nan": float("nan"), "nul": "a\x00b", "tuple": (1, b"two")}[what]


@task()
def sleeps():  # type: ignore[no-untyped-def]
    time.sleep(60)


@task(priority=30, queue_name="mail")
def mails(who):  # type: ignore[no-untyped-def]
    return f"mailed {who}"


@task()
def breaks_transaction():  # type: ignore[no-untyped-def]
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")


@backends.task(max_attempts=3, backoff=0, retry_on=[ValueError])
def tried(times: int, kind: str = "ValueError") -> int:
    """Fail ``times`` times in this process, then return the number of calls."""
    CALLS.append(kind)
    if len(CALLS) <= times:
        raise {"ValueError": ValueError, "KeyError": KeyError}[kind](f"call {len(CALLS)}")
    return len(CALLS)


@backends.task
def rests(times: int) -> int:
    """Snooze ``times`` times in this process, then return the number of calls."""
    CALLS.append("rests")
    if len(CALLS) <= times:
        raise Snooze(60)
    return len(CALLS)


@backends.task(max_attempts=2, backoff=[90])
def waits(message: str) -> None:
    raise ValueError(message)


@backends.task(max_attempts=2)
def asks() -> None:
    raise Retry("once more", delay_seconds=0)


def pause(error: BaseException, result: Any) -> float | None:
    """Return the seconds until the next attempt, which depend on the message of the error."""
    CALLS.append(
        (type(error).__name__, result.attempts, [one.exception_class_path for one in result.errors])
    )
    said = str(error)
    if said == "broken":
        raise LookupError("the function is broken")
    return {"never": None, "text": "soon"}.get(said, 30.0)  # type: ignore[return-value]


@backends.task(max_attempts=3, backoff=pause)
def paused(message: str) -> None:
    raise ValueError(message)
