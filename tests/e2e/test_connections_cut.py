"""A connection that Django could not finish opening, which no signal speaks of, spoils nothing for the next tasks."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from tests.apps.cutting import tasks
from tests.e2e.test_traps_database import POOL, SECONDS_30
from tests.support.workers import Start

WAYS = (tasks.note, tasks.note_on_threads, tasks.anote, tasks.note_by_a_loop)
names = (f"row {number}" for number in count())


def errors(each: int) -> list[str | None]:
    """Have rows written in each of the ways, and return the error codes; a task that succeeded has left its row."""
    sent = [(name, way.send(name)) for _ in range(each) for way in WAYS if (name := next(names))]
    results = [handle.get(timeout_ms=SECONDS_30) for _, handle in sent]
    codes = [None if result.is_ok() else str(result.err_value.error_code) for result in results]
    written = list(Group.objects.values_list("name", flat=True))
    for (name, _), code in zip(sent, codes, strict=True):
        assert code is not None or name in written, f"COMPLETED, and {name} does not exist"
    return codes


@pytest.mark.parametrize(
    ("kept", "options"),
    [
        ("0", ("--processes=1", "--threads=2")),
        ("600", ("--processes=1", "--threads=2")),
        pytest.param("pool", ("--processes=1",), marks=POOL.marks),
        ("0", ("--processes=0", "--threads=2")),
    ],
    ids=["closed", "kept", "pool", "no children"],
)
@pytest.mark.parametrize("harm", ["cut", "open"])
@pytest.mark.boundary
def test_a_connection_cut_while_it_opens_or_left_in_a_transaction_fails_its_own_task_and_hurts_no_later_one(
    worker: Start, tmp_path: Path, kept: str, options: tuple[str, ...], harm: str
) -> None:
    order = tmp_path / "order"  # where the receiver of the project reads what harm to do
    cutting = {"DJANGO_SETTINGS_MODULE": "tests.settings.cutting", "HORSIES_TEST_ORDER": str(order)}
    process = worker(*options, "--max-tasks-per-child=0", HORSIES_TEST_KEPT=kept, **cutting).ready()
    order.write_text(harm)
    assert set(errors(3)) == {"UNHANDLED_ERROR"}
    order.unlink()
    assert set(errors(5)) == {None}
    assert ("left a transaction open" in process.log) == (harm == "open")
