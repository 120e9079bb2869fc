"""The OPTIONS of a backend in ``settings.TASKS``, the options of a task, and its retries.

Retries have the names of ``django.tasks`` here, and become the RetryPolicy in the row of the task.
The statement that writes a failure reads it there, so a task is retried even if its process died.
Only a function as ``backoff`` is called in the process that ran the task; crashes and timeouts of
such a task have the delays of a task without ``backoff``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from horsies_django.conf import config
from horsies_django.core.errors import OperationalErrorCode, OutcomeCode
from horsies_django.core.retry import (
    LONGEST_RETRY_DELAY,
    MOST_RETRIES,
    USUAL_FAILURES,
    FailureKind,
    RetryPolicy,
    mapped_code,
)
from horsies_django.tasks.definition import timeout_problem

logger = logging.getLogger("horsies.task")

OPTION_KEYS = ("MAX_ATTEMPTS", "BACKOFF", "RETRY_ON", "TIMEOUT_MS", "MODULES")
MOST_ATTEMPTS = MOST_RETRIES + 1
WITHOUT_EXCEPTION = (OperationalErrorCode.WORKER_CRASHED.value, OutcomeCode.TASK_TIMEOUT.value)

# (exception, task_result) -> seconds until the next attempt, or None for no further attempt
BackoffFunction = Callable[[Any, Any], float | None]
BackoffSetting = float | tuple[float, ...] | BackoffFunction


@dataclass(frozen=True, slots=True)
class Retries:
    """The number of attempts of a task, the delays between them, and the failures to retry.

    ``backoff`` is a delay in seconds, a list of delays for each retry (the last one repeats), or a
    function. If it is None, the first delay is 60 s, and each further one is twice as long. A
    single entry of ``retry_on`` may be given without a list. Raises ValueError with all problems.
    """

    max_attempts: int = 1
    backoff: BackoffSetting | None = None
    retry_on: tuple[FailureKind, ...] = USUAL_FAILURES

    def __post_init__(self) -> None:
        if problem := attempts_problem(self.max_attempts) or backoff_problem(self.backoff):
            raise ValueError(problem)
        # A policy checks and imports the classes, even if max_attempts is 1.
        policy = RetryPolicy.exponential(auto_retry_for=self.retry_on)
        object.__setattr__(self, "retry_on", policy.auto_retry_for)

    @property
    def has_backoff_function(self) -> bool:
        return callable(self.backoff)

    def policy(self) -> RetryPolicy | None:
        """Return the policy for the row of the task, or None if the task is not retried."""
        if self.max_attempts == 1:
            return None

        kinds = (
            tuple(kind for kind in self.retry_on if kind in WITHOUT_EXCEPTION)
            if self.has_backoff_function
            else self.retry_on
        )

        policy = RetryPolicy.exponential(max_retries=self.max_attempts - 1, auto_retry_for=kinds)
        if self.backoff is None or callable(self.backoff):
            return policy

        delays = self.backoff if isinstance(self.backoff, tuple) else (self.backoff,)
        return replace(policy, strategy="fixed", intervals=delays, jitter=False)

    def includes(self, error: BaseException) -> bool:
        """Return whether ``retry_on`` has an exception, a base class of it, or its error code."""
        conf = config()
        code = mapped_code(error, conf.exception_mapper) or conf.default_unhandled_error_code
        return any(
            code == kind if isinstance(kind, str) else isinstance(error, kind)
            for kind in self.retry_on
        )

    def call_backoff(self, error: BaseException, result: Any) -> float | bool | None:
        """Return the seconds that the function ``backoff`` returns, or None for no further attempt.

        Returns True, for the usual delay, if the function raises or returns another value.
        """
        assert callable(self.backoff)
        name = f"{result.task.module_path} {result.id}"

        try:
            seconds = self.backoff(error, result)
        except Exception:
            logger.exception(
                "the backoff function of %s raised an exception; the task is retried after the "
                "usual delay",
                name,
            )
            return True

        if seconds is None or is_delay(seconds):
            return seconds
        logger.error(
            "the backoff function of %s returned %.80r, which is neither seconds from 0 to %s nor "
            "None; the task is retried after the usual delay",
            name,
            seconds,
            LONGEST_RETRY_DELAY,
        )
        return True


def attempts_problem(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        return f"max_attempts must be an int from 1 to {MOST_ATTEMPTS}, not {value!r:.80}"
    return None


def backoff_problem(value: object) -> str | None:
    delays = value if isinstance(value, tuple) else (value,)
    if value is None or callable(value) or (delays and all(map(is_delay, delays))):
        return None
    return (
        f"backoff must be seconds from 0 to {LONGEST_RETRY_DELAY:_}, a list of them, or a function "
        f"of the exception and the task result that returns seconds or None, not {value!r:.80}"
    )


def is_delay(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= LONGEST_RETRY_DELAY
    )


def hashable(value: Any) -> Any:
    """Return a list or a set as a tuple, because the fields of a task are compared and hashed.

    All other values are returned unchanged.
    """
    return tuple(value) if isinstance(value, list | set | frozenset) else value


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options of a backend. Invalid ones have their defaults, and are in ``problems`` by key.

    ``modules`` are imported by workers, as are the ``tasks`` modules of apps. The other options are
    defaults for tasks.
    """

    retries: Retries
    timeout_ms: Any
    modules: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


