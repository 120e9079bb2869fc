"""The tasks made for being killed: one that is not tried again, and one that is."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid

from example_project.demo.models import Hold
from horsies_django import RetryPolicy, current_task, task

HOLD_SECONDS = 60


# Its queue is served first and its priority is the first of that queue: it starts as soon as a
# child is free.
@task(queue="imports", priority=1)
def hold(token: uuid.UUID) -> str:
    """Say which process this is, then keep it busy until somebody kills it, or for a minute."""
    Hold.objects.create(token=token, pid=os.getpid())
    threading.Event().wait(HOLD_SECONDS)
    return "nobody killed this process"


@task(
    queue="imports",
    priority=1,
    retry_policy=RetryPolicy.fixed([0], auto_retry_for=["WORKER_CRASHED"], jitter=False),
)
async def come_back(token: uuid.UUID) -> int:
    """Say which process this is, and wait for somebody who kills it; the next attempt has nothing
    to wait for.
    """
    if current_task().attempt == 1:
        await Hold.objects.acreate(token=token, pid=os.getpid())
        await asyncio.sleep(HOLD_SECONDS)
    return current_task().attempt
