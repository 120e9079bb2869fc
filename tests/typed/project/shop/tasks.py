"""Tasks of all kinds, and what a function must not be given as options."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, assert_type

from horsies_django import Results, Retry, RetryPolicy, Skip, TaskError, TaskResult, task
from horsies_django.schedules import Daily

POLICY = RetryPolicy.fixed([1, 60.5], auto_retry_for=[OSError, "MAIL_DOWN"])


@dataclass
class Line:
    sku: str
    count: int = 1


@task
def add(a: int, *, b: int = 0) -> int:
    return a + b


@task(
    queue="mail",
    priority=10,
    retry_policy=POLICY,
    timeout_ms=timedelta(seconds=5),
    name="shop.mail",
)
async def mail(to: str) -> TaskResult[str]:
    if not to:
        return TaskResult(err=TaskError("NO_ADDRESS", "there is no address", data={"to": to}))
    return TaskResult(ok=to)


@task(schedule=Daily("04:30"))
def count(day: date | None = None) -> TaskResult[int]:
    if day is None:
        raise Skip("nothing to count")
    return TaskResult(ok=day.day)


@task(schedule="every 15 minutes", exception_mapper={OSError: "NO_NETWORK"})
async def rates(currencies: list[str]) -> dict[str, int]:
    if not currencies:
        raise Retry("not there yet", delay_seconds=30, code="NO_RATES")
    return dict.fromkeys(currencies, 1)


@task
def price(line: Line, rates: dict[str, int]) -> int:
    return line.count * rates[line.sku]


@task
def total(prices: list[int]) -> int:
    return sum(prices)


@task
def largest(prices: Results[int]) -> int:
    return max(prices)


@task
def clean() -> None: ...


@task
def anything(number: int) -> Any:
    return number


async def called() -> None:
    """A direct call is a call of the function."""
    assert_type(add(1, b=2), int)
    assert_type(count(), TaskResult[int])
    assert_type(await rates(["EUR"]), dict[str, int])
    assert_type(anything(1), Any)
    add("1")  # error: arg-type reportArgumentType
    add(1, c=2)  # error: call-arg reportCallIssue


def options() -> None:
    task(bind=True)  # error: call-overload reportCallIssue
    task(retry_policy=3)  # error: call-overload reportArgumentType
    RetryPolicy.fixed([1], auto_retry_for=[int])  # error: list-item reportArgumentType
    Retry("later", delay=30)  # error: call-arg reportCallIssue


@task
def broken(number: int) -> TaskResult[str]:
    return TaskResult(ok=number)  # error: arg-type reportReturnType
