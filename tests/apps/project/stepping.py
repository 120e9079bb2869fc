"""Tasks with durable steps; ``tasks.py`` imports them.

Their rows are in a table that a test creates: no row excludes another.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from django.db import connection

from horsies_django import RetryPolicy, StaleAttempt, current_task, task
from tests.apps.project.tasks import SOON

TABLE = "CREATE TABLE step_rows (task uuid, step text, attempt int, process int)"
OFTEN = RetryPolicy.fixed([0] * 10, jitter=False)


@dataclass
class Charge:
    """A result with a type of its own."""

    amount: int
    process: int


def write(step: str) -> int:
    """Write a row about a step, and return the process that did."""
    current = current_task()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO step_rows VALUES (%s, %s, %s, %s)",
            [current.task_id, step, current.attempt, os.getpid()],
        )
    return os.getpid()


def stop_at(path: str, place: str) -> None:
    """Write down that it is there, and wait until that gate is open. A cancelled task ends here."""
    note(path, place)
    while not os.path.exists(f"{path}.{place}"):
        current_task().raise_if_cancelled()
        time.sleep(0.01)


def note(path: str, place: str) -> None:
    """Write down that it is there."""
    with open(path, "a") as file:
        print(place, os.getpid(), file=file, flush=True)


def write_at_gates(path: str) -> int:
    """Write a row between two gates."""
    stop_at(path, "begun")
    process = write("gates")
    stop_at(path, "written")
    return process


@task(retry_policy=SOON)
def steps_at_gates(path: str, atomic: bool = True) -> int:
    """Stop before a step, twice in it, and after it; return the process that ran the step."""
    stop_at(path, "before")

    try:
        process = current_task().step("gates", write_at_gates, path, atomic=atomic)
    except StaleAttempt:
        note(path, "stale")
        raise

    stop_at(path, "after")
    return process


@task(retry_policy=OFTEN)
def steps(fails: int = 0) -> list[Charge]:
    """Take three steps; some attempts fail behind the second one."""
    current = current_task()
    found = [current.step(f"charge {n}", charge, n) for n in range(2)]
    if current.attempt <= fails:
        raise ConnectionError("not yet")
    return [*found, current.step("last", charge, amount=2)]


def charge(amount: int) -> Charge:
    """Write a row; return a value that is not plain JSON."""
    return Charge(amount, write(f"charge {amount}"))


@task(retry_policy=OFTEN)
async def asteps(fails: int = 0) -> list[int]:
    """Take a step in a transaction, and one outside of any."""
    current = current_task()
    inside = await current.astep("inside", write, "inside")
    outside = await current.astep("outside", call_outside, "outside", atomic=False)

    if current.attempt <= fails:
        raise ConnectionError("not yet")

    return [inside, outside, current.attempt]


async def call_outside(step: str) -> int:
    """Call somebody outside."""
    await asyncio.sleep(0)
    return current_task().attempt


STORMY = RetryPolicy.exponential(base_seconds=0.1, max_delay_seconds=0.1, max_retries=100)


def write_slowly(step: str, milliseconds: float) -> int:
    """Write a row, and keep its transaction open for a while."""
    process = write(step)
    time.sleep(milliseconds / 1_000)
    return process


@task(retry_policy=STORMY)
def ten_steps(milliseconds: float, notes: str) -> list[int]:
    """Take ten steps; return the processes that ran them.

    An attempt that was given up writes that down.
    """
    try:
        return [current_task().step(str(n), write_slowly, str(n), milliseconds) for n in range(10)]
    except StaleAttempt:
        note(notes, "stale")
        raise


@task(retry_policy=STORMY)
async def aten_steps(milliseconds: float, notes: str) -> list[int]:
    """Do the same in async code."""
    try:
        return [
            await current_task().astep(str(n), write_slowly, str(n), milliseconds)
            for n in range(10)
        ]
    except StaleAttempt:
        note(notes, "stale")
        raise
