"""Tasks for workflows; ``tasks.py`` imports them, so that workers know them."""

from __future__ import annotations

from typing import Any

from horsies_django import Results, RetryPolicy, Skip, TaskError, TaskResult, WorkflowError, current_task, task
from tests.stress.chaos.notes import noted


@task
def number(n: int) -> int:
    return n


@task
def numbers(n: int) -> list[int]:
    return list(range(n))


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
def lazy_lengths(values: Results[str]) -> int:
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


@task(retry_policy=RetryPolicy.fixed([0]))
def grows_and_fails(n: int) -> int:
    node = current_task().workflow.add(number, n)
    current_task().workflow.add(plus, node)
    if current_task().attempt == 1:
        raise ValueError("once more")
    return n


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
    value: Any = None, *, fate: str = "COMPLETED", result: Any = None, fails_on: Any = None, adds: int = 0
) -> TaskResult[Any]:
    """Note that it runs, add nodes, and end as it is told; in a map, one element may fail and the others give themselves."""
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
def announced(gate: str) -> str:
    return gate
