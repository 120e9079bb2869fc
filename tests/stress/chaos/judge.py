"""The judge: decides from rows, attempts and runs whether a task was lost or finished twice.

It compares four sources. The sender knows the sent tasks and the answers to its calls; the rows
hold the state and the end of each task; the attempts say which worker tried a task, and from when
to when; the runs say what user code really did. An attempt may have no run: its process was killed
after it reported "started" and before the first line of user code. A run always has exactly one
attempt.

All functions are pure and return violations as sentences. Times are seconds by the clock of the
machine, which is the database's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.stress.chaos.notes import ASKED, Noted

TERMINAL = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
CRASHED = "WORKER_CRASHED"
TIMED_OUT = "TASK_TIMEOUT"
BY_OTHERS = ("MERGED", "ORDER_CANCELLED")  # ends that other tasks of a partition may cause


class Row(NamedTuple):
    """A task as in its row; ``codes`` are those that its policy retries.

    Tasks of workflows have the number -1.
    """

    id: str
    number: int
    name: str
    queue: str
    tenant: str
    sent_at: float
    due_at: float
    status: str
    error_code: str | None
    codes: Sequence[str]
    max_retries: int
    retry_count: int
    generation: int
    owner: str | None
    good_until: float | None
    cancelled_at: float | None
    finished_at: float | None

    @property
    def ending(self) -> str:
        """The end of the task, in words."""
        return f"{self.status} {self.error_code or ''}".strip()


class Attempt(NamedTuple):
    """An attempt as in its row."""

    task: str
    attempt: int
    generation: int
    outcome: str
    will_retry: bool
    error_code: str | None
    started_at: float
    finished_at: float
    worker: str
    pid: int | None


class Dispatch(NamedTuple):
    """The numbers sent in one transaction; ``sure`` means that its commit was confirmed."""

    numbers: tuple[int, ...]
    sure: bool


def missing(rows: Iterable[Row], dispatches: Sequence[Dispatch]) -> list[str]:
    """Return the tasks that were lost or duplicated on the way into the table.

    A task is there if and only if its transaction committed.
    """
    there = Counter(row.number for row in rows)
    known = {number for dispatch in dispatches for number in dispatch.numbers}
    return [
        *(f"task {number} is there {count} times" for number, count in there.items() if count > 1),
        *absent(dispatches, there.__contains__, "has no row"),
        *(f"task {number} is there, and nobody sent it" for number in there if number not in known),
    ]


def absent(
    dispatches: Iterable[Dispatch], is_there: Callable[[int], bool], how: str
) -> Iterator[str]:
    """Yield missing tasks of committed transactions, and partial transactions."""
    for dispatch in dispatches:
        lost = [number for number in dispatch.numbers if not is_there(number)]
        if dispatch.sure:
            yield from (f"task {number} was lost: it was sent, and {how}" for number in lost)
        elif 0 < len(lost) < len(dispatch.numbers):
            yield (
                f"of one transaction {len(lost)} task(s) of {len(dispatch.numbers)} are missing: "
                f"{lost}"
            )


def unended(rows: Iterable[Row], dead: Collection[str]) -> list[str]:
    """Return the unfinished tasks; the faults have been over for long."""
    return [
        f"task {row.number} is {row.status}"
        + (f" under {row.owner}, which is dead" if row.owner in dead else "")
        for row in rows
        if row.status not in TERMINAL
    ]


def histories(
    rows: Iterable[Row], attempts: Mapping[str, Sequence[Attempt]], max_crashes: int
) -> Iterator[str]:
    """Yield contradictions between a task's row and its attempts, which are in their order."""
    for row in rows:
        tried = attempts.get(row.id, ())
        for text in (
            *sequence(row, tried),
            *reasons(row, tried),
            *endings(row, tried, max_crashes),
        ):
            yield f"task {row.number}, {row.ending} after {len(tried)} attempt(s): {text}"


