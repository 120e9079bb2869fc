"""The task of the schedules; all others are those of the storm."""

from __future__ import annotations

from horsies_django import task
from tests.stress.chaos.notes import noted


@task(name="tick")
def tick() -> None:
    with noted():
        return
