"""The problems of the database, workers, queues, schedules, tasks and workflows.

``examine`` reads the state, and ``problems`` finds in it the problems that need attention. The
command and the URL both call them. The module only reads, without locks.
"""

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
from horsies_django.core.words import duration
from horsies_django.models.fields import aware
from horsies_django.monitoring.health.state import LATE, Health, QueueHealth, examine
from horsies_django.store.health import MOST_PROBLEMS, DatabaseHealth, WorkerHealth, XminHolder

__all__ = [
    "LATE",
    "MAX_WAIT_SECONDS",
    "DatabaseHealth",
    "Health",
    "Problem",
    "ProblemCode",
    "QueueHealth",
    "Severity",
    "WorkerHealth",
    "XminHolder",
    "examine",
    "holder_name",
    "problems",
]

MAX_WAIT_SECONDS = 900.0
SLOW_START_SECONDS = 30.0  # how long a worker may take to be ready
# How many tasks of 15 minutes, and which share of them, have to fail for a problem
MANY_FAILURES = 20
FAILED_SHARE = 0.1
ENDED_CHILD = (CRASHED, OperationalErrorCode.WORKER_CRASHED, OperationalErrorCode.POISON)
FINAL_RESULTS = (COMPLETED, RETURNED, CANCELLED, EXPIRED)
START = "start 'manage.py horsies_scheduler' or a worker with --with-scheduler"
# The remedy by the code of a problem. The function that finds the problem fills in {}.
PROBLEM_REMEDIES = {
    "READ_ONLY": "point DATABASES to the primary, or make the database writable",
    "BLOCKED": "wait until it ends, or run {} if its work may be lost",
    "NOTIFY_QUEUE": (
        "a listening session has a transaction open: find the oldest one in pg_stat_activity and "
        "end it"
    ),
    "CONNECTIONS": (
        "lower --threads, CONN_MAX_AGE and CHILD_CONN_MAX_AGE, pool connections, or raise "
        "max_connections"
    ),
    "XMIN_HELD": "{}",
    "STALE_WORKER": (
        "start a worker, which rescues them, or read in the log of a live worker why it does not"
    ),
    "NO_LIVING_WORKER": (
        "start a worker that serves it, as in 'manage.py horsies_worker --queues={}'"
    ),
    "WORKER_NOT_READY": (
        "find the reason in its log; an import, middleware or a receiver of child_started may hang"
    ),
    "NO_SCHEDULER": START,
    "SCHEDULE_LATE": f"{START}, or find the reason in the log of the scheduler",
    "SCHEDULE_FAILS": "correct the schedule in the code or in the admin",
    "RECORD_LOST": (
        "remove the cause that the error names; only the record is missing, and the log has details"
    ),
    "ORDER_STOPPED": "retry or skip the failed tasks; 'manage.py horsies_queue show {}' lists them",
    "WAITS_TOO_LONG": (
        "start more workers, or raise the limit that holds it back; 'manage.py horsies_explain ID' "
        "shows the reason"
    ),
    "PARTITION_WAITS": (
        "raise the limit of partitions, or send less; 'manage.py horsies_queue show {}' lists full "
        "partitions"
    ),
    "FAILURES": (
        "see their errors in the admin or with 'manage.py horsies_task list --status FAILED', and "
        "correct the task"
    ),
    "CRASHES": "find the cause in the worker's log, such as memory, a C extension, or os._exit",
    "UNKNOWN_TASK": (
        "start a worker whose code has the task, or cancel the tasks; then retry the failed ones"
    ),
    "SCHEDULED_TASKS_FAIL": (
        "see their errors in the admin or with 'manage.py horsies_task list', and correct the task"
    ),
    "FIRE_TIMES_MISSED": (
        "the scheduler's log lists them; send the tasks that are needed with 'manage.py "
        "horsies_schedule run-now', or set 'catch_up'"
    ),
    "RUNS_STAND_STILL": "{}",
    "RETENTION_BEHIND": (
        "check the workers' logs for rows that cannot be deleted; keep rows for longer or send "
        "less if there are too many"
    ),
}
HOLDER_REMEDIES = {
    "transaction": "run SELECT pg_terminate_backend({}) if its work may be lost",
    "prepared transaction": "run ROLLBACK PREPARED if it is abandoned",
    "replication slot": "call pg_drop_replication_slot if its replica no longer exists",
    "standby": "a query on the replica holds it (hot_standby_feedback): end that query there",
}


