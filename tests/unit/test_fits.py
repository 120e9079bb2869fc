"""Whether the result of a node fits a parameter of another node."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from horsies_django.core.codec.fits import fits


@pytest.mark.parametrize(
    ("result", "parameter", "expected"),
    [
        (dict[str, int], dict[str, float], True),
        (dict[str, str], dict[str, int], False),
        (dict, dict[str, int], True),
        (dict[str, int], typing.Dict, True),  # noqa: UP006 - as older code writes it
        (typing.Dict, dict[str, int], True),  # noqa: UP006
        (tuple[int, ...], list[int], True),
        (list[str], list[int], False),
        (int | None, int, False),
        (int, int | None, True),
    ],
)
def test_a_result_fits_a_parameter(result: Any, parameter: Any, expected: bool) -> None:
    """Fails if: a dict of ``typing`` without types raises IndexError."""
    assert fits(result, parameter) is expected
