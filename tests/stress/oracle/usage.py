"""How much of a limit was used: the overlap, divided by the limit, in undisturbed time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

Span = tuple[float, float]
HANDING_ON_SECONDS = 0.1  # a pass waits no longer than that for the locks of others


class Hold(NamedTuple):
    """The time in which an attempt of a worker held a permit of its queue."""

    queue: str
    worker: Any
    start: float
    end: float


class Usage(NamedTuple):
    """The share of a limit's permits that was held, and the seconds in which it was measured.

    ``at_ends`` is the share that was held just before a permit came free, on average over ``ends``
    such moments. It involves no clock: a busy machine does not lower it, a permit that stays unused
    while others come free does.
    """

    held: float
    seconds: float
    at_ends: float
    ends: int


def handed_on(holds: Iterable[Hold]) -> list[Span]:
    """Return the times in which permits were taken.

    A permit stays taken until the next claim of the worker that settled, if that comes soon: a pass
    settles before it waits for the locks of the caps, and claims when it has them. Until its
    commit, no other worker can use the permits that it settled.
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


def usage(
    held: Iterable[Span],
    limits: Iterable[tuple[float, int | None]],
    waited: Iterable[Span],
    disturbed: Iterable[Span] = (),
) -> Usage | None:
    """Return the used share of a limit while tasks waited without disturbance; None if never.

    ``limits`` are the limits in force from their moments on.
    """
    events = [(at, "limit", limit) for at, limit in limits]
    for what, spans in (("held", held), ("waited", waited), ("disturbed", disturbed)):
        events += [
            (at, what, step) for span in spans for at, step in zip(span, (1, -1), strict=True)
        ]

    there: Counter[str] = Counter()
    limit = None
    last = float("-inf")
    offered = 0.0
    used = 0.0
    seconds = 0.0
    shares = []

    for at, together in groupby(sorted(events, key=itemgetter(0)), key=itemgetter(0)):
        now = list(together)
        if limit and there["waited"] and not there["disturbed"]:
            offered += limit * (at - last)
            used += there["held"] * (at - last)
            seconds += at - last
            if ("held", -1) in ((what, step) for _, what, step in now):
                shares.append(there["held"] / limit)

        for _, what, step in now:
            if what == "limit":
                limit = step
            else:
                there[what] += step or 0
        last = at

    if not offered:
        return None
    return Usage(used / offered, seconds, fmean(shares) if shares else 1.0, len(shares))
