"""What a worker takes in all: the memory limit per child, and what a single task takes, bound it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.apps.project import tasks
from tests.support.workers import ROOT, Start

pytestmark = pytest.mark.django_db(transaction=True)

QUOTA_MB, PROCESSES, TASK_MB, PARENT_MB = 1_024, 4, 80, 60  # the example of the reference


def most(limit_mb: float, processes: int = PROCESSES, task_mb: float = TASK_MB, parent_mb: float = PARENT_MB) -> float:
    """Return the most memory that a worker takes in all, by its limit per child."""
    return (limit_mb + task_mb) * processes + parent_mb


@pytest.mark.promise("S1.28", "S1.29", "S1.30")
def test_no_task_begins_in_a_child_that_has_reached_the_limit_so_limit_and_task_bound_what_a_child_takes(
    worker: Start,
) -> None:
    process = worker("--processes=1", "--max-memory-per-child-mb=10")
    process.wait()
    limit = float(re.findall(r"the (\d+) MB", process.log)[0]) + 50
    process = worker("--processes=1", f"--max-memory-per-child-mb={limit}", "--max-tasks-per-child=0").ready()
    told = [tasks.eats_and_tells.send(20).get(60_000).ok_value for _ in range(16)]
    assert all(before < limit for _, before, _ in told)
    assert all(after < limit + 25 for _, _, after in told)
    children = Counter(pid for pid, _, _ in told)
    assert len(children) >= 16 / 4
    assert max(children.values()) >= 2  # memory that is kept counts, a single task is not what ends a child
    assert process.stop() == 0


@pytest.mark.promise("S1.29", "S1.30")
def test_the_example_of_the_reference_fits_into_its_quota_as_the_page_says() -> None:
    text = " ".join((ROOT / "docs" / "reference" / "worker.md").read_text().split())
    assert "In a quota of 1,024 MB with 4 processes and tasks of 80 MB" in text
    assert "a limit of 300 may take 4 x 380 MB, too much; 100 to 150 fits" in text
    assert most(300) > QUOTA_MB
    assert most(150) < QUOTA_MB
    assert most((QUOTA_MB - PARENT_MB) / PROCESSES - TASK_MB) == QUOTA_MB  # the formula, solved for the limit
