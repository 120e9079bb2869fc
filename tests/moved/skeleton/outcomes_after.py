"""The outcomes of tasks that a worker, or ``drain`` in its place, runs."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

from django.db.models import F
from django.db.models.functions import Now

from horsies_django.models import Task
from horsies_django.testing import drain


def run() -> None:
    if os.environ["RUNNER"] == "drain":
        drain(until=timedelta(days=2), raise_errors=False)
        return

    command = [sys.executable, "-m", "django", "horsies_worker", "--processes=1", "--until-empty"]
    while Task.objects.filter(finished_at=None).exists():
        make_due()
        subprocess.run(command, check=True, timeout=60, stderr=subprocess.DEVNULL)


def make_due() -> None:
    """Make tasks due that wait for their time, so that the test does not wait."""
    Task.objects.filter(finished_at=None, enqueued_at__gt=Now()).update(enqueued_at=F("sent_at"))


def of(handle: Any) -> list[Any]:
    """Return whether it succeeded, and its value or the class of its exception."""
    result = handle.get(timeout_ms=10_000)
    if result.is_ok():
        return ["ok", result.ok_value]
    return ["error", (result.err_value.exception or {"type": result.err_value.error_code})["type"]]
