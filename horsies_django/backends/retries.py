"""Retries in the words of ``django.tasks``: ``max_attempts``, ``backoff`` and ``retry_on``.

They become the RetryPolicy in the row of the task, so the statement that records a failure decides, also when a process died.
Only a function as ``backoff`` is asked in the process that ran the task; crashes and timeouts then wait as without ``backoff``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from horsies_django.conf import config
from horsies_django.core.errors import OperationalErrorCode, OutcomeCode
from horsies_django.core.retry import LONGEST_DELAY, MOST_RETRIES, USUAL, Kind, RetryPolicy, mapped_code

logger = logging.getLogger("horsies.task")

MOST_ATTEMPTS = MOST_RETRIES + 1
WITHOUT_EXCEPTION = (OperationalErrorCode.WORKER_CRASHED.value, OutcomeCode.TASK_TIMEOUT.value)

# (exception, task_result) -> seconds until the next attempt, None: no further attempt
BackoffFunction = Callable[[Any, Any], float | None]
Backoff = float | tuple[float, ...] | BackoffFunction


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a task is tried, after which delays in seconds, and for which failures.

    ``backoff`` is a delay, a delay for each retry (the last one repeats), a function, or None: 60 s, doubled each time. Raises
    ValueError with all problems.
    """

    max_attempts: int = 1
    backoff: Backoff | None = None
    retry_on: tuple[Kind, ...] = USUAL

    def __post_init__(self) -> None:
        if problem := attempts_problem(self.max_attempts) or backoff_problem(self.backoff):
            raise ValueError(problem)
        # the same checks and imports as for any policy, whatever max_attempts is
        policy = RetryPolicy.exponential(auto_retry_for=self.retry_on)
        object.__setattr__(self, "retry_on", policy.auto_retry_for)

    @property
    def asks(self) -> bool:
        return callable(self.backoff)

    def policy(self) -> RetryPolicy | None:
        """Return the policy for the row of the task, None if it is not retried."""
        if self.max_attempts == 1:
            return None
        kinds = tuple(kind for kind in self.retry_on if kind in WITHOUT_EXCEPTION) if self.asks else self.retry_on
        policy = RetryPolicy.exponential(max_retries=self.max_attempts - 1, auto_retry_for=kinds)
        if self.backoff is None or callable(self.backoff):
            return policy
        delays = self.backoff if isinstance(self.backoff, tuple) else (self.backoff,)
        return replace(policy, strategy="fixed", intervals=delays, jitter=False)

    def includes(self, error: BaseException) -> bool:
        """Whether ``retry_on`` lists the exception: its class, a base class, or its error code."""
        conf = config()
        code = mapped_code(error, conf.exception_mapper) or conf.default_unhandled_error_code
        return any(code == kind if isinstance(kind, str) else isinstance(error, kind) for kind in self.retry_on)

    def ask(self, error: BaseException, result: Any) -> float | bool | None:
        """Return what the function ``backoff`` says: seconds, None for no retry, or True if it raised or said something else."""
        assert callable(self.backoff)
        try:
            seconds = self.backoff(error, result)
        except Exception:
            logger.exception("the backoff function of %s raised; it is retried after the usual delay", name_of(result))
            return True
        if seconds is None or is_delay(seconds):
            return seconds
        logger.error(
            "the backoff function of %s returned %.80r, not seconds from 0 to %s, or None; it is retried after the usual delay",
            name_of(result), seconds, LONGEST_DELAY,
        )  # fmt: skip
        return True


def name_of(result: Any) -> str:
    return f"{result.task.module_path} {result.id}"


def attempts_problem(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        return f"max_attempts must be an int from 1 to {MOST_ATTEMPTS}, not {value!r:.80}"
    return None


def backoff_problem(value: object) -> str | None:
    delays = value if isinstance(value, tuple) else (value,)
    if value is None or callable(value) or (delays and all(map(is_delay, delays))):
        return None
    return (
        f"backoff must be seconds from 0 to {LONGEST_DELAY:_}, a list of them, or a function of the exception and the task "
        f"result that returns seconds or None, not {value!r:.80}"
    )


def is_delay(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value <= LONGEST_DELAY
    )


def hashable(value: Any) -> Any:
    """Return a list as a tuple, because the fields of a task are compared and hashed; other values are returned as they are."""
    return tuple(value) if isinstance(value, list | set | frozenset) else value


def kinds_of(value: Kind | Iterable[Kind]) -> tuple[Kind, ...]:
    """Return ``retry_on`` as a tuple; a single entry may be given without a list."""
    return (value,) if isinstance(value, str | type) else tuple(value)
