"""How much a storm or a property test does: little in ``make test``, more in ``make stress``.

``HORSIES_STRESS`` is "full" or "short" while ``make stress`` runs the storms (marked ``stress``); CI runs the short form. The
full one also runs the property tests (marked ``thorough``) again, on many more examples.
"""

from __future__ import annotations

import os

STRESS = os.environ.get("HORSIES_STRESS", "")


def sized(short: int, full: int) -> int:
    """Return the size of a storm: ``full``, unless the short form was asked for."""
    return short if STRESS == "short" else full


def examples(few: int, many: int) -> int:
    """Return on how many examples a property test runs: ``few``, and ``many`` in a full ``make stress``."""
    return many if STRESS == "full" else few
