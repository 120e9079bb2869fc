"""The sizes of storms and property tests: small in ``make test``, larger in CI and ``make stress``.

``HORSIES_STRESS`` is "full" or "short" while ``make stress`` runs the storms (marked ``stress``);
CI runs the short form. The full form also runs the tests marked ``thorough``: benchmarks that take
long, and the property tests again, on many more examples. CI sets ``HORSIES_TEST_CI``.
"""

from __future__ import annotations

import os

STRESS = os.environ.get("HORSIES_STRESS", "")
CI = bool(os.environ.get("HORSIES_TEST_CI"))


def sized(short: int, full: int) -> int:
    """Return the size of a storm: ``full``, unless the short form runs."""
    return short if STRESS == "short" else full


def examples(few: int, many: int) -> int:
    """Return the number of examples of a property test.

    It is ``few`` in CI, a quarter of them in ``make test``, and ``many`` in a full ``make stress``.
    """
    if STRESS == "full":
        return many
    return few if CI else max(1, few // 4)
