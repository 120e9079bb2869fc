"""Words for people that the admin, the commands and the health report share."""

from __future__ import annotations

from itertools import pairwise

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))  # with their lengths in seconds


def gettext_noop(text: str) -> str:
    """Mark a text for ``makemessages``, which knows this name. The admin translates the text."""
    return text


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 min 20 s" or "5 min".

    Less than 0 seconds counts as 0. Units are written by their symbols, which are the same in all
    languages, and amounts are rounded down.
    """
    taken = max(seconds, 0.0)
    if taken < 1:
        return f"{int(taken * 1000)} ms"
    if taken < 10:
        return f"{int(taken * 10) / 10} s"

    for (unit, size), (smaller_unit, smaller_size) in pairwise(UNITS):
        if taken >= size:
            count, rest = divmod(int(taken), size)
            more = rest // smaller_size
            return f"{count:,} {unit} {more} {smaller_unit}" if more else f"{count:,} {unit}"

    return f"{int(taken)} s"
