"""Unknown tasks: those that this worker cannot run, because it has no code of that name or a newer release sent them.

While a project is deployed, old and new workers run side by side, and each may be given what only the other knows. Such a task
goes back untouched, and stays for others until it has been due for the grace; then it fails, for nobody knows it.

An unknown task shows itself only once it is claimed: until this worker meets one its passes ask for nothing special, and cost
nothing more. From then on, for as long as the grace, they leave out what the worker's row does not name. So a worker gives back
once in that time, whatever it is given and however many others know as little. What a pass claims that left the young ones out
is old, and is run: that is how it fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.options import WIRE, read_options
from horsies_django.core.records import Claim
from horsies_django.tasks import registry
from horsies_django.worker.child.run_task import Reply, failed

logger = logging.getLogger("horsies.worker")

NO_GRACE = timedelta(0)


class UnknownTasks:
    """Remembers for how long the passes must leave unknown tasks out; a grace of zero never does."""

    def __init__(self, grace: timedelta = NO_GRACE) -> None:
        self.grace = grace
        self.until = 0.0  # by the monotonic clock

    def grace_at(self, now: float) -> timedelta | None:
        """Return how long the next pass leaves unknown tasks to others, None when none was met lately."""
        return self.grace if now < self.until else None

    def part(self, claims: list[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Return the claims that this worker can run or must fail, and those that it gives back."""
        strange = [claim for claim in claims if is_strange(claim)] if self.grace else []
        if not strange:
            return claims, strange
        ids = {claim.id for claim in strange}
        return [claim for claim in claims if claim.id not in ids], strange

    def met(self, now: float, strange: Sequence[Claim]) -> None:
        """Leave unknown tasks out from now on, for as long as the grace."""
        self.until = now + self.grace.total_seconds()
        names = sorted({claim.task_name for claim in strange})
        logger.warning(
            "%s task(s) that this worker does not know are given back: %s. Workers that know them may run them; those that "
            "nobody took when they have been due for %.0f s fail (HORSIES['UNKNOWN_TASK_GRACE_MS'])",
            len(strange), ", ".join(names), self.grace.total_seconds(),
        )  # fmt: skip


def is_strange(claim: Claim) -> bool:
    """Whether this worker cannot run a task."""
    return registry.find(claim.task_name) is None or read_options(claim.options).wire > WIRE


def unreadable(claim: Claim) -> Reply | None:
    """Return how a task ends whose options this release cannot read, None when it can: because a newer release sent it and no
    newer worker took it, or because they are none."""
    if claim.options is None:
        return None
    wire, _timeout, problem = read_options(claim.options)
    if problem is not None:
        return failed(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, f"stored options: {problem}")
    if wire <= WIRE:
        return None
    return failed(
        OperationalErrorCode.WORKER_RESOLUTION_ERROR,
        f"it was sent in version {wire} of the form of tasks and this worker reads version {WIRE}: update the workers",
    )
