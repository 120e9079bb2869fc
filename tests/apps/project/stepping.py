"""Tasks with durable steps, which ``tasks.py`` imports.

Their rows are in a table that a test creates. It has no unique column, so that no row prevents
another one.
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
    """Write a row about a step, and return the id of this process."""
    current = current_task()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO step_rows VALUES (%s, %s, %s, %s)",
            [current.task_id, step, current.attempt, os.getpid()],
        )
    return os.getpid()


def stop_at(path: str, place: str) -> None:
    """Write the name of a place to the file, and wait until the gate of that place is open.

    A task that is cancelled ends here.
    """
    note(path, place)
    while not os.path.exists(f"{path}.{place}"):
        current_task().raise_if_cancelled()
        time.sleep(0.01)


def note(path: str, place: str) -> None:
    """Write the name of a place and the id of this process to the file."""
    with open(path, "a") as file:
        print(place, os.getpid(), file=file, flush=True)


def write_at_gates(path: str) -> int:
    """Write a row between two gates, and return the id of this process."""
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
    """Take three steps; the first ``fails`` attempts fail after the second one."""
    current = current_task()
    found = [current.step(f"charge {n}", charge, n) for n in range(2)]
    if current.attempt <= fails:
        raise ConnectionError("not yet")
    return [*found, current.step("last", charge, amount=2)]


def charge(amount: int) -> Charge:
    """Write a row, and return a value that is not plain JSON."""
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
    """Return the number of the attempt, in place of a call to another service."""
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
    """Take ten steps, and return the processes that ran them.

    An attempt writes a note if another one has replaced it.
    """
    try:
        return [current_task().step(str(n), write_slowly, str(n), milliseconds) for n in range(10)]
    except StaleAttempt:
        note(notes, "stale")
        raise


@task(retry_policy=STORMY)
async def aten_steps(milliseconds: float, notes: str) -> list[int]:
    """Take ten steps in async code, and return the processes that ran them."""
    try:
        return [
            await current_task().astep(str(n), write_slowly, str(n), milliseconds)
            for n in range(10)
        ]
    except StaleAttempt:
        note(notes, "stale")
        raise
