"""Durable steps of a running task, and snoozes, which delay a task without using an attempt."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from horsies_django import CurrentTask, Snooze, StepError, Workflow, explain
from horsies_django.core.records import Claim
from horsies_django.models import Task, TaskStep, WorkflowNode
from horsies_django.tasks import operations
from horsies_django.testing import drain, fail_next
from tests.apps.project import flows, stepping, tasks
from tests.apps.project.stepping import Charge
from tests.conftest import sql
from tests.desk.conftest import Watch
from tests.support.factories import TaskFactory, now

HOUR = dt.timedelta(hours=1)
Rows = Callable[[], list[str]]
pytestmark = pytest.mark.django_db
transactional = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rows(db: None) -> Iterator[Rows]:
    """Create the table of the tasks for a test; yield a function that lists the steps in it."""
    sql(stepping.TABLE)
    yield lambda: [step for (step,) in sql("SELECT step FROM step_rows ORDER BY step")]
    sql("DROP TABLE step_rows")


def attempt(generation: int = 1, task: Task | None = None) -> CurrentTask:
    """Return the attempt of a running task under its newest claim, which has that number."""
    task = task or TaskFactory(status="RUNNING")
    Task.objects.filter(pk=task.pk).update(claim_generation=generation)
    return CurrentTask(
        Claim(task.pk, generation, "sync", "shop.tasks.pay", "{}", generation), str(task.claimed_by)
    )


def make(name: str) -> str:
    Group.objects.create(name=name)
    return name


async def amake(name: str) -> str:
    await Group.objects.acreate(name=name)
    return name


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def steps() -> dict[str, Any]:
    return dict(TaskStep.objects.values_list("name", "result"))


@transactional
def test_a_step_is_one_transaction() -> None:
    """A step is one transaction; only the first step of a later claim reads the recorded ones."""
    task = TaskFactory(status="RUNNING")
    for generation, looks in ((1, 0), (2, 1)):
        current = attempt(generation, task)
        for name in (f"{generation} first", f"{generation} second"):
            with CaptureQueriesContext(connection) as queries:
                assert current.step(name, make, name) == name

            statements = [query["sql"] for query in queries]
            assert [sql for sql in statements[:looks] if "FROM horsies_task_steps" not in sql] == []
            begin, insert, record, commit = statements[looks:]
            assert (begin, commit) == ("BEGIN", "COMMIT")
            assert "auth_group" in insert
            assert "horsies_record_step" in record
            looks = 0

    assert set(names()) == set(steps())


def test_a_repeated_step_returns_the_recorded_result_in_its_type(
    rows: Rows,
) -> None:
    """A repeated step returns the recorded result in the annotated type, and runs nothing.

    The first attempt has the same types, so that a value that changes its type is noticed before a
    retry.
    """

    def several() -> list[Decimal]:
        return [Decimal("1.50")]

    task = TaskFactory(status="RUNNING")
    for generation in (1, 2):
        current = attempt(generation, task)
        found = [
            current.step("charge", stepping.charge, 5),
            current.step("charge", stepping.charge, amount=5),
        ]

        assert found == [Charge(5, found[0].process)] * 2
        assert current.step("several", several) == [Decimal("1.50")]
        assert current.step("nothing", lambda: None) is None

    assert rows() == ["charge 5"]
    attempt().step("charge", stepping.charge, 6)  # of another task
    assert rows() == ["charge 5", "charge 6"]


def raises(name: str) -> None:
    make(name)
    raise LookupError(name)


def rolls_back(name: str) -> str:
    transaction.set_rollback(True)
    return make(name)


@transactional
@pytest.mark.parametrize(
    ("function", "atomic", "left"),
    [(raises, True, []), (raises, False, ["a"]), (rolls_back, True, [])],
)
def test_a_step_that_raises_or_rolls_back_runs_again(
    function: Callable[..., Any], atomic: bool, left: list[str]
) -> None:
    """A step whose function raises or requests a rollback is not recorded, and runs again."""
    task = TaskFactory(status="RUNNING")

    with pytest.raises((LookupError, transaction.TransactionManagementError)):
        attempt(1, task).step("make", function, "a", atomic=atomic)

    assert (names(), steps()) == (left, {})
    assert attempt(2, task).step("make", make, "b") == "b"


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=transactional)])
def test_drain_runs_each_step_once_over_all_attempts(rows: Rows, inside: bool) -> None:
    """``drain()`` runs each step once over all attempts, in a transaction and without one."""
    assert connection.in_atomic_block is inside

    handle = stepping.steps.send(fails=2)
    assert drain(until=HOUR) == 3

    assert [each.amount for each in handle.get().ok_value] == [0, 1, 2]
    assert rows() == ["charge 0", "charge 1", "charge 2"]
    assert TaskStep.objects.filter(task_id=handle.task_id).count() == 3

    again = stepping.steps.send(fails=99)
    drain(until=HOUR, raise_errors=False)
    again.retry()
    drain(until=HOUR, raise_errors=False)
    assert rows() == ["charge 0"] * 2 + ["charge 1"] * 2 + ["charge 2"]

    operations.copy(again.task_id, actor="ada")  # it is another task, and takes its steps anew
    drain(until=HOUR, raise_errors=False)
    assert rows() == ["charge 0"] * 3 + ["charge 1"] * 3 + ["charge 2"]


def test_async_tasks_take_steps_too(rows: Rows) -> None:
    handle = stepping.asteps.send(fails=1)
    assert drain(until=HOUR) == 2

    assert handle.get().ok_value[1:] == [1, 2]
    assert rows() == ["inside"]
    assert set(steps()) == {"inside", "outside"}


def test_a_task_that_is_called_records_no_steps(
    rows: Rows,
) -> None:
    """A task that is called runs its steps and records none of them.

    Any callable can be a step.
    """
    assert [each.amount for each in stepping.steps()] == [0, 1, 2]
    assert async_to_sync(stepping.asteps.definition.function)()[1:] == [1, 1]
    assert rows() == ["charge 0", "charge 1", "charge 2", "inside"]
    assert TaskStep.objects.count() == 0

    assert attempt().step("add", tasks.add, 1, b=2) == 3
    assert attempt().step("upper", "a".upper) == "A"
    assert attempt().step("partial", functools.partial(make, "a")) == "a"


def refused(words: str, *args: Any, current: CurrentTask | None = None, **kwargs: Any) -> None:
    """Assert that a step is refused with these words, before anything ran."""
    with pytest.raises(StepError, match=words):
        (current or attempt()).step(*args, **kwargs)
    assert (names(), steps()) == ([], {})


@contextmanager
def by_hand() -> Iterator[None]:
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@contextmanager
def by_sql() -> Iterator[None]:
    sql("BEGIN")
    try:
        yield
    finally:
        sql("ROLLBACK")


@transactional
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("opened", [transaction.atomic, by_hand, by_sql])
def test_a_step_in_an_open_transaction_is_refused(opened: Callable[..., Any], atomic: bool) -> None:
    """A step in an open transaction is refused, however the transaction was opened."""
    current = attempt()

    with opened():
        words = r"open transaction on the alias 'default'.*call it outside of atomic\(\)"
        refused(words, "make", make, "a", current=current, atomic=atomic)

    assert current.step("make", make, "a", atomic=atomic) == "a"


@transactional
def test_a_call_that_leaves_a_transaction_open_is_not_recorded() -> None:
    """A step with ``atomic=False`` that leaves a transaction open is not recorded."""
    with (
        ExitStack() as left,
        pytest.raises(StepError, match="its function left a transaction open"),
    ):
        attempt().step("outside", lambda: left.enter_context(by_hand()), atomic=False)

    assert steps() == {}


def test_a_repeated_step_with_other_arguments_is_refused() -> None:
    """A repeated step with other arguments or another type of result is refused."""

    def number() -> int:
        return 1

    def text() -> str:
        return "1"

    task = TaskFactory(status="RUNNING")
    current = attempt(1, task)
    current.step("make", make, "a")
    current.step("result", number)

    later = attempt(2, task)
    words = r"step 'make' of task .* other arguments \(digest \w{32}\).*\(\w{32}\).*page"
    for again in (current, later):
        with pytest.raises(StepError, match=words):
            again.step("make", make, "b")

    assert (names(), steps()) == (["a"], {"make": "a", "result": 1})
    assert later.step("make b", make, "b") == "b"

    with pytest.raises(StepError, match="step 'result': recorded result: expected str, got int"):
        later.step("result", text)


def test_a_step_with_a_bad_name_arguments_or_result_is_refused() -> None:
    """A step is refused for a bad name, bad arguments or a result that is too large.

    It is refused in a transaction of the test, too.
    """
    with transaction.atomic():  # of the test itself
        refused("open transaction", "make", make, "a")

    for name in ("", "x" * 201, "a\nb", 7, "\udcff"):
        refused("a step's name must be a str of 1 to 200 printable characters", name, make, "a")

    refused(
        r"step 'make': argument 'name' is a model instance \(Group\): pass name.pk",
        "make",
        make,
        Group(pk=1),
    )
    refused("the second argument must be a function, not str", "make", "make")

    def returns_group() -> Group:
        return Group.objects.create(name="a")

    refused("step 'make': .*the return annotation: Group is a model", "make", returns_group)

    with override_settings(HORSIES={"MAX_PAYLOAD_BYTES": 10_000}):
        refused(
            "result takes 10,001 bytes of JSON; .* allows 10,000",
            "large",
            lambda: make("x") * 9_999,
        )
        assert attempt().step("large", lambda: "é" * 4_999) == "é" * 4_999

    assert attempt().step("x" * 200, make, "a") == "a"


@transactional
@pytest.mark.parametrize("atomic", [True, False])
def test_a_result_that_cannot_be_stored_is_refused(
    atomic: bool,
) -> None:
    """A result that cannot be stored is refused with a remedy, and nothing is recorded."""

    def returns(value: Any) -> Callable[[], Any]:
        return lambda: (make("a"), value)[1]

    def wrong() -> int:
        return make("a")  # type: ignore[return-value]

    async def coroutine() -> None: ...

    for function, words in [
        (returns(Decimal(1)), "got Decimal. Annotate the result of .*returns"),
        (
            returns({"a": [Group(pk=1)]}),
            r"result '\[key 1\]\[0\]' is a model instance \(Group\): return its pk",
        ),
        (wrong, "expected int, got str"),
        (lambda: coroutine(), "returned coroutine: pass a coroutine function to astep"),
    ]:
        with pytest.raises(StepError, match=words):
            attempt().step("returns", function, atomic=atomic)
        assert steps() == {}
        assert names() == [] or not atomic
        Group.objects.all().delete()


def test_a_step_that_does_not_fit_async_code_is_refused() -> None:
    """A step that does not fit async code is refused, with the form to use."""
    current = attempt()

    with pytest.raises(
        StepError, match="amake is a coroutine function.*pass atomic=False, or a sync function"
    ):
        async_to_sync(current.astep)("make", amake, "a")

    refused(
        r"amake is a coroutine function.*astep\(\.\.\., atomic=False\)",
        "make",
        amake,
        "a",
        current=current,
    )

    async def sync_on_the_loop() -> None:
        current.step("make", make, "a")

    with pytest.raises(
        StepError, match=r"on a running event loop: use 'await current_task\(\)\.astep"
    ):
        asyncio.run(sync_on_the_loop())

    assert (names(), steps()) == ([], {})


def told_of(handle: Any) -> list[tuple[int, str, bool]]:
    return [(one.attempt, one.outcome, one.will_retry) for one in handle.info().attempts]


def test_snoozes_use_no_attempt_and_share_one_row(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    got = watch("task_retried", "task_finished")
    handle = tasks.snoozes.send(3, fails=True)

    with caplog.at_level(logging.INFO, "horsies.task"):
        assert drain() == 1

    assert [line.levelname for line in caplog.records if " snoozed until " in line.message] == [
        "INFO"
    ]

    row = Task.objects.get()
    assert (row.status, row.retry_count, row.snooze_count, row.result) == ("PENDING", 0, 1, None)
    assert dt.timedelta(seconds=50) < row.enqueued_at - now() <= dt.timedelta(seconds=60)

    (reason,) = [one for one in explain(handle.task_id).reasons if one.code == "SNOOZED"]
    assert (reason.details["snooze_count"], reason.text.startswith("It is snoozed until ")) == (
        1,
        True,
    )

    Task.objects.update(enqueued_at=now() - HOUR, next_retry_at=now() - HOUR)
    assert "SNOOZED" not in [one.code for one in explain(handle.task_id).reasons], "it is due"

    assert drain(until=HOUR) == 4
    assert handle.get(0).ok_value == 3
    assert told_of(handle) == [(1, "SNOOZED", True), (1, "FAILED", True), (2, "COMPLETED", False)]
    assert Task.objects.get().snooze_count == 3

    told = [(name, values["error_code"]) for name, _, values in got]
    assert told == [
        ("task_retried", "SNOOZED"),
        ("task_retried", "SNOOZED"),
        ("task_retried", "SNOOZED"),
        ("task_retried", "UNHANDLED_ERROR"),
        ("task_finished", None),
    ]


def test_a_snooze_takes_seconds_a_timedelta_or_an_aware_datetime() -> None:
    """A snooze takes seconds, a timedelta or an aware datetime.

    After a time in the past the task is due at once.
    """
    today = dt.datetime.now(dt.UTC)
    two_minutes = dt.timedelta(minutes=2)

    for until, wait in (
        (0, None),
        (today - two_minutes, None),
        (120.5, two_minutes),
        (two_minutes, two_minutes),
        (today + HOUR, HOUR),
    ):
        handle = tasks.noop.send()
        with fail_next(tasks.noop, Snooze(until)):
            drain()

        row = Task.objects.get(pk=handle.task_id)
        assert handle.get(0).is_ok() is (wait is None)
        assert wait is None or abs(row.enqueued_at - row.sent_at - wait) < dt.timedelta(seconds=10)


def test_an_invalid_snooze_is_refused_at_its_line() -> None:
    """An invalid time to snooze is refused where the code creates the snooze."""
    for until, said in (
        *(
            (wrong, "from 0 to 2_592_000 s")
            for wrong in (-1, 2_592_001, float("nan"), True, dt.timedelta(days=31))
        ),
        ("60", "or a timedelta, not '60'"),
        (dt.datetime(2030, 1, 1), "has no time zone"),  # noqa: DTZ001 - that is the mistake
        (dt.datetime(9999, 12, 31, tzinfo=dt.UTC), "within 30 days"),
    ):
        with pytest.raises(ValueError, match=said):
            Snooze(until)


def test_a_task_that_snoozes_too_often_fails(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_SNOOZES": 2}
    handle = tasks.snoozes.send(9)

    assert drain(until=HOUR, raise_errors=False) == 3
    error = handle.get(0).err_value
    assert (error.error_code, "HORSIES['MAX_SNOOZES']" in error.message) == (
        "SNOOZED_TOO_OFTEN",
        True,
    )

    assert told_of(handle) == [(1, "SNOOZED", True), (1, "FAILED", False)]
    assert any(
        "SNOOZED_TOO_OFTEN" in line.message and line.levelno == logging.ERROR
        for line in caplog.records
    )

    handle.retry()
    assert drain(until=HOUR, raise_errors=False) == 3, "snoozes count from the retry"

    handle.retry()
    with pytest.raises(ExceptionGroup, match="tasks that failed: 1"):
        drain(until=HOUR)


def test_a_node_of_a_workflow_snoozes_and_a_pause_keeps_its_task() -> None:
    """A pause of the run keeps the task of a snoozing node, with its steps and snoozes.

    Fails if: the pause deletes it like a task that has had no attempt.
    """
    flow = Workflow[int]("asks later")
    flow.returns(flow.add(flows.plus, flow.add(tasks.snoozes, 2)))
    run = flow.send()
    drain()
    assert WorkflowNode.objects.filter(status="ENQUEUED").count() == 1

    run.pause()
    (kept,) = Task.objects.all()
    assert kept.snooze_count == 1
    assert drain(until=HOUR) == 0

    run.resume()
    drain(until=HOUR)

    assert run.get(0).ok_value == 3
    assert Task.objects.get(pk=kept.pk).snooze_count == 2
