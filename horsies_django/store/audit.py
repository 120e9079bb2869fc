"""The log of changes without an audit entry.

If an entry cannot be written, the change is made nevertheless.
"""

from __future__ import annotations

import logging
import time
import uuid

from horsies_django.core.repeats import Repeats

logger = logging.getLogger("horsies.audit")
repeats = Repeats()


def log_lost_record(
    lost: str | None, action: str, actor: str, subject: uuid.UUID | str, reason: str | None = None
) -> None:
    """Log a change whose audit entry could not be written, because of the error ``lost``.

    Nothing is logged if ``lost`` is None.
    """
    if lost is not None and (more := repeats.due(action, time.monotonic())) is not None:
        logger.error(
            "the audit has no entry of this change: %s %.200r by %.200r, reason %.200r. It could "
            "not be written: %s%s",
            action,
            str(subject),
            actor,
            reason,
            lost,
            more,
        )
