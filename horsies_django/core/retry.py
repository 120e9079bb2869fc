"""Retry policies, and mappers of exceptions to error codes.

A policy defines which failures are retried, how often, and after which delays. It is stored in the
row of the task. The statement that records a failure decides whether the task is retried. So the
same rules apply to a task that raised an exception, a task whose process died, and a task whose
worker is lost.

A policy is stored as error codes and dotted names of exception classes. An attempt that raised an
exception records the names of its class and of all base classes. So a policy that lists a base
class covers its subclasses.

A mapper defines the error codes of exceptions of user code. The class of the exception is looked up
first, and then its base classes in method resolution order.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from horsies_django.core.errors import (
    RESERVED,
    HorsiesError,
    OperationalErrorCode,
    OutcomeCode,
    code_problem,
)

MOST_RETRIES = 100
LONGEST_RETRY_DELAY = 30 * 86_400  # seconds
FailureKind = str | type[BaseException]
# The failures that a policy without a list retries: all except errors that the task returned.
USUAL_FAILURES: tuple[FailureKind, ...] = (
    Exception,
    OperationalErrorCode.WORKER_CRASHED.value,
    OutcomeCode.TASK_TIMEOUT.value,
)
Mapper = Mapping[type[BaseException], str]
EMPTY_MAPPER: Mapper = MappingProxyType({})


class Retry(HorsiesError):  # noqa: N818 - a request, not an error
    """The exception with which a task requests a retry: ``raise Retry(delay_seconds=30)``.

    If ``delay_seconds`` is None, the delay is that of the retry policy of the task. The policy also
    limits the number of retries. ``code`` is an error code of the project, and RETRY_REQUESTED by
    default. The attempt fails with ``code``, ``message`` and ``data``, and so does the task after
    the last attempt. Raises ValueError if the code is invalid, or the delay is not from 0 seconds
    to 30 days.
    """

    def __init__(
        self,
        message: str = "",
        *,
        delay_seconds: float | None = None,
        code: str | None = None,
        data: Any = None,
    ) -> None:
        super().__init__(message or "the task requested a retry")
        if delay_seconds is not None and not _is_number(delay_seconds, 0, LONGEST_RETRY_DELAY):
            raise ValueError(
                f"delay_seconds must be from 0 to {LONGEST_RETRY_DELAY:_} (30 days), not "
                f"{delay_seconds!r}"
            )
        if code is not None and (problem := code_problem(code)):
            raise ValueError(problem)

        self.message = str(self)
        self.delay_seconds = delay_seconds
        self.code = code
        self.data = data


class Snooze(HorsiesError):  # noqa: N818 - a request, not an error
    """The exception with which a task runs the same attempt again later: ``raise Snooze(60)``.

    ``until`` is a number of seconds or a timedelta from now, from 0 to 30 days, or an aware
    datetime within 30 days. The task is PENDING until then, and keeps its steps. A transaction of
    its code is rolled back. A task that snoozes more often than HORSIES["MAX_SNOOZES"] fails with
    SNOOZED_TOO_OFTEN. A task whose ``good_until`` passes before then expires. Raises ValueError if
    ``until`` is invalid.
    """

    def __init__(self, until: float | dt.timedelta | dt.datetime, message: str = "") -> None:
        super().__init__(message or "the task requested to run again later")
        self.until = until

        if isinstance(until, dt.datetime):
            if until.utcoffset() is None:
                raise ValueError(
                    f"Snooze() takes an aware datetime, and {until.isoformat()} has no time zone"
                )
            if until - dt.datetime.now(dt.UTC) > dt.timedelta(seconds=LONGEST_RETRY_DELAY):
                raise ValueError(
                    f"Snooze() takes a time within 30 days from now, not {until.isoformat()}"
                )

            self.stored: dict[str, Any] = {"until": until.isoformat()}  # the form for the database
            return

        seconds = until.total_seconds() if isinstance(until, dt.timedelta) else until
        if not _is_number(seconds, 0, LONGEST_RETRY_DELAY):
            raise ValueError(
                f"Snooze() takes from 0 to {LONGEST_RETRY_DELAY:_} seconds (30 days), or a "
                f"timedelta, not {until!r:.100}"
            )
        self.stored = {"seconds": float(seconds)}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rule how often a task is retried, after which delays, and for which failures.

    A policy is created by ``fixed`` or ``exponential``. All delays are in seconds.

    ``auto_retry_for`` lists error codes, built-in or of the project, and exception classes, which
    include their subclasses. A class may be given by its dotted path. The default, ``[Exception,
    "WORKER_CRASHED", "TASK_TIMEOUT"]``, retries exceptions, crashes and timeouts, but not errors
    that the task returned. With an empty list, only a task that raises ``Retry`` is retried.

    With ``jitter``, each delay is up to a quarter shorter or longer, so that tasks that failed
    together are not retried together. No delay is longer than ``max_delay_seconds``.
    """

    strategy: str
    intervals: tuple[float, ...]
    max_retries: int
    auto_retry_for: tuple[FailureKind, ...] = USUAL_FAILURES
    jitter: bool = True
    max_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ValueError("RetryPolicy: " + "; ".join(problems))

    @classmethod
    def fixed(
        cls,
        intervals: Sequence[float],
        *,
        auto_retry_for: FailureKind | Iterable[FailureKind] = USUAL_FAILURES,
        jitter: bool = True,
    ) -> RetryPolicy:
        """Return a policy that retries once per delay in ``intervals``, in seconds.

        Raises ValueError, whose message has all problems, if a value is invalid.
        """
        delays = tuple(intervals) if isinstance(intervals, list | tuple) else ()
        return cls("fixed", delays, len(delays), _kinds(auto_retry_for), jitter)

    @classmethod
    def exponential(
        cls,
        *,
        base_seconds: float = 60,
        max_retries: int = 3,
        max_delay_seconds: float | None = None,
        auto_retry_for: FailureKind | Iterable[FailureKind] = USUAL_FAILURES,
        jitter: bool = True,
    ) -> RetryPolicy:
        """Return a policy that retries ``max_retries`` times, after delays that double each time.

        The first delay is ``base_seconds``. Raises ValueError, whose message has all problems, if a
        value is invalid.
        """
        return cls(
            "exponential",
            (base_seconds,),
            max_retries,
            _kinds(auto_retry_for),
            jitter,
            max_delay_seconds,
        )

    def _problems(self) -> Iterable[str]:
        if self.strategy == "fixed" and not self.intervals:
            yield (
                "intervals must be a list of at least one retry delay in seconds, as in [60, 300, "
                "900]"
            )
        for delay in self.intervals:
            if not _is_number(delay, 0, LONGEST_RETRY_DELAY):
                yield (
                    f"a retry delay must be from 0 to {LONGEST_RETRY_DELAY:_} seconds (30 days), "
                    f"not {delay!r}"
                )

        if (
            isinstance(self.max_retries, bool)
            or not isinstance(self.max_retries, int)
            or self.max_retries < 0
        ):
            yield f"max_retries must be an int, not {self.max_retries!r}"
        elif self.intervals and not 1 <= self.max_retries <= MOST_RETRIES:
            yield f"max_retries must be from 1 to {MOST_RETRIES}, not {self.max_retries}"

        if self.max_delay_seconds is not None and not _is_number(
            self.max_delay_seconds, 0, LONGEST_RETRY_DELAY
        ):
            yield (
                f"max_delay_seconds must be from 0 to {LONGEST_RETRY_DELAY:_} (30 days), not "
                f"{self.max_delay_seconds!r}"
            )

        for kind in self.auto_retry_for:
            if problem := _kind_problem(kind):
                yield f"auto_retry_for: {problem}"

    @property
    def codes(self) -> tuple[str, ...]:
        """The error codes in ``auto_retry_for``."""
        return tuple(kind for kind in self.auto_retry_for if isinstance(kind, str))

    @property
    def listed(self) -> list[str]:
        """The entries of ``auto_retry_for`` as texts: error codes and dotted names of classes."""
        return [kind if isinstance(kind, str) else class_name(kind) for kind in self.auto_retry_for]

    def delay(self, retry: int) -> float:
        """Return the delay in seconds before a retry, without jitter.

        ``retry`` is the number of the retry, counted from 1.
        """
        if self.strategy == "fixed":
            seconds = self.intervals[min(retry, len(self.intervals)) - 1]
        else:
            # After 40 doublings, every delay is longer than LONGEST_RETRY_DELAY.
            seconds = self.intervals[0] * 2 ** min(retry - 1, 40)
        return min(
            seconds,
            LONGEST_RETRY_DELAY if self.max_delay_seconds is None else self.max_delay_seconds,
        )

    def stored(self) -> dict[str, Any]:
        """Return the policy as it is stored in the row of a task."""
        return {
            "strategy": self.strategy,
            "intervals": list(self.intervals),
            "jitter": self.jitter,
            "most": self.max_delay_seconds,
            "codes": self.listed,
        }


