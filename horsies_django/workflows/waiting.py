"""Waits for the end of runs, which is announced and stored like that of tasks."""

from __future__ import annotations

import json
from typing import TypeVar

from horsies_django.core.results import TaskResult
from horsies_django.store.tasks import Found
from horsies_django.tasks.handle import TaskHandle, remaining

T = TypeVar("T")

LONGEST = 100  # characters of the result of a run that continued: {"ok": null, "continued_as": "..."}


class RunResult(TaskHandle[T]):
    """Waits for the end of one run. ``continued``: it has ended and goes on as another run."""

    noun = "workflow run"
    continued = False

    def _tell(self, found: Found | None) -> TaskResult[T]:
        text = "" if found is None else found.result or ""
        self.continued = '"continued_as"' in text and len(text) < LONGEST and "continued_as" in json.loads(text)
        return super()._tell(found)


def left_ms(deadline: float | None) -> int | None:
    """Return the milliseconds until a deadline, None without one."""
    left = remaining(deadline)
    return None if left is None else int(left * 1_000)
