"""The judge of the storm finds each error in handmade evidence, and none in correct evidence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stress.chaos.judge import (
    Attempt,
    Dispatch,
    Row,
    accounts,
    broken_words,
    fired,
    histories,
    miscounted,
    missing,
    twice,
    unended,
)
from tests.stress.chaos.notes import Noted, paired

MOST = 5


def row(number: int = 1, status: str = "COMPLETED", **fields: Any) -> Row:
    values: dict[str, Any] = {
        "error_code": None,
        "codes": (),
        "max_retries": 0,
        "retry_count": 0,
        "generation": 9,
        "owner": "w1",
        "good_until": None,
        "cancelled_at": None,
        "finished_at": 2.0,
        **fields,
    }
    return Row(f"t{number}", number, "work", "free", "", 0.0, 0.0, status, **values)


def attempt(number: int = 1, outcome: str = "COMPLETED", **fields: Any) -> Attempt:
    values: dict[str, Any] = {
        "task": "t1",
        "generation": number,
        "will_retry": False,
        "error_code": None,
        "started_at": number - 1 + 0.1,
        "finished_at": number + 1.0,
        "worker": "w1",
        "pid": 7,
        **fields,
    }
    return Attempt(attempt=number, outcome=outcome, **values)


def crash(number: int, **fields: Any) -> Attempt:
    values = {
        "will_retry": True,
        "error_code": "WORKER_CRASHED",
        "finished_at": number - 0.1,
        **fields,
    }
    return attempt(number, "WORKER_FAILURE", **values)


def found(task: Row, *tried: Attempt) -> list[str]:
    return list(histories([task], {task.id: tried}, MOST))


RETRIED = {"codes": ("WORKER_CRASHED",), "max_retries": 3, "retry_count": 1, "finished_at": 3.0}
CRASHED = row(status="FAILED", error_code="WORKER_CRASHED")
EXPIRED = row(status="EXPIRED", error_code="TASK_EXPIRED", good_until=1.0, owner=None)
CANCELLED = row(status="CANCELLED", error_code="TASK_CANCELLED", cancelled_at=1.0, owner=None)


POISON = {**RETRIED, "error_code": "POISON", "max_retries": 9, "retry_count": 4, "finished_at": 6.0}
FIVE_CRASHES = [
    *(crash(number) for number in range(1, 5)),
    crash(5, will_retry=False, finished_at=6.0),
]
FATAL = crash(1, will_retry=False, finished_at=2.0)


@pytest.mark.parametrize(
    ("task", "tried"),
    [
        pytest.param(row(), [attempt()], id="done"),
        pytest.param(row(**RETRIED), [crash(1), attempt(2)], id="retried"),
        pytest.param(CRASHED, [FATAL], id="crashed"),
        pytest.param(EXPIRED, [], id="expired"),
        pytest.param(CANCELLED, [], id="cancelled"),
        pytest.param(CANCELLED._replace(error_code="MERGED", cancelled_at=None), [], id="merged"),
        pytest.param(CANCELLED._replace(**RETRIED), [crash(1)], id="cancelled while it waited"),
        pytest.param(row(status="FAILED", **POISON), FIVE_CRASHES, id="poison"),
    ],
)
def test_a_life_as_it_should_be_is_no_violation(task: Row, tried: list[Attempt]) -> None:
    assert found(task, *tried) == []


@pytest.mark.parametrize(
    ("task", "tried", "words"),
    [
        (row(**RETRIED), [crash(1), attempt(3)], "its attempts are [1, 3]"),
        (
            row(**RETRIED),
            [crash(1), attempt(2, generation=1)],
            "the claims of its attempts are [1, 1]",
        ),
        (row(generation=0), [attempt()], "the last claim was 0"),
        (row(finished_at=3.0), [attempt(), attempt(2)], "finished twice"),
        (
            row(**RETRIED),
            [crash(1, finished_at=1.5), attempt(2)],
            "started before attempt 1 was over",
        ),
        (row(**{**RETRIED, "retry_count": 2}), [crash(1), attempt(2)], "it counts 2 retries"),
        (row(**{**RETRIED, "max_retries": 0}), [crash(1), attempt(2)], "0 were allowed"),
        (
            row(**{**RETRIED, "codes": ("FLAKY",)}),
            [crash(1), attempt(2)],
            "is retried after WORKER_CRASHED",
        ),
        (row(good_until=0.05), [attempt()], "after its good_until"),
        (row(**RETRIED, cancelled_at=1.05), [crash(1), attempt(2)], "after it was cancelled"),
        (row(), [], "no attempt is its last"),
        (row(status="PENDING", finished_at=None), [attempt()], "its last attempt was its end"),
        (EXPIRED, [attempt(finished_at=0.5)], "it had ended already"),
        (EXPIRED._replace(good_until=None), [], "had no deadline"),
        (CANCELLED._replace(cancelled_at=None), [], "nobody cancelled it"),
        (CRASHED, [attempt(error_code="WORKER_CRASHED")], "its last attempt ended COMPLETED"),
        (row(finished_at=5.0), [attempt()], "its last attempt at 2.0"),
        (CRASHED._replace(error_code="POISON"), [FATAL], "poison after 1 crashes"),
        (CRASHED._replace(error_code="FLAKY"), [FATAL], "with WORKER_CRASHED"),
    ],
)
def test_each_thing_that_does_not_fit_in_a_life_is_found(
    task: Row, tried: list[Attempt], words: str
) -> None:
    assert any(words in text for text in found(task, *tried)), found(task, *tried)


@pytest.mark.parametrize(
    ("there", "sure", "words"),
    [
        ((1, 2), True, []),
        ((1,), True, ["task 2 was lost: it was sent, and has no row"]),
        ((1, 1, 2), True, ["task 1 is there 2 times"]),
        ((1, 2, 3), True, ["task 3 is there, and nobody sent it"]),
        ((), False, []),
        ((1, 2), False, []),
        ((1,), False, ["of one transaction 1 task(s) of 2 are missing: [2]"]),
    ],
)
def test_a_sent_task_without_a_row_counts_as_lost(
    there: tuple[int, ...], sure: bool, words: list[str]
) -> None:
    """A sent task without a row counts as lost, unless its whole transaction broke."""
    assert missing(map(row, there), [Dispatch((1, 2), sure)]) == words


def test_an_unfinished_task_is_found_with_the_state_of_its_owner() -> None:
    """An unfinished task is found, and the message says whether its owner is dead."""
    running = row(1, "RUNNING", finished_at=None)

    assert unended([row(1), CRASHED], {"w1"}) == []
    assert unended([running], set()) == ["task 1 is RUNNING"]
    assert unended([running], {"w1"}) == ["task 1 is RUNNING under w1, which is dead"]


def test_a_run_within_its_attempt_is_accounted_for() -> None:
    """A run inside its attempt is no error.

    Neither is an attempt whose process died before its first note.
    """
    task = row(**RETRIED)

    assert (
        list(
            accounts(
                {task.id: task}, {task.id: [crash(1), attempt(2)]}, [Noted("t1", 2, 7, 1.2, 2.9)]
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([Noted("t1", 1, 7, 0.2, 1.9), Noted("t1", 1, 7, 0.3, 1.8)], "was run 2 times"),
        (
            [Noted("t1", 1, 7, 0.2, 1.9), Noted("t1", 2, 7, 2.2, 2.9)],
            "attempt 2 was run by process 7 and is not recorded",
        ),
        ([Noted("t1", 1, 7, 0.05, 1.9)], "before its claim"),
        ([Noted("t1", 1, 7, 0.2, 2.5)], "it wrote 0.500000 s after its attempt was closed"),
        (
            [Noted("t1", 1, 7, 2.5, None), Noted("t1", 1, 7, 0.2, 1.0)],
            "after its attempt was closed",
        ),
        ([Noted("t1", 1, 8, 0.2, 1.9)], "process 8 ran it, process 7 is recorded"),
        ([Noted("t1", 1, 7, 0.2, None)], "is COMPLETED, and its user code noted no end"),
        ([], "is COMPLETED, and its user code noted no end"),
        ([Noted("t1", 1, 7, 0.2, 1.9), Noted("t9", 1, 7, 0.2, 1.9)], "there is no such task"),
    ],
)
def test_a_run_that_no_attempt_accounts_for_is_found(runs: list[Noted], words: str) -> None:
    texts = list(accounts({"t1": row()}, {"t1": [attempt()]}, runs))
    assert any(words in text for text in texts), texts


def test_a_second_start_of_a_task_without_retries_is_found() -> None:
    """A second start of a task that may not be retried is found."""
    runs = [Noted("t1", 1, 7, 0.2), Noted("t1", 2, 8, 1.2)]

    assert twice({"t1": row(max_retries=1)}, runs) == []
    assert twice({"t1": row()}, runs[:1]) == []
    assert twice({"t1": row()}, runs) == ["task 1 may not be retried, and was started 2 times"]


@pytest.mark.parametrize(
    ("task", "verdicts", "told", "count"),
    [
        (CANCELLED, {1: "CANCELLED"}, {1: "TASK_CANCELLED"}, 0),
        (row(cancelled_at=1.0), {1: "REQUESTED"}, {1: None}, 0),
        (row(), {1: "FINISHED"}, {}, 0),
        (row(cancelled_at=1.0), {1: "CANCELLED"}, {}, 1),
        (row(), {1: "REQUESTED"}, {}, 1),
        (CRASHED, {}, {1: None}, 1),
        (row(), {}, {1: "WORKER_CRASHED"}, 1),
    ],
)
def test_a_row_that_contradicts_an_earlier_answer_is_found(
    task: Row, verdicts: dict[int, str], told: dict[int, str | None], count: int
) -> None:
    assert len(broken_words([task], verdicts, told)) == count


@pytest.mark.parametrize(
    ("ticks", "tasks", "words"),
    [
        ([("a", 5, "x"), ("b", 9, "y"), ("a", 6, "z")], "xyz", []),
        ([("a", 6, "x"), ("a", 8, "y")], "xy", ["schedule a fired for 8 after 6"]),
        ([("a", 6, "x"), ("a", 6, "y")], "xy", ["schedule a fired for 6 after 6"]),
        (
            [("a", 5, "x"), ("a", 6, "x")],
            "x",
            ["task x was sent for 2 fire times, and is there 1 times"],
        ),
        ([("a", 5, "x")], "", ["task x was sent for 1 fire times, and is there 0 times"]),
        ([("a", 5, "x")], "xy", ["task y was sent for 0 fire times, and is there 1 times"]),
    ],
)
def test_a_skipped_or_repeated_second_of_a_schedule_is_found(
    ticks: list[tuple[str, int, str]], tasks: str, words: list[str]
) -> None:
    """A schedule that skips or repeats a second is found."""
    assert fired(ticks, [row()._replace(id=id_, name="tick") for id_ in tasks]) == words


def test_a_process_that_starts_a_task_twice_has_two_runs() -> None:
    """Each beginning in the notes becomes a run, even if one process began a task twice."""
    lines = ["began t1 1 7 5 1.0", "ended t1 1 7 5 2.0", "began t1 1 7 5 3.0", "began t2 1 8 5 0.5"]
    expected = [("t2", 1, 8, 0.5, None, 5), ("t1", 1, 7, 1.0, 2.0, 5), ("t1", 1, 7, 3.0, None, 5)]

    assert paired(lines) == expected


@pytest.mark.parametrize(
    ("counted", "wrong"),
    [
        ({"COMPLETED": 2, "CRASHED": 1, "FAILED": 1, "EXPIRED": 1}, ()),
        ({"COMPLETED": 1, "CRASHED": 1}, ()),  # the others are of a killed worker, or of no worker
        ({"COMPLETED": 3, "CRASHED": 1}, ("COMPLETED",)),
        ({"COMPLETED": 0, "CRASHED": 1}, ("COMPLETED",)),
        ({"COMPLETED": 1, "CRASHED": 1, "EXPIRED": 2}, ("EXPIRED",)),
        ({"COMPLETED": 1, "RETRIED": 1}, ("CRASHED", "RETRIED")),
        ({"COMPLETED": 1, "CRASHED": 1, "FAILED": 2}, ("FAILED",)),
    ],
)
def test_a_history_that_counts_too_much_or_too_little_is_found(
    counted: dict[str, int], wrong: tuple[str, ...]
) -> None:
    tried = [crash(1), attempt(2), attempt(1, worker="w2"), crash(2, will_retry=False, worker="w2")]
    told = miscounted([row(), EXPIRED], tried, counted, {"w2"})

    assert sorted(text.split(" as ")[1].split(",")[0] for text in told) == list(wrong)
