"""Runs tasks inside a test, in its process, transaction and thread.

The other functions set the time, make attempts fail, and end waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from psycopg.pq import TransactionStatus

from horsies_django.conf import config
from horsies_django.core.errors import OperationalErrorCode, OutcomeCode, code_problem
from horsies_django.core.records import SNOOZED, Claim, NewTasks, Outcome, Reply, Wanted
from horsies_django.core.results import TaskError, TaskFailed
from horsies_django.core.retry import class_names
from horsies_django.models import Queue
from horsies_django.store import base
from horsies_django.store.base import tasks_written
from horsies_django.store.notify import channel_prefix
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import in_event_loop
from horsies_django.tasks.handle import decode
from horsies_django.tasks.options import simulated_now
from horsies_django.testing.contexts import AnyTask, Context, definition_of
from horsies_django.worker.child import middleware
from horsies_django.worker.child.interrupts import CANCEL, AsyncRun, Run
from horsies_django.worker.child.run_task import crashed, failed, failure, run_async, run_sync
from horsies_django.worker.engine.receivers import end_events, start_events
from horsies_django.worker.logs.task_log import TaskLog
from horsies_django.workflows.advancer import Advancer
from horsies_django.workflows.handle import WorkflowHandle

Error = str | TaskError | Exception
CRASH_CODE = OperationalErrorCode.WORKER_CRASHED.value
TIMEOUT_CODE = OutcomeCode.TASK_TIMEOUT.value
# A retry policy treats a code like an exception that was mapped to it.
AS_RAISED = class_names(Exception())
SLOTS = 100  # slots of each lane, per pass
# True while tasks are running
draining: ContextVar[bool] = ContextVar("horsies_draining", default=False)


@dataclass(eq=False)
class Demand:
    """Attempts of a task that have to fail. ``left`` is the number of attempts still to come."""

    task: TaskDefinition
    error: Error
    message: str
    left: int


_demands: list[Demand] = []


def fail_next(
    task: AnyTask, error: Error, *, times: int = 1, message: str = "made to fail by fail_next()"
) -> Context[None]:
    """Make the next ``times`` attempts of a task fail instead of running.

    These are attempts that ``drain()`` or ``immediate()`` runs in the block. There is no effect on
    real workers, which are other processes. ``error`` is one of these:

    - an error code, with ``message``, as if an exception had been mapped to it, or "WORKER_CRASHED"
      or "TASK_TIMEOUT";
    - an exception, also ``Retry`` and ``Skip``, as if the task had raised it;
    - a TaskError, as if the task had returned it.

    Retry policies, workflows and undos treat the failure as they would in production. The block
    raises AssertionError if the task made fewer attempts. Raises ValueError for a code that no
    attempt can end with or a wrong number of times, TypeError for another type of error, and
    LookupError if the task is unknown.
    """
    definition = definition_of(task)
    if not isinstance(error, str | TaskError | Exception):
        raise TypeError(
            f"fail_next() takes an error code, a TaskError or an exception, not {error!r:.100}"
        )
    if (
        isinstance(error, str)
        and error not in (CRASH_CODE, TIMEOUT_CODE)
        and (problem := code_problem(error))
    ):
        raise ValueError(
            f"{problem}; of the built-in codes, fail_next() takes {CRASH_CODE} and {TIMEOUT_CODE}"
        )
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"times must be an int of at least 1, not {times!r}")

    return Context(
        "fail_next", lambda: demanded(definition, error, message, times), connected=False
    )


@contextmanager
def demanded(task: TaskDefinition, error: Error, message: str, times: int) -> Iterator[None]:
    """Make attempts of a task fail in a block. Raise AssertionError if fewer attempts were made."""
    demand = Demand(task, error, message, times)
    _demands.append(demand)

    try:
        yield
    finally:
        _demands.remove(demand)

    if demand.left:
        raise AssertionError(
            f"fail_next(): {times} attempts of {task.name} should have failed, but only "
            f"{times - demand.left} were made in the block. Call drain() inside the block; "
            "drain(until=...) also runs retries that are due later"
        )


def demanded_outcome(claim: Claim, run: Run) -> Outcome | None:
    """Return the outcome that is demanded for an attempt, or None if the attempt is to run."""
    demand = next(
        (each for each in _demands if each.left and each.task.name == claim.task_name), None
    )
    if demand is None:
        return None

    demand.left -= 1
    error = demand.error
    if isinstance(error, Exception):
        reply = crashed(run, demand.task, error)
    elif isinstance(error, TaskError):
        reply = failure(error)._replace(returned=True)
    else:
        reply = failed(error, demand.message)
        reply = reply if error in (CRASH_CODE, TIMEOUT_CODE) else reply._replace(classes=AS_RAISED)

    return Outcome.of(claim, reply, crashed=error == CRASH_CODE)


def travel(to: dt.datetime | dt.timedelta) -> Context[dt.datetime]:
    """Set the time of the queue to ``to`` in the block, and yield that time.

    ``to`` is an aware datetime, or a timedelta, which may be negative, from the current time of the
    database, even if the test has mocked Python's clock. Tasks are sent at that time in the block.
    ``drain()`` and ``immediate()`` run the tasks that are due by then, at that time, as if no
    worker had run since. Time stands still in the block; ``drain(until=...)`` moves on from there.

    Only the rows of the queue move in time, not Python's clock and not schedules. Raises ValueError
    for a naive datetime, and TypeError for another type.
    """
    return Context("travel", lambda: moved(to), connected=isinstance(to, dt.timedelta))


@contextmanager
def moved(to: dt.datetime | dt.timedelta) -> Iterator[dt.datetime]:
    """Set the time of the queue in a block, and yield that time."""
    before = simulated_now.get()
    moment = moment_of(to, "to")
    simulated_now.set(moment)

    try:
        yield moment
    finally:
        simulated_now.set(before)  # a token works only in the thread that entered


def moment_of(given: dt.datetime | dt.timedelta, name: str) -> dt.datetime:
    """Return a datetime, or the datetime that is a timedelta after the time of the database.

    Raises ValueError for a naive datetime, and TypeError for another type.
    """
    if isinstance(given, dt.timedelta):
        now = simulated_now.get() or base.now(connections[config().database])
        return now + given

    if not isinstance(given, dt.datetime):
        raise TypeError(
            f"{name} takes an aware datetime or a timedelta, not {type(given).__name__}"
        )
    if given.utcoffset() is None:
        raise ValueError(
            f"{name}={given.isoformat()} has no time zone; pass an aware datetime, or a timedelta "
            "from now on"
        )
    return given


def drain(
    *,
    queues: list[str] | None = None,
    until: dt.datetime | dt.timedelta | None = None,
    raise_errors: bool = True,
) -> int:
    """Run all due tasks, including those that they send, and return how many ran.

    The tasks run as with ``--processes=0``, on Django's connection. Inside a ``TestCase`` they see
    the writes of the test, and their own writes are rolled back with those. ``queues`` are the
    names of the queues to run (default: all).

    ``until`` is an aware datetime, or a timedelta from the time of the database. With it, retries
    and tasks that become due until then run as well, and timers and timeouts of workflows end. Each
    task runs at its simulated due time, without waiting. Later tasks stay PENDING.

    After all tasks have run, an ExceptionGroup is raised with a TaskFailed for each task that ended
    as FAILED. Its notes contain the name and id of the task and the traceback.
    ``raise_errors=False`` prevents that. If the test or a task cancels a running task, that task is
    asked to stop at once; a worker would ask it a little later.

    Raises ValueError if a queue is not declared or ``until`` is naive or negative, and RuntimeError
    on a running event loop. Raises WorkflowError if the database refuses to advance a run of a
    workflow, or if another transaction holds the lock of a run for about 10 seconds.
    """
    if in_event_loop():
        raise RuntimeError("drain() was called on a running event loop: use 'await adrain()'")

    chosen = declared(queues)
    failures: list[TaskFailed] = []
    count = run_all(
        connections[config().database], chosen, failures, None if until is None else end_of(until)
    )

    if failures and raise_errors:
        raise failed_tasks(failures, "drain")
    return count


async def adrain(
    *,
    queues: list[str] | None = None,
    until: dt.datetime | dt.timedelta | None = None,
    raise_errors: bool = True,
) -> int:
    """Run all due tasks as ``drain`` does, from async code, and return how many ran.

    The tasks run on the connection of Django's thread for sync code, which ``asend`` uses.
    """
    return await sync_to_async(drain)(queues=queues, until=until, raise_errors=raise_errors)


def run_all(
    connection: Any, queues: list[str], failures: list[TaskFailed], end: dt.datetime | None = None
) -> int:
    """Run all due tasks and return how many ran; append the failures to ``failures``.

    With ``end``, tasks that become due until then run as well.
    """
    registry.autodiscover()
    middleware.load()

    worker = uuid.uuid4()
    start = simulated_now.get()
    outer = draining.get()
    count = 0

    draining.set(True)
    make_order(connection, queues)

    try:
        for now in due_times(connection, queues, start, end):
            simulated_now.set(now)
            count += run_due(connection, worker, Served(queues), now, failures)
    finally:
        simulated_now.set(start)
        draining.set(outer)

    return count


def make_order(connection: Any, queues: list[str]) -> None:
    """Apply a new rule of order to the waiting tasks of queues.

    The maintenance of a worker does this in production.
    """
    store = QueueStore(connection)
    for queue in Queue.objects.using(connection.alias).filter(
        name__in=queues, sweep__has_key="rule"
    ):
        while store.sweep(queue.name, 1_000):
            pass


def declared(queues: list[str] | None) -> list[str]:
    """Return the names of the queues to run, all by default.

    Raises ValueError if a queue is not declared.
    """
    known = config().queues
    if unknown := [name for name in queues or () if name not in known]:
        names = ", ".join(sorted(known))
        raise ValueError(
            f"queues not declared: {', '.join(unknown)}; HORSIES['QUEUES'] has: {names}"
        )
    return list(known) if queues is None else queues


def failed_tasks(failures: list[TaskFailed], function: str) -> ExceptionGroup[TaskFailed]:
    """Return the error that ``function`` raises after tasks have failed."""
    group = ExceptionGroup(f"tasks that failed: {len(failures)}", failures)
    group.add_note(f"Call {function}(raise_errors=False) to check the results in the test instead")
    return group


def end_of(until: dt.datetime | dt.timedelta) -> dt.datetime:
    """Return the end of a drain as a datetime.

    Raises ValueError if it is naive or a negative timedelta, and TypeError for another type.
    """
    if isinstance(until, dt.timedelta) and until < dt.timedelta(0):
        raise ValueError(f"until={until!s} is in the past; pass a timedelta from now on")
    return moment_of(until, "until")


def due_times(
    connection: Any, queues: list[str], start: dt.datetime | None, end: dt.datetime | None
) -> Iterator[dt.datetime | None]:
    """Yield the times at which due tasks have to run, from ``start`` until ``end``.

    A ``start`` of None is the time of the database. Only ``start`` is yielded if ``end`` is None.
    """
    if end is None:
        yield start
        return

    now: dt.datetime | None = start or base.now(connection)
    while now is not None:
        yield now
        now = base.next_due(connection, queues, now, end)


def run_due(
    connection: Any,
    worker: uuid.UUID,
    served: Served,
    now: dt.datetime | None,
    failures: list[TaskFailed],
) -> int:
    """Run due tasks until none is left, return how many ran, and append the final failures."""
    store = TaskStore(connection, now)
    channel = channel_prefix(connection)
    task_log = TaskLog()
    advancer = Advancer(config().max_payload_bytes, now, strict=True)
    workflows = advancer.store(connection, channel)
    limit = config().max_payload_bytes

    claims: list[Claim] = []
    outcomes: list[Outcome] = []
    count = 0

    while True:
        passed = store.run_pass(
            worker, channel, served, Wanted(SLOTS, SLOTS), outcomes=outcomes, max_bytes=limit
        )

        task_log.settled(outcomes, passed.decided)
        for event in end_events(outcomes, passed.decided, worker):
            event.deliver()
        failures += final_failures(store, claims, outcomes)
        advancer.note_finished(passed.in_runs)

        if (
            not (passed.claims or passed.again)
            and not advance_all(advancer, workflows)
            and not passed.expired
        ):
            return count

        claims = passed.claims
        for event in start_events(claims, worker):
            event.deliver()
        count += len(claims)
        outcomes = run_here(connection, worker, claims)


def advance_all(advancer: Advancer, store: WorkflowStore) -> bool:
    """Advance all workflows that need it, and return whether tasks were sent."""
    sent = False
    while advancer.find(store, None, 1_000) or advancer.pending_runs:
        sent = advancer.turn(store) or sent
    return sent


def final_failures(
    store: TaskStore, claims: list[Claim], outcomes: list[Outcome]
) -> list[TaskFailed]:
    """Return an exception for each outcome that was written and is final."""
    failed = {outcome.id for outcome in outcomes if outcome.status in ("FAILED", SNOOZED)}
    found = store.find(failed) if failed else {}
    return [
        failure_of(claim, decode(None, found[claim.id].result).err_value)
        for claim in claims
        if claim.id in found and found[claim.id].status == "FAILED"
    ]


def failure_of(claim: Claim, error: TaskError) -> TaskFailed:
    """Return the exception for the failure of a task."""
    failure = TaskFailed(error)
    failure.add_note(f"The task: {claim.task_name}, id {claim.id}, attempt {claim.attempt}")
    if error.exception is not None:
        failure.add_note(f"The exception that it raised:\n{error.exception['traceback']}")
    return failure


def run_here(connection: Any, worker: uuid.UUID, claims: list[Claim]) -> list[Outcome]:
    """Run claims in this thread: sync tasks one by one, async tasks together in an event loop."""
    # No timer or signal interrupts the runs of sync tasks here.
    runs = {claim.id: Run(CurrentTask(claim, str(worker))) for claim in claims}
    outcomes = list[Outcome]()
    together = list[Claim]()

    async def run_together() -> list[Reply]:
        return await asyncio.gather(*(run_alone(runs, claim) for claim in together))

    with passing_on_cancels(worker, runs):
        for claim in claims:
            run = runs[claim.id]
            if (demanded := demanded_outcome(claim, run)) is not None:
                outcomes.append(demanded)
            elif claim.lane == "sync":
                with usable_transaction(connection):
                    reply = contextvars.copy_context().run(run_sync, run, claim.kwargs)
                outcomes.append(Outcome.of(claim, reply))
            else:
                together.append(claim)

        if together:
            with usable_transaction(connection):
                replies = async_to_sync(run_together)()
            outcomes += [
                Outcome.of(claim, reply) for claim, reply in zip(together, replies, strict=True)
            ]

    return outcomes


async def run_alone(runs: dict[uuid.UUID, Run], claim: Claim) -> Reply:
    """Run an async task, which a cancel interrupts, even one that came before the task began."""
    early = runs[claim.id]
    run = runs[claim.id] = AsyncRun(early.current, asyncio.get_running_loop())
    if early.current.cancel_requested:
        run.interrupt(CANCEL)

    return await run_async(run, claim.kwargs)


@contextmanager
def passing_on_cancels(worker: uuid.UUID, runs: dict[uuid.UUID, Run]) -> Iterator[None]:
    """Ask running tasks to stop as soon as code of this process cancels them, as a worker does."""

    def pass_on(connection: Any, sent: NewTasks | None, **_others: Any) -> None:
        if sent is not None:
            return
        for task in TaskStore(connection).held(worker):
            if task.cancelled and task.id in runs:
                runs[task.id].interrupt(CANCEL)

    tasks_written.connect(pass_on, weak=False)
    try:
        yield
    finally:
        tasks_written.disconnect(pass_on)


@contextmanager
def usable_transaction(connection: Any) -> Iterator[None]:
    """Keep the transaction of the test usable if the SQL of a task fails.

    The writes of such a task are rolled back. Use ``TransactionTestCase`` or a real worker for
    tests in which that matters.
    """
    if not connection.in_atomic_block:
        yield
        return

    savepoint = connection.savepoint()
    yield

    if is_broken(connection):
        connection.needs_rollback = False  # Django refuses the next statement otherwise
        connection.savepoint_rollback(savepoint)
    else:
        connection.savepoint_commit(savepoint)


def is_broken(connection: Any) -> bool:
    """Return whether the open transaction can only be rolled back."""
    session = connection.connection
    failed = session is not None and session.info.transaction_status == TransactionStatus.INERROR
    return bool(connection.needs_rollback or failed)


def signal(handle: WorkflowHandle, name: str, data: Any = None, *, key: str | None = None) -> None:
    """Send a signal to a run. The next ``drain()`` continues the run.

    The signal may be sent before a node waits for it. Raises LookupError if no node of the run
    waits for the name, and WorkflowError if the signal cannot be taken.
    """
    handle.signal(name, data, key=key, actor="test")


def open_gate(handle: WorkflowHandle, name: str, reason: str | None = None) -> None:
    """Approve an open gate of a run without checking its permission.

    The next ``drain()`` continues the run. To reject a gate, use ``handle.reject``. Raises
    LookupError if there is no such gate, and WorkflowError if it is not open; call ``drain()``
    first to run the nodes before the gate.
    """
    handle.approve(name, actor="test", reason=reason)
