"""``immediate()``: a sent task runs as soon as a worker could see it, in every kind of test."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.db.models.signals import post_delete
from django.test import TestCase, TransactionTestCase

from horsies_django import RetryPolicy, Workflow, queues
from horsies_django.models import Task
from horsies_django.tasks import operations
from horsies_django.testing import adrain, drain, immediate, open_gate, signal, travel
from tests.apps.project import tasks


def names() -> list[str]:
    return list(Group.objects.order_by("name").values_list("name", flat=True))


class Both:
    """Tests that hold in a TestCase, in which nothing is committed, and outside of one."""

    def test_a_task_runs_before_its_send_returns(self) -> None:
        """When a send returns, its task has run and the result exists.

        Fails if: the task runs when the block ends, after the next lines of the test.
        """
        with immediate():
            handle = tasks.note.send("one")
            assert names() == ["one"]
            assert handle.get(0).is_ok()

    def test_a_task_runs_after_the_outermost_transaction(self) -> None:
        """A task runs after the outermost transaction, and not before.

        Fails if: it runs at the send, inside the transaction of its sender; or, in a TestCase,
        never.
        """
        with immediate():
            with transaction.atomic():
                with transaction.atomic():
                    handle = tasks.note.send("from inside")
                assert handle.info().status == "PENDING"  # type: ignore[union-attr]
                Group.objects.create(name="written later")

            assert names() == ["from inside", "written later"]

    def test_the_end_of_a_transaction_without_a_savepoint_counts_too(self) -> None:
        """The end of an ``atomic()`` without a savepoint runs the tasks, too.

        Fails if: only RELEASE SAVEPOINT is watched, which the ``atomic()`` of ``delete()`` does not
        send in a TestCase.
        """

        def receiver(**kwargs: Any) -> None:
            tasks.note.send("told")

        group = Group.objects.create(name="gone")
        post_delete.connect(receiver, sender=Group)

        with immediate():
            group.delete()
            assert names() == ["told"]

    def test_what_is_rolled_back_does_not_run(self) -> None:
        """Fails if: the send itself is run, not its row."""
        with immediate():
            with pytest.raises(LookupError), transaction.atomic():
                tasks.note.send("never")
                raise LookupError

            with transaction.atomic():
                with pytest.raises(LookupError), transaction.atomic():
                    tasks.note.send("never")
                    raise LookupError
                tasks.note.send("once")

        assert names() == ["once"]

    def test_tasks_that_tasks_send_run_after_them(self) -> None:
        """Tasks that a task sends run after it, except those with a delay.

        Fails if: the send of a running task runs the sent task inside of that task.
        """
        with immediate():
            tasks.sends_more.send(3)
            first, *others = Task.objects.order_by("id")
            assert first.finished_at <= min(other.started_at for other in others)
            tasks.comes_again.send(60)

        assert sorted(Task.objects.values_list("status", flat=True)) == ["COMPLETED"] * 5 + [
            "PENDING"
        ]

    def test_send_many_in_chunks_and_async_tasks_run(self) -> None:
        """Tasks of ``send_many`` in chunks, async tasks and tasks that async code sends are run."""
        with immediate():
            handles = tasks.add.send_many({"a": number} for number in range(5_001))
            assert handles[-1].get(0).ok_value == 5_000
            assert tasks.anoop.send().get(0).is_ok()
            assert async_to_sync(tasks.add.asend)(1).get(0).ok_value == 1

    def test_workflows_signals_gates_and_second_chances_run_on(self) -> None:
        """Workflows, signals, gates, retries and copies run on without a further send.

        Fails if: only sends are noticed, so that a workflow that waits for a person stops halfway.
        """
        flow = Workflow("order")
        paid = flow.signal("paid", annotation=dict[str, int])
        flow.gate("ship", after=paid)

        with immediate(raise_errors=False):
            handle = flow.send()
            signal(handle, "paid", {"amount": 42})
            assert handle.status() == "RUNNING"

            open_gate(handle, "ship")
            assert handle.status() == "COMPLETED"

            failed = tasks.raises.send("no")
            failed.retry()
            assert len(failed.info().attempts) == 2  # type: ignore[union-attr]

            operations.copy(failed.task_id, actor="a test")
            assert Task.objects.filter(copy_of=failed.task_id, status="FAILED").exists()

            retried = tasks.mails.with_options(retry_policy=RetryPolicy.fixed([60])).send(1)
            assert retried.info().status == "PENDING"  # type: ignore[union-attr]
            operations.retry(retried.task_id, actor="a test")
            assert retried.get(0).ok_value == 2

    def test_failures_are_raised_by_the_block_and_not_by_the_send(self) -> None:
        """A failure is raised when the block ends.

        Fails if: ``send()`` raises the exception of the task, so that the code under test takes a
        path that it takes only in tests.
        """
        went_on = []

        with pytest.raises(ExceptionGroup, match="tasks that failed: 2") as caught, immediate():
            tasks.raises.send("no such thing")
            went_on.append(1)

            with transaction.atomic():
                tasks.mail.send("nowhere")
            went_on.append(2)

        assert went_on == [1, 2]
        assert [str(one) for one in caught.value.exceptions] == [
            "UNHANDLED_ERROR: LookupError: no such thing",
            "NO_ADDRESS: nowhere is no address",
        ]

        assert "immediate(raise_errors=False)" in caught.value.__notes__[0]

    def test_the_error_of_the_test_comes_before_failed_tasks(self) -> None:
        """The error of the test is raised, with a note that names the tasks that failed.

        Fails if: the failed task hides the assertion, or the assertion hides the cause of the
        failure.
        """
        with pytest.raises(AssertionError, match="nothing was noted") as caught, immediate():
            tasks.raises.send("no such thing")
            raise AssertionError("nothing was noted")

        (note,) = caught.value.__notes__
        assert "UNHANDLED_ERROR: LookupError: no such thing" in note
        assert "raise LookupError(message)" in note

    def test_only_the_named_queues_run(self) -> None:
        with immediate(queues=["mail"]):
            assert tasks.mail.send("a@example.org").get(0).is_ok()
            assert tasks.add.send(1).info().status == "PENDING"  # type: ignore[union-attr]

        with (
            pytest.raises(ValueError, match="queues not declared: mial"),
            immediate(queues=["mial"]),
        ):
            pass

    def test_a_task_whose_orm_call_breaks_a_constraint_fails_alone(self) -> None:
        """An error of the database fails its task and no other one.

        Fails if: the savepoint of the attempt cannot be rolled back once Django has marked the
        transaction as broken.
        """
        with immediate(raise_errors=False):
            Group.objects.create(name="twice")
            error = tasks.note.send("twice").get(0).err_value
            assert tasks.note.send("once").get(0).is_ok()

        assert error.exception["type"] == IntegrityError.__name__  # type: ignore[index]
        assert names() == ["once", "twice"]

    def test_after_the_block_nothing_runs_by_itself_any_more(self) -> None:
        """Fails if: what the block has patched stays patched for the next test."""
        leave = transaction.Atomic.__exit__
        with immediate():
            pass

        assert transaction.Atomic.__exit__ is leave
        assert connection.execute_wrappers == []

        with transaction.atomic():
            handle = tasks.add.send(1)
        assert handle.info().status == "PENDING"  # type: ignore[union-attr]

    def test_blocks_may_be_nested_and_drain_may_be_called_in_them(self) -> None:
        """Blocks may be nested, also in ``travel()``, and ``drain()`` may be called in them."""
        with immediate(queues=["mail"]), immediate():
            assert tasks.sends_more.send(2).get(0).is_ok()
            tasks.add.schedule(60, 1)
            assert drain() == 0
            assert drain(until=dt.timedelta(minutes=2)) == 1

        with travel(dt.datetime(2031, 5, 1, tzinfo=dt.UTC)), immediate():
            info: Any = tasks.add.send(1).info()

        assert info.started_at == info.sent_at
        assert info.sent_at.year == 2031

    @immediate()
    def test_the_decorator_opens_a_block_for_each_call(self) -> None:
        """As a decorator it opens a block for each call, and it refuses classes.

        Fails if: it wraps a class in a function, and unittest finds no test in it.
        """
        assert tasks.add.send(1).get(0).ok_value == 1

        with pytest.raises(TypeError, match="self.enterContext"):
            immediate()(type(self))


class InATestCase(Both, TestCase):
    def test_tasks_run_after_a_transaction_around_the_block(self) -> None:
        """A transaction around the block delays the tasks only until its end."""
        with transaction.atomic(), immediate():
            handle = tasks.add.send(1)
            assert handle.info().status == "PENDING"  # type: ignore[union-attr]

        assert handle.get(0).ok_value == 1

    def test_a_block_in_a_broken_transaction_raises_the_tests_error(self) -> None:
        """A block in a broken transaction ends with the error of the test.

        Fails if: the tasks are run at the end of the block, and their first statement hides the
        error.
        """
        with pytest.raises(LookupError), transaction.atomic(), immediate():
            tasks.note.send("never")
            with pytest.raises(IntegrityError):
                Group.objects.bulk_create([Group(name="twice"), Group(name="twice")])
            raise LookupError

        assert names() == []

        with transaction.atomic(), immediate():
            tasks.note.send("never")
            with pytest.raises(IntegrityError), transaction.atomic(savepoint=False):
                Group.objects.bulk_create([Group(name="twice"), Group(name="twice")])

        assert names() == [], "nor does its end raise TransactionManagementError"

    async def test_in_async_tests_the_block_runs_tasks_sent_by_async_code(self) -> None:
        """Fails if: it watches the connection of the event loop's thread, which sends no task."""

        @transaction.atomic
        def inside() -> str:
            return tasks.note.send("inside").info().status  # type: ignore[union-attr]

        with pytest.raises(ExceptionGroup, match="tasks that failed: 1"):
            async with immediate():
                handle = await tasks.note.asend("async")
                assert (await handle.aget(0)).is_ok()
                assert (await (await tasks.anoop.asend()).aget(0)).is_ok()
                await tasks.araises.asend()
                assert await sync_to_async(inside)() == "PENDING"

        assert [group.name async for group in Group.objects.order_by("name")] == ["async", "inside"]

    async def test_in_async_tests_a_plain_with_or_drain_is_refused(self) -> None:
        """In async tests a plain ``with`` and a plain ``drain()`` are refused."""
        with pytest.raises(RuntimeError, match="async with immediate"), immediate():
            pass
        with pytest.raises(RuntimeError, match="await adrain"):
            drain()

        await tasks.add.asend(1)
        assert await adrain() == 1


