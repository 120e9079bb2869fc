"""Runs of workflows that many tests need."""

from __future__ import annotations

from typing import Any

from horsies_django import Workflow
from horsies_django.testing import drain
from tests.apps.project import flows


def sent(name: str = "book", key: str | None = None, **constants: Any) -> Any:
    """Send a chain of two nodes, whose second one takes the result of the first; none has run."""
    flow = Workflow(name, key=key)
    flow.add(flows.plus, flow.add(flows.number, 1), **constants)
    return flow.send()


def failed(secret: int = 4711) -> Any:
    """Send such a chain, and fail its first node with a message."""
    flow = Workflow("fails")
    flow.add(flows.plus, flow.add(flows.broken, secret))
    handle = flow.send()
    drain(raise_errors=False)
    return handle
