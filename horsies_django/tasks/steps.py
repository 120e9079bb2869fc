"""Durable steps: calls that a task makes only once.

The result of a call is recorded, and later attempts of the task get the recorded result instead of
a call.

An atomic step is one transaction on the alias HORSIES["DATABASE"], which contains the call of the
function and then the record. The record is written only if the task still belongs to this worker
and claim, and it locks the task until the commit. So if two attempts run a step at the same time,
only the current one commits it, and no attempt begins while an earlier one commits a step.

The names of recorded steps are read once per attempt, because only this attempt can record steps
until it ends. Under the first claim of a task there are no recorded steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import IntegrityError, connections, transaction
from psycopg.pq import TransactionStatus

from horsies_django.conf import config
from horsies_django.core.codec import CodecError, Shape
from horsies_django.core.codec.calls import call_digest, result_shape
from horsies_django.core.codec.jsondata import read_json, write_json
from horsies_django.core.codec.shapes import ANY
from horsies_django.core.errors import StaleAttempt, StepError, TaskDefinitionError
from horsies_django.core.records import Fence
from horsies_django.core.texts import name_problem
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.enqueue import in_event_loop
from horsies_django.tasks.options import too_large

LONGEST_STEP_NAME = 200
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Call:
    """A call of a step, which is checked before anything is run.

    Raises StepError if the name, the function or the arguments are invalid, and TypeError if the
    arguments do not fit the function.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        if problem := name_problem("a step's name", name, LONGEST_STEP_NAME):
            raise StepError(problem)
        if not callable(function):
            raise StepError(
                f"step {name!r}: the second argument must be a function, not "
                f"{type(function).__name__}"
            )

        self.name = name
        self.function = function
        self.args = args
        self.kwargs = kwargs

        try:
            self.digest = call_digest(function, args, kwargs)
            self.shape: Shape = result_shape(function)
        except (CodecError, TaskDefinitionError) as error:
            raise StepError(f"step {name!r}: {error}") from error

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return bool(iscoroutinefunction(self.function))

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def encode(self, value: Any) -> str:
        """Return the result as JSON text.

        Raises StepError if the result cannot be encoded or is too large.
        """
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise StepError(
                f"step {self.name!r}: the function returned {type(value).__name__}: pass a "
                "coroutine function to astep()"
            )

        try:
            text = write_json(self.shape.encode(value, ""))
        except CodecError as error:
            error.subject, error.path = "result", error.path.removeprefix(".")
            hint = (
                f". Annotate the result of {function_label(self.function)}, or return plain values"
                if self.shape is ANY
                else ""
            )
            raise StepError(f"step {self.name!r} was not recorded: {error}{hint}") from error

        if excess := too_large(text):
            problem = f"its result takes {excess}. Store the data and return its key"
            raise StepError(f"step {self.name!r} was not recorded: {problem}")

        return text

    def decode(self, text: str) -> Any:
        """Return the result from the text of ``encode``.

        Raises StepError if the text does not fit the current annotation.
        """
        try:
            return self.shape.decode(read_json(text, "result"), "")
        except CodecError as error:
            error.subject, error.path = "recorded result", error.path.removeprefix(".")
            raise StepError(f"step {self.name!r}: {error}") from error


