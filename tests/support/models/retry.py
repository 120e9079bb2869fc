"""Whether a failed attempt is tried again, and when: what the statement that writes it down
decides.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from horsies_django.core.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt: its code, the names of its exception's classes (none if it did not raise),
    whether the task asked for a retry (and after how long), whether its process died. One that was
    interrupted also asks: the task is given back.
    """

    code: str
    classes: tuple[str, ...] = ()
    asked: bool = False
    delay_seconds: float | None = None
    crashed: bool = False


def decide(
    failure: Failure,
    policy: RetryPolicy | None,
    *,
    retry_count: int,
    crashes: int = 0,
    max_crashes: int = 0,
    now: dt.datetime,
    good_until: dt.datetime | None = None,
    cancelled: bool = False,
) -> dt.datetime | str | None:
    """Return when the task is tried again (if without jitter), "POISON", or None when this failure
    is its last.

    ``crashes`` counts the processes that died of it before this one; at ``max_crashes`` (0: no
    bound) it is poison.
    """
    if failure.crashed and 0 < max_crashes <= crashes + 1:
        return "POISON"

    given_back = failure.crashed and failure.asked
    if cancelled or ((policy is None or retry_count >= policy.max_retries) and not given_back):
        return None

    if not failure.asked and not {failure.code, *failure.classes} & set(
        policy.listed if policy else ()
    ):
        return None
    if failure.delay_seconds is None and policy is None:
        return None  # it always says when

    seconds = (
        policy.delay(retry_count + 1) if failure.delay_seconds is None else failure.delay_seconds
    )
    due = now + dt.timedelta(seconds=seconds)
    return due if good_until is None or due < good_until else None
