"""The small rules of a worker.

They are its options and slots, the claims that it wants of a pass, the replacement of children, and
its pauses.
"""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies_django.conf import Config, Resilience
from horsies_django.core.errors import WorkerStartError
from horsies_django.core.records import Claim, Wanted, packed_claim
from horsies_django.management.commands.horsies_scheduler import Command as SchedulerCommand
from horsies_django.management.commands.horsies_worker import Command
from horsies_django.store.tasks import Served
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker import run, run_scheduler
from horsies_django.worker.child.executor import AsyncLane, SyncLane
from horsies_django.worker.child.interrupts import CANCEL, LONG_OVER, Control, SyncRun
from horsies_django.worker.engine.capacity import Capacity, Prefetched, capacity
from horsies_django.worker.engine.outage import UNFIT, UNFIT_TRIES, DatabaseGaveUp, Outage
from horsies_django.worker.ipc import Channel
from horsies_django.worker.limits.memory import Gauge
from horsies_django.worker.pool.process import STANDING_SECONDS, PoolProcess, RunAhead
from horsies_django.worker.pool.recycling import Recycling
from horsies_django.worker.pool.starts import (
    LATE_SECONDS,
    MOST_RETRY_SECONDS,
    RETRY_SECONDS,
    Starts,
)
from horsies_django.worker.pool.timeouts import TimeLimits, Timeouts
from horsies_django.worker.process.backoff import Backoff
from horsies_django.worker.process.options import WorkerOptions, refuse_impossible
from tests.conftest import wait_until
from tests.worker.conftest import channel_pair, claims

SOFT = Config(prefetch_buffer=4, claim_lease_ms=5_000)
LEASE = timedelta(seconds=5)
OPTIONS = WorkerOptions(("default",), processes=2, threads=3, async_concurrency=7)


def wanted(of: Capacity, sync: int, async_: int = 0, **counts: int) -> Wanted:
    """Return the wanted claims with these numbers of free slots."""
    none = dict.fromkeys(("standing", "ahead", "prefetched", "starting"), 0)
    return of.wanted({"sync": sync, "async": async_}, **none | counts)


@pytest.mark.promise("S0.33", "S1.41", "S2.11")
def test_soft_mode_adds_the_buffer_to_the_slots_of_a_worker() -> None:
    """A worker may hold a task per slot, and in soft mode also those of its buffer."""
    assert capacity(Config(), OPTIONS) == Capacity(max_claim_per_worker=20)
    assert capacity(SOFT, OPTIONS) == Capacity(max_claim_per_worker=24, prefetch=4, lease=LEASE)


def test_claims_may_be_non_durable_only_if_tasks_can_be_ended() -> None:
    """Claims may be non-durable if the settings allow it and the worker can end its tasks."""
    for processes in (0, 1):
        options = WorkerOptions(("default",), processes=processes)
        assert wanted(capacity(Config(durable_claims=False), options), 1).durable == (
            processes == 0
        )


@pytest.mark.promise("S0.31", "S0.32", "S1.40", "S2.11")
def test_the_two_claim_options_bound_the_claims_of_a_pass() -> None:
    """``max_claim_per_worker`` and ``max_claim_batch`` bound the claims of a pass.

    The first bounds the tasks that are claimed and not started, the second the claims per queue.
    """
    options = WorkerOptions(("default",), processes=2, max_claim_batch=2, max_claim_per_worker=10)
    hungry = capacity(Config(), options)

    assert wanted(hungry, 2, 100) == Wanted(2, 100, total=10, batch=2)
    assert wanted(hungry, 1, 91, standing=3, ahead=9, prefetched=8, starting=2).total == 1
    assert wanted(hungry, 1, 91, standing=2, ahead=9, prefetched=8).total == 0


@pytest.mark.promise("S0.21", "S0.38", "S1.2", "S1.38", "S1.43")
def test_soft_mode_counts_waiting_tasks_against_the_buffer() -> None:
    """In soft mode, running and waiting tasks count against slots and buffer.

    In hard mode, there are only the slots.
    """
    soft = Capacity(max_claim_per_worker=6, prefetch=4, lease=LEASE)

    assert wanted(soft, 2) == Wanted(2, 0, 4, 6, 0, LEASE)
    assert wanted(soft, 1, prefetched=3) == Wanted(1, 0, 1, 3, 0, LEASE)
    assert wanted(soft, 0, prefetched=4, starting=1) == Wanted(0, 0, 1, 3, 0, LEASE)
    assert wanted(soft, 0, prefetched=2)[:3] == (0, 0, 0), "a buffer waits for a free slot"
    assert wanted(capacity(Config(), OPTIONS), 2) == Wanted(2, 0, 0, 20)


