"""Large installations: 2,000 queues, 100,000 partitions, 10,000,000 old rows, and 1,000 workers.

Each part compares the large size with a small one, or with a bound, and its module describes the
measurement. At a smaller ``--scale`` all of these sizes are smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Case
from benchmarks.large import fleet, partitions, pruning, queues

PARTS = (queues, partitions, pruning, fleet)
GOALS = tuple(goal for part in PARTS for goal in part.GOALS)


def cases(scale: float) -> Sequence[Case]:
    """Return the cases of all parts."""
    return [case for part in PARTS for case in part.cases(scale)]
