"""The cost and the usage of caps: ``python -m benchmarks caps``.

The options are ``[--only ...] [--scale S] [--claims N]``. Each figure is a ratio of medians, and
the compared measurements take turns within one run. Parts: ``slow`` and ``noop`` (a cap that does
not bind), ``bound`` (one that does), ``flat`` and ``counting`` (the time of a claim), ``storm`` (no
cap is exceeded).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks.caps import claiming, running, storms
from benchmarks.caps.ratios import Ratio
from benchmarks.figures import Reading

PARTS: dict[str, Callable[[int, float], list[Ratio]]] = {
    "slow": running.slow,
    "noop": running.noop,
    "bound": running.bound,
    "flat": claiming.flat,
    "counting": claiming.counting,
}
STORM = "storm"
STORM_CLAIMS = 20_000


def caps(
    repeats: int, only: Sequence[str], scale: float, claims: int | None, slow: float
) -> list[Reading]:
    """Run the named parts, or all; with ``claims`` only the storm of so many tasks.

    Returns the figures of the ratios.
    """
    chosen = only or ([STORM] if claims else [*PARTS, STORM])
    ratios = [
        ratio for name, part in PARTS.items() if name in chosen for ratio in part(repeats, scale)
    ]

    if STORM in chosen:
        ratios += storms.storm(claims or max(1, round(STORM_CLAIMS * scale)), slow)

    print("\n".join(map(str, ratios)), file=sys.stderr)
    return [ratio.reading for ratio in ratios]
