"""What the payloads of notifications mean. Any role of the database may NOTIFY, so nothing here raises, whatever a payload says.

A payload that is not written exactly as ours are says nothing (None, or no ids): a notification only wakes, and whoever waits for
one also polls. The senders are the functions of ``store/sql``.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

LATEST = 253_402_300_800.0  # the year 10000, as an epoch
LONGEST = 1_000  # characters; ours take about 250 at most

# "1763748000.5 mail"; "1763748000.5!sync mail": all of it is due, in that lane; "1763748000.5+ mail": more may follow without a
# word; "1763748000.5 behind mail": something came back there; "0 *"; "cancel <worker>". A name of a queue has no space.
NEWS = re.compile(
    r"(?P<moment>-?[0-9]{1,12}(?:\.[0-9]{1,9})?|-?Infinity)(?:!(?P<lane>sync|async))?(?P<more>\+)? "
    r"(?P<word>(?:behind )?[^\s,]{1,100})"
)
ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
CANCEL = re.compile(f"cancel (?P<worker>{ID})")
IDS = re.compile(f"{ID}(?: {ID})*")


class Told(NamedTuple):
    """What a worker was told.

    ``word``: a queue, "*", a lane and a queue, "behind" and a queue, or a worker's id. ``since``: the earliest moment that is
    concerned, an epoch; 0 is the beginning of time. ``more``: further tasks may follow without a word.
    """

    word: str
    since: float = 0.0
    more: bool = False


def read_told(payload: str) -> Told | None:
    """Return what a payload of the channel of new tasks says, None when it says nothing."""
    if len(payload) > LONGEST:
        return None
    if found := NEWS.fullmatch(payload):
        word = found["word"]
        if found["lane"] and not word.startswith("behind "):
            word = f"{found['lane']} {word}"
        return Told(word, clamped(float(found["moment"])), bool(found["more"]))
    if found := CANCEL.fullmatch(payload):
        return Told(found["worker"])
    return None


def clamped(moment: float) -> float:
    """Return a moment that a mark can hold: what lies before 1970 is the beginning of time."""
    return min(max(moment, 0.0), LATEST)


def read_ids(payload: str) -> list[uuid.UUID]:
    """Return the ids of finished tasks that a payload names."""
    return [uuid.UUID(text) for text in payload.split(" ")] if IDS.fullmatch(payload) else []