def test_the_first_that_came_fill_the_free_slots_of_their_lanes() -> None:
    buffer = Prefetched()
    first, second, third, fourth = some = [*claims(2), *claims(1, "async"), *claims(1)]
    buffer.update((claim.id, claim) for claim in some)

    assert buffer.first({"sync": 2, "async": 0}) == [first, second]
    assert buffer.first({"sync": 1, "async": 5}) == [first, third]
    assert len(buffer) == 4

    assert buffer.take([third.id, uuid.uuid4(), first.id]) == [third, first]
    assert list(buffer.values()) == [second, fourth]


def learned(prefetch: int, slots: int, *durations: float) -> RunAhead:
    line = RunAhead(prefetch, slots)
    for seconds in durations:
        line.learn(seconds)
    return line


def test_the_buffer_is_deeper_the_shorter_its_tasks_are() -> None:
    """The line of tasks before a slot is longer the shorter the tasks are, up to its bound."""
    assert RunAhead(1_000, 1).depth == 0
    assert learned(1_000, 1, 2 * STANDING_SECONDS).depth == 0
    assert learned(1_000, 1, STANDING_SECONDS / 5).depth == 5
    assert learned(0, 2, 1e-5).depth == 0
    assert learned(7, 2, 1e-5).depth == 3
    assert learned(100_000, 2, 0.0).depth == 10_000, "a clock may stand still"

    line = learned(1_000, 1, 1e-4)
    line.limited = True
    assert line.depth == 0, "a cap leaves tasks behind"

    line = learned(1_000, 1, *[1e-4] * 100)
    assert line.depth >= 90
    line.learn(1.0)
    assert line.depth == 0, "one long task shortens it"

    for _ in range(1_000):
        line.learn(1e-4)
    assert line.depth >= 90, "and many short ones lengthen it again"


@pytest.mark.parametrize(
    ("lane", "count", "told"),
    [("sync", 3, False), ("sync", 1, True), ("async", 3, True)],
    ids=["in line", "in a slot", "behind a blocked event loop"],
)
def test_the_time_of_a_task_runs_everywhere_but_in_line(lane: str, count: int, told: bool) -> None:
    member = PoolProcess(WorkerOptions(queues=(), processes=1))
    ours = [channel_pair() for _ in range(3)]
    member.channels = {"sync": ours[0][0], "async": ours[1][0]}
    member.control = ours[2][0]
    heard = ours[2][1]
    member.started = [0, 0]

    handed = claims(count, lane)
    member.dispatch(lane, handed)
    timeouts = Timeouts([member], TimeLimits(default=10.0))
    timeouts.watch(member, lane, 1, handed)

    timeouts.enforce(time.monotonic() + 11)

    assert bool(heard.receive()) == told
    assert timeouts.next > time.monotonic() + 11  # interrupted later, or killed after the grace


def connected() -> tuple[PoolProcess, Channel]:
    """Return a process with one sync and five async slots, and the other end of its async lane."""
    member = PoolProcess(WorkerOptions(queues=(), processes=1, async_concurrency=5))
    ours, theirs = channel_pair()
    member.channels = {"sync": channel_pair()[0], "async": ours}
    member.ready = True
    return member, theirs


def large(count: int) -> list[Claim]:
    """Return claims of async tasks with 10 MB of arguments each."""
    return [claim._replace(kwargs="x" * 10_000_000) for claim in claims(count, "async")]


def test_a_process_that_reads_slowly_has_no_free_slot() -> None:
    """Fails if: the worker goes on claiming, and keeps a hundred large tasks in its memory until
    the child has read them.
    """
    member, theirs = connected()

    member.dispatch("async", large(2))

    assert member.free("async") == 0
    assert member.free("sync") == 1


def test_a_process_that_has_read_its_tasks_has_free_slots() -> None:
    member, theirs = connected()
    member.dispatch("async", large(2))

    wait_until(lambda: theirs.receive() or member.channels["async"].flush(), "all is sent")

    assert member.free("async") == 3


