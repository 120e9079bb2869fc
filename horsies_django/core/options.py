"""What a task brings along beside its arguments: the JSON object in its row's ``options``.

Written by the sender, read by the worker that runs the task and by the statement that settles it. It carries the version of
its own form, so that a worker can tell what was sent by a newer release than itself.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from horsies_django.core.retry import RetryPolicy

WIRE = 1  # grows when older workers must not run what is sent with it
LONGEST_TIMEOUT_MS = 30 * 86_400 * 1_000
MOST_BRACKETS = (
    500  # ours have four; a text that is nested deeper than Python's stack reads differently in each version
)


class TaskOptions(NamedTuple):
    """What the worker needs to know. ``timeout_ms`` None leaves it to the settings.

    ``problem`` says why the options cannot be read, None when they can. Any role that may insert writes what it likes here.
    """

    wire: float = WIRE
    timeout_ms: int | None = None
    problem: str | None = None


def options_text(retry_policy: RetryPolicy | None, timeout_ms: int | None) -> str | None:
    """Return the JSON text for a task's row, None when there is nothing to say."""
    if retry_policy is None and timeout_ms is None:
        return None
    options: dict[str, object] = {"wire": WIRE}
    if retry_policy is not None:
        options["retry"] = retry_policy.stored()
    if timeout_ms is not None:
        options["timeout_ms"] = timeout_ms
    return json.dumps(options)


def read_options(text: str | None) -> TaskOptions:
    """Return what the text says; what is not in it has its default. Raises nothing."""
    if text is None:
        return TaskOptions()
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        return TaskOptions(problem="they are nested too deep, or too many")
    try:
        found = json.loads(text)
    except ValueError as error:  # a number of thousands of digits, say
        return TaskOptions(problem=str(error))
    if not isinstance(found, dict):
        return TaskOptions(problem=f"they are an object, not {text:.50}")
    wire, timeout_ms = found.get("wire", WIRE), found.get("timeout_ms")
    if isinstance(wire, bool) or not isinstance(wire, int | float):
        return TaskOptions(problem=f"wire is a number, not {wire!r:.50}")
    if wire > WIRE:
        return TaskOptions(wire)  # whose other options may have another form
    if timeout_ms is not None and not _is_timeout(timeout_ms):
        return TaskOptions(wire, problem=f"timeout_ms is from 1 to {LONGEST_TIMEOUT_MS:_}, not {timeout_ms!r:.50}")
    return TaskOptions(wire, timeout_ms)


def _is_timeout(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LONGEST_TIMEOUT_MS
