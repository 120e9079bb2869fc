"""Tasks and workflows of that site, and what a site of the last release sends."""

from __future__ import annotations

import datetime as dt
import os
import threading
from typing import Any

from horsies_django import RetryPolicy, Workflow, current_task, task


@task(queue="former")
def add(a: int, b: int) -> int:
    return a + b


@task(queue="former")
def fails(number: int) -> int:
    if os.environ.get("REPAIRED"):
        return number
    raise LookupError(f"no {number}")


@task(queue="former", retry_policy=RetryPolicy.fixed([1, 1, 1]))
def hangs(number: int) -> int:
    """Wait for its end in the workers of the last release; its policy repeats it after a crash."""
    if not os.environ.get("REPAIRED"):
        threading.Event().wait()
    return number


def summed(a: int, b: int) -> int:
    return a + b


@task(queue="former", retry_policy=RetryPolicy.fixed([30, 1, 1]))
def steps() -> list[int]:
    """Take a step, and one more where the code was repaired."""
    first = current_task().step("first", summed, 1, 1)
    if not os.environ.get("REPAIRED"):
        raise LookupError("no second step yet")
    return [first, current_task().step("second", summed, first, 1)]


@task(queue="tenants")
def of_tenant(tenant: str) -> str:
    return tenant


@task(queue="latter")
def double(n: int) -> int:
    return 2 * n


@task(queue="former")
def total(values: list[int]) -> int:
    return sum(values)


@task(queue="former")
def undoes(result: int | None, a: int, b: int) -> None: ...


def rally(start: int) -> Workflow[Any]:
    """Return a run whose tasks change queues, with a map and a wait."""
    flow = Workflow[Any]("rally")
    first = flow.add(double, start)
    second = flow.add(add, first, 1, undo=undoes)
    pause = flow.sleep(dt.timedelta(milliseconds=100), after=second)
    each = flow.map(double, n=[1, 2, 3], after=pause)

    flow.output = flow.add(total, each)
    return flow


def asking(name: str) -> Workflow[Any]:
    """Return a run that waits for a message and for a person."""
    flow = Workflow[Any](name)
    told = flow.signal("told", after=flow.add(add, 1, 2), annotation=int)
    gate = flow.gate("agreed", after=told)
    flow.output = flow.add(double, told, after=gate)
    return flow
