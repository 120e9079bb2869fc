"""A task that counts its work by prometheus-client."""

from __future__ import annotations

import os

from prometheus_client import Counter, Gauge

from horsies_django import task

LETTERS = Counter("shop_letters", "Letters that were sent", ["kind"])
OPEN = Gauge("shop_open_letters", "Letters that are being written", multiprocess_mode="livesum")


@task
def send_letters(count: int) -> int:
    """Count letters, and return the id of this process."""
    LETTERS.labels("invoice").inc(count)
    OPEN.set(count)
    return os.getpid()
