"""Parses the payloads of notifications. Any role of the database may NOTIFY, so no payload raises
an error.

An invalid payload is ignored (None, or no ids): notifications only wake processes, which also poll.
The functions in ``store/sql`` send the payloads.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

# the year 10000, in seconds since the epoch; scan cursors hold times from 0 to this one
LATEST = 253_402_300_800.0

# To all workers: "1763748000.5 mail"; "1763748000.5!sync mail": only for that lane, all due;
# "1763748000.5 behind mail": a task was returned; "0 *"; "advance <run>", of a workflow; "stalled
# soon <task>", "stalled now <task>": of the partition of a task, whose key contains arguments,
# while any role may LISTEN. To one worker: "now sync mail", "now sync *": look at once; "cancel";
# "place 0": it is the first of the elected. Names of queues contain no spaces.
WAKEUP = re.compile(
    r"(?P<moment>-?[0-9]{1,12}(?:\.[0-9]{1,9})?|-?Infinity)(?:!(?P<lane>sync|async))? "
    r"(?P<word>(?:behind )?[^\s,]{1,100})"
)
DIRECT = re.compile(r"now (?:sync|async) [^\s,]{1,100}|cancel|place [012]")
ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
ADVANCE = re.compile(f"advance (?P<run>{ID})")
STALLED = re.compile(f"stalled (?P<how>now|soon) (?P<task>{ID})")
IDS = re.compile(f"{ID}(?: {ID})*")


class Stalled(NamedTuple):
    """A partition whose next task is to be let go.

    ``task``: one of its tasks. ``at_once``: none was locked, there were too many to cancel.
    """

    task: uuid.UUID
    at_once: bool


class Told(NamedTuple):
    """A notification to a worker.

    ``word``: a queue, "*", a lane and a queue, "behind" and a queue, or what one worker was told.
    ``since``: the earliest due time of the tasks, in seconds since the epoch; 0 means any time.
    ``run``: the workflow run to advance. ``stalled``: the partition to look after.
    """

    word: str
    since: float = 0.0
    run: uuid.UUID | None = None
    stalled: Stalled | None = None


def read_told(payload: str) -> Told | None:
    """Parse a payload for workers; return None if it is invalid."""
    if len(payload) > 1_000:  # characters; ours take about 250 at most
        return None

    if found := WAKEUP.fullmatch(payload):
        word = found["word"]
        if found["lane"] and not word.startswith("behind "):
            word = f"{found['lane']} {word}"
        return Told(word, min(max(float(found["moment"]), 0.0), LATEST))

    if DIRECT.fullmatch(payload):
        return Told(payload)
    if found := ADVANCE.fullmatch(payload):
        return Told("advance", run=uuid.UUID(found["run"]))
    if found := STALLED.fullmatch(payload):
        return Told("stalled", stalled=Stalled(uuid.UUID(found["task"]), found["how"] == "now"))

    return None


def read_ids(payload: str) -> list[uuid.UUID]:
    """Return the ids of finished tasks in a payload, [] if it is invalid."""
    return [uuid.UUID(text) for text in payload.split(" ")] if IDS.fullmatch(payload) else []
