"""What a task brings along beside its arguments: the JSON object in its row's ``options``.

Written by the sender, read by the worker that runs the task and by the statement that settles it. It carries the version of
its own form, so that a worker can tell what was sent by a newer release than itself.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from horsies_django.core.retry import RetryPolicy

WIRE = 1  # grows when older workers must not run what is sent with it


class TaskOptions(NamedTuple):
    """What the worker needs to know. ``timeout_ms`` None leaves it to the settings."""

    wire: int = WIRE
    timeout_ms: int | None = None


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
    """Return what the text says; what is not in it has its default."""
    if text is None:
        return TaskOptions()
    found = json.loads(text)
    return TaskOptions(found.get("wire", WIRE), found.get("timeout_ms"))
