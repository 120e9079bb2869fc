"""The outcomes of tasks in Celery's eager mode, in which a sent task has already run."""

from __future__ import annotations

from typing import Any

from celery.result import GroupResult
from shop.celery import app

app.finalize()


def run() -> None:
    """Do nothing: in eager mode, a task runs where it is sent."""


def of(result: Any) -> list[Any]:
    """Return whether it succeeded, and its value or the class of its exception."""
    if isinstance(result, GroupResult):
        return ["ok", result.get()]
    assert result.state in ("SUCCESS", "FAILURE"), result.state
    return ["ok", result.result] if result.successful() else ["error", type(result.result).__name__]