def class_name(kind: type[BaseException]) -> str:
    """Return the dotted name by which a class is stored.

    It cannot be mistaken for an error code, which contains no dots.
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def class_names(error: BaseException) -> tuple[str, ...]:
    """Return the names of the class of an exception and of its base classes that are exceptions."""
    return tuple(
        class_name(base) for base in type(error).__mro__ if issubclass(base, BaseException)
    )


def _kinds(given: FailureKind | Iterable[FailureKind]) -> tuple[FailureKind, ...]:
    """Return the entries of ``auto_retry_for``, with classes in place of dotted paths.

    A single entry is accepted too.
    """
    kinds = [given] if isinstance(given, str | type) else given
    return tuple(_resolved(str.__str__(kind)) if isinstance(kind, str) else kind for kind in kinds)


def _resolved(text: str) -> FailureKind:
    """Return the class at a dotted path, or a text without a dot unchanged.

    Raises ValueError if the import fails.
    """
    module, dot, name = text.rpartition(".")
    if not dot:
        return text

    try:
        found: FailureKind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"RetryPolicy: auto_retry_for: {text[:120]!r} cannot be imported: {error}"
        ) from error

    return found


def _kind_problem(kind: object) -> str | None:
    """Return the problem with an entry of ``auto_retry_for``, or None if it is valid."""
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return None
    if not isinstance(kind, str):
        return (
            f"{kind!r:.100} is neither an error code, as in 'MAILBOX_FULL', nor an exception class"
        )
    return None if kind in RESERVED else code_problem(kind)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def mapper_problems(mapper: object) -> list[str]:
    """Return the problems of a mapper of exception classes to error codes."""
    if not isinstance(mapper, Mapping):
        return [
            "a mapper must be a dict of exception classes and error codes, not "
            f"{type(mapper).__name__}"
        ]

    problems = []
    for key, code in mapper.items():
        if not (isinstance(key, type) and issubclass(key, BaseException)):
            problems.append(f"{key!r} is not an exception class")
        elif problem := code_problem(code):
            problems.append(f"{key.__qualname__}: {problem}")

    return problems


def mapped_code(error: BaseException, *mappers: Mapper) -> str | None:
    for mapper in mappers:
        for base in type(error).__mro__:
            if base in mapper:
                return mapper[base]
    return None
