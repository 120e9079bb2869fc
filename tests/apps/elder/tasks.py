"""The one task that was there from the start, under the name that today's project gives it, too."""

from __future__ import annotations

from horsies_django import task


@task(name="tests.apps.project.tasks.noop")
def noop() -> None:
    pass
