"""Settings of a measured project with many queues, and one queue with partitions.

The environment sets the number of queues.
"""

from __future__ import annotations

from typing import Any

import environ

from benchmarks.settings import *  # noqa: F403

env = environ.Env()


def horsies(queues: int, cap: int) -> dict[str, Any]:
    """Return the settings of a project with so many queues, each with that cap (0: none)."""
    return {
        "QUEUES": {
            **{f"queue-{number}": {"max_concurrency": cap or None} for number in range(queues)},
            "tenants": {"partition": {"by_args": ["tenant"], "max_concurrency": 1}},
        },
        "RETENTION": {
            "TERMINAL_RECORD_RETENTION_HOURS": env.int("BENCH_RETENTION_HOURS", default=0) or None
        },
    }


HORSIES: dict[str, Any] = horsies(
    env.int("BENCH_QUEUES", default=1), env.int("BENCH_QUEUE_CAP", default=0)
)
