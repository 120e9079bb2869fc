"""The judge finds each error in handmade runs, and none in correct runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stress.oracle.judge import (
    CLUSTER,
    Chronicle,
    Run,
    Thaw,
    disorder,
    ghosts,
    judge,
    strangers,
    sweep,
)
from tests.stress.oracle.usage import Hold, handed_on, usage

ROW = {
    "max_concurrency": None,
    "local_limit": None,
    "partition_by_args": None,
    "partition_by_task": False,
}


def run(number: int, start: float, end: float | None, **fields: Any) -> Run:
    values: dict[str, Any] = {
        "task": "work",
        "queue": "mail",
        "tenant": "a",
        "worker": "w1",
        "worker_pid": 1,
        "child_pid": 10,
        "claimed_at": start - 0.1,
        "closed_at": (start + 100 if end is None else end) + 0.1,
        **fields,
    }
    return Run(number=number, started_at=start, ended_at=end, **values)


def rules(**mail: Any) -> dict[str, Chronicle]:
    return {"mail": Chronicle({**ROW, **mail}), "bulk": Chronicle(ROW)}


def test_one_more_than_the_cap_is_found_and_named() -> None:
    verdict = judge([run(1, 0, 5), run(2, 1, 6), run(3, 4, 7)], rules(max_concurrency=2))
    (text,) = verdict.violations

    assert (verdict.peaks["queue", "mail"], ("queue", "mail") in verdict.full) == (3, True)
    assert text.startswith("queue mail: 3 at once at 4.0")
    assert "the limit was 2" in text
    assert text.endswith("1, 2, 3")


BY_TENANT = {"partition_by_args": ["tenant"]}
ONE_EACH = {"partition_max_concurrency": 1}
TWO_OVERLAP = [run(1, 0, 5), run(2, 1, 5)]
TWO_WORKERS = [run(1, 0, 5), run(2, 1, 5, worker="w2")]
CRASHED = run(1, 0, None, closed_at=10.0)
RUNNING = [run(1, 0, 10), run(2, 1, 5)]


def changed(before: int, **columns: Any) -> dict[str, Chronicle]:
    """Return the limits of a queue whose cap was ``before`` until a change at the third second."""
    return {"mail": Chronicle({**ROW, "max_concurrency": before}, [(3.0, columns)])}


@pytest.mark.parametrize(
    ("runs", "chronicles", "count"),
    [
        pytest.param(
            [run(1, 0, 5), run(2, 5, 6)], rules(max_concurrency=1), 0, id="starts when another ends"
        ),
        pytest.param(
            [CRASHED, run(2, 10, 11)],
            rules(max_concurrency=1),
            0,
            id="after the attempt without an end",
        ),
        pytest.param(
            [CRASHED, run(2, 9, 11)],
            rules(max_concurrency=1),
            1,
            id="before its attempt was closed",
        ),
        pytest.param(TWO_WORKERS, rules(local_limit=1), 0, id="per worker, two"),
        pytest.param(TWO_OVERLAP, rules(local_limit=1), 1, id="per worker, the same"),
        pytest.param(
            TWO_WORKERS,
            rules(**BY_TENANT, partition_local_limit=1),
            0,
            id="per partition and worker, two",
        ),
        pytest.param(
            TWO_OVERLAP,
            rules(**BY_TENANT, partition_local_limit=1),
            1,
            id="per partition and worker",
        ),
        pytest.param(TWO_OVERLAP, rules(**BY_TENANT, **ONE_EACH), 1, id="one tenant"),
        pytest.param(
            [run(1, 0, 5), run(2, 1, 5, tenant="b")],
            rules(**BY_TENANT, **ONE_EACH),
            0,
            id="two tenants",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 1, 5, task="awork")],
            rules(**BY_TENANT, **ONE_EACH, partition_by_task=True),
            0,
            id="two tasks",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 1, 5, tenant="b")],
            rules(**ONE_EACH, partition_by_task=True),
            1,
            id="one task, any tenant",
        ),
        pytest.param(TWO_OVERLAP, rules(**ONE_EACH), 0, id="no partitions"),
        pytest.param(
            [*RUNNING, run(3, 10.5, 12)],
            changed(2, max_concurrency=1),
            0,
            id="a lowered cap ends nothing",
        ),
        pytest.param(
            [*RUNNING, run(3, 6, 12)], changed(2, max_concurrency=1), 1, id="and starts nothing"
        ),
        pytest.param(
            [run(1, 0, 10), run(2, 3.05, 5, claimed_at=2.95)],
            changed(2, max_concurrency=1),
            0,
            id="claimed before",
        ),
        pytest.param(
            [run(1, 0, 10), run(2, 3.05, 5, claimed_at=3.01)],
            changed(2, max_concurrency=1),
            1,
            id="claimed after",
        ),
        pytest.param(
            [run(1, 4.0, 9, claimed_at=2.9), run(2, 3.5, 9, claimed_at=3.1)],
            changed(1, max_concurrency=2),
            0,
            id="overtaken",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 4, 5)], changed(2, paused_at="2020-01-01"), 1, id="paused"
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 4, 5)],
            changed(2, override={"max_concurrency": 1}),
            1,
            id="overridden",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 4, 5)],
            changed(2, override={"max_concurrency": None}),
            0,
            id="lifted",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 4, 5)],
            changed(2, override={"local_limit": 1}),
            1,
            id="local override",
        ),
        pytest.param(
            [run(1, 0, 5), run(2, 4, 5)],
            changed(2, override=ONE_EACH),
            0,
            id="override without partitions",
        ),
    ],
)
def test_as_many_violations_are_found_as_there_are(
    runs: list[Run], chronicles: dict[str, Chronicle], count: int
) -> None:
    assert len(judge(runs, chronicles).violations) == count


def test_the_cap_of_the_cluster_counts_all_queues() -> None:
    chronicles = {**rules(), CLUSTER: Chronicle({"max_concurrency": 1})}
    (text,) = judge([run(1, 0, 5), run(2, 1, 5, queue="bulk")], chronicles).violations

    assert text.startswith("cluster *: 2 at once")


def test_a_run_before_an_earlier_task_of_its_partition_is_found() -> None:
    """A run that begins before an earlier task of its ordered partition is found."""
    late = run(1, 0, 1, sent_at=0.2)
    early = run(2, 2, 3, sent_at=0.1)
    ordered = rules(**BY_TENANT, partition_policy="stop")

    assert disorder([early._replace(started_at=-1.0), late], ordered) == []
    assert disorder([late, early._replace(tenant="b")], ordered) == []
    assert len(disorder([late, early], ordered)) == 1


def test_an_override_ends_and_the_declared_cap_holds_again() -> None:
    changes = [(3.0, {"override": {"max_concurrency": 5}}), (6.0, {"override": None})]
    chronicle = Chronicle({**ROW, "max_concurrency": 1}, changes)

    assert chronicle.limits("max_concurrency") == [1, 5, 1]


def test_a_write_by_a_process_of_a_continued_worker_is_found() -> None:
    """A write by a process of a stopped worker is found if the worker was continued before it."""
    thaws = [Thaw(10.0, {10, 11})]

    assert ghosts([run(1, 0, 9), run(2, 12, 13, child_pid=99), run(3, 9, None)], thaws) == []

    (text,) = ghosts([run(1, 8, 12)], thaws)
    assert text.startswith("process 10 wrote on task 1 at 12.0")

    assert len(ghosts([run(1, 11, 12, child_pid=11)], thaws)) == 2
    assert len(ghosts([run(1, 9, 900)], thaws)) == 1  # it had begun before
    # By now another process has the same number.
    assert ghosts([run(1, 800, 801)], thaws) == []


def test_one_worker_is_one_process() -> None:
    assert strangers([run(1, 0, 5), run(2, 0, 5, worker="w2", worker_pid=2)]) == []
    assert strangers([run(1, 0, 5), run(2, 0, 5, worker_pid=2)]) == [
        "tasks of worker w1 ran under the processes [1, 2]"
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=20), st.integers(1, 5))
def test_the_sweep_counts_as_one_would_by_hand(spans: list[tuple[int, int]], limit: int) -> None:
    runs = [run(number, start, start + length) for number, (start, length) in enumerate(spans)]
    peak, full, violations = sweep(runs, [float("-inf")], [limit])

    ends = {one: one.until for one in runs}
    overlaps = [
        sum(other.started_at <= one.started_at < ends[other] for other in runs[: place + 1])
        + sum(other.started_at < one.started_at < ends[other] for other in runs[place + 1 :])
        for place, one in enumerate(runs)
    ]

    assert peak == max(overlaps, default=0)
    assert full == (limit in overlaps)
    assert len(violations) == sum(count > limit for count in overlaps)


ALWAYS = [(float("-inf"), 2)]


def test_usage_counts_only_undisturbed_time_with_waiting_tasks() -> None:
    """Usage is the overlap divided by the limit, in undisturbed time in which tasks wait."""
    held = [(0.0, 10.0), (0.0, 5.0)]
    waited = [(0.0, 3.0), (2.0, 9.0)]
    disturbed = [(4.0, 4.7), (4.5, 5.0)]

    found = usage(held, ALWAYS, waited, disturbed)

    assert found is not None
    assert (found.held, found.seconds) == (0.75, 8.0)
    assert usage(held, ALWAYS, [(0.0, 1.0)], [(0.0, 2.0)]) is None


@pytest.mark.parametrize(
    ("held", "share"),
    [
        pytest.param(
            [(0, 1), (0, 2), (1, 3), (2, 4)], 1.0, id="each permit was taken again at once"
        ),
        pytest.param(
            [(0, 1), (0, 2), (1.999, 3), (2.999, 4)],
            1.0,
            id="late, and yet before the next one came free",
        ),
        pytest.param([(0, 1), (0, 2), (2, 3), (3, 4)], (2 + 1 + 1) / 3 / 2, id="one was lost"),
    ],
)
def test_an_unused_permit_lowers_the_share_at_the_ends(
    held: list[tuple[float, float]], share: float
) -> None:
    """A permit that stays unused while others come free lowers the share at their ends."""
    found = usage(held, ALWAYS, [(0.5, 3.5)])  # the one that ends at 4 ends outside

    assert found is not None
    assert (found.at_ends, found.ends) == (pytest.approx(share), 3)


def test_a_settled_permit_counts_as_held_until_the_pass_claims() -> None:
    """A settled permit counts as held until the pass claims, and as free if it does not claim soon.

    A pass settles before it waits for the locks: the permits that another pass leaves meanwhile are
    not unused ones.
    """
    holds = [
        Hold("mail", "w1", 0.0, 1.0),
        Hold("mail", "w2", 0.0, 1.02),
        Hold("mail", "w2", 1.03, 2.0),
        Hold("mail", "w1", 1.04, 2.0),
        Hold("mail", "w1", 2.5, 3.0),
    ]

    assert handed_on(holds) == [(0.0, 1.04), (0.0, 1.03), (1.03, 2.0), (1.04, 2.0), (2.5, 3.0)]


def test_usage_follows_the_limit_and_excludes_pauses() -> None:
    limits = [(float("-inf"), 1), (5.0, 0), (6.0, 2)]
    found = usage([(0.0, 10.0)], limits, [(0.0, 10.0)])

    assert found is not None
    assert found.held == pytest.approx((5 + 4) / (5 + 8))
    assert usage([(0.0, 10.0)], [(float("-inf"), None)], [(0.0, 10.0)]) is None
