"""The only task of the earlier project, which has the same name in the present one."""

from __future__ import annotations

from horsies_django import task


@task(name="tests.apps.project.tasks.noop")
def noop() -> None:
    pass