def test_large_arguments_are_not_kept_after_the_dispatch() -> None:
    member, theirs = connected()
    (heavy,) = large(1)
    (light,) = claims(1, "async")

    member.dispatch("async", [heavy, light])

    assert [claim.id for claim in member.claims()] == [heavy.id, light.id]
    assert [claim.kwargs for claim in member.claims()] == ["", "{}"]


def test_a_buffer_with_large_arguments_gets_no_more() -> None:
    buffer = Prefetched()
    heavy = large(7)

    buffer.update((claim.id, claim) for claim in heavy)

    assert buffer.full
    assert wanted(Capacity(100, prefetch=50, lease=LEASE), 1, full=True).prefetch == 0
    assert buffer.take([claim.id for claim in heavy]) == heavy
    assert not buffer.full


def a_run() -> SyncRun:
    return SyncRun(CurrentTask(*claims(1)))


def test_a_cancel_before_the_start_of_a_task_reaches_the_task() -> None:
    """A cancel that comes before its task begins interrupts the task.

    It is forgotten once the task is over.
    """
    control = Control(channel_pair()[0])
    others = a_run()
    mine = a_run()

    control.handle(CANCEL, "sync", 7)
    control.enter("sync", 6, others)
    control.enter("sync", 7, mine)

    assert (others.current.cancel_requested, mine.current.cancel_requested) == (False, True)

    control.handle(CANCEL, "sync", 8)
    control.enter("async", 9 + LONG_OVER, a_run())
    assert control.early
    control.enter("sync", 9 + LONG_OVER, a_run())
    assert not control.early


START = 1_000.0


def pool(processes: int, chosen: int | None = None) -> tuple[Recycling, list[PoolProcess]]:
    """Return the replacement rules of a worker, and its children, all ready at the same moment."""
    options = WorkerOptions(queues=("default",), processes=processes, max_tasks_per_child=chosen)
    recycling = Recycling(options)
    return recycling, [child(recycling, options, START) for _ in range(processes)]


def child(recycling: Recycling, options: WorkerOptions, ready_at: float) -> PoolProcess:
    made = PoolProcess(options)
    made.lifetime = recycling.lifetime()
    made.ready = True
    made.ready_at = ready_at
    return made


@pytest.mark.promise("S1.10")
@pytest.mark.parametrize(
    ("processes", "chosen", "taken", "age", "replaced", "free"),
    [
        (1, None, 99, 3_600, False, 1),
        (1, None, 100, 59.9, False, 1),
        (1, None, 100, 60, True, 1),
        (1, None, 100, -math.inf, False, 1),
        (1, 100, 99, 0, False, 1),
        (1, 100, 100, 0, True, 0),
        (1, 0, 1_000_000, 86_400, False, 1),
        (0, 0, 1_000_000, 86_400, False, 1),
        (0, None, 1_000_000, 86_400, False, 1),
    ],
    ids=[
        "99",
        "young",
        "a minute old",
        "not begun",
        "chosen: 99",
        "chosen: young",
        "chosen: none",
        "no child: none",
        "no child",
    ],
)
def test_a_child_is_replaced_after_its_number_of_tasks(
    processes: int, chosen: int | None, taken: int, age: float, replaced: bool, free: int
) -> None:
    """A child is replaced after a hundred tasks and a minute by default.

    With ``max_tasks_per_child``, it is replaced after exactly that number.
    """
    recycling, _ = pool(processes, chosen)
    one = child(recycling, WorkerOptions(queues=("default",), processes=processes), START - age)
    one.taken = taken

    assert one.free("sync") == free
    assert recycling.due([one], START) == [one] * replaced


@pytest.mark.promise("S1.13")
def test_children_are_replaced_one_after_the_other_by_default() -> None:
    """By default, children are replaced one after the other, even if all have run their tasks."""
    recycling, children = pool(4)
    for one in children:
        one.taken = 1_000

    moments = []
    for second in range(61, 181):
        for one in recycling.due(children, START + second):
            moments.append(second)
            children.remove(one)

    assert moments == [61, 76, 91, 106]


