"""Settings of a measured project with three queues of different priority, in hard mode."""

from __future__ import annotations

from typing import Any

from benchmarks.settings import *  # noqa: F403

HORSIES: dict[str, Any] = {
    "QUEUES": {"first": {"priority": 1}, "middle": {"priority": 50}, "last": {"priority": 100}}
}
