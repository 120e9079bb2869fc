"""Tasks that do nothing, or say when they began."""

from __future__ import annotations

import time

from horsies_django import task


@task
def noop(n: int) -> None:
    pass


@task
async def anoop(n: int) -> None:
    pass


@task
def moment() -> float:
    """Return the time at which user code began, by the machine's clock."""
    return time.time()
