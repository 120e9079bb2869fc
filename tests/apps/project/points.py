"""Tasks that stop at their first line, at their last line, or for good, as a test needs it."""

from __future__ import annotations

import asyncio
import os
import time

from horsies_django import task
from tests.apps.project.tasks import SOON


@task
def walks(path: str) -> int:
    """Write "began" and wait for "<path>.go"; write "ended", wait for "<path>.out" and return.

    It needs no database.
    """
    for line, gate in (("began", "go"), ("ended", "out")):
        with open(path, "a") as file:
            print(line, os.getpid(), file=file, flush=True)
        while not os.path.exists(f"{path}.{gate}"):
            time.sleep(0.01)

    return os.getpid()


@task(retry_policy=SOON)
def walks_again(path: str) -> int:
    """Run as ``walks`` does, in a task that may be run twice."""
    return int(walks(path))


@task
async def stays() -> None:
    """Run for as long as the worker lives, at no cost."""
    await asyncio.sleep(86_400)
