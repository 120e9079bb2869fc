"""Tasks that do nothing, pass a value on, send the next one, wait, or return their start."""

from __future__ import annotations

import asyncio
import time

from django.contrib.auth.models import User

from horsies_django import task


@task
def noop(n: int) -> None:
    pass


@task
async def anoop(n: int) -> None:
    pass


@task
def same(n: int) -> int:
    return n


@task
def users(n: int) -> int:
    """Query the database through Django's ORM."""
    return User.objects.count()


@task
def total(values: list[int]) -> int:
    return sum(values)


@task
def relay(left: int) -> None:
    """Send the next task, until none is left."""
    if left:
        relay.send(left - 1)


@task
async def anoop_of(tenant: int, ms: int) -> None:
    pass


@task
def pause(tenant: int, ms: int) -> None:
    time.sleep(ms / 1000)


@task
async def apause(tenant: int, ms: int) -> None:
    await asyncio.sleep(ms / 1000)


@task
def moment() -> float:
    """Return the time at which user code began, by the machine's clock."""
    return time.time()


@task
def moment_of(tenant: int) -> float:
    """Return the time at which user code began, for a task in a partition."""
    return time.time()


@task
def stay(ms: int) -> float:
    """Return the time at which user code began, after ``ms`` milliseconds."""
    began = time.time()
    time.sleep(ms / 1000)
    return began
