"""Waiting for something to come about, with an end; a room without pytest, for programs that are no tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE_SECONDS = 30


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of ``condition``; fail, naming ``what``, when none comes before the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_SECONDS} s: {what}")
