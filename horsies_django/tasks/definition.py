"""The definition of a task: its function, its name, its options and its codecs."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horsies_django.conf import RANGES
from horsies_django.core.codec import (
    PLAIN,
    ArgumentsCodec,
    PlainArguments,
    PlainResult,
    ResultCodec,
)
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.options import LONGEST_KEEP, SHORTEST_KEEP
from horsies_django.core.patterns import Pattern
from horsies_django.core.queues import DJANGO_ZERO, LOWEST, LOWEST_PLAIN
from horsies_django.core.retry import EMPTY, Mapper, RetryPolicy, mapper_problems
from horsies_django.core.schedules import as_texts, read_definition
from horsies_django.core.texts import name_problem
from horsies_django.core.unique import Unique


@dataclass(frozen=True, slots=True, eq=False)
class TaskDefinition:
    """A task as declared by the decorator.

    ``origin`` is the dotted path of the function, ``schedule`` the definition of its own schedule,
    if any; ``arguments`` and ``result`` encode and decode values. ``codec`` is "plain" for a task
    of ``django.tasks``, None for one of ``@task``. ``decide`` is called with the exception and the
    number of a failed attempt, counted from 1, and returns whether it is retried: True, or after
    how many seconds; None: as the policy says.
    """

    function: Callable[..., Any]
    origin: str
    name: str
    queue: str | None
    priority: int
    retry_policy: RetryPolicy | None
    exception_mapper: Mapper
    timeout_ms: int | dt.timedelta | None
    schedule: dict[str, Any] | None
    lane: str
    arguments: ArgumentsCodec | PlainArguments
    result: ResultCodec
    codec: str | None = None
    decide: Callable[[BaseException, int], float | bool | None] | None = None
    keep_result: bool | dt.timedelta | None = None
    unique: Unique | None = None

    @property
    def lowest_priority(self) -> int:
        """The largest number that a priority of this task can have; 1 runs first."""
        return LOWEST if self.codec is None else LOWEST_PLAIN

    @property
    def usual_priority(self) -> int:
        """The priority of such a task if nobody gives it one."""
        return LOWEST if self.codec is None else DJANGO_ZERO


def define(
    function: Callable[..., Any],
    *,
    priority: int = LOWEST,
    schedule: Pattern | str | Mapping[str, Any] | None = None,
    keep_result: bool | dt.timedelta | None = None,
    unique: Unique | Sequence[str] | bool | None = None,
    **options: Any,
) -> TaskDefinition:
    """Return the definition of a function with the options of ``@task``.

    Raises TaskDefinitionError.
    """
    common = _common(function, LOWEST, priority, **options)
    origin = common["origin"]
    arguments = ArgumentsCodec.of(function)

    if problem := keep_problem(keep_result):
        raise TaskDefinitionError(f"{origin}: {problem}")

    try:
        rule = Unique.of(unique)
    except TypeError as error:
        raise TaskDefinitionError(f"{origin}: {error}") from error
    if rule is not None and (problems := list(rule.problems(arguments.names))):
        raise TaskDefinitionError(f"{origin}: {'; '.join(problems)}")

    return TaskDefinition(
        **common,
        schedule=_schedule(origin, common["name"], schedule),
        arguments=arguments,
        result=ResultCodec.of(function),
        keep_result=keep_result,
        unique=rule,
    )


def define_plain(
    function: Callable[..., Any],
    *,
    priority: int = DJANGO_ZERO,
    takes_context: bool = False,
    decide: Callable[[BaseException, int], float | bool | None] | None = None,
    **options: Any,
) -> TaskDefinition:
    """Return the definition of a function of ``django.tasks``, which needs no annotations. Raises
    TaskDefinitionError.

    ``priority`` is from 1 (first) to 201, that is 101 - p for the priority p of ``django.tasks``.
    With ``takes_context``, whoever runs it gives its first argument. A workflow takes any object
    whose attribute ``definition`` is the result, and whose attribute ``send_options``, if it has
    one, are SendOptions.
    """
    return TaskDefinition(
        **_common(function, LOWEST_PLAIN, priority, **options),
        schedule=None,
        arguments=PlainArguments(function, takes_context),
        result=PlainResult(function),
        codec=PLAIN,
        decide=decide,
    )


def _common(
    function: Callable[..., Any],
    lowest: int,
    priority: object,
    *,
    name: str | None = None,
    queue: str | None = None,
    retry_policy: RetryPolicy | None = None,
    exception_mapper: Mapper = EMPTY,
    timeout_ms: int | dt.timedelta | None = None,
) -> dict[str, Any]:
    """Return what all definitions have. Raises TaskDefinitionError."""
    if not inspect.isfunction(function):
        raise TaskDefinitionError(
            "@task must be used on a function ('def' or 'async def'), not on "
            f"{type(function).__name__}"
        )

    origin = f"{function.__module__}.{function.__qualname__}"
    name = origin if name is None else name

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskDefinitionError(
            f"{origin} is a generator: a task returns one value, so it cannot yield"
        )
    if problem := name_problem("a task's name", name):
        raise TaskDefinitionError(f"{origin[:300]}: {problem}")
    if queue is not None and (not isinstance(queue, str) or not queue):
        raise TaskDefinitionError(
            f"{origin}: queue must be the name of a queue (a str), not {queue!r}"
        )

    if (
        problem := priority_problem(priority, lowest)
        or policy_problem(retry_policy)
        or timeout_problem(timeout_ms)
    ):
        raise TaskDefinitionError(f"{origin}: {problem}")
    if problems := mapper_problems(exception_mapper):
        raise TaskDefinitionError(f"{origin}: exception_mapper: {'; '.join(problems)}")

    lane = "async" if inspect.iscoroutinefunction(function) else "sync"
    return {
        "function": function,
        "origin": origin,
        "name": name,
        "queue": queue,
        "priority": priority,
        "retry_policy": retry_policy,
        "exception_mapper": exception_mapper,
        "timeout_ms": timeout_ms,
        "lane": lane,
    }


def _schedule(
    origin: str, name: str, given: Pattern | str | Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the definition of the task's own schedule."""
    if given is None:
        return None

    chosen = dict(given) if isinstance(given, Mapping) else {"pattern": given}
    definition = {**chosen, "task": name}
    _, wrong = read_definition(definition)
    wrong += [("task", "is this one: leave it out")] if "task" in chosen else []

    if wrong:
        raise TaskDefinitionError(f"{origin}: schedule: {'; '.join(as_texts(wrong))}")
    return definition


