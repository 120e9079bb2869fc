"""The options of a task, which are a JSON object in the column ``options`` of its row.

The sender writes the object. The worker that runs the task and the statement that settles it read
the object. It contains the version of its format, so that a worker recognizes tasks from a newer
release.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.retry import RetryPolicy

# The newest format version that this release reads. It increases if older workers must not run
# tasks of a new format.
WIRE = 2
NAMED_WIRE = 1  # the format version of tasks whose arguments are stored by name
LONGEST_TIMEOUT_MS = 30 * 86_400 * 1_000
# Valid options have four brackets. The limit exists because the depth of nesting that Python can
# read depends on its version.
MOST_BRACKETS = 500
SHORTEST_KEEP = timedelta(minutes=1)  # so that callers that wait see that the task completed
LONGEST_KEEP = timedelta(days=36_500)
MILLISECOND = timedelta(milliseconds=1)
# The durations in milliseconds to which those of keep_result are rounded up
KEEP_STEPS = tuple(
    timedelta(minutes=minutes) // MILLISECOND
    for minutes in (
        *(1, 2, 5, 10, 15, 30),
        *(60 * hours for hours in (1, 2, 3, 6, 12)),
        *(24 * 60 * days for days in (1, 2, 3, 7, 14, 30, 60, 90, 180)),
        *(365 * 24 * 60 * years for years in (1, 2, 3, 5, 10, 20, 50, 100)),
    )
)


class TaskOptions(NamedTuple):
    """The options that a worker needs.

    ``wire`` is the format version. If ``timeout_ms`` is None, the timeout in the settings applies.
    ``problem`` is the reason why the options are invalid, or None. The column may contain any JSON.
    """

    wire: float = NAMED_WIRE
    timeout_ms: int | None = None
    problem: str | None = None


def options_text(
    retry_policy: RetryPolicy | None,
    timeout_ms: int | None,
    keep_result: bool | timedelta | None = None,
    *,
    plain: bool = False,
) -> str | None:
    """Return the JSON text of options for the row of a task, or None if there are no options.

    ``plain`` is True if the arguments are stored in the plain form.
    """
    if (
        retry_policy is None
        and timeout_ms is None
        and (keep_result is None or keep_result is True)
        and not plain
    ):
        return None

    options: dict[str, object] = {"wire": WIRE if plain else NAMED_WIRE}
    if retry_policy is not None:
        options["retry"] = retry_policy.stored()
    if timeout_ms is not None:
        options["timeout_ms"] = timeout_ms
    if isinstance(keep_result, timedelta):
        options["keep_result"] = keep_result // MILLISECOND
    elif keep_result is False:
        options["keep_result"] = False

    return json.dumps(options)


def with_unique(text: str | None, digest: bytes, until: str) -> str:
    """Return the JSON text of options with the digest of a unique task added.

    By the digest, a retry finds other tasks that are the same work.
    """
    options = {"wire": NAMED_WIRE} if text is None else json.loads(text)
    return json.dumps({**options, "unique": {"digest": digest.hex(), "until": until}})


def own_retention(text: str | None) -> int | bool | None:
    """Return how long the options of a task keep its row after it completed, in milliseconds.

    Return False if neither the row nor the value is kept, and None if the settings decide. ``text``
    is the column of the options, which may be any JSON.
    """
    if text is None or '"keep_result"' not in text or read_options(text).problem is not None:
        return None

    found = json.loads(text).get("keep_result")
    if found is False:
        return False
    if (
        isinstance(found, int)
        and SHORTEST_KEEP // MILLISECOND <= found <= LONGEST_KEEP // MILLISECOND
    ):
        return found
    return None


def own_retentions(texts: Iterable[str | None]) -> set[int | bool]:
    """Return the retentions that the options of tasks define, each rounded up to a step.

    Tasks for which the settings decide are skipped.
    """
    return {keep_step(keep) for keep in map(own_retention, texts) if keep is not None}


def keep_step(keep: int | bool) -> int | bool:
    """Return the first of ``KEEP_STEPS`` that is not shorter than a retention, in milliseconds.

    Return False for False. Workers scan the finished tasks once per step. Because of the steps, the
    number of scans does not grow with the number of different retentions.
    """
    if keep is False:
        return False
    place = min(bisect_left(KEEP_STEPS, keep), len(KEEP_STEPS) - 1)
    return KEEP_STEPS[place]


def step_before(step: int) -> int:
    """Return the step before a step, in milliseconds.

    For the shortest step, return a value that is one less, so that only its own length is above it.
    """
    place = KEEP_STEPS.index(step)
    return KEEP_STEPS[place - 1] if place else step - 1


def drops_result(text: str | None) -> bool:
    """Return whether the value of a task is dropped when it completes."""
    return own_retention(text) is False


def read_options(text: str | None) -> TaskOptions:
    """Return the options of a JSON text.

    Missing options get their defaults. No exception is raised, because ``problem`` of the returned
    options is the reason if they are invalid.
    """
    if text is None:
        return TaskOptions()
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        return TaskOptions(problem="they are nested too deeply, or too large")

    try:
        found = json.loads(text)
    except ValueError as error:  # for example, a number has thousands of digits
        return TaskOptions(problem=str(error))
    if not isinstance(found, dict):
        return TaskOptions(problem=f"they must be an object, not {text:.50}")

    wire = found.get("wire", NAMED_WIRE)
    timeout_ms = found.get("timeout_ms")
    if isinstance(wire, bool) or not isinstance(wire, int | float):
        return TaskOptions(problem=f"the format version (wire) must be a number, not {wire!r:.50}")
    if wire > WIRE:
        return TaskOptions(wire)  # the other options may have another format

    if timeout_ms is not None and (
        type(timeout_ms) is not int or not 1 <= timeout_ms <= LONGEST_TIMEOUT_MS
    ):
        return TaskOptions(
            wire,
            problem=f"timeout_ms must be from 1 to {LONGEST_TIMEOUT_MS:_}, not {timeout_ms!r:.50}",
        )

    return TaskOptions(wire, timeout_ms)
