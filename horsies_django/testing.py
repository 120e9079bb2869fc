"""Runs tasks inside a test, in the process, transaction and thread of the test."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from horsies_django.conf import config
from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.core.results import TaskError, TaskFailed
from horsies_django.store import clock
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.handle import decode
from horsies_django.tasks.options import simulated_now
from horsies_django.worker.child import middleware
from horsies_django.worker.child.interrupts import Run
from horsies_django.worker.child.run_task import Reply, run_async, run_sync
from horsies_django.worker.engine.receivers import end_events, start_events
from horsies_django.worker.process.task_log import TaskLog
from horsies_django.workflows.advancer import Advancer
from horsies_django.workflows.handle import WorkflowHandle

SLOTS = 100  # of each lane, per pass


def drain(
    *, queues: list[str] | None = None, until: dt.datetime | dt.timedelta | None = None, raise_errors: bool = True
) -> int:
    """Run all due tasks, including those that they send, and return how many ran.

    Runs passes as with ``--processes=0`` on Django's connection: inside a ``TestCase`` the tasks see what the test wrote, and
    their writes are rolled back with it. ``queues`` restricts it to some queues (default: all).

    With ``until``, an aware datetime or a timedelta from now, retries and tasks that become due until then also run, and timers
    and timeouts of workflows end. Each runs at its simulated due time, without waiting. Later tasks stay PENDING.

    After all tasks have run, raises an ExceptionGroup with a TaskFailed for each task that ended as FAILED; its notes contain the
    name and id of the task and the traceback. ``raise_errors=False`` prevents that. Raises ValueError for a queue that is not
    declared, and for a naive or negative ``until``.
    """
    conf = config()
    chosen = list(conf.queues) if queues is None else queues
    if unknown := [name for name in chosen if name not in conf.queues]:
        raise ValueError(
            f"queues not declared: {', '.join(unknown)}; HORSIES['QUEUES'] has: {', '.join(sorted(conf.queues))}"
        )
    end = None if until is None else end_of(until)
    registry.autodiscover()
    middleware.load()
    connection = connections[conf.database]
    worker, count = uuid.uuid4(), 0
    failures: list[TaskFailed] = []
    for now in due_times(connection, chosen, end):
        before = simulated_now.set(now)
        try:
            count += run_due(connection, worker, Served(chosen), now, failures)
        finally:
            simulated_now.reset(before)
    if failures and raise_errors:
        group = ExceptionGroup(f"tasks that failed: {len(failures)}", failures)
        group.add_note("With drain(raise_errors=False), the test can check the results itself")
        raise group
    return count


def signal(handle: WorkflowHandle, name: str, data: Any = None, *, key: str | None = None) -> None:
    """Send a signal to a run, also before a node waits for it; the next ``drain()`` continues the run.

    Raises LookupError if no node of the run waits for the name, WorkflowError if the signal cannot be taken.
    """
    handle.signal(name, data, key=key, actor="test")


def open_gate(handle: WorkflowHandle, name: str, reason: str | None = None) -> None:
    """Approve a gate of a run, also before it opens, whatever its permission; the next ``drain()`` continues the run.

    Raises LookupError if there is no such gate, WorkflowError if it has finished. To reject it, use ``handle.reject``.
    """
    handle.approve(name, actor="test", reason=reason)


def end_of(until: dt.datetime | dt.timedelta) -> dt.datetime:
    """Return the end as a datetime. Raises ValueError, TypeError."""
    if isinstance(until, dt.timedelta):
        if until < dt.timedelta(0):
            raise ValueError(f"until={until!s} is in the past; pass a timedelta from now on")
        return dt.datetime.now(dt.UTC) + until
    if not isinstance(until, dt.datetime):
        raise TypeError(f"until takes an aware datetime or a timedelta, not {type(until).__name__}")
    if until.utcoffset() is None:
        raise ValueError(
            f"until={until.isoformat()} has no time zone; pass an aware datetime, or a timedelta from now on"
        )
    return until


def due_times(connection: Any, queues: list[str], end: dt.datetime | None) -> Iterator[dt.datetime | None]:
    """Yield the times at which to run due tasks: None for now by the database's clock, or all due times until the end."""
    if end is None:
        yield None
        return
    now: dt.datetime | None = clock.now(connection)
    while now is not None:
        yield now
        now = clock.next_due(connection, queues, now, end)


