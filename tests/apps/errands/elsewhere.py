"""A task that is not in the ``tasks`` module of its app.

This module is imported only for the name of its task.
"""

from __future__ import annotations

from tests.apps.errands.api import task


@task()
def far_away(n):  # type: ignore[no-untyped-def]
    return n * 10


def no_task() -> None:
    raise AssertionError("this is no task")
