"""Computes the fire times of a schedule that are due under its catch-up policy."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from horsies_django.core.patterns import Pattern

CatchUp = Literal["latest", "all", "none"]
CATCH_UP: tuple[CatchUp, ...] = ("latest", "all", "none")
MOST_FIRE_TIMES = 1_000  # of a schedule, sent in one transaction
PUNCTUAL = dt.timedelta(seconds=60)  # a fire time that is at most this late does not count as missed
SECOND = dt.timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires. ``since`` is when it came into force; its intervals are counted from then.

    ``catch_up`` says which missed fire times are sent: the latest, all (the last ``most`` of them), or none. Each is sent up to
    ``jitter_ms`` late, by a delay that is always the same for the same fire time.
    """

    name: str
    pattern: Pattern
    since: dt.datetime
    catch_up: CatchUp = "latest"
    most: int = 100
    jitter_ms: int = 0

    def moment(self, fire_time: dt.datetime) -> dt.datetime:
        """Return when the task of a fire time is sent: the fire time plus its jitter."""
        if not self.jitter_ms:
            return fire_time
        digest = hashlib.sha256(f"{self.name} {fire_time.timestamp():.0f}".encode()).digest()
        return fire_time + dt.timedelta(milliseconds=int.from_bytes(digest[:8]) % (self.jitter_ms + 1))

    def following(self, fire_time: dt.datetime) -> dt.datetime | None:
        return self.pattern.next(fire_time, self.since)


@dataclass(frozen=True, slots=True)
class Due:
    """The fire times to send, oldest first; ``first`` and ``last`` bound all that are settled by that, sent or left out."""

    fire_times: list[dt.datetime]
    first: dt.datetime | None = None
    last: dt.datetime | None = None

    @property
    def missed(self) -> bool:
        """Whether fire times are left out."""
        return self.first is not None and self.fire_times[:1] != [self.first]


def due(timing: Timing, last: dt.datetime | None, now: dt.datetime) -> Due:
    """Return what is due at ``now`` after ``last``, the last settled fire time; always in order, whatever the jitter."""
    begin = timing.since if last is None else max(last, timing.since)
    most = timing.most if timing.catch_up == "all" else 1
    sure = newest(timing, begin, now - dt.timedelta(milliseconds=timing.jitter_ms), most)
    later = timing.pattern.fire_times(sure[-1] if sure else begin, now, timing.since)
    found = [*sure, *takewhile(lambda fire_time: timing.moment(fire_time) <= now, later)]
    if not found:
        return Due([])
    fire_times = found[-most:]
    if timing.catch_up == "none":
        fire_times = [fire_time for fire_time in fire_times if now - timing.moment(fire_time) <= PUNCTUAL]
    return Due(fire_times, timing.following(begin), found[-1])


def newest(timing: Timing, begin: dt.datetime, until: dt.datetime, most: int) -> list[dt.datetime]:
    """Return the last ``most`` fire times in (``begin``, ``until``], without iterating over all of them."""
    if most == 1:
        fire_time = timing.pattern.latest(begin, until, timing.since)
        return [] if fire_time is None else [fire_time]
    span = most * SECOND
    while True:
        since = max(begin, until - span)
        found = deque(timing.pattern.fire_times(since, until, timing.since), maxlen=most)
        if len(found) == most or since == begin:
            return list(found)
        span *= 4
