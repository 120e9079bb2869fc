"""Lets attempts of a task fail in tests, instead of running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from horsies_django.core.errors import OperationalErrorCode, OutcomeCode, code_problem
from horsies_django.core.records import Claim, Outcome
from horsies_django.core.results import TaskError
from horsies_django.core.retry import class_names
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.testing.contexts import Context
from horsies_django.testing.names import AnyTask, definition_of
from horsies_django.worker.child.interrupts import Run
from horsies_django.worker.child.run_task import Reply, crashed, failed, failure

Error = str | TaskError | Exception
CRASH, TIMEOUT = OperationalErrorCode.WORKER_CRASHED.value, OutcomeCode.TASK_TIMEOUT.value
AS_RAISED = class_names(Exception())  # a retry policy treats a code like an exception that was mapped to it


@dataclass(eq=False)
class Demand:
    """Attempts of a task that are to fail; ``left`` is how many of them are still to come."""

    task: TaskDefinition
    error: Error
    message: str
    left: int


_demands: list[Demand] = []


def fail_next(
    task: AnyTask, error: Error, *, times: int = 1, message: str = "made to fail by fail_next()"
) -> Context[None]:
    """Let the next ``times`` attempts of a task that ``drain()`` or ``immediate()`` runs in the block fail, instead of running.

    ``error`` is an error code, with ``message``, as if an exception had been mapped to it, or "WORKER_CRASHED" or "TASK_TIMEOUT";
    an exception, as if the task had raised it, also ``Retry`` and ``Skip``; or a TaskError, as if the task had returned it. Retry
    policies, workflows and undos treat it as they would in production. The block raises AssertionError if the task made fewer
    attempts. Raises ValueError for a code that no attempt can end with, TypeError, LookupError for an unknown task. It has no
    effect on real workers, which are other processes.
    """
    definition = definition_of(task)
    if not isinstance(error, str | TaskError | Exception):
        raise TypeError(f"fail_next() takes an error code, a TaskError or an exception, not {error!r:.100}")
    if isinstance(error, str) and error not in (CRASH, TIMEOUT) and (problem := code_problem(error)):
        raise ValueError(f"{problem}; of the built-in codes, fail_next() takes {CRASH} and {TIMEOUT}")
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"times must be an int of at least 1, not {times!r}")
    return Context("fail_next", lambda: demanded(definition, error, message, times), connected=False)


@contextmanager
def demanded(task: TaskDefinition, error: Error, message: str, times: int) -> Iterator[None]:
    """Demand failures for a block. Raises AssertionError if fewer attempts were made."""
    demand = Demand(task, error, message, times)
    _demands.append(demand)
    try:
        yield
    finally:
        _demands.remove(demand)
    if demand.left:
        raise AssertionError(
            f"fail_next(): {times} attempts of {task.name} were to fail, and {times - demand.left} were made in the block. "
            "Call drain() inside the block; drain(until=...) also runs retries that are due later"
        )


def demanded_outcome(claim: Claim, run: Run) -> Outcome | None:
    """Return the outcome that is demanded for an attempt, None if it is to run."""
    demand = next((each for each in _demands if each.left and each.task.name == claim.task_name), None)
    if demand is None:
        return None
    demand.left -= 1
    return Outcome.of(claim, reply_to(demand, run), crashed=demand.error == CRASH)


def reply_to(demand: Demand, run: Run) -> Reply:
    """Return the reply that an attempt with the demanded error would end with."""
    error = demand.error
    if isinstance(error, Exception):
        return crashed(run, demand.task, error)
    if isinstance(error, TaskError):
        return failure(error)._replace(returned=True)
    reply = failed(error, demand.message)
    return reply if error in (CRASH, TIMEOUT) else reply._replace(classes=AS_RAISED)