class Severity(enum.StrEnum):
    """The severity of a problem.

    It is critical if tasks cannot be sent, claimed or finished, or soon will not be. It is a
    warning if somebody should look at it today.
    """

    CRITICAL = "critical"
    WARNING = "warning"


class ProblemCode(enum.StrEnum):
    """The kinds of problems, the worst first. The names are stable.

    Those from ORDER_STOPPED on are warnings, and the others are critical.
    """

    READ_ONLY = "READ_ONLY"
    BLOCKED = "BLOCKED"
    NOTIFY_QUEUE = "NOTIFY_QUEUE"
    CONNECTIONS = "CONNECTIONS"
    XMIN_HELD = "XMIN_HELD"
    STALE_WORKER = "STALE_WORKER"
    NO_LIVING_WORKER = "NO_LIVING_WORKER"
    WORKER_NOT_READY = "WORKER_NOT_READY"
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
    RETENTION_BEHIND = "RETENTION_BEHIND"

    @property
    def severity(self) -> Severity:
        """The severity of problems of this kind."""
        return (
            Severity.CRITICAL if RANK[self] < RANK[ProblemCode.ORDER_STOPPED] else Severity.WARNING
        )


RANK = {code: place for place, code in enumerate(ProblemCode)}


class Problem(NamedTuple):
    """A problem that needs attention.

    ``subject`` is the part of the system that has it, for programs, such as "queue mail", "task
    shop.tasks.pay" or "database". ``since`` is aware, or None if the time is not known. ``text``
    describes the problem, and ``advice`` is the remedy.
    """

    code: ProblemCode
    severity: Severity
    subject: str
    since: dt.datetime | None
    text: str
    advice: str


def problems(health: Health, *, max_wait_seconds: float | None = MAX_WAIT_SECONDS) -> list[Problem]:
    """Return the problems in the order of ``ProblemCode``, critical ones first.

    Problems with the same code are ordered by age, the oldest first. A due task that has been
    waiting longer than ``max_wait_seconds`` is a problem, unless its queue is paused. There is no
    limit if it is None.
    """
    parts = (
        of_server,
        of_blockers,
        of_xmin,
        of_lost,
        of_workers,
        of_schedules,
        of_counts,
        of_unknown,
        of_workflows,
        of_retention,
    )
    found = [*of_queues(health, max_wait_seconds), *(one for part in parts for one in part(health))]
    return sorted(
        found, key=lambda one: (RANK[one.code], one.since.timestamp() if one.since else 0.0)
    )


def problem_of_code(
    code: ProblemCode, subject: str, text: str, since: dt.datetime | None = None, what: str = ""
) -> Problem:
    """Return a problem with the severity and the advice of its code.

    ``what`` is part of the advice.
    """
    since = None if since is None else aware(since)
    return Problem(code, code.severity, subject, since, text, PROBLEM_REMEDIES[code].format(what))


def holder_name(holder: XminHolder) -> str:
    name = f"{holder.kind} {holder.name!r}" if holder.name else f"a {holder.kind} without a name"
    return name + (f" of process {holder.pid}" if holder.pid else "")


def of_server(health: Health) -> Iterator[Problem]:
    database = health.database
    if database.read_only:
        reason = (
            "because it is a replica"
            if database.in_recovery
            else "by default_transaction_read_only"
        )
        text = f"the database is read-only, {reason}: no task can be sent, claimed or finished"
        yield problem_of_code(ProblemCode.READ_ONLY, "database", text)

    if database.notify_queue > 0.5:
        full = f"PostgreSQL's notification queue is {database.notify_queue:.0%} full"
        text = f"{full}; when it is full, transactions that send tasks cannot commit"
        yield problem_of_code(ProblemCode.NOTIFY_QUEUE, "database", text)

    if database.connections > 0.9 * database.max_connections:
        used = f"{database.connections} of {database.max_connections} connections are in use"
        text = f"{used}, and soon workers and sites cannot connect"
        yield problem_of_code(ProblemCode.CONNECTIONS, "database", text)


