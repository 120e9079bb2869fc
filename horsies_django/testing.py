"""Run tasks inside a test, in the test's own process, transaction and thread."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from horsies_django import registry
from horsies_django.conf import config
from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.worker.journal import Journal
from horsies_django.worker.running import Reply, run_async, run_sync
from horsies_django.worker.runs import Run

SLOTS = 100  # of each lane, per pass


def drain(*, queues: list[str] | None = None) -> int:
    """Run every task that is due, those that they send included, and return how many ran.

    It is one pass of ``--processes=0`` after another, on Django's own connection: inside a ``TestCase`` the tasks see what the
    test wrote, and their writes are rolled back with it. ``queues`` limits it to some queues. Raises ValueError for a queue that
    is not declared. Tasks that are scheduled for later stay PENDING.
    """
    conf = config()
    chosen = list(conf.queues) if queues is None else queues
    if unknown := [name for name in chosen if name not in conf.queues]:
        raise ValueError(
            f"queues not declared: {', '.join(unknown)}; HORSIES['QUEUES'] has: {', '.join(sorted(conf.queues))}"
        )
    registry.autodiscover()
    connection = connections[conf.database]
    served = Served(chosen)
    store, channel, worker = TaskStore(connection), channel_prefix(connection), uuid.uuid4()
    journal, outcomes, count = Journal(), list[Outcome](), 0
    while True:
        passed = store.run_pass(worker, channel, served, Wanted(SLOTS, SLOTS), outcomes=outcomes)
        journal.settled(outcomes, passed.decided)
        if not passed.claims and not passed.expired and not passed.again:
            return count
        count += len(passed.claims)
        outcomes = run_here(connection, passed.claims)


def run_here(connection: Any, claims: list[Claim]) -> list[Outcome]:
    """Run claims on this thread: sync ones one by one, async ones together on a loop."""
    outcomes = []
    for claim in claims:
        if claim.lane == "sync":
            with usable_transaction(connection):
                reply = contextvars.copy_context().run(run_sync, run_of(claim), claim.kwargs)
            outcomes.append(settled(claim, reply))
    together = [claim for claim in claims if claim.lane == "async"]
    if together:
        with usable_transaction(connection):
            replies = async_to_sync(run_together)(together)
        outcomes += [settled(claim, reply) for claim, reply in zip(together, replies, strict=True)]
    return outcomes


async def run_together(claims: list[Claim]) -> list[Reply]:
    """Run claims of the async lane."""
    return await asyncio.gather(*(run_async(run_of(claim), claim.kwargs) for claim in claims))


def run_of(claim: Claim) -> Run:
    """Return the run of a claim; nobody breaks into it here."""
    return Run(str(claim.id), claim.task_name, claim.attempt, claim.queue_name)


def settled(claim: Claim, reply: Reply) -> Outcome:
    """Join a reply with the claim that it answers."""
    return Outcome.of(claim, reply)


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
