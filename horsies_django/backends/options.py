"""The ``OPTIONS`` of a backend in ``settings.TASKS``, and what they mean for a task that has options of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from horsies_django.backends.retries import Retries, attempts_problem, backoff_problem, hashable, kinds_of
from horsies_django.core.retry import USUAL, RetryPolicy
from horsies_django.tasks.definition import timeout_problem

KEYS = ("MAX_ATTEMPTS", "BACKOFF", "RETRY_ON", "TIMEOUT_MS", "MODULES")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a backend; invalid ones have their defaults, and are in ``problems``, by key.

    ``modules`` are imported by workers like the ``tasks`` modules of apps. The others apply to tasks that say nothing else.
    """

    retries: Retries
    timeout_ms: Any
    modules: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


def read(given: Any) -> Options:
    """Read the options. Never raises."""
    if not isinstance(given, Mapping):
        return Options(Retries(), None, (), (("OPTIONS", f"must be a dict, not {type(given).__name__}"),))
    problems = list(unknown(given))
    attempts = checked(given, "MAX_ATTEMPTS", 1, attempts_problem, problems)
    backoff = checked(imported(given, problems), "BACKOFF", None, backoff_problem, problems)
    retry_on = checked(given, "RETRY_ON", USUAL, kinds_problem, problems)
    timeout = checked(given, "TIMEOUT_MS", None, timeout_problem, problems)
    modules = checked(given, "MODULES", (), modules_problem, problems)
    return Options(Retries(attempts, backoff, kinds_of(retry_on)), timeout, tuple(modules), tuple(problems))


def named_modules() -> Iterator[str]:
    """Yield the modules that the OPTIONS of each HorsiesBackend in ``settings.TASKS`` name."""
    for params in getattr(settings, "TASKS", {}).values():
        try:
            backend = import_string(params["BACKEND"])
        except (ImportError, KeyError, TypeError, AttributeError):  # Django reports it
            continue
        if hasattr(backend, "horsies_options"):
            yield from read(params.get("OPTIONS", {})).modules


def unknown(given: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that do not exist."""
    for key in given:
        if key not in KEYS:
            near = get_close_matches(str(key).upper(), KEYS, 1)
            known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KEYS)}"
            yield str(key), f"is no option; {known}"


def checked(given: Mapping[Any, Any], key: str, default: Any, problem_of: Any, problems: list[tuple[str, str]]) -> Any:
    value = hashable(given.get(key, default))
    if problem := problem_of(value):
        problems.append((key, problem))
        return default
    return value


def imported(given: Mapping[Any, Any], problems: list[tuple[str, str]]) -> Mapping[Any, Any]:
    """Return the options with the function that a dotted path in BACKOFF names."""
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
        return f"must be a list of exception classes, their dotted paths, or error codes, not {value!r:.80}"
    try:
        RetryPolicy.exponential(auto_retry_for=value)
    except ValueError as error:
        return str(error).removeprefix("RetryPolicy: auto_retry_for: ")
    return None


def modules_problem(value: object) -> str | None:
    if isinstance(value, tuple) and all(
        isinstance(one, str) and one and all(part.isidentifier() for part in one.split(".")) for one in value
    ):
        return None
    return f"must be a list of dotted names of modules, not {value!r:.80}"


def retries_of(task: Any) -> Retries:
    """Return the retries of a task: its own, else those in the OPTIONS of its backend. Raises ValueError."""
    usual: Retries = task.get_backend().horsies_options.retries
    own = {name: getattr(task, name, None) for name in ("max_attempts", "backoff", "retry_on")}
    chosen = {name: value for name, value in own.items() if value is not None}
    if "retry_on" in chosen:
        chosen["retry_on"] = kinds_of(chosen["retry_on"])
    return replace(usual, **chosen) if chosen else usual


def timeout_of(task: Any) -> Any:
    """Return the timeout of a task in milliseconds, or a timedelta, or None."""
    own = getattr(task, "timeout_ms", None)
    return task.get_backend().horsies_options.timeout_ms if own is None else own


def options_problem(task: Any) -> str | None:
    """Return what is wrong with the options that ``HorsiesTask`` adds, or None."""
    try:
        retries_of(task)
    except (TypeError, ValueError) as error:
        return str(error).replace("RetryPolicy: auto_retry_for", "retry_on")
    return timeout_problem(timeout_of(task))