def sequence(row: Row, tried: Sequence[Attempt]) -> Iterator[str]:
    """Yield errors in the sequence of attempts.

    These are gaps, reused claims, two attempts at once, and a count that differs.
    """
    numbers = [one.attempt for one in tried]
    if numbers != list(range(1, len(tried) + 1)):
        yield f"its attempts are {numbers}"

    generations = [one.generation for one in tried]
    if sorted(set(generations)) != generations or any(one > row.generation for one in generations):
        yield f"the claims of its attempts are {generations}, the last claim was {row.generation}"

    for before, after in zip(tried, tried[1:], strict=False):
        if not before.will_retry:
            yield f"it went on after attempt {before.attempt}, which was the last: finished twice"
        if after.started_at < before.finished_at:
            yield f"attempt {after.attempt} started before attempt {before.attempt} was over"

    if row.retry_count != sum(one.will_retry for one in tried):
        yield f"it counts {row.retry_count} retries"
    if row.retry_count > row.max_retries:
        yield f"it was retried {row.retry_count} times, {row.max_retries} were allowed"


def reasons(row: Row, tried: Sequence[Attempt]) -> Iterator[str]:
    """Yield the attempts that should not exist.

    They had no reason for a retry, or came after the deadline or after a cancel.
    """
    for one in tried:
        if one.will_retry and one.error_code not in (*row.codes, ASKED):
            yield (
                f"attempt {one.attempt} is retried after {one.error_code}, its policy lists "
                f"{row.codes}"
            )

        if row.good_until is not None and one.started_at >= row.good_until:
            yield (
                f"attempt {one.attempt} started {one.started_at - row.good_until:.3f} s after its "
                "good_until"
            )

        if row.cancelled_at is not None and one.started_at > row.cancelled_at:
            yield (
                f"attempt {one.attempt} started {one.started_at - row.cancelled_at:.3f} s after it "
                "was cancelled"
            )


def endings(row: Row, tried: Sequence[Attempt], max_crashes: int) -> Iterator[str]:
    """Yield contradictions between the end of a task and its last attempt."""
    last = tried[-1] if tried else None
    over = last is not None and not last.will_retry
    crashes = sum(one.outcome == "WORKER_FAILURE" for one in tried)

    if row.status in ("COMPLETED", "FAILED") and not over:
        yield "no attempt is its last"
    if row.status not in TERMINAL and over:
        yield "its last attempt was its end"
    if row.status == "EXPIRED" and (over or row.good_until is None):
        yield "it had ended already, or had no deadline"
    if row.status == "CANCELLED" and row.cancelled_at is None and row.error_code not in BY_OTHERS:
        yield "nobody cancelled it"

    if last is None or not over:
        return

    ends = ("FAILED", "WORKER_FAILURE") if row.status == "FAILED" else (row.status,)
    # A process that is killed to terminate its task ends the task, not the worker.
    if last.outcome not in ends:
        yield f"its last attempt ended {last.outcome}"
    if last.finished_at != row.finished_at:
        yield f"it finished at {row.finished_at}, its last attempt at {last.finished_at:.6f}"

    if row.error_code == "POISON" and crashes < max_crashes:
        yield f"it is poison after {crashes} crashes"
    if row.error_code not in (last.error_code, "POISON"):
        yield f"its last attempt ended with {last.error_code}"


def accounts(
    rows: Mapping[str, Row], attempts: Mapping[str, Sequence[Attempt]], runs: Iterable[Noted]
) -> Iterator[str]:
    """Yield runs without an attempt, and attempts that claim a run that user code did not note."""
    noted: defaultdict[tuple[str, int], list[Noted]] = defaultdict(list)
    for run in runs:
        noted[run.task, run.attempt].append(run)
    closed = {(one.task, one.attempt): one for tried in attempts.values() for one in tried}

    for key, its in noted.items():
        if key[0] not in rows:
            yield f"a run of {key[0]} is noted, and there is no such task"
            continue

        where = f"task {rows[key[0]].number}, attempt {key[1]}"
        if len(its) > 1:
            yield f"{where} was run {len(its)} times, by the processes {[run.pid for run in its]}"

        attempt = closed.get(key)
        if attempt is None:
            yield f"{where} was run by process {its[0].pid} and is not recorded"
            continue
        yield from (f"{where}: {text}" for run in its for text in bounds(run, attempt))

    for key, attempt in closed.items():
        if attempt.outcome == "COMPLETED" and not any(run.ended for run in noted.get(key, ())):
            yield f"task {key[0]}, attempt {key[1]} is COMPLETED, and its user code noted no end"