class Steps:
    """The steps of one attempt of a task.

    Outside a worker there is no fence, so steps are run and not recorded.
    """

    def __init__(self, fence: Fence | None) -> None:
        self.fence = fence
        # The names of steps that may be recorded, or None if they have not been read yet
        self.recorded: set[str] | None = set() if fence is None or fence.generation == 1 else None

    def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        atomic: bool,
    ) -> Any:
        """Run a step, or return its recorded result.

        Raises StepError if the step is invalid or cannot be recorded, StaleAttempt if the task no
        longer belongs to this attempt, and any exception of the function.
        """
        if in_event_loop():
            raise StepError(
                f"step {name!r} was called on a running event loop: use 'await "
                "current_task().astep(...)'"
            )

        call = Call(name, function, args, kwargs)
        if call.is_async:
            raise StepError(
                f"step {name!r}: {function_label(function)} is a coroutine function: in an async "
                "task, use "
                "'await current_task().astep(..., atomic=False)'"
            )

        return self.run_here(call, atomic=atomic)

    async def arun(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        atomic: bool,
    ) -> Any:
        """Run a step from async code, or return its recorded result.

        A sync function runs in Django's thread for sync code. For the exceptions, see ``run``.
        """
        call = Call(name, function, args, kwargs)
        if not call.is_async:
            return await sync_to_async(self.run_here)(call, atomic=atomic)

        if atomic:
            raise StepError(
                f"step {name!r}: {function_label(function)} is a coroutine function, which cannot "
                "run in one of Django's transactions: "
                "pass atomic=False, or a sync function"
            )

        if (found := await sync_to_async(self.recorded_result)(call)) is not None:
            return call.decode(found)

        coroutine: Awaitable[Any] = call.run()
        return await sync_to_async(self.record)(call, await coroutine)

    def run_here(self, call: Call, *, atomic: bool) -> Any:
        """Run a checked step of a sync function in this thread, or return its recorded result."""
        if (found := self.recorded_result(call)) is not None:
            return call.decode(found)

        alias = config().database
        if atomic:
            with transaction.atomic(using=alias, durable=True):
                return self.record(call, call.run())

        value = call.run()
        if can_be_rolled_back(alias):
            raise StepError(
                f"step {call.name!r} was not recorded: its function left a transaction open on the "
                f"alias {alias!r}"
            )
        return self.record(call, value)

    def recorded_result(self, call: Call) -> str | None:
        """Return the recorded result of a step as JSON text, or None if there is none.

        Raises StepError if a transaction is open, or the step was recorded with other arguments.
        """
        alias = config().database
        if can_be_rolled_back(alias):
            raise StepError(
                f"step {call.name!r} was called in an open transaction on the alias {alias!r}, "
                "whose rollback would undo the record of the step: call it outside of atomic(). "
                "With atomic=True, step() opens a transaction of its own"
            )

        fence = self.fence
        store = TaskStore(connections[alias])
        if fence is None:
            return None

        if self.recorded is None:
            self.recorded = store.step_names(fence.task)
        if call.name not in self.recorded or (found := store.step(fence.task, call.name)) is None:
            return None

        digest, result = found
        if digest != call.digest:
            raise StepError(
                f"step {call.name!r} of task {fence.task} was recorded with other arguments "
                f"(digest {digest}) than those of "
                f"this call ({call.digest}): give each call a name of its own, as in f'page "
                f"{{number}}'"
            )

        return result

    def record(self, call: Call, value: Any) -> Any:
        """Record the result of a step, and return it in the form that later attempts get.

        Raises StepError if the result cannot be recorded, and StaleAttempt if the task no longer
        belongs to this attempt.
        """
        text = call.encode(value)
        fence = self.fence

        if fence is not None:
            if self.recorded is not None:
                self.recorded.add(call.name)

            store = TaskStore(connections[config().database])
            try:
                recorded = store.record_step(fence, call.name, call.digest, text)
            except IntegrityError as error:
                raise StepError(
                    f"step {call.name!r} of task {fence.task} has been recorded meanwhile: another "
                    "thread or coroutine of this "
                    "attempt ran a step of the same name. Give each call a name of its own"
                ) from error

            if not recorded:
                raise StaleAttempt(
                    f"step {call.name!r} was not recorded: task {fence.task} no longer belongs to "
                    f"worker {fence.worker}, "
                    f"generation {fence.generation}. This attempt was given up, and another one "
                    "may be running"
                )

        return call.decode(text)


def can_be_rolled_back(alias: str) -> bool:
    """Return whether a transaction is open on an alias that could roll a step back.

    The transaction of a TestCase does not count.
    """
    connection: Any = connections[alias]
    if connection.in_atomic_block:  # the same condition as that of atomic(durable=True)
        return not connection.atomic_blocks or not connection.atomic_blocks[-1]._from_testcase
    return (
        not connection.get_autocommit() or connection.connection.pgconn.transaction_status in OPEN
    )


def function_label(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
