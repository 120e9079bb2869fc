"""The words that the admin, the commands and the health report share."""

from __future__ import annotations

import pytest

from horsies_django.core.words import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 ms"),
        (0.35, "350 ms"),
        (4.29, "4.2 s"),
        (59.9, "59 s"),
        (200, "3 min 20 s"),
        (300, "5 min"),
        (7_500, "2 h 5 min"),
        (7_230, "2 h"),
        (273_600, "3 d 4 h"),
        (86_400 * 1_000, "1,000 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    """Fails if: a unit of zero is written, or a small duration is rounded to 0 s."""
    assert duration(seconds) == text
