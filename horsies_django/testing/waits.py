"""Continues workflows that wait for signals and people."""

from __future__ import annotations

from typing import Any

from horsies_django.workflows.handle import WorkflowHandle


def signal(handle: WorkflowHandle, name: str, data: Any = None, *, key: str | None = None) -> None:
    """Send a signal to a run, also before a node waits for it; the next ``drain()`` continues the run.

    Raises LookupError if no node of the run waits for the name, WorkflowError if the signal cannot be taken.
    """
    handle.signal(name, data, key=key, actor="test")


def open_gate(handle: WorkflowHandle, name: str, reason: str | None = None) -> None:
    """Approve an open gate of a run, whatever its permission; the next ``drain()`` continues the run.

    Raises LookupError if there is no such gate, WorkflowError if it is not open: ``drain()`` what comes before it first. To
    reject it, use ``handle.reject``.
    """
    handle.approve(name, actor="test", reason=reason)
