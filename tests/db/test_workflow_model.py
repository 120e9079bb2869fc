"""Random workflows, driven in random order by engines that die and forget, end as the pure model says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.db.drives import Drive
from tests.support.sizes import examples

SEEDS = examples(40, 3_000)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(max(240, 2 * SEEDS))]


@pytest.mark.thorough
def test_workflows_end_as_the_model_says_whatever_the_order_and_whoever_dies(
    connect: Callable[[], psycopg.Connection[Any]],
) -> None:
    drive = Drive(connect)
    for seed in range(SEEDS):
        size = 1 + seed % 60
        try:
            drive.begin(seed, size)
            for _ in range(drive.dice.choice([0, 10, 40, 40 + 2 * size])):
                drive.step()
            drive.finish()
            drive.judge()
            if drive.handle.status() == "FAILED" and seed % 2:
                drive.retry()
                for _ in range(drive.dice.choice([0, 10, 40])):
                    drive.step()
                drive.finish()
                drive.judge()
        except Exception as error:
            error.add_note(f"seed {seed}, {size} nodes, {len(drive.done)} steps: {drive.done}")
            raise
