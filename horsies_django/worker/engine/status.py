"""The state of the engine for other threads: one value, replaced as a whole, once a turn and when the connection changes."""

from __future__ import annotations

from typing import Any, NamedTuple

from horsies_django.core.records import Claim
from horsies_django.worker.pool.process import PoolProcess


class EngineStatus(NamedTuple):
    """The engine as it was when its thread last published it.

    ``busy_since``: when the current turn began, by the monotonic clock; None: the engine waits. ``connection`` is None while the
    database is not available; ``failing``: the last statement failed. ``started``: all processes were ready once. ``prefetched``
    tasks are claimed and wait for a slot. ``listens``: notifications arrive, and it may be elected to be told of new tasks.
    """

    busy_since: float | None = None
    connection: Any = None
    failing: bool = False
    started: bool = False
    stopping: bool = False
    members: tuple[PoolProcess, ...] = ()
    running_sync: int = 0
    running_async: int = 0
    prefetched: tuple[Claim, ...] = ()
    listens: bool = False