def priority_problem(priority: object, lowest: int) -> str | None:
    if not isinstance(priority, bool) and isinstance(priority, int) and 1 <= priority <= lowest:
        return None
    return f"priority must be an int from 1 (first) to {lowest}, not {priority!r}"


def policy_problem(policy: object) -> str | None:
    if policy is None or isinstance(policy, RetryPolicy):
        return None
    return (
        "retry_policy must be made by RetryPolicy.fixed() or RetryPolicy.exponential(), not "
        f"{policy!r:.100}"
    )


def timeout_problem(timeout: object) -> str | None:
    low, high = RANGES["TASK_TIMEOUT_MS"]
    span = milliseconds(timeout) if isinstance(timeout, dt.timedelta) else timeout
    if span is None or (
        isinstance(span, int) and not isinstance(span, bool) and low <= span <= (high or span)
    ):
        return None
    return (
        f"timeout_ms must be milliseconds (an int) or a timedelta, from {low:_} to {high:_} ms, "
        f"not {timeout!r}"
    )


def keep_problem(keep: object) -> str | None:
    if (
        keep is None
        or isinstance(keep, bool)
        or (isinstance(keep, dt.timedelta) and SHORTEST_KEEP <= keep <= LONGEST_KEEP)
    ):
        return None
    return (
        "keep_result must be True, False or a timedelta from one minute to 100 years, not "
        f"{keep!r:.100}"
    )


def milliseconds(span: int | dt.timedelta | None) -> int | None:
    """Return a duration in whole milliseconds."""
    return span // dt.timedelta(milliseconds=1) if isinstance(span, dt.timedelta) else span
