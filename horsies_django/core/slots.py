"""What a schedule has to send at a moment: its due slots, under its catch-up policy, and when to look at it again. Pure."""

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
MOST_SLOTS = 1_000  # sent in one transaction
PUNCTUAL = dt.timedelta(seconds=60)  # who is no later than that was not missed
SECOND = dt.timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires. ``since``: from when on it is in force, and which its intervals are anchored to.

    ``catch_up`` says what becomes of missed slots: the latest is sent, all are (the last ``most`` of them), or none. Each is
    sent up to ``jitter_ms`` later, always the same for the same slot.
    """

    name: str
    pattern: Pattern
    since: dt.datetime
    catch_up: CatchUp = "latest"
    most: int = 100
    jitter_ms: int = 0

    def moment(self, slot: dt.datetime) -> dt.datetime:
        """Return when a slot is sent."""
        if not self.jitter_ms:
            return slot
        digest = hashlib.sha256(f"{self.name} {slot.timestamp():.0f}".encode()).digest()
        return slot + dt.timedelta(milliseconds=int.from_bytes(digest[:8]) % (self.jitter_ms + 1))

    def following(self, slot: dt.datetime) -> dt.datetime | None:
        """Return the slot after one."""
        return self.pattern.next(slot, self.since)


@dataclass(frozen=True, slots=True)
class Due:
    """The slots to send, oldest first; the first and the last of all that are settled by that, sent or not."""

    slots: list[dt.datetime]
    first: dt.datetime | None = None
    last: dt.datetime | None = None

    @property
    def missed(self) -> bool:
        """Whether slots are left out."""
        return self.first is not None and self.slots[:1] != [self.first]


def due(timing: Timing, last: dt.datetime | None, now: dt.datetime) -> Due:
    """Return what is due ``now``, when the slots up to ``last`` are settled; they are sent in order, whatever their jitter."""
    begin = timing.since if last is None else max(last, timing.since)
    most = timing.most if timing.catch_up == "all" else 1
    sure = newest(timing, begin, now - dt.timedelta(milliseconds=timing.jitter_ms), most)
    later = timing.pattern.slots(sure[-1] if sure else begin, now, timing.since)
    found = [*sure, *takewhile(lambda slot: timing.moment(slot) <= now, later)]
    if not found:
        return Due([])
    slots = found[-most:]
    if timing.catch_up == "none":
        slots = [slot for slot in slots if now - timing.moment(slot) <= PUNCTUAL]
    return Due(slots, timing.following(begin), found[-1])


def newest(timing: Timing, begin: dt.datetime, until: dt.datetime, most: int) -> list[dt.datetime]:
    """Return the last slots after ``begin`` that are not after ``until``, ``most`` of them, without walking over all."""
    if most == 1:
        slot = timing.pattern.latest(begin, until, timing.since)
        return [] if slot is None else [slot]
    span = most * SECOND
    while True:
        since = max(begin, until - span)
        found = deque(timing.pattern.slots(since, until, timing.since), maxlen=most)
        if len(found) == most or since == begin:
            return list(found)
        span *= 4
