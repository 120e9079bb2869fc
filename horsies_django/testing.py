"""Run tasks inside a test, in the test's own process, transaction and thread."""

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
from horsies_django.store import moments as store_moments
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.handle import decode
from horsies_django.tasks.options import moment
from horsies_django.worker.child.interrupts import Run
from horsies_django.worker.child.run_task import Reply, run_async, run_sync
from horsies_django.worker.process.task_log import TaskLog

SLOTS = 100  # of each lane, per pass


def drain(
    *, queues: list[str] | None = None, until: dt.datetime | dt.timedelta | None = None, raise_errors: bool = True
) -> int:
    """Run every task that is due, those that they send included, and return how many ran.

    It is one pass of ``--processes=0`` after another, on Django's own connection: inside a ``TestCase`` the tasks see what the
    test wrote, and their writes are rolled back with it. ``queues`` limits it to some queues.

    ``until``, an aware datetime or a timedelta from now on, also runs retries and tasks that become due until then, each at its
    moment and without waiting for it: rows end as they would have then. What is later stays PENDING.

    Raises an ExceptionGroup with a TaskFailed for each task that ended FAILED, after all have run; its notes have the task's name
    and id, and the traceback. Not with ``raise_errors=False``. Raises ValueError for a queue that is not declared, and for an
    ``until`` that is naive or negative.
    """
    conf = config()
    chosen = list(conf.queues) if queues is None else queues
    if unknown := [name for name in chosen if name not in conf.queues]:
        raise ValueError(
            f"queues not declared: {', '.join(unknown)}; HORSIES['QUEUES'] has: {', '.join(sorted(conf.queues))}"
        )
    end = None if until is None else end_of(until)
    registry.autodiscover()
    connection = connections[conf.database]
    worker, count = uuid.uuid4(), 0
    failures: list[TaskFailed] = []
    for now in moments(connection, chosen, end):
        before = moment.set(now)
        try:
            count += run_due(connection, worker, Served(chosen), now, failures)
        finally:
            moment.reset(before)
    if failures and raise_errors:
        group = ExceptionGroup(f"tasks that failed: {len(failures)}", failures)
        group.add_note("drain(raise_errors=False) leaves it to the test to look at the results")
        raise group
    return count


def end_of(until: dt.datetime | dt.timedelta) -> dt.datetime:
    """Return the moment up to which to drain. Raises ValueError, TypeError."""
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


def moments(connection: Any, queues: list[str], end: dt.datetime | None) -> Iterator[dt.datetime | None]:
    """Give the moments at which to look for what is due: this one only, by the database's own clock, or all until the end."""
    if end is None:
        yield None
        return
    now: dt.datetime | None = store_moments.now(connection)
    while now is not None:
        yield now
        now = store_moments.next_due(connection, queues, now, end)


def run_due(
    connection: Any, worker: uuid.UUID, served: Served, now: dt.datetime | None, failures: list[TaskFailed]
) -> int:
    """Run what is due until nothing is; return how many ran, and add what failed for good."""
    store, channel, task_log = TaskStore(connection, now), channel_prefix(connection), TaskLog()
    claims: list[Claim] = []
    outcomes: list[Outcome] = []
    count = 0
    while True:
        passed = store.run_pass(worker, channel, served, Wanted(SLOTS, SLOTS), outcomes=outcomes)
        task_log.settled(outcomes, passed.decided)
        failures += final_failures(store, claims, outcomes)
        if not passed.claims and not passed.expired and not passed.again:
            return count
        claims = passed.claims
        count += len(claims)
        outcomes = run_here(connection, claims)


def final_failures(store: TaskStore, claims: list[Claim], outcomes: list[Outcome]) -> list[TaskFailed]:
    """Return what there is to raise for outcomes that were written and are the last of their tasks."""
    failed = {outcome.id for outcome in outcomes if outcome.status == "FAILED"}
    found = store.find(failed) if failed else {}
    return [
        failure_of(claim, decode(None, found[claim.id].result).err_value)
        for claim in claims
        if claim.id in found and found[claim.id].status == "FAILED"
    ]


def failure_of(claim: Claim, error: TaskError) -> TaskFailed:
    """Return the exception that tells of a task's failure."""
    failure = TaskFailed(error)
    failure.add_note(f"The task: {claim.task_name}, id {claim.id}, attempt {claim.attempt}")
    if error.exception is not None:
        failure.add_note(f"What it raised:\n{error.exception['traceback']}")
    return failure


def run_here(connection: Any, claims: list[Claim]) -> list[Outcome]:
    """Run claims on this thread: sync ones one by one, async ones together on a loop."""
    outcomes = []
    for claim in claims:
        if claim.lane == "sync":
            with usable_transaction(connection):
                reply = contextvars.copy_context().run(run_sync, run_of(claim), claim.kwargs)
            outcomes.append(Outcome.of(claim, reply))
    together = [claim for claim in claims if claim.lane == "async"]
    if together:
        with usable_transaction(connection):
            replies = async_to_sync(run_together)(together)
        outcomes += [Outcome.of(claim, reply) for claim, reply in zip(together, replies, strict=True)]
    return outcomes


async def run_together(claims: list[Claim]) -> list[Reply]:
    """Run claims of the async lane."""
    return await asyncio.gather(*(run_async(run_of(claim), claim.kwargs) for claim in claims))


def run_of(claim: Claim) -> Run:
    """Return the run of a claim; nobody breaks into it here."""
    return Run(str(claim.id), claim.task_name, claim.attempt, claim.queue_name)


@contextmanager
def usable_transaction(connection: Any) -> Iterator[None]:
    """Keep a task whose SQL fails from breaking the test's transaction, which a worker would not share with it.

    Such a task's own writes are undone with it. Where that matters, test with ``TransactionTestCase`` or a real worker.
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
