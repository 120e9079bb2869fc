"""Waiting for something to come about, with an end; a room without pytest, for programs that are no
tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# more than anything takes on a busy machine: so long is waited only for what never comes about
DEADLINE_SECONDS = 120


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of ``condition``; fail, naming ``what``, when none comes before
    the deadline.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < DEADLINE_SECONDS:
        if value := condition():
            return value
        # The longer it takes, the less often it is asked: that costs CPU time, too.
        time.sleep(min(0.005 + waited / 10, 0.1))

    raise AssertionError(f"not within {DEADLINE_SECONDS} s: {what}")
