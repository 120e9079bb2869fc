"""The definition of a task: its function, its name, its options and its codecs."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horsies_django.conf import RANGES
from horsies_django.core.codec import (
    PLAIN_CODEC,
    ArgumentsCodec,
    PlainArguments,
    PlainResult,
    ResultCodec,
)
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.options import LONGEST_KEEP, SHORTEST_KEEP
from horsies_django.core.patterns import Pattern
from horsies_django.core.queues import DJANGO_ZERO, LOWEST, LOWEST_PLAIN
from horsies_django.core.retry import EMPTY_MAPPER, Mapper, RetryPolicy, mapper_problems
from horsies_django.core.schedules import as_texts, read_definition
from horsies_django.core.texts import name_problem
from horsies_django.core.unique import Unique


@dataclass(frozen=True, slots=True, eq=False)
class TaskDefinition:
    """A task with the options that its decorator declares.

    ``origin`` is the dotted path of the function. ``schedule`` is the definition of the schedule of
    the task, or None. ``arguments`` and ``result`` encode and decode values. ``codec`` is "plain"
    for a task of ``django.tasks``, and None for a task of ``@task``.

    ``decide`` is called with the exception and the number of a failed attempt, counted from 1. It
    returns True or False for whether the attempt is retried, the seconds until the retry, or None
    if the retry policy decides.
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
        """The largest number that is a valid priority of this task, which is the last to run."""
        return LOWEST if self.codec is None else LOWEST_PLAIN

    @property
    def usual_priority(self) -> int:
        """The priority of a task of this kind that was declared without one."""
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

    Raises TaskDefinitionError if the function or an option is invalid.
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
    """Return the definition of a function of ``django.tasks``, which needs no annotations.

    ``priority`` is from 1 (first) to 201. It is 101 - p for the priority p of ``django.tasks``.
    With ``takes_context``, the first argument is not sent, but passed by the code that runs the
    task.
    Raises TaskDefinitionError if the function or an option is invalid.

    A workflow accepts any object that has the returned definition as its attribute ``definition``.
    The object may also have SendOptions as its attribute ``send_options``.
    """
    return TaskDefinition(
        **_common(function, LOWEST_PLAIN, priority, **options),
        schedule=None,
        arguments=PlainArguments(function, takes_context),
        result=PlainResult(function),
        codec=PLAIN_CODEC,
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
    exception_mapper: Mapper = EMPTY_MAPPER,
    timeout_ms: int | dt.timedelta | None = None,
) -> dict[str, Any]:
    """Return the fields that all kinds of definitions have.

    Raises TaskDefinitionError if the function or an option is invalid.
    """
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
    """Return the definition of the task's own schedule, or None if it has none.

    Raises TaskDefinitionError if the schedule is invalid.
    """
    if given is None:
        return None

    chosen = dict(given) if isinstance(given, Mapping) else {"pattern": given}
    definition = {**chosen, "task": name}
    _, wrong = read_definition(definition)
    wrong += [("task", "is always the decorated task: remove it")] if "task" in chosen else []

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
    """Return a duration in whole milliseconds, or None if it is None."""
    return span // dt.timedelta(milliseconds=1) if isinstance(span, dt.timedelta) else span
