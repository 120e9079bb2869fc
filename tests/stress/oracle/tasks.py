"""The tasks of the storm: they note that they run, and take their time."""

from __future__ import annotations

import asyncio
import time

from horsies_django import task
from tests.stress.oracle.notes import noted, seen_version


@task(name="work")
def work(number: int, queue: str, tenant: str, ms: float) -> None:
    with noted("work", number, queue, tenant):
        time.sleep(ms / 1000)


@task(name="awork")
async def awork(number: int, queue: str, tenant: str, ms: float) -> None:
    with noted("awork", number, queue, tenant):
        await asyncio.sleep(ms / 1000)


@task(name="rebuild", queue="same")
def rebuild(page: int) -> int:
    """Return the version of a page that this run saw."""
    return seen_version(page)


@task(name="single", unique=True)
def single(page: int) -> int:
    return seen_version(page)