def of_blockers(health: Health) -> Iterator[Problem]:
    for one in health.blockers:
        transaction = f"process {one.pid} ({one.name!r})"
        end = f"SELECT pg_terminate_backend({one.pid})"
        if one.pid is None:
            transaction = f"prepared transaction {one.name!r}"
            end = "ROLLBACK PREPARED"

        age = "" if one.seconds is None else f" for {duration(one.seconds)}"
        lock = f"{'holds' if one.granted else 'waits for'} the lock {one.mode} on {one.table}"
        more = "" if health.complete else ", and so did this check until it was cancelled"

        text = (
            f"{transaction} has had a transaction open{age} that {lock}; workers have to wait for "
            f"it{more}"
        )
        yield problem_of_code(
            ProblemCode.BLOCKED, f"table {one.table}", text, health.ago(one.seconds), end
        )


def of_xmin(health: Health) -> Iterator[Problem]:
    for one in health.database.xmin_holders:
        # Fewer transactions leave too few dead rows to matter. More are needed if the role may not
        # see the start time.
        least = 10_000_000 if one.seconds is None else 1_000

        if one.transactions > least and (one.seconds is None or one.seconds > 3_600.0):
            age = "" if one.seconds is None else f"{duration(one.seconds)}, "
            dead = f"{holder_name(one)} has kept dead rows from being removed"
            text = f"{dead} for {age}{one.transactions:,} transactions, and claims slow down"

            subject = f"{one.kind} {one.pid or one.name}"
            remedy = HOLDER_REMEDIES[one.kind].format(one.pid)
            yield problem_of_code(
                ProblemCode.XMIN_HELD, subject, text, health.ago(one.seconds), remedy
            )


def of_lost(health: Health) -> Iterator[Problem]:
    for one in health.lost:
        what = f"a snapshot of worker {one.what}"
        subject = f"worker {one.what}"
        if one.kind == "audit":
            what = f"the audit entry {one.what!r}"
            subject = "audit"

        text = f"{what} could not be written {duration(one.seconds_ago)} ago: {one.error}"
        yield problem_of_code(ProblemCode.RECORD_LOST, subject, text, health.ago(one.seconds_ago))


def of_workers(health: Health) -> Iterator[Problem]:
    for one in health.workers:
        name = f"worker {one.hostname}:{one.pid}"
        if one.state == "living" and not one.ready and one.age_seconds > SLOW_START_SECONDS:
            text = f"{name} has no process that is ready to run tasks"
            yield problem_of_code(ProblemCode.WORKER_NOT_READY, name, text)

        if one.holds and not one.up:
            silence = duration(one.silent_seconds)
            text = (
                f"{name} is {one.state}, was last seen {silence} ago, and holds "
                f"{amount(one.holds, 'task')}"
            )
            yield problem_of_code(ProblemCode.STALE_WORKER, name, text, one.seen_at)


