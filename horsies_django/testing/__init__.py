"""Test tools: they run tasks inside a test, and check which tasks were sent.

See docs/howto/test-your-tasks.md. Names are imported at their first use, so that the pytest plugin
in this package does not import Django when pytest starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horsies_django.core.lazy import import_name

if TYPE_CHECKING:
    from horsies_django.testing.at_once import immediate
    from horsies_django.testing.backends import DummyBackend, ImmediateBackend
    from horsies_django.testing.draining import adrain, drain, fail_next, open_gate, signal, travel
    from horsies_django.testing.sent import (
        Kit,
        SentTask,
        SentTasks,
        assert_nothing_sent,
        assert_sent,
        captured_tasks,
    )

_HOMES = {
    **dict.fromkeys(("DummyBackend", "ImmediateBackend"), "backends"),
    **dict.fromkeys(
        ("Kit", "SentTask", "SentTasks", "assert_nothing_sent", "assert_sent", "captured_tasks"),
        "sent",
    ),
    **dict.fromkeys(("adrain", "drain", "fail_next", "open_gate", "signal", "travel"), "draining"),
    "immediate": "at_once",
}

__all__ = [
    "DummyBackend",
    "ImmediateBackend",
    "Kit",
    "SentTask",
    "SentTasks",
    "adrain",
    "assert_nothing_sent",
    "assert_sent",
    "captured_tasks",
    "drain",
    "fail_next",
    "immediate",
    "open_gate",
    "signal",
    "travel",
]


def __getattr__(name: str) -> Any:
    return import_name(globals(), _HOMES, name)
