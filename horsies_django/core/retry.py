"""Retries: which failures are tried again, how often, and after how long a pause.

A policy is sent along with the task and lies in its row: the statement that writes a failure down decides, on the database's
clock, whether it is the last one. So the same rules hold for a task that raised, one whose process died, and one whose worker
is gone.

What a policy lists lies there as texts: error codes, and the dotted names of exception classes. An attempt that raised tells
the names of its exception's class and of all bases of it, so that a base class covers what is derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from horsies_django.core.errors import RESERVED, HorsiesError, OperationalErrorCode, OutcomeCode, code_problem

MOST_RETRIES = 100
LONGEST_PAUSE = 30 * 86_400  # seconds
LARGEST_DOUBLING = 40  # beyond it every pause is longer than the longest
Kind = str | type[BaseException]
# What a policy without a list retries: an error that a task returned is its answer, all else may go better the next time.
USUAL: tuple[Kind, ...] = (
    Exception,
    OperationalErrorCode.WORKER_CRASHED.value,
    OutcomeCode.TASK_TIMEOUT.value,
)


class Retry(HorsiesError):  # noqa: N818 - raised to ask for something, not because something broke
    """Raised by a task that wants to be tried again: ``raise Retry(delay_seconds=30) from error``.

    ``delay_seconds`` None leaves the pause to the task's retry policy, which also says how often. ``code`` is an error code
    of the project's own, RETRY_REQUESTED without one; with ``message`` and ``data`` it is what the attempt, and the task if
    it was the last one, failed with. Raises ValueError for a code that cannot be used or a pause that is not from 0 seconds
    to 30 days.
    """

    def __init__(
        self, message: str = "", *, delay_seconds: float | None = None, code: str | None = None, data: Any = None
    ) -> None:
        super().__init__(message or "the task asked to be tried again")
        if delay_seconds is not None and not _is_number(delay_seconds, 0, LONGEST_PAUSE):
            raise ValueError(f"delay_seconds is a number from 0 to {LONGEST_PAUSE:_} (30 days), not {delay_seconds!r}")
        if code is not None and (problem := code_problem(code)):
            raise ValueError(problem)
        self.message = str(self)
        self.delay_seconds = delay_seconds
        self.code = code
        self.data = data


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a task is tried again, after what pauses in seconds, and which failures are worth it.

    Made by ``fixed`` and ``exponential``. ``auto_retry_for`` lists error codes, built in or the project's own, and exception
    classes, which cover the classes derived from them; a class may be given by its dotted path. Without a list, exceptions,
    crashes and timeouts are retried, errors that the task returned are not: ``[Exception, "WORKER_CRASHED", "TASK_TIMEOUT"]``.
    With an empty one only a task that raises ``Retry`` is tried again. With ``jitter`` each pause is up to a quarter shorter or
    longer, so that what failed together does not come back together. No pause is longer than ``max_delay_seconds``.
    """

    strategy: str
    intervals: tuple[float, ...]
    max_retries: int
    auto_retry_for: tuple[Kind, ...] = USUAL
    jitter: bool = True
    max_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ValueError("RetryPolicy: " + "; ".join(problems))

    @classmethod
    def fixed(
        cls, intervals: Sequence[float], *, auto_retry_for: Kind | Iterable[Kind] = USUAL, jitter: bool = True
    ) -> RetryPolicy:
        """Retry once per pause in ``intervals``, in seconds. Raises ValueError, naming all that is wrong."""
        pauses = tuple(intervals) if isinstance(intervals, list | tuple) else ()
        return cls("fixed", pauses, len(pauses), _kinds(auto_retry_for), jitter)

    @classmethod
    def exponential(
        cls,
        *,
        base_seconds: float = 60,
        max_retries: int = 3,
        max_delay_seconds: float | None = None,
        auto_retry_for: Kind | Iterable[Kind] = USUAL,
        jitter: bool = True,
    ) -> RetryPolicy:
        """Retry ``max_retries`` times, after ``base_seconds`` first and twice as long each time.

        Raises ValueError, naming all that is wrong.
        """
        return cls("exponential", (base_seconds,), max_retries, _kinds(auto_retry_for), jitter, max_delay_seconds)

    def _problems(self) -> Iterable[str]:
        if self.strategy == "fixed" and not self.intervals:
            yield "intervals is a list of at least one pause in seconds, as in [60, 300, 900]"
        for pause in self.intervals:
            if not _is_number(pause, 0, LONGEST_PAUSE):
                yield f"a pause is a number of seconds from 0 to {LONGEST_PAUSE:_} (30 days), not {pause!r}"
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int) or self.max_retries < 0:
            yield f"max_retries is an int, not {self.max_retries!r}"
        elif self.intervals and not 1 <= self.max_retries <= MOST_RETRIES:
            yield f"max_retries: a task is retried from 1 to {MOST_RETRIES} times, not {self.max_retries}"
        if self.max_delay_seconds is not None and not _is_number(self.max_delay_seconds, 0, LONGEST_PAUSE):
            yield f"max_delay_seconds is a number from 0 to {LONGEST_PAUSE:_} (30 days), not {self.max_delay_seconds!r}"
        for kind in self.auto_retry_for:
            if problem := _kind_problem(kind):
                yield f"auto_retry_for: {problem}"

    @property
    def codes(self) -> tuple[str, ...]:
        """The error codes among what is listed."""
        return tuple(kind for kind in self.auto_retry_for if isinstance(kind, str))

    @property
    def listed(self) -> list[str]:
        """What is listed, as texts: codes, and the dotted names of classes."""
        return [kind if isinstance(kind, str) else class_name(kind) for kind in self.auto_retry_for]

    def pause(self, retry: int) -> float:
        """Return the seconds before retry number ``retry``, the first is 1, without jitter."""
        if self.strategy == "fixed":
            seconds = self.intervals[min(retry, len(self.intervals)) - 1]
        else:
            seconds = self.intervals[0] * 2 ** min(retry - 1, LARGEST_DOUBLING)
        return min(seconds, LONGEST_PAUSE if self.max_delay_seconds is None else self.max_delay_seconds)

    def stored(self) -> dict[str, Any]:
        """Return the policy as it lies in a task's row."""
        return {
            "strategy": self.strategy,
            "intervals": list(self.intervals),
            "jitter": self.jitter,
            "most": self.max_delay_seconds,
            "codes": self.listed,
        }