def of_queues(health: Health, max_wait_seconds: float | None) -> Iterator[Problem]:
    """Yield the problems of queues that are not paused."""
    if any(queue.name == CLUSTER and queue.paused for queue in health.queues):
        return

    most = float("inf") if max_wait_seconds is None else max_wait_seconds
    for queue in health.queues:
        if queue.name == CLUSTER or queue.paused:
            continue

        name = f"queue {queue.name}"
        waits = queue.oldest_seconds
        parked = queue.partition_seconds

        if queue.pending and not queue.workers:
            text = (
                f"{name} has {amount(queue.pending, 'task', queue.pending_more)} due and no live "
                "worker"
            )
            yield problem_of_code(
                ProblemCode.NO_LIVING_WORKER, name, text, health.ago(waits), queue.name
            )

        if queue.stopped_seconds is not None:
            keys = amount(min(queue.stopped, 1_000), "key", queue.stopped > 1_000)
            since = duration(queue.stopped_seconds)
            text = f"failed tasks stop {keys} of {name}, the first for {since}"
            yield problem_of_code(
                ProblemCode.ORDER_STOPPED, name, text, health.ago(queue.stopped_seconds), queue.name
            )

        if waits is not None and waits > most:
            which = f"a due task of {name}"
            text = f"{which} has been waiting for {duration(waits)}, longer than {duration(most)}"
            yield problem_of_code(ProblemCode.WAITS_TOO_LONG, name, text, health.ago(waits))

        if parked is not None and parked > most:
            which = f"a due task of {name} whose partition is at its limit"
            text = f"{which} has been waiting for {duration(parked)}, longer than {duration(most)}"
            yield problem_of_code(
                ProblemCode.PARTITION_WAITS, name, text, health.ago(parked), queue.name
            )


def of_schedules(health: Health) -> Iterator[Problem]:
    """Yield the problems of schedules, and of the tasks that they send."""
    kept_at = health.schedules_kept_at
    age = 0.0 if kept_at is None else (health.database.clock - kept_at).total_seconds()

    # A scheduler records the schedules in its code once a minute.
    if health.declared_schedules and (kept_at is None or age > 180):
        omission = "loaded them" if kept_at is None else f"had them in its code for {duration(age)}"
        text = (
            f"the code declares {amount(health.declared_schedules, 'schedule')}, but no scheduler "
            f"has {omission}"
        )
        yield problem_of_code(ProblemCode.NO_SCHEDULER, "schedules", text, kept_at)

    late = [
        (one.name, one.late_seconds)
        for one in health.schedules
        if (one.late_seconds or 0) > LATE.total_seconds()
    ]
    for name, seconds in late[:1]:
        others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        text = f"the schedule {name!r}{others} is overdue by {duration(seconds or 0)}"
        yield problem_of_code(
            ProblemCode.SCHEDULE_LATE, f"schedule {name}", text, health.ago(seconds)
        )

    for one in health.schedules:
        if one.error is not None:
            text = f"the schedule {one.name!r} could not send its task: {one.error}"
            yield problem_of_code(
                ProblemCode.SCHEDULE_FAILS, f"schedule {one.name}", text, one.error_at
            )

        if one.missed_at is not None:
            text = f"the schedule {one.name!r} missed fire times in the last 24 hours"
            yield problem_of_code(
                ProblemCode.FIRE_TIMES_MISSED, f"schedule {one.name}", text, one.missed_at
            )

    for name, task_name, since in health.failing_schedules:
        text = f"the last two tasks {task_name} that the schedule {name!r} sent failed"
        yield problem_of_code(ProblemCode.SCHEDULED_TASKS_FAIL, f"schedule {name}", text, since)


def of_counts(health: Health) -> Iterator[Problem]:
    """Yield the tasks that often fail, and those that end child processes.

    The worst of each kind are first, and there are at most 20.
    """
    failed = _failing(health.lately, MANY_FAILURES, FAILED_SHARE)
    texts = {
        task: f"{amount(n, 'task')} {task} failed in the last 15 minutes, of {of}"
        for task, n, of in failed
    }
    for task, n, _ in _failing(health.day, 3, 1.0):  # all tasks of a day failed
        texts.setdefault(task, f"all {amount(n, 'task')} {task} of the last 24 hours failed")

    for task, text in list(texts.items())[:MOST_PROBLEMS]:
        yield problem_of_code(ProblemCode.FAILURES, f"task {task}", text)

    crashes = Counter[str]()
    for one in health.lately:
        if one.result in ENDED_CHILD:
            # The buckets leave out attempts that ended with their worker: they have no duration.
            crashes[one.task] += sum(one.buckets)

    for task, n in crashes.most_common(MOST_PROBLEMS):
        if n >= 3:  # in 15 minutes
            text = f"tasks {task} ended {n:,} child processes in the last 15 minutes"
            yield problem_of_code(ProblemCode.CRASHES, f"task {task}", text)


