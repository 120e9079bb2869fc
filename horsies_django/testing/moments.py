"""The time of the queue in a test: ``travel``, and the times that it and ``drain`` take."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

from horsies_django.tasks.options import simulated_now
from horsies_django.testing.contexts import Context


def travel(to: dt.datetime | dt.timedelta) -> Context[dt.datetime]:
    """Let the time of the queue be ``to`` in the block.

    ``to`` is an aware datetime, or a timedelta from the current time, which may be negative. What is sent in the block is sent at
    that time, and ``drain()`` and ``immediate()`` run what is due by then, at that time: as if no worker had run since. Time
    stands still in the block; ``drain(until=...)`` moves on from there. Only the queue's rows move in time: neither Python's
    clock nor schedules do. Yields the time. Raises ValueError for a naive datetime, TypeError.
    """
    return Context("travel", lambda: moved(to), connected=False)


@contextmanager
def moved(to: dt.datetime | dt.timedelta) -> Iterator[dt.datetime]:
    """Set the time for a block."""
    before, moment = simulated_now.get(), moment_of(to, "to")
    simulated_now.set(moment)
    try:
        yield moment
    finally:
        simulated_now.set(before)  # a token would be bound to the thread that entered


def moment_of(given: dt.datetime | dt.timedelta, name: str) -> dt.datetime:
    """Return a datetime for a datetime or a timedelta from the current time. Raises ValueError, TypeError."""
    if isinstance(given, dt.timedelta):
        return (simulated_now.get() or dt.datetime.now(dt.UTC)) + given
    if not isinstance(given, dt.datetime):
        raise TypeError(f"{name} takes an aware datetime or a timedelta, not {type(given).__name__}")
    if given.utcoffset() is None:
        raise ValueError(
            f"{name}={given.isoformat()} has no time zone; pass an aware datetime, or a timedelta from now on"
        )
    return given
