"""Whether a failed attempt is retried, and when: the decisions of the statement that settles it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from horsies_django.core.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt.

    It has its code, the names of its exception's classes (none if it did not raise), whether the
    task requested a retry (and after how long), and whether its process died. An interrupted
    attempt also requests a retry: the task is given back.
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
    """Return the time of the next attempt (without jitter), "POISON", or None for the last failure.

    ``crashes`` counts the processes that died of the task before this one; at ``max_crashes`` (0:
    no limit) the task is poison.
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
        return None  # not reached: without a policy there is a delay

    seconds = (
        policy.delay(retry_count + 1) if failure.delay_seconds is None else failure.delay_seconds
    )
    due = now + dt.timedelta(seconds=seconds)
    return due if good_until is None or due < good_until else None