def run_due(
    connection: Any, worker: uuid.UUID, served: Served, now: dt.datetime | None, failures: list[TaskFailed]
) -> int:
    """Run due tasks until none is left; return how many ran, and append the final failures."""
    store, channel, task_log = TaskStore(connection, now), channel_prefix(connection), TaskLog()
    advancer = Advancer(config().max_payload_bytes, now)
    workflows = advancer.store(connection, channel)
    claims: list[Claim] = []
    outcomes: list[Outcome] = []
    count = 0
    while True:
        passed = store.run_pass(worker, channel, served, Wanted(SLOTS, SLOTS), outcomes=outcomes)
        task_log.settled(outcomes, passed.decided)
        for event in end_events(outcomes, passed.decided, worker):
            event.deliver()
        failures += final_failures(store, claims, outcomes)
        advancer.owe(passed.in_runs)
        if not (passed.claims or passed.again) and not advance_all(advancer, workflows) and not passed.expired:
            return count
        claims = passed.claims
        for event in start_events(claims, worker):
            event.deliver()
        count += len(claims)
        outcomes = run_here(connection, worker, claims)


def advance_all(advancer: Advancer, store: WorkflowStore) -> bool:
    """Advance all workflows that have something to advance; return whether tasks were sent."""
    sent = False
    while advancer.find(store, None, 1_000) or advancer.owed:
        sent = advancer.turn(store) or sent
    return sent


def final_failures(store: TaskStore, claims: list[Claim], outcomes: list[Outcome]) -> list[TaskFailed]:
    """Return an exception for each outcome that was written and is final."""
    failed = {outcome.id for outcome in outcomes if outcome.status == "FAILED"}
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
        failure.add_note(f"What it raised:\n{error.exception['traceback']}")
    return failure


def run_here(connection: Any, worker: uuid.UUID, claims: list[Claim]) -> list[Outcome]:
    """Run claims in this thread: sync tasks one by one, async tasks together in an event loop."""
    outcomes = []
    for claim in claims:
        if claim.lane == "sync":
            with usable_transaction(connection):
                reply = contextvars.copy_context().run(run_sync, run_of(claim, worker), claim.kwargs)
            outcomes.append(Outcome.of(claim, reply))
    together = [claim for claim in claims if claim.lane == "async"]
    if together:
        with usable_transaction(connection):
            replies = async_to_sync(run_together)(together, worker)
        outcomes += [Outcome.of(claim, reply) for claim, reply in zip(together, replies, strict=True)]
    return outcomes


async def run_together(claims: list[Claim], worker: uuid.UUID) -> list[Reply]:
    """Run async tasks concurrently."""
    return await asyncio.gather(*(run_async(run_of(claim, worker), claim.kwargs) for claim in claims))


def run_of(claim: Claim, worker: uuid.UUID) -> Run:
    """Return the run of a claim of ``worker``, which is never interrupted here."""
    about = (str(claim.id), claim.task_name, claim.attempt, claim.queue_name, str(worker), claim.generation)
    return Run(CurrentTask(*about, claim.options))


@contextmanager
def usable_transaction(connection: Any) -> Iterator[None]:
    """Keep the transaction of the test usable if the SQL of a task fails.

    The writes of such a task are rolled back. Where that matters, use ``TransactionTestCase`` or a real worker.
    """
    if not connection.in_atomic_block:
        yield
        return
    savepoint = connection.savepoint()
    yield
    if connection.connection.info.transaction_status == TransactionStatus.INERROR:
        connection.savepoint_rollback(savepoint)
        connection.needs_rollback = False
    else:
        connection.savepoint_commit(savepoint)