def class_name(kind: type[BaseException]) -> str:
    """Return the dotted name by which a class lies in a task's row; no error code has a dot."""
    return f"{kind.__module__}.{kind.__qualname__}"


def class_names(error: BaseException) -> tuple[str, ...]:
    """Return the names of an exception's class and of its bases that are exceptions."""
    return tuple(class_name(base) for base in type(error).__mro__ if issubclass(base, BaseException))


def _kinds(given: Kind | Iterable[Kind]) -> tuple[Kind, ...]:
    """Return codes as plain texts and classes as classes; a single one is taken for what it was meant to be."""
    kinds = [given] if isinstance(given, str | type) else given
    return tuple(_resolved(str.__str__(kind)) if isinstance(kind, str) else kind for kind in kinds)


def _resolved(text: str) -> Kind:
    """Return the class that a dotted path names, any other text as it is. Raises ValueError for a path that leads nowhere."""
    module, dot, name = text.rpartition(".")
    if not dot:
        return text
    try:
        found: Kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"RetryPolicy: auto_retry_for: {text[:120]!r} cannot be imported: {error}") from error
    return found


def _kind_problem(kind: object) -> str | None:
    """Return what is wrong with an entry of ``auto_retry_for``, or None."""
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return None
    if not isinstance(kind, str):
        return f"{kind!r:.100} is neither an error code, as in 'MAILBOX_FULL', nor an exception class"
    return None if kind in RESERVED else code_problem(kind)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
