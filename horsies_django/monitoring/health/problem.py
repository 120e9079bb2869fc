"""Problems: what kinds there are, how severe each is, and which of them a state has."""

from __future__ import annotations

import datetime as dt
import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from horsies_django.core.counts import CANCELLED, COMPLETED, CRASHED, EXPIRED, RETURNED, Total
from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import amount
from horsies_django.models.fields import aware
from horsies_django.monitoring.health.state import LATE, Health
from horsies_django.store.health import MOST, HaltedRuns, XminHolder

MAX_WAIT_SECONDS = 900.0
MANY_FAILURES, SHARE = 20, 0.1  # in 15 minutes
ENDED_CHILD = (CRASHED, OperationalErrorCode.WORKER_CRASHED, OperationalErrorCode.POISON)
FINAL = (COMPLETED, RETURNED, CANCELLED, EXPIRED)
START = "start 'manage.py horsies_scheduler' or a worker with --with-scheduler"
REMEDIES = {
    "transaction": "if its work may be lost, run SELECT pg_terminate_backend({})",
    "prepared transaction": "if it is abandoned, run ROLLBACK PREPARED",
    "replication slot": "if its replica no longer exists, call pg_drop_replication_slot",
    "standby": "a query on the replica holds it (hot_standby_feedback): end that query there",
}


class Severity(enum.StrEnum):
    """critical: tasks cannot be sent, claimed or finished, or will soon not be. warning: somebody should look at it today."""

    CRITICAL = "critical"
    WARNING = "warning"


class ProblemCode(enum.StrEnum):
    """Kinds of problems, the worst first; the names are stable. Those from ORDER_STOPPED on are warnings, the others critical."""

    READ_ONLY = "READ_ONLY"
    BLOCKED = "BLOCKED"
    NOTIFY_QUEUE = "NOTIFY_QUEUE"
    CONNECTIONS = "CONNECTIONS"
    XMIN_HELD = "XMIN_HELD"
    STALE_WORKER = "STALE_WORKER"
    NO_LIVING_WORKER = "NO_LIVING_WORKER"
    NO_SCHEDULER = "NO_SCHEDULER"
    SCHEDULE_LATE = "SCHEDULE_LATE"
    SCHEDULE_FAILS = "SCHEDULE_FAILS"
    RECORD_LOST = "RECORD_LOST"
    ORDER_STOPPED = "ORDER_STOPPED"
    WAITS_TOO_LONG = "WAITS_TOO_LONG"
    PARTITION_WAITS = "PARTITION_WAITS"
    FAILURES = "FAILURES"
    CRASHES = "CRASHES"
    UNKNOWN_TASK = "UNKNOWN_TASK"
    SCHEDULED_TASKS_FAIL = "SCHEDULED_TASKS_FAIL"
    FIRE_TIMES_MISSED = "FIRE_TIMES_MISSED"
    RUNS_STAND_STILL = "RUNS_STAND_STILL"

    @property
    def severity(self) -> Severity:
        """Return how severe problems of this kind are."""
        codes = list(ProblemCode)
        warning = codes.index(self) >= codes.index(ProblemCode.ORDER_STOPPED)
        return Severity.WARNING if warning else Severity.CRITICAL


class Problem(NamedTuple):
    """A problem. ``subject`` says what has it, for programs: "queue mail", "task shop.tasks.pay", "database".

    ``since`` is aware, or None if that is not known. ``text`` says what is wrong, ``advice`` what to do.
    """

    code: ProblemCode
    severity: Severity
    subject: str
    since: dt.datetime | None
    text: str
    advice: str


