"""Unknown tasks, which this worker has no code for, or which a newer release sent.

During a deployment old and new workers run side by side, and a worker may claim a task that only
other workers can run. It releases the task, which only those workers claim until it has been due
for the grace period. After that the task fails.

Passes do not check for unknown tasks until the worker has claimed one, so the check costs nothing
before. From then on, for the grace period, passes skip tasks that are not named in the worker's
row. After it, one pass includes all tasks again. So a worker releases unknown tasks at most once in
that time. Unknown tasks that a pass claims although it skips such tasks have been due for longer
than the grace period; they are run, and fail.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.options import WIRE, read_options
from horsies_django.core.records import Claim, Reply
from horsies_django.core.texts import printable_name
from horsies_django.tasks import registry
from horsies_django.worker.child.run_task import failed
from horsies_django.worker.logs.task_log import MOST_IN_LINE

logger = logging.getLogger("horsies.worker")


class UnknownTasks:
    """The time until which passes skip unknown tasks; with a grace of zero they never skip them."""

    def __init__(self, grace: timedelta) -> None:
        self.grace = grace
        self.until = 0.0  # by the monotonic clock

    def grace_at(self, now: float) -> timedelta | None:
        """Return the grace of the next pass, or None if no unknown task was claimed recently."""
        return self.grace if now < self.until else None

    def split(self, claims: list[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Return the claims to run or to fail, and the claims of unknown tasks to release."""
        unknown = [claim for claim in claims if is_unknown(claim)] if self.grace else []
        if not unknown:
            return claims, unknown
        ids = {claim.id for claim in unknown}
        return [claim for claim in claims if claim.id not in ids], unknown

    def met(self, now: float, unknown: Sequence[Claim]) -> None:
        """Skip unknown tasks for the grace period, and log the names of the released ones."""
        self.until = now + self.grace.total_seconds()
        names = sorted({printable_name(claim.task_name) for claim in unknown})
        more = [f"and {len(names) - MOST_IN_LINE} more names"] if len(names) > MOST_IN_LINE else []
        logger.warning(
            "releasing %s task(s) unknown to this worker: %s. Other workers may run them; a task "
            "fails if no worker has claimed it %.0f s after it was due "
            "(HORSIES['UNKNOWN_TASK_GRACE_MS'])",
            len(unknown),
            ", ".join(names[:MOST_IN_LINE] + more),
            self.grace.total_seconds(),
        )


def is_unknown(claim: Claim) -> bool:
    """Return whether this worker cannot run a task."""
    options = claim.options
    return registry.find(claim.task_name) is None or (
        options is not None and read_options(options).wire > WIRE
    )


def unreadable_options_reply(claim: Claim) -> Reply | None:
    """Return the failure of a task whose options this release cannot read, or None if it can.

    Either a newer release sent the task and no newer worker claimed it, or the options are invalid.
    """
    if claim.options is None:
        return None

    wire, _timeout, problem = read_options(claim.options)
    if problem is not None:
        return failed(
            OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
            f"the stored options cannot be read: {problem}",
        )
    if wire <= WIRE:
        return None

    return failed(
        OperationalErrorCode.WORKER_RESOLUTION_ERROR,
        f"the task was sent in version {wire} of the task format, and this worker reads version "
        f"{WIRE}: update the workers",
    )