class InATransactionTestCase(Both, TransactionTestCase):
    def test_it_runs_after_the_callbacks_of_on_commit(self) -> None:
        with immediate(), transaction.atomic():
            transaction.on_commit(lambda: tasks.note.send("on commit"))

        assert names() == ["on commit"]
        assert not connection.in_atomic_block

    def test_a_manual_transaction_runs_nothing_before_its_commit(self) -> None:
        with immediate():
            transaction.set_autocommit(False)
            try:
                handle = tasks.note.send("by hand")
                assert handle.info().status == "PENDING"  # type: ignore[union-attr]
                transaction.commit()
            finally:
                transaction.set_autocommit(True)

        assert names() == ["by hand"]


@pytest.mark.django_db
def test_an_ordered_key_stops_and_goes_on_when_it_is_skipped() -> None:
    """A failed task stops its key until it is skipped.

    Fails if: the task behind it runs nevertheless, or does not run after the skip.
    """
    queues.change(
        "mail", {"partition_by_args": ["message"], "partition_policy": "stop"}, actor="ann"
    )
    failing = tasks.raises.with_options(queue="mail")

    with immediate(raise_errors=False):
        first = failing.send("a")
        second = failing.send("a")
        statuses = [one.info().status for one in (first, second)]  # type: ignore[union-attr]
        queues.skip("mail", {"message": "a"}, actor="ann", reason="as expected")
        assert [*statuses, second.info().status] == ["FAILED", "PENDING", "FAILED"]  # type: ignore[union-attr]


@pytest.mark.django_db
def test_tasks_sent_before_their_queue_became_ordered_run() -> None:
    """Tasks that were sent before their queue became ordered run.

    Fails if: the queue waits for the maintenance of a worker, which a test does not have.
    """
    handles = [tasks.add.with_options(queue="mail").send(1, number) for number in range(3)]
    queues.change("mail", {"partition_by_args": ["a"], "partition_policy": "stop"}, actor="ann")

    assert drain() == 3
    assert [handle.get(0).ok_value for handle in handles] == [1, 2, 3]
