"""Problems of the database itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from horsies_django.monitoring.health.problem import Problem, ProblemCode, problem, span
from horsies_django.monitoring.health.state import Health
from horsies_django.store.health import Blocker, DatabaseHealth, LostRecord, XminHolder


def of_database(health: Health) -> Iterator[Problem]:
    """Yield what is wrong with the server, locks on the tables, and records that could not be written."""
    database = health.database
    yield from _of_server(database)
    for blocker in health.blockers:
        yield _blocked(blocker, database.clock, health.complete)
    for holder in database.xmin_holders:
        if _holds_too_long(holder):
            yield problem(
                ProblemCode.XMIN_HELD,
                f"{holder.kind} {holder.pid or holder.name}",
                f"{named(holder)} has kept dead rows from being removed for {_age(holder)}, and claims slow down",
                _remedy(holder),
                None if holder.seconds is None else database.clock - dt.timedelta(seconds=holder.seconds),
            )
    for record in health.lost:
        yield _lost(record, database.clock)


def _of_server(database: DatabaseHealth) -> Iterator[Problem]:
    if database.read_only:
        yield problem(
            ProblemCode.READ_ONLY,
            "database",
            "the database is read-only, "
            + ("because it is a replica" if database.in_recovery else "by default_transaction_read_only")
            + ": no task can be sent, claimed or finished",
            "point DATABASES to the primary, or make the database writable",
        )
    if database.notify_queue > 0.5:
        yield problem(
            ProblemCode.NOTIFY_QUEUE,
            "database",
            f"PostgreSQL's notification queue is {database.notify_queue:.0%} full; when it is full, transactions that send tasks "
            "cannot commit",
            "a listening session has a transaction open: find the oldest one in pg_stat_activity and end it",
        )
    if database.connections > 0.9 * database.max_connections:
        yield problem(
            ProblemCode.CONNECTIONS,
            "database",
            f"{database.connections} of {database.max_connections} connections are in use, and soon workers and sites cannot "
            "connect",
            "lower --threads, CONN_MAX_AGE and CHILD_CONN_MAX_AGE, pool connections, or raise max_connections",
        )


def _blocked(blocker: Blocker, clock: dt.datetime, complete: bool) -> Problem:
    prepared = blocker.pid is None
    who = f"prepared transaction {blocker.name!r}" if prepared else f"process {blocker.pid} ({blocker.name!r})"
    age = "" if blocker.seconds is None else f" for {span(blocker.seconds)}"
    return problem(
        ProblemCode.BLOCKED,
        f"table {blocker.table}",
        f"{who} has had a transaction open{age} that {'holds' if blocker.granted else 'waits for'} the lock {blocker.mode} on "
        f"{blocker.table}, for which workers have to wait"
        + ("" if complete else ", as this check did until it was cancelled"),
        "let it finish, or if its work may be lost, run "
        + ("ROLLBACK PREPARED" if prepared else f"SELECT pg_terminate_backend({blocker.pid})"),
        None if blocker.seconds is None else clock - dt.timedelta(seconds=blocker.seconds),
    )


def _holds_too_long(holder: XminHolder) -> bool:
    if holder.seconds is None:
        return holder.transactions > 10_000_000  # the limit if the role cannot see the start time
    # fewer transactions leave too few dead rows to matter
    return holder.seconds > 3_600.0 and holder.transactions > 1_000


def named(holder: XminHolder) -> str:
    who = f"{holder.kind} {holder.name!r}" if holder.name else f"a {holder.kind} without a name"
    return who + (f" of process {holder.pid}" if holder.pid else "")


def _age(holder: XminHolder) -> str:
    transactions = f"{holder.transactions:,} transactions"
    return transactions if holder.seconds is None else f"{holder.seconds / 60:,.0f} minutes, {transactions}"


def _remedy(holder: XminHolder) -> str:
    if holder.kind == "prepared transaction":
        return "if it is abandoned, run ROLLBACK PREPARED"
    if holder.kind == "replication slot":
        return "if its replica no longer exists, call pg_drop_replication_slot"
    if holder.kind == "standby":
        return "a query on the replica holds it (hot_standby_feedback): end that query there"
    return f"if its work may be lost, run SELECT pg_terminate_backend({holder.pid})"


def _lost(record: LostRecord, clock: dt.datetime) -> Problem:
    audit = record.kind == "audit"
    what = f"the audit entry {record.what!r}" if audit else f"a snapshot of worker {record.what}"
    return problem(
        ProblemCode.RECORD_LOST,
        "audit" if audit else f"worker {record.what}",
        f"{what} could not be written {record.seconds_ago:,.0f} s ago: {record.error}",
        "remove what the error names; what the record is about was done, and the log has more",
        clock - dt.timedelta(seconds=record.seconds_ago),
    )