def bounds(run: Noted, attempt: Attempt) -> Iterator[str]:
    """Yield runs that lie outside of their attempts, or ran in another process."""
    last = run.began if run.ended is None else run.ended

    if run.began < attempt.started_at:
        yield f"it ran {attempt.started_at - run.began:.6f} s before its claim"
    if last > attempt.finished_at:
        yield f"it wrote {last - attempt.finished_at:.6f} s after its attempt was closed"
    if attempt.pid is not None and attempt.pid != run.pid:
        yield f"process {run.pid} ran it, process {attempt.pid} is recorded"


def twice(rows: Mapping[str, Row], runs: Iterable[Noted]) -> list[str]:
    """Return the tasks that may not be restarted and whose user code started twice."""
    starts = Counter(run.task for run in runs)
    return [
        f"task {rows[task].number} may not be retried, and was started {count} times"
        for task, count in starts.items()
        if count > 1 and task in rows and not rows[task].max_retries
    ]


def miscounted(
    rows: Iterable[Row], tried: Iterable[Attempt], counted: Mapping[str, int], dead: Collection[str]
) -> list[str]:
    """Return where the history counts too much, or less than surviving workers did.

    A killed worker may not have written its last minute, and its lost tasks were counted by other
    workers, or not at all.
    """
    least = Counter[str]()
    most = Counter(row.status for row in rows if row.status == "EXPIRED")

    for one in tried:
        crashed = one.outcome == "WORKER_FAILURE"
        if one.will_retry:
            kind = "CRASHED" if crashed else "RETRIED"
        else:
            kind = "FAILED" if crashed else one.outcome
        most[kind] += 1
        least[kind] += one.worker not in dead

    return [
        f"{counted.get(kind, 0)} attempts are counted as {kind}, there were {least[kind]} to "
        f"{most[kind]}"
        for kind in most.keys() | counted.keys()
        if not least[kind] <= counted.get(kind, 0) <= most[kind]
    ]


def fired(ticks: Sequence[tuple[str, int, str]], rows: Iterable[Row]) -> list[str]:
    """Return errors in the ordered fire times of schedules, and in the tasks sent for them."""
    sent = Counter(task for _, _, task in ticks)
    there = Counter(row.id for row in rows if row.name == "tick")
    return continuous({}, ticks) + [
        f"task {id_} was sent for {sent[id_]} fire times, and is there {there[id_]} times"
        for id_ in sent | there
        if (sent[id_], there[id_]) != (1, 1)
    ]


def continuous(last: dict[str, int], ticks: Iterable[tuple[str, int, str]]) -> list[str]:
    """Return the schedules that skipped a second or went back; record each last fire time."""
    found = []
    for name, at, _ in ticks:
        if at != last.get(name, at - 1) + 1:
            found.append(f"schedule {name} fired for {at} after {last[name]}")
        last[name] = at
    return found


def broken_words(
    rows: Iterable[Row], verdicts: Mapping[int, str], told: Mapping[int, str | None]
) -> list[str]:
    """Return rows that contradict an earlier answer.

    The answer is a cancel's ("CANCELLED", "FINISHED") or a result's (its error code, or None).
    """
    found = []
    for row in rows:
        verdict = verdicts.get(row.number)
        if verdict == "CANCELLED" and row.status != "CANCELLED":
            found.append(f"task {row.number} was cancelled before it started, and is {row.status}")
        if verdict in ("CANCELLED", "REQUESTED") and row.cancelled_at is None:
            found.append(f"task {row.number} forgot that it was to be cancelled")

        if row.number in told and told[row.number] != row.error_code:
            found.append(
                f"task {row.number} ended {row.error_code}, a waiter was told {told[row.number]}"
            )

    return found
