"""The options of a task: the JSON object in the column ``options`` of its row.

The sender writes it; the worker that runs the task and the statement that settles it read it. It
contains the version of its format, so that a worker recognizes tasks from a newer release.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.retry import RetryPolicy

# the newest format version that this release reads; it increases when older workers must not run
# such tasks
WIRE = 2
NAMED_WIRE = 1  # the version in which tasks are sent whose arguments are stored by name
LONGEST_TIMEOUT_MS = 30 * 86_400 * 1_000
# Valid options have four; how deep a text may be nested depends on the version of Python.
MOST_BRACKETS = 500
SHORTEST_KEEP = timedelta(minutes=1)  # whoever waits for the task has to see that it completed
LONGEST_KEEP = timedelta(days=36_500)
MILLISECOND = timedelta(milliseconds=1)
# To which the durations of keep_result are rounded up, in milliseconds: minutes, hours, days, years
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
    """The options that a worker needs. ``wire`` is the format version; ``timeout_ms`` None means
    the timeout in the settings.

    ``problem`` says why the options are invalid, or is None. The column may contain any JSON.
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
    """Return the JSON text for the row of a task, None without options.

    ``plain``: its arguments are in the plain form.
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
    """Return options with the digest of a unique task, by which a retry finds others that are the
    same work.
    """
    options = {"wire": NAMED_WIRE} if text is None else json.loads(text)
    return json.dumps({**options, "unique": {"digest": digest.hex(), "until": until}})


def own_retention(text: str | None) -> int | bool | None:
    """Return how long the row of a completed task is kept, in milliseconds; False: not at all, nor
    its value.

    None: as the settings say. ``text`` are the options of the task, which may be any JSON.
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
    """Return the retentions of tasks, by their options, that differ from the settings, each rounded
    up to a step.
    """
    return {keep_step(keep) for keep in map(own_retention, texts) if keep is not None}


def keep_step(keep: int | bool) -> int | bool:
    """Return the first of ``KEEP_STEPS`` that is not shorter, in milliseconds; False stays False.

    Each step costs workers a scan of the finished tasks, so tasks may have any number of
    retentions.
    """
    if keep is False:
        return False
    place = min(bisect_left(KEEP_STEPS, keep), len(KEEP_STEPS) - 1)
    return KEEP_STEPS[place]


def step_before(step: int) -> int:
    """Return the step before a step; the shortest one holds for its own length alone."""
    place = KEEP_STEPS.index(step)
    return KEEP_STEPS[place - 1] if place else step - 1


def drops_result(text: str | None) -> bool:
    """Return whether the value of a completed task is not stored."""
    return own_retention(text) is False


def read_options(text: str | None) -> TaskOptions:
    """Parse the JSON text of options; missing options get their defaults. Never raises."""
    if text is None:
        return TaskOptions()
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        return TaskOptions(problem="they are nested too deeply, or too large")

    try:
        found = json.loads(text)
    except ValueError as error:  # a number of thousands of digits, say
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