def _failing(totals: Sequence[Total], least: int, share: float) -> list[tuple[str, int, int]]:
    """Return the tasks that fail often, with the numbers of final failures and of all outcomes.

    A task has at least ``least`` failures, and at least ``share`` of its outcomes are failures. The
    worst are first.
    """
    failures = Counter[str]()
    outcomes = Counter[str]()
    for one in totals:
        if one.failed or one.result in FINAL_RESULTS:
            failures[one.task] += one.n * one.failed
            outcomes[one.task] += one.n

    return [
        (task, n, outcomes[task])
        for task, n in failures.most_common()
        if n >= least and n >= share * outcomes[task]
    ]


def of_unknown(health: Health) -> Iterator[Problem]:
    for one in health.unknown_tasks[:MOST_PROBLEMS]:
        waiting = f"{amount(one.many, 'due task')} {one.task_name} of queue {one.queue} wait"
        text = (
            f"{waiting}, and no live worker of the queue can run them: they will fail with "
            "WORKER_RESOLUTION_ERROR"
        )
        yield problem_of_code(ProblemCode.UNKNOWN_TASK, f"task {one.task_name}", text, one.since)

    failed = Counter[str]()
    for result in health.lately:
        if result.result == OperationalErrorCode.WORKER_RESOLUTION_ERROR:
            failed[result.task] += result.n

    waiting_names = {one.task_name for one in health.unknown_tasks}
    for task, n in failed.most_common(MOST_PROBLEMS):
        if task not in waiting_names:
            text = (
                f"{amount(n, 'task')} {task} failed in the last 15 minutes, because no worker had "
                "their code"
            )
            yield problem_of_code(ProblemCode.UNKNOWN_TASK, f"task {task}", text)


def of_workflows(health: Health) -> Iterator[Problem]:
    """Yield the workflows with runs that continue only if a person acts."""
    for one in health.halted_runs[:MOST_PROBLEMS]:
        was, has = ("was", "has a gate") if one.many == 1 else ("were", "have gates")
        show = f"'manage.py horsies_workflow show {one.run}'"

        state = f"{was} paused by a failure"
        advice = f"find the failed nodes with {show}, then retry, skip or cancel"
        if one.reason == "not undone":
            state = f"{was} not undone completely"
            advice = (
                f"find the nodes that are not undone with {show}, and retry the run to undo them"
            )
        elif one.until is not None:  # the run waits for a gate
            until = aware(one.until).isoformat(sep=" ", timespec="minutes")
            state = f"{has} that will soon time out, the next at {until}"
            advice = "approve or reject the gates in the admin"

        text = f"{amount(one.many, 'run')} of workflow {one.name} {state}, first {one.run}"
        yield problem_of_code(
            ProblemCode.RUNS_STAND_STILL, f"workflow {one.name}", text, one.since, advice
        )


def of_retention(health: Health) -> Iterator[Problem]:
    """Yield the kinds of records that living workers do not delete in time."""
    if not any(one.state == "living" for one in health.workers):
        return

    for one in health.late_retentions:
        late = (health.database.clock - one.done_at).total_seconds()
        text = (
            f"workers have been behind with deleting {retention_name(one.key)} for {duration(late)}"
        )
        yield problem_of_code(
            ProblemCode.RETENTION_BEHIND, f"retention {one.key}", text, one.done_at
        )


def retention_name(key: str) -> str:
    """Return the records that a key of horsies_prunings stands for."""
    kind, _, rest = key.partition(": ")
    queues = rest.rpartition(" ")[0]

    if kind == "keep" and rest == "false":
        return "the tasks with keep_result=False"

    if kind == "keep":
        # Another role that can write the table may have written another text.
        readable = rest.isdecimal() and len(rest) < 16
        return (
            f"the tasks kept for {duration(int(rest) / 1_000)}"
            if readable
            else "tasks with a keep_result of their own"
        )

    if kind == "runs":
        return "workflow runs"
    if kind == "only":
        return f"the tasks of {queues}"
    return f"the tasks of all queues but {queues}" if queues else "finished tasks"
