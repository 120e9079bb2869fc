"""Waiting for a condition, with a deadline.

It is a package without pytest, for programs that are no tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# longer than anything takes on a busy machine: only a condition that never comes waits so long
DEADLINE_SECONDS = 120


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of ``condition``.

    Fail, naming ``what``, if there is none before the deadline.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < DEADLINE_SECONDS:
        if value := condition():
            return value
        # The longer the wait, the rarer the calls: they cost CPU time, too.
        time.sleep(min(0.005 + waited / 10, 0.1))

    raise AssertionError(f"not within {DEADLINE_SECONDS} s: {what}")