def problems(health: Health, *, max_wait_seconds: float | None = MAX_WAIT_SECONDS) -> list[Problem]:
    """Return the problems in the order of ``ProblemCode``, critical ones first, and of a code the oldest first.

    A due task that has been waiting longer than ``max_wait_seconds`` is a problem, unless its queue is paused; None: no limit.
    """
    parts = (of_server, of_blockers, of_xmin, of_lost, of_workers, of_schedules, of_counts, of_unknown, of_workflows)
    found = [*of_queues(health, max_wait_seconds), *(one for part in parts for one in part(health))]
    codes = list(ProblemCode)
    return sorted(found, key=lambda one: (codes.index(one.code), one.since.timestamp() if one.since else 0.0))


def problem(code: ProblemCode, subject: str, text: str, advice: str, since: dt.datetime | None = None) -> Problem:
    """Return a problem with the severity of its code."""
    return Problem(code, code.severity, subject, None if since is None else aware(since), text, advice)


def span(seconds: float) -> str:
    """Return a duration: "45 s", "39 min", "5.0 h"."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"


def named(holder: XminHolder) -> str:
    who = f"{holder.kind} {holder.name!r}" if holder.name else f"a {holder.kind} without a name"
    return who + (f" of process {holder.pid}" if holder.pid else "")


def of_server(health: Health) -> Iterator[Problem]:
    database = health.database
    if database.read_only:
        why = "because it is a replica" if database.in_recovery else "by default_transaction_read_only"
        yield problem(
            ProblemCode.READ_ONLY,
            "database",
            f"the database is read-only, {why}: no task can be sent, claimed or finished",
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


def of_blockers(health: Health) -> Iterator[Problem]:
    for one in health.blockers:
        prepared = one.pid is None
        who = f"prepared transaction {one.name!r}" if prepared else f"process {one.pid} ({one.name!r})"
        age = "" if one.seconds is None else f" for {span(one.seconds)}"
        end = "ROLLBACK PREPARED" if prepared else f"SELECT pg_terminate_backend({one.pid})"
        yield problem(
            ProblemCode.BLOCKED,
            f"table {one.table}",
            f"{who} has had a transaction open{age} that {'holds' if one.granted else 'waits for'} the lock {one.mode} on "
            f"{one.table}, for which workers have to wait"
            + ("" if health.complete else ", as this check did until it was cancelled"),
            f"let it finish, or if its work may be lost, run {end}",
            health.ago(one.seconds),
        )


def of_xmin(health: Health) -> Iterator[Problem]:
    for one in health.database.xmin_holders:
        # fewer transactions leave too few dead rows to matter; a role may not see the start time, and then only many count
        least = 10_000_000 if one.seconds is None else 1_000
        if one.transactions > least and (one.seconds is None or one.seconds > 3_600.0):
            minutes = "" if one.seconds is None else f"{one.seconds / 60:,.0f} minutes, "
            yield problem(
                ProblemCode.XMIN_HELD,
                f"{one.kind} {one.pid or one.name}",
                f"{named(one)} has kept dead rows from being removed for {minutes}{one.transactions:,} transactions, and claims "
                "slow down",
                REMEDIES[one.kind].format(one.pid),
                health.ago(one.seconds),
            )


def of_lost(health: Health) -> Iterator[Problem]:
    for one in health.lost:
        audit = one.kind == "audit"
        what = f"the audit entry {one.what!r}" if audit else f"a snapshot of worker {one.what}"
        yield problem(
            ProblemCode.RECORD_LOST,
            "audit" if audit else f"worker {one.what}",
            f"{what} could not be written {one.seconds_ago:,.0f} s ago: {one.error}",
            "remove what the error names; what the record is about was done, and the log has more",
            health.ago(one.seconds_ago),
        )


def of_workers(health: Health) -> Iterator[Problem]:
    for one in health.workers:
        if one.holds and one.state != "living":
            name = f"worker {one.hostname}:{one.pid}"
            yield problem(
                ProblemCode.STALE_WORKER,
                name,
                f"{name} is {one.state}, was last seen {one.silent_seconds:,.0f} s ago, and holds {amount(one.holds, 'task')}",
                "any live worker recovers them: start one, or see in its log why it does not",
                one.seen_at,
            )


def of_queues(health: Health, max_wait_seconds: float | None) -> Iterator[Problem]:
    """Yield what is wrong with queues that nobody has paused."""
    if any(queue.name == CLUSTER and queue.paused for queue in health.queues):
        return
    most = float("inf") if max_wait_seconds is None else max_wait_seconds
    for queue in health.queues:
        if queue.name == CLUSTER or queue.paused:
            continue
        name, waits, parked = f"queue {queue.name}", queue.oldest_seconds, queue.partition_seconds
        if queue.pending and not queue.workers:
            yield problem(
                ProblemCode.NO_LIVING_WORKER,
                name,
                f"{name} has {amount(queue.pending, 'task', queue.pending_more)} due and no live worker",
                f"start one that serves it, as in 'manage.py horsies_worker --queues={queue.name}'",
                health.ago(waits),
            )
        if queue.stopped_seconds is not None:
            yield problem(
                ProblemCode.ORDER_STOPPED,
                name,
                f"failed tasks stop {amount(min(queue.stopped, 1_000), 'key', queue.stopped > 1_000)} of {name}, the first for "
                f"{queue.stopped_seconds:,.0f} s",
                f"retry or skip them; 'manage.py horsies_queue show {queue.name}' lists them",
                health.ago(queue.stopped_seconds),
            )
        if waits is not None and waits > most:
            yield problem(
                ProblemCode.WAITS_TOO_LONG,
                name,
                f"a due task of {name} has been waiting for {span(waits)}, longer than {span(most)}",
                "start more workers, or raise the limit that holds it back; 'manage.py horsies_explain ID' shows the reason",
                health.ago(waits),
            )
        if parked is not None and parked > most:
            yield problem(
                ProblemCode.PARTITION_WAITS,
                name,
                f"a due task of {name} whose partition is at its limit has been waiting for {span(parked)}, longer than "
                f"{span(most)}",
                f"raise the limit of partitions, or send less; 'manage.py horsies_queue show {queue.name}' lists full partitions",
                health.ago(parked),
            )


def of_schedules(health: Health) -> Iterator[Problem]:
    """Yield what is wrong with schedules, and with the tasks that they send."""
    yield from _of_schedulers(health)
    for one in health.schedules:
        if one.error is not None:
            yield problem(
                ProblemCode.SCHEDULE_FAILS,
                f"schedule {one.name}",
                f"the schedule {one.name!r} could not send its task: {one.error}",
                "correct it in the code or in the admin",
                one.error_at,
            )
        if one.missed_at is not None:
            yield problem(
                ProblemCode.FIRE_TIMES_MISSED,
                f"schedule {one.name}",
                f"the schedule {one.name!r} missed fire times in the last 24 hours",
                "see in the scheduler's log which; send what is needed with 'manage.py horsies_schedule run', or set 'catch_up'",
                one.missed_at,
            )
    for failing in health.failing_schedules:
        yield problem(
            ProblemCode.SCHEDULED_TASKS_FAIL,
            f"schedule {failing.name}",
            f"the last two tasks {failing.task_name} that the schedule {failing.name!r} sent failed",
            "see their errors in the admin or with 'manage.py horsies_task list', and correct the task",
            failing.since,
        )


def _of_schedulers(health: Health) -> Iterator[Problem]:
    kept_at = health.schedules_kept_at
    silent = 0.0 if kept_at is None else (health.database.clock - kept_at).total_seconds()
    # a scheduler records once a minute which schedules its code declares
    if health.declared_schedules and (kept_at is None or silent > 180):
        told = "loaded them" if kept_at is None else f"had them in its code for {span(silent)}"
        yield problem(
            ProblemCode.NO_SCHEDULER,
            "schedules",
            f"the code declares {amount(health.declared_schedules, 'schedule')}, but no scheduler has {told}",
            START,
            kept_at,
        )
    late = [(one.name, one.late_seconds) for one in health.schedules if (one.late_seconds or 0) > LATE.total_seconds()]
    for name, seconds in late[:1]:
        others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        yield problem(
            ProblemCode.SCHEDULE_LATE,
            f"schedule {name}",
            f"the schedule {name!r}{others} is overdue by {span(seconds or 0)}",
            f"{START}, or read in its log why it does not send it",
            health.ago(seconds),
        )


def of_counts(health: Health) -> Iterator[Problem]:
    """Yield the tasks that fail, and those that end children; of each kind the worst first, and no more than 20."""
    failed = _failing(health.lately, MANY_FAILURES, SHARE)
    told = {task: f"{amount(n, 'task')} {task} failed in the last 15 minutes, of {of}" for task, n, of in failed}
    for task, n, _ in _failing(health.day, 3, 1.0):  # all in a day
        told.setdefault(task, f"all {amount(n, 'task')} {task} of the last 24 hours failed")
    for task, text in list(told.items())[:MOST]:
        yield problem(
            ProblemCode.FAILURES,
            f"task {task}",
            text,
            "see their errors in the admin or with 'manage.py horsies_task list --status FAILED', and correct the task",
        )
    crashes = Counter[str]()
    for one in health.lately:
        if one.result in ENDED_CHILD:
            crashes[one.task] += sum(one.buckets)  # attempts that ended with their worker have no duration
    for task, n in crashes.most_common(MOST):
        if n >= 3:  # in 15 minutes
            yield problem(
                ProblemCode.CRASHES,
                f"task {task}",
                f"tasks {task} ended {n:,} child processes in the last 15 minutes",
                "see the worker's log for what killed them: memory, a C extension, or os._exit",
            )


def _failing(totals: Sequence[Total], least: int, share: float) -> list[tuple[str, int, int]]:
    """Return the tasks with so many final failures that are such a share of all outcomes, and both numbers; the worst first."""
    failures, outcomes = Counter[str](), Counter[str]()
    for one in totals:
        failures[one.task] += one.n if one.failed else 0
        outcomes[one.task] += one.n if one.failed or one.result in FINAL else 0
    return [
        (task, n, outcomes[task]) for task, n in failures.most_common() if n >= least and n >= share * outcomes[task]
    ]


def of_unknown(health: Health) -> Iterator[Problem]:
    for one in health.unknown_tasks[:MOST]:
        yield problem(
            ProblemCode.UNKNOWN_TASK,
            f"task {one.task_name}",
            f"{amount(one.many, 'due task')} {one.task_name} of queue {one.queue} wait, and no live worker of the queue knows "
            "them: they will fail with WORKER_RESOLUTION_ERROR",
            "start a worker whose code has the task, or cancel them",
            one.since,
        )


def of_workflows(health: Health) -> Iterator[Problem]:
    """Yield the workflows with runs that go on only if somebody acts."""
    for one in health.halted_runs[:MOST]:
        text, advice = _halted(one)
        yield problem(
            ProblemCode.RUNS_STAND_STILL,
            f"workflow {one.name}",
            f"{amount(one.many, 'run')} of workflow {one.name} {text}, first {one.run}",
            advice,
            one.since,
        )


def _halted(halted: HaltedRuns) -> tuple[str, str]:
    was = "was" if halted.many == 1 else "were"
    if halted.reason == "gate" and halted.until is not None:
        until = aware(halted.until).isoformat(sep=" ", timespec="minutes")
        has = "has a gate" if halted.many == 1 else "have gates"
        return f"{has} that will soon time out, the next at {until}", "have somebody approve or reject in the admin"
    show = f"'manage.py horsies_workflow show {halted.run}'"
    if halted.reason == "paused":
        return f"{was} paused by a failure", f"see what failed with {show}, then retry, skip or cancel"
    return f"{was} not undone completely", f"see what is left with {show}, and retry the run, which undoes the rest"
