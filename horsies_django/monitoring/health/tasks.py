"""Problems of tasks, by what is counted of them, and of workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from horsies_django.core.counts import CANCELLED, COMPLETED, CRASHED, EXPIRED, RETURNED, Total
from horsies_django.core.errors import OperationalErrorCode
from horsies_django.models.fields import aware
from horsies_django.monitoring.health.problem import Problem, ProblemCode, number, problem
from horsies_django.monitoring.health.state import Health
from horsies_django.store.health import MOST, HaltedRuns

MANY_FAILURES, SHARE = 20, 0.1  # in 15 minutes
ENDED_CHILD = (CRASHED, OperationalErrorCode.WORKER_CRASHED, OperationalErrorCode.POISON)
FINAL = (COMPLETED, RETURNED, CANCELLED, EXPIRED)


def of_tasks(health: Health) -> Iterator[Problem]:
    """Yield the tasks that fail, end children, or are unknown; of each kind the worst first, and no more than 20."""
    failed = _failing(health.lately, MANY_FAILURES, SHARE)
    told = {task: f"{number(n, 'task')} {task} failed in the last 15 minutes, of {of}" for task, (n, of) in failed}
    for task, (n, _) in _failing(health.day, 3, 1.0):  # all in a day
        told.setdefault(task, f"all {number(n, 'task')} {task} of the last 24 hours failed")
    for task, text in list(told.items())[:MOST]:
        advice = (
            "see their errors in the admin or with 'manage.py horsies_task list --status FAILED', and correct the task"
        )
        yield problem(ProblemCode.FAILURES, f"task {task}", text, advice)
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
    for unknown in health.unknown_tasks[:MOST]:
        yield problem(
            ProblemCode.UNKNOWN_TASK,
            f"task {unknown.task_name}",
            f"{number(unknown.many, 'due task')} {unknown.task_name} of queue {unknown.queue} wait, and no live worker of the "
            "queue knows them: they will fail with WORKER_RESOLUTION_ERROR",
            "start a worker whose code has the task, or cancel them",
            unknown.since,
        )


def _failing(totals: Sequence[Total], least: int, share: float) -> list[tuple[str, tuple[int, int]]]:
    """Return the tasks with so many final failures that are such a share of all outcomes, and both numbers; the worst first."""
    failures, outcomes = Counter[str](), Counter[str]()
    for one in totals:
        failures[one.task] += one.n if one.failed else 0
        outcomes[one.task] += one.n if one.failed or one.result in FINAL else 0
    return [
        (task, (n, outcomes[task])) for task, n in failures.most_common() if n >= least and n >= share * outcomes[task]
    ]


def of_workflows(health: Health) -> Iterator[Problem]:
    """Yield the workflows with runs that go on only if somebody acts."""
    for halted in health.halted_runs[:MOST]:
        text, advice = _halted(halted)
        yield problem(
            ProblemCode.RUNS_STAND_STILL,
            f"workflow {halted.name}",
            f"{number(halted.many, 'run')} of workflow {halted.name} {text}, first {halted.run}",
            advice,
            halted.since,
        )


def _halted(halted: HaltedRuns) -> tuple[str, str]:
    was = "was" if halted.many == 1 else "were"
    if halted.reason == "gate" and halted.until is not None:
        until = aware(halted.until).isoformat(sep=" ", timespec="minutes")
        has = "has a gate" if halted.many == 1 else "have gates"
        return f"{has} that will soon time out, the next at {until}", "have somebody approve or reject in the admin"
    if halted.reason == "paused":
        return f"{was} paused by a failure", (
            f"see what failed with 'manage.py horsies_workflow show {halted.run}', then retry, skip or cancel"
        )
    return f"{was} not undone completely", (
        f"see what is left with 'manage.py horsies_workflow show {halted.run}', and retry the run, which undoes the rest"
    )
