"""The task made for being killed."""

from __future__ import annotations

import os
import threading
import uuid

from example_project.demo.models import Hold
from horsies_django import task

HOLD_SECONDS = 60


# Its queue is served first and its priority is the first of that queue: it starts as soon as a child is free.
@task(queue="imports", priority=1)
def hold(token: uuid.UUID) -> str:
    """Say which process this is, then keep it busy until somebody kills it, or for a minute."""
    Hold.objects.create(token=token, pid=os.getpid())
    threading.Event().wait(HOLD_SECONDS)
    return "nobody killed this process"
