"""The parser of the payloads of notifications, which the functions in ``store/sql`` send.

Any role of the database may NOTIFY, so no payload raises an error. An invalid payload is ignored
and yields None or no ids. Nothing is lost by that, because notifications only wake processes, which
also poll.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

# The year 10000, in seconds since the epoch. Scan cursors contain times from 0 to this one.
LATEST = 253_402_300_800.0

# The payloads for all workers:
# - "1763748000.5 mail": a task of the queue is due at that time
# - "1763748000.5!sync mail": all tasks are in that lane, and are due
# - "1763748000.5 behind mail": a claim was released
# - "0 *": all queues
# - "advance <run>": a workflow run
# - "stalled soon <task>", "stalled now <task>": the partition of a task. Its key is not in the
#   payload, because it contains arguments, and any role may LISTEN.
# The payloads for one worker:
# - "now sync mail", "now sync *": claim at once
# - "cancel": a task was cancelled
# - "place 0": the place of the worker among the elected workers, 0 for the first
# Names of queues contain no spaces.
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
    """A partition whose next task a worker has to unpark.

    ``task`` is one of its tasks. ``at_once`` is True if no task was locked, but there were too many
    to cancel at once. Then the worker need not wait before it tries.
    """

    task: uuid.UUID
    at_once: bool


class Notification(NamedTuple):
    """A notification to a worker.

    ``word`` is a queue, "*", a lane and a queue, "behind" and a queue, "advance", "stalled", or the
    payload for one worker. ``since`` is the earliest due time of the tasks, in seconds since the
    epoch. 0 means any time. ``run`` is the workflow run to advance, and ``stalled`` the partition
    that needs a worker.
    """

    word: str
    since: float = 0.0
    run: uuid.UUID | None = None
    stalled: Stalled | None = None


def read_notification(payload: str) -> Notification | None:
    """Return the notification in a payload for workers, or None if the payload is invalid."""
    if len(payload) > 1_000:  # valid payloads have at most about 250 characters
        return None

    if found := WAKEUP.fullmatch(payload):
        word = found["word"]
        if found["lane"] and not word.startswith("behind "):
            word = f"{found['lane']} {word}"
        return Notification(word, min(max(float(found["moment"]), 0.0), LATEST))

    if DIRECT.fullmatch(payload):
        return Notification(payload)
    if found := ADVANCE.fullmatch(payload):
        return Notification("advance", run=uuid.UUID(found["run"]))
    if found := STALLED.fullmatch(payload):
        return Notification(
            "stalled", stalled=Stalled(uuid.UUID(found["task"]), found["how"] == "now")
        )

    return None


def read_ids(payload: str) -> list[uuid.UUID]:
    """Return the ids of finished tasks in a payload, or [] if the payload is invalid."""
    return [uuid.UUID(text) for text in payload.split(" ")] if IDS.fullmatch(payload) else []
