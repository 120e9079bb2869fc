"""A task of an app that is not in its ``tasks`` module; only what names it imports this."""

from __future__ import annotations

from tests.apps.errands.api import task


@task()
def far_away(n):  # type: ignore[no-untyped-def]
    return n * 10


def no_task() -> None:
    raise AssertionError("this is no task")