def test_one_altered_child_a_minute_is_replaced() -> None:
    """One child per minute is replaced because a task altered it."""
    recycling, children = pool(2)

    replaced = [
        second
        for second in (0, 1, 59.9, 60, 61)
        if recycling.replaces_altered(children, START + second)
    ]

    assert replaced == [0, 60]


@pytest.mark.parametrize("chosen", [None, 100])
def test_a_child_lives_on_while_many_others_run_their_last_tasks(
    chosen: int | None,
) -> None:
    """A child is not replaced while many others run their last tasks."""
    recycling, (one,) = pool(1, chosen)
    retired = [
        child(recycling, WorkerOptions(queues=("default",), processes=1), START) for _ in range(5)
    ]
    for other in retired:
        other.retired_for = "tasks"

    assert not recycling.replaces_altered([one, *retired], START)

    one.taken = 100
    assert recycling.due([one, *retired], START + 3_600) == []
    assert one.free("sync") == 1

    one.taken = 200
    assert recycling.due([one, *retired[1:]], START + 3_600) == [one]


@pytest.mark.promise("S1.28")
@pytest.mark.parametrize(
    ("lane", "name", "reply"),
    [(SyncLane, "add", "ran"), (AsyncLane, "anoop", "done")],
    ids=["sync", "async"],
)
def test_a_child_reports_a_full_lane_before_its_reply(lane: Any, name: str, reply: str) -> None:
    """A child reports that a lane is full before the reply that would bring it another task."""
    (ours, theirs) = channel_pair()
    (_, control) = channel_pair()
    full = lane(theirs, [0, 0], Control(control), Gauge(1))
    kwargs = '{"a": 1}' if name == "add" else "{}"
    claim = Claim(uuid.uuid4(), 1, "sync", f"tests.apps.project.tasks.{name}", kwargs)

    ours.send(
        [
            (
                1,
                packed_claim(claim),
                "",
            )
        ]
    )
    ours.send(None)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(full.serve).result(30)

    assert [kind for kind, _ in ours.receive()] == ["full", reply]


@pytest.mark.promise("S2.18", "S2.20")
def test_the_retry_pause_doubles_with_jitter_up_to_its_maximum() -> None:
    """The pause doubles with jitter up to its maximum, and the number of tries is limited."""
    backoff = Backoff(Resilience(db_retry_initial_ms=100, db_retry_max_ms=1_000))
    pauses = [backoff.failed() for _ in range(8)]
    for pause, middle in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert middle * 0.75 <= pause <= middle * 1.25

    backoff.succeeded()
    assert backoff.failed() <= 0.125

    together = {Backoff(Resilience(db_retry_initial_ms=100)).failed() for _ in range(20)}
    assert len(together) > 10
    assert max(together) - min(together) > 0.005

    forever = Backoff(Resilience())
    thrice = Backoff(Resilience(db_retry_max_attempts=3))
    for _ in range(3):
        assert not thrice.exhausted
        thrice.failed()
        forever.failed()

    assert (thrice.exhausted, forever.exhausted) == (True, False)


def test_the_names_of_queues_survive_the_array() -> None:
    served = Served(["b", 'odd"\\{name}', "a"])

    assert served.queues == ["a", "b", 'odd"\\{name}']
    assert served.queues_array == '{"a","b","odd\\"\\\\{name}"}'


@pytest.mark.promise("S0.8", "S2.3")
def test_slots_are_processes_times_threads_and_times_coroutines() -> None:
    options = WorkerOptions(queues=("default",), processes=3, threads=2, async_concurrency=10)
    assert (options.sync_slots, options.async_slots) == (6, 30)

    inside = WorkerOptions(queues=("default",), processes=0, threads=2, async_concurrency=10)
    assert (inside.sync_slots, inside.async_slots) == (2, 10)


def test_every_transient_database_error_is_retried() -> None:
    """Every database error is retried, except those of classes that no retry can cure."""
    outage = Outage(Resilience())

    for error in vars(psycopg.errors).values():
        if not (isinstance(error, type) and issubclass(error, psycopg.Error)):
            continue

        for _ in range(UNFIT_TRIES - 1):
            outage.begin(error("a message"), 3)

        if (error.sqlstate or "")[:2] in UNFIT:
            with pytest.raises(DatabaseGaveUp, match="the outcomes of 3 task"):
                outage.begin(error("a message"), 3)
        else:
            outage.begin(error("a message"), 3)

        outage.over()

    assert outage.backoff.failures == 0


