"""The tasks that the demo kills: one that is not tried again, and one that is."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid

from example_project.demo.models import Hold
from horsies_django import RetryPolicy, current_task, task

HOLD_SECONDS = 60


# Its queue is served first, and its priority is the first one of that queue, so that it starts as
# soon as a child is free.
@task(queue="imports", priority=1)
def hold(token: uuid.UUID) -> str:
    """Store the id of this process, then keep it busy for a minute or until it is killed."""
    Hold.objects.create(token=token, pid=os.getpid())
    threading.Event().wait(HOLD_SECONDS)
    return "nobody killed this process"


@task(
    queue="imports",
    priority=1,
    retry_policy=RetryPolicy.fixed([0], auto_retry_for=["WORKER_CRASHED"], jitter=False),
)
async def come_back(token: uuid.UUID) -> int:
    """Store the id of this process and wait until it is killed; return the number of the attempt.

    A later attempt does not wait.
    """
    if current_task().attempt == 1:
        await Hold.objects.acreate(token=token, pid=os.getpid())
        await asyncio.sleep(HOLD_SECONDS)
    return current_task().attempt
