"""Plain functions as in ``django.tasks``: without types, called by position.

The fixture ``plain_tasks`` registers them.
"""

from __future__ import annotations

from typing import Any

from horsies_django import TaskResult, current_task
from horsies_django.core.retry import RetryPolicy
from horsies_django.tasks.definition import TaskDefinition, define, define_plain

RAN: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def note(*args, **kwargs):  # type: ignore[no-untyped-def]
    RAN.append(("note", args, kwargs))
    return {"args": args, "kwargs": kwargs}


def greet(name, greeting="hello", *, loud=False):  # type: ignore[no-untyped-def]
    RAN.append(("greet", (name, greeting), {"loud": loud}))
    return f"{greeting} {name}{'!' if loud else ''}"


def at(x, y=0, /, scale=1):  # type: ignore[no-untyped-def]
    return [x * scale, y * scale]


def double(n):  # type: ignore[no-untyped-def]
    RAN.append(("double", (n,), {}))
    return 2 * n


def listed(items):  # type: ignore[no-untyped-def]
    return list(items)


def halve(n, result, comment="undone"):  # type: ignore[no-untyped-def]
    RAN.append(("halve", (n, result), {"comment": comment}))


def tell(gate):  # type: ignore[no-untyped-def]
    RAN.append(("tell", (gate,), {}))


def grows(n):  # type: ignore[no-untyped-def]
    current_task().workflow.add(f"{__name__}.double", n, name="added")


def breaks(message="no"):  # type: ignore[no-untyped-def]
    raise ValueError(message)


def odd():  # type: ignore[no-untyped-def]
    return object()


async def later(n):  # type: ignore[no-untyped-def]
    return n + 1


def typed_undo(n: int, result: int | None) -> None:
    RAN.append(("typed_undo", (n, result), {}))


def outcome(result: TaskResult[int]) -> str:
    return "ok" if result.is_ok() else result.err_value.error_code


TASKS: dict[str, TaskDefinition] = {
    function.__name__: define_plain(function)
    for function in (note, greet, at, double, listed, halve, tell, grows, odd, later)
}
TASKS["breaks"] = define_plain(
    breaks, retry_policy=RetryPolicy.fixed([0], auto_retry_for=["UNHANDLED_ERROR"], jitter=False)
)
TASKS |= {function.__name__: define(function) for function in (typed_undo, outcome)}
