"""The comparison of the database's clock with the monotonic one."""

from __future__ import annotations

import pytest

from horsies_django.worker.maintenance.clock import ClockComparison


@pytest.mark.parametrize(
    ("moment", "asked", "answered", "jump"),
    [
        (1_002.5, 12.5, 12.5, 0.0),
        (1_003.4, 12.5, 12.5, 0.0),
        (1_001.6, 12.5, 12.5, 0.0),
        (1_022.5, 12.5, 12.5, 20.0),
        (-2_597.5, 12.5, 12.5, -3_600.0),
        (1_009.0, 12.5, 19.5, 0.0),
        (1_003.0, 12.5, 19.5, 0.0),
        (1_029.5, 12.5, 19.5, 20.0),
        (1_000.0, 3_610.0, 3_610.0, -3_600.0),
    ],
    ids=[
        "even",
        "ahead",
        "behind",
        "forward",
        "back",
        "slow",
        "slow to answer",
        "slow and forward",
        "stood still",
    ],
)
def test_only_a_jump_is_seen(moment: float, asked: float, answered: float, jump: float) -> None:
    clock = ClockComparison(tolerance=1.0)
    clock.jump(1_000.0, 10.0, 10.0)

    seen = clock.jump(moment, asked, answered)

    assert seen == pytest.approx(jump)


def test_a_jump_is_seen_once() -> None:
    clock = ClockComparison(tolerance=1.0)
    clock.jump(1_000.0, 10.0, 10.0)
    clock.jump(1_020.0, 10.0, 10.0)

    assert clock.jump(1_022.5, 12.5, 12.5) == 0.0


def test_the_clock_of_another_server_is_no_jump() -> None:
    clock = ClockComparison(tolerance=1.0)
    clock.jump(1_000.0, 10.0, 10.0)

    clock.forget()

    assert clock.jump(5_000.0, 10.0, 10.0) == 0.0