def defaults(function: Any) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }


def parsed(command: Any, *given: str) -> dict[str, Any]:
    """Return the options that the command line gives to the worker."""
    known = {
        "verbosity",
        "settings",
        "pythonpath",
        "traceback",
        "no_color",
        "force_color",
        "skip_checks",
        "version",
    }
    options = vars(command.create_parser("manage.py", "horsies").parse_args(given))
    return {name: value for name, value in options.items() if name not in known}


@pytest.mark.promise("S3.11")
def test_run_has_the_options_and_defaults_of_the_command() -> None:
    """``run()`` has the options of the command, with the same names and defaults."""
    # Only the command has --reload, which runs the command line again.
    assert {**defaults(run), "reload": False} == parsed(Command())
    assert defaults(run_scheduler) == parsed(SchedulerCommand())

    record = {
        field.name: field.default for field in fields(WorkerOptions) if field.default is not MISSING
    }

    assert {name: value for name, value in parsed(Command()).items() if name in record} == record


@pytest.mark.promise("S1.20")
def test_without_the_option_a_child_has_no_memory_limit() -> None:
    assert parsed(Command())["max_memory_per_child_mb"] is None
    assert WorkerOptions(queues=(), processes=1).max_memory_per_child_mb is None
    assert parsed(Command(), "--max-memory-per-child-mb=0.5")["max_memory_per_child_mb"] == 0.5


def test_usable_cpus_are_those_of_the_process_not_the_machine() -> None:
    """The usable CPUs are those of this process, not those of the machine."""
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}}); "
        "from horsies_django.worker.process.options import usable_cpus; print(usable_cpus())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"processes": -1}, "--processes: -1 is not a whole number of at least 0"),
        ({"threads": 0}, "--threads: 0 is not a whole number of at least 1"),
        ({"async_concurrency": 1.5}, "--async-concurrency: 1.5 is not"),
        ({"max_claim_batch": None}, "--max-claim-batch: None is not"),
        ({"max_tasks_per_child": True}, "--max-tasks-per-child: True is not"),
        ({"shutdown_timeout": -1}, "--shutdown-timeout: -1 is not a number of seconds"),
        (
            {"max_memory_per_child_mb": 0},
            "--max-memory-per-child-mb: 0 is not a number of megabytes",
        ),
        ({"start_method": "fork"}, "--start-method: 'fork' is not one of forkserver, spawn"),
        ({"loglevel": "LOUD"}, "--loglevel: 'LOUD' is not one of DEBUG"),
        ({"health_port": 70_000}, "--health-port: 70000 is not a port"),
        ({"processes": 0, "max_memory_per_child_mb": 500}, "--processes=0 has no children"),
        ({"processes": 0, "max_tasks_per_child": 5}, "--processes=0 has no children"),
    ],
)
def test_code_refuses_the_values_the_command_line_refuses(
    wrong: dict[str, Any], words: str
) -> None:
    """Options that the command line refuses are refused from code, too."""
    with pytest.raises(WorkerStartError) as caught:
        refuse_impossible(WorkerOptions(**{"queues": ("default",), "processes": 1, **wrong}))

    assert words in str(caught.value)


def test_children_that_end_again_and_again_are_started_later() -> None:
    """Fails if: a project that can no longer run tasks keeps a CPU busy with starts."""
    starts = Starts(60.0)
    waits = []

    for _ in range(5):
        starts.fail(START)
        starts.fail(START)  # another one of those that were started together
        waits.append(starts.retry_at - START)
        starts.retry_at = math.inf

    assert waits[0] == RETRY_SECONDS
    assert waits == sorted(waits)
    assert waits[-1] == MOST_RETRY_SECONDS


def test_no_child_is_replaced_while_a_start_is_late() -> None:
    """No child is replaced for its number of tasks while a start is late.

    Fails if: one child after another ends, and nothing takes their places.
    """
    recycling, (one, other) = pool(2, 10)
    one.taken = one.lifetime = 10
    starts = Starts(60.0)
    starts.begin(other, START)

    recycling.late = starts.late(START + LATE_SECONDS + 1)
    replaced = recycling.due([one], START)

    assert replaced == []
    assert one.lifetime == 20
