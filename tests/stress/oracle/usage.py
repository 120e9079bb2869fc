"""How much of a limit was used: the overlap over time, divided by the limit, while nothing was in the way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

Span = tuple[float, float]
HANDING_ON_SECONDS = 0.1  # a pass waits no longer than that for the locks of others


class Hold(NamedTuple):
    """An attempt of a worker: from when to when it held a permit of its queue."""

    queue: str
    worker: Any
    start: float
    end: float


class Usage(NamedTuple):
    """The share of a limit's permits that was held, and over how many seconds that was measured.

    ``at_ends`` is the share that was held just before a permit came free, on average over ``ends`` such moments. No clock is in
    it: a machine that is busy with other things does not lower it, a permit that stays unused while others come free does.
    """

    held: float
    seconds: float
    at_ends: float
    ends: int


class Overlap:
    """The integral of how many spans overlap, from the beginning to any moment."""

    def __init__(self, spans: Iterable[Span]) -> None:
        steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        self.moments: list[float] = []
        self.areas: list[float] = []
        self.counts: list[int] = []
        area, count = 0.0, 0
        for at, step in steps:
            if self.moments:
                area += count * (at - self.moments[-1])
            count += step
            self.moments.append(at)
            self.areas.append(area)
            self.counts.append(count)

    def before(self, at: float) -> int:
        """Return how many overlap just before a moment."""
        place = bisect_left(self.moments, at) - 1
        return self.counts[place] if place >= 0 else 0

    def until(self, at: float) -> float:
        """Return the area before a moment."""
        place = bisect_right(self.moments, at) - 1
        if place < 0:
            return 0.0
        return self.areas[place] + self.counts[place] * (at - self.moments[place])


def handed_on(holds: Iterable[Hold]) -> list[Span]:
    """Return from when to when permits were taken: until the next claim of the worker that settled, where that comes soon.

    A pass settles before it waits for the locks of the caps, and claims when it has them. Until its commit what it settled is
    free only for itself, because nobody else sees it.
    """
    holds = list(holds)
    claims: defaultdict[Any, list[float]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.start):
        claims[hold.worker].append(hold.start)
    spans = []
    for hold in holds:
        mine = claims[hold.worker]
        place = bisect_left(mine, hold.end)
        soon = place < len(mine) and mine[place] <= hold.end + HANDING_ON_SECONDS
        spans.append((hold.start, mine[place] if soon else hold.end))
    return spans


def usage(held: Sequence[Span], limits: Sequence[tuple[float, int | None]], calm: Iterable[Span]) -> Usage | None:
    """Return how much of a limit was used in the calm spans; None when there was no calm, or no limit.

    ``limits`` are the limits in force from their moments on.
    """
    overlap = Overlap(held)
    offered = used = seconds = 0.0
    shares: list[float] = []
    moments = sorted({end for _, end in held})
    edges = [*limits, (float("inf"), None)]
    for begin, end in calm:
        for (since, limit), (then, _) in pairwise(edges):
            low, high = max(begin, since), min(end, then)
            if limit and low < high:
                offered += limit * (high - low)
                used += overlap.until(high) - overlap.until(low)
                seconds += high - low
                ends = moments[bisect_right(moments, low) : bisect_left(moments, high)]
                shares += [overlap.before(end) / limit for end in ends]
    if not offered:
        return None
    return Usage(used / offered, seconds, fmean(shares) if shares else 1.0, len(shares))


def calm_spans(whole: Span, disturbed: Iterable[Span]) -> list[Span]:
    """Return what is left of a span without the disturbed ones."""
    begin, end = whole
    left = []
    for start, stop in sorted(disturbed):
        if start > begin:
            left.append((begin, min(start, end)))
        begin = max(begin, stop)
    left.append((begin, end))
    return [(low, high) for low, high in left if low < high]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in which at least one of some spans lies, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def common(first: Iterable[Span], second: Sequence[Span]) -> list[Span]:
    """Return what two rows of spans have in common; ``second`` is in order and does not overlap itself."""
    ends = [end for _, end in second]
    found = []
    for begin, over in first:
        for start, end in second[bisect_right(ends, begin) :]:
            if start >= over:
                break
            found.append((max(begin, start), min(over, end)))
    return found