def read_backend_options(given: Any) -> BackendOptions:
    """Read the OPTIONS of a backend. Never raises."""
    if not isinstance(given, Mapping):
        return BackendOptions(
            Retries(), None, (), (("OPTIONS", f"must be a dict, not {type(given).__name__}"),)
        )

    problems = list(unknown(given))
    attempts = valid_option(given, "MAX_ATTEMPTS", 1, attempts_problem, problems)
    backoff = valid_option(imported(given, problems), "BACKOFF", None, backoff_problem, problems)
    retry_on = valid_option(given, "RETRY_ON", USUAL_FAILURES, kinds_problem, problems)
    timeout = valid_option(given, "TIMEOUT_MS", None, timeout_problem, problems)
    modules = valid_option(given, "MODULES", (), modules_problem, problems)

    return BackendOptions(
        Retries(attempts, backoff, retry_on), timeout, tuple(modules), tuple(problems)
    )


def named_modules() -> Iterator[str]:
    """Yield the modules in the OPTIONS of each HorsiesBackend in ``settings.TASKS``."""
    for params in getattr(settings, "TASKS", {}).values():
        try:
            backend = import_string(params["BACKEND"])
        except (ImportError, KeyError, TypeError, AttributeError):  # Django reports the error
            continue
        if hasattr(backend, "horsies_options"):
            yield from read_backend_options(params.get("OPTIONS", {})).modules


def unknown(given: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key that does not exist, and its problem."""
    for key in given:
        if key not in OPTION_KEYS:
            near = get_close_matches(str(key).upper(), OPTION_KEYS, 1)
            hint = f"the options are {', '.join(OPTION_KEYS)}"
            hint = f"did you mean {near[0]!r}?" if near else hint
            yield str(key), f"is not an option; {hint}"


def valid_option(
    given: Mapping[Any, Any],
    key: str,
    default: Any,
    problem_of: Any,
    problems: list[tuple[str, str]],
) -> Any:
    value = hashable(given.get(key, default))
    if problem := problem_of(value):
        problems.append((key, problem))
        return default
    return value


def imported(given: Mapping[Any, Any], problems: list[tuple[str, str]]) -> Mapping[Any, Any]:
    """Return the options, with the function in place of a dotted path in BACKOFF."""
    path = given.get("BACKOFF")
    if not isinstance(path, str):
        return given
    try:
        return {**given, "BACKOFF": import_string(path)}
    except ImportError as error:
        problems.append(("BACKOFF", f"cannot be imported: {error}"))
        return {}


def kinds_problem(value: object) -> str | None:
    if not isinstance(value, str | type | tuple):
        return (
            "must be a list of exception classes, their dotted paths, or error codes, not "
            f"{value!r:.80}"
        )
    try:
        RetryPolicy.exponential(auto_retry_for=value)
    except ValueError as error:
        return str(error).removeprefix("RetryPolicy: auto_retry_for: ")
    return None


def modules_problem(value: object) -> str | None:
    sound = isinstance(value, tuple) and all(
        isinstance(one, str) and all(map(str.isidentifier, one.split("."))) for one in value
    )
    return None if sound else f"must be a list of dotted names of modules, not {value!r:.80}"


def retries_of(task: Any) -> Retries:
    """Return the retries of a task: its own options, and those of its backend for the others.

    Raises ValueError if an option is invalid.
    """
    usual: Retries = task.get_backend().horsies_options.retries
    own = {name: getattr(task, name, None) for name in ("max_attempts", "backoff", "retry_on")}
    chosen = {name: value for name, value in own.items() if value is not None}
    return replace(usual, **chosen) if chosen else usual


def timeout_of(task: Any) -> Any:
    """Return the timeout of a task, in milliseconds or as a timedelta, or None."""
    own = getattr(task, "timeout_ms", None)
    return task.get_backend().horsies_options.timeout_ms if own is None else own


def options_problem(task: Any) -> str | None:
    """Return the problem of the options that ``HorsiesTask`` adds to a task, or None."""
    try:
        retries_of(task)
    except (TypeError, ValueError) as error:
        return str(error).replace("RetryPolicy: auto_retry_for", "retry_on")
    return timeout_problem(timeout_of(task))
