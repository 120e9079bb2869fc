"""Tasks for workflows, which ``tasks.py`` imports so that workers find them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from horsies_django import (
    Results,
    RetryPolicy,
    Skip,
    TaskError,
    TaskResult,
    Workflow,
    WorkflowError,
    current_task,
    task,
)
from tests.stress.chaos.notes import noted


@task
def number(n: int) -> int:
    return n


@task
def numbers(n: int) -> list[int]:
    return list(range(n))


@task
def adds_a_gate(name: str) -> None:
    current_task().workflow.gate(name)


@task
def plus(a: int, b: int = 1) -> int:
    return a + b


@task
def total(values: Results[int]) -> int:
    return sum(values)


@task
def total_list(values: list[int]) -> int:
    return sum(values)


@task
def broken(n: int = 0) -> int:
    raise ValueError(f"broken {n}")


@task
def odd_fails(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


@task
def skips() -> int:
    raise Skip("not today")


@task
def describe(result: TaskResult[int]) -> str:
    return f"ok {result.ok_value}" if result.is_ok() else f"err {result.err_value.error_code}"


@task
def page(language: str, pages: int) -> dict[str, str | int]:
    return {"language": language, "pages": pages}


@task
def planned(when: str, name: str = "nobody") -> str:
    return f"{when} {name}"


@task
def grows(n: int) -> int:
    for place in range(n):
        current_task().workflow.add(number, place)
    return n


@task
def anything(value: Any) -> Any:
    return value


@task
def lengths(values: list[str]) -> int:
    return sum(map(len, values))


@task
async def grows_async(n: int) -> int:
    first = await current_task().workflow.aadd(number, n, name="first")
    mapped = await current_task().workflow.amap(plus, a=[1, 2], b=n)
    await current_task().workflow.aadd(total, mapped, after=first, name="sum")
    return n


@task
async def total_async(values: Results[int]) -> int:
    return sum([value async for value in values])


@task(retry_policy=RetryPolicy.fixed([0] * 9, jitter=False))
def grows_anew(what: str, many: int = 1) -> int:
    """Add a node in each of two attempts; ``what`` names the difference between the nodes.

    With "same", only metadata and times differ, which does not matter.
    """
    flow = current_task().workflow
    attempt = current_task().attempt
    inner = Workflow("inner", good_until=dt.datetime.now(dt.UTC) + dt.timedelta(hours=attempt))
    inner.add(number.with_options(metadata={"attempt": attempt}), attempt if what == "graph" else 0)
    first = flow.add(number.with_options(metadata={"attempt": attempt}), 7, name="first")

    adds: dict[str, Callable[[], Any]] = {
        "same": lambda: flow.add(plus, first, name="node"),
        "graph": lambda: flow.add(inner, name="node"),
        "argument": lambda: [
            flow.add(number, attempt, name=f"node {place}") for place in range(many)
        ],
        "task": lambda: flow.add([number, plus][attempt % 2], 1, name="node"),
        "input": lambda: flow.add(plus, first if attempt == 1 else 7, name="node"),
        "list": lambda: flow.map(number, n=[attempt], name="node"),
        "key": lambda: flow.signal(
            "paid", key=str(attempt), timeout=0, on_timeout="complete", name="node"
        ),
    }

    adds[what]()
    if what == "same":
        flow.add(inner, name="inner")
        flow.until(dt.datetime.now(dt.UTC), name="until")

    if attempt == 1:
        raise ValueError("once more")
    return attempt


@task
def adds_a_run() -> None:
    inner = Workflow("inner")
    inner.add(number, 1)
    current_task().workflow.add(inner)


@task
def grows_alone() -> str:
    try:
        current_task().workflow.add(number, 1)
    except WorkflowError as error:
        return str(error)
    return "added"


@task
def act(value: Any = None) -> Any:
    return value


@task(retry_policy=RetryPolicy.fixed([0] * 100, jitter=False))
def fated(
    value: Any = None,
    *,
    fate: str = "COMPLETED",
    result: Any = None,
    fails_on: Any = None,
    adds: int = 0,
) -> TaskResult[Any]:
    """Note that it runs, add nodes, and end as ``fate`` demands.

    In a map, the element ``fails_on`` fails, and the others return themselves with the fate
    ELEMENT.
    """
    with noted():
        for place in range(adds):
            current_task().workflow.add(fated, name=f"added {place}")

        if fate == "SKIPPED":
            raise Skip("told to")
        if fate == "FAILED" or (fails_on is not None and value == fails_on):
            return TaskResult(err=TaskError("BROKEN", "told to"))
        return TaskResult(ok=value if fate == "ELEMENT" else result)


@task
def odd_skips(n: int) -> int:
    if n % 2:
        raise Skip(f"{n} is odd")
    return n


@task
def charge(amount: int, customer: str = "") -> int:
    return 1000 + amount


@task
def refund(result: int | None, amount: int = 0) -> int:
    return result or 0


@task
def note_undo() -> None: ...


@task
def unact(value: Any = None, result: Any = None) -> Any:
    """Undo ``act`` and return the argument that the undo got."""
    return value


@task
def strict_refund(result: int) -> None: ...


@task
def refund_customer(customer: str) -> None: ...


@task
def broken_undo() -> None:
    raise ValueError("not today")


def loop(place: int, until: int, key: str | None = None) -> Workflow:
    """Return a workflow that continues as itself until ``place`` is equal to ``until``."""
    flow = Workflow("loop", key=key)
    flow.returns(flow.add(next_round, place, until))
    return flow


@task
def next_round(place: int, until: int) -> int:
    if place < until:
        current_task().workflow.continue_as(loop(place + 1, until))
    return place


@task
async def next_round_async(place: int) -> int:
    if place:
        flow = Workflow("async loop")
        flow.returns(flow.add(next_round_async, place - 1))
        await current_task().workflow.acontinue_as(flow)
    return place


@task
def announced(gate: str) -> str:
    return gate
