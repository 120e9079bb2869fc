"""``immediate()``: runs tasks as soon as the transaction that sent them has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from django.db import connections
from django.db.transaction import Atomic, get_connection

from horsies_django.conf import config
from horsies_django.core.results import TaskFailed
from horsies_django.store.base import tasks_written
from horsies_django.testing.contexts import Context
from horsies_django.testing.draining import declared, draining, failed_tasks, is_broken, run_all


def immediate(*, queues: list[str] | None = None, raise_errors: bool = True) -> Context[None]:
    """Run each task that is sent in the block as soon as it can run.

    A task can run after the send, or after the outermost ``atomic()`` around the send. The
    transaction that a ``TestCase`` or pytest's ``db`` opens does not count. Tasks whose send is
    rolled back do not run. Tasks that are left when the block ends run then.

    Tasks are really sent: their rows are written, and their arguments validated and encoded. Then
    all due tasks of ``queues`` (default: all) run as in ``drain()``, in the thread of the test.

    A send never raises the error of a task. At the end of the block, an ExceptionGroup with a
    TaskFailed for each task that ended as FAILED is raised, as by ``drain()``. If the block itself
    raises an error, the failures become notes of that error. ``raise_errors=False`` prevents both.

    Only sends of this thread are seen, or those of async code if ``async with`` is used. Raises
    ValueError if a queue is not declared.
    """
    return Context(
        "immediate", lambda: running_at_once(queues, raise_errors=raise_errors), connected=True
    )


@contextmanager
def running_at_once(queues: list[str] | None, *, raise_errors: bool) -> Iterator[None]:
    """Run the tasks that are sent in the block, and raise the failures at its end."""
    connection = connections[config().database]
    runner = Runner(connection, declared(queues))

    try:
        with runner.following_sends(), after_atomic(runner.atomic_ended):
            yield
            if runner.has_new_tasks and not is_broken(connection):
                runner.run()
    except BaseException as error:
        if raise_errors and runner.failures:
            error.add_note(
                "\n".join(
                    ("Tasks that failed in immediate():", *map(failure_text, runner.failures))
                )
            )
        raise

    if runner.failures and raise_errors:
        raise failed_tasks(runner.failures, "immediate")


class Runner:
    """Runs due tasks on a connection when no open transaction can roll back their sends."""

    def __init__(self, connection: Any, queues: list[str]) -> None:
        self.connection = connection
        self.queues = queues
        self.has_new_tasks = False
        self.failures: list[TaskFailed] = []

    @contextmanager
    def following_sends(self) -> Iterator[None]:
        """Call ``written`` after each statement in the block that may have made tasks due."""
        tasks_written.connect(self.written)
        try:
            yield
        finally:
            tasks_written.disconnect(self.written)

    def written(self, connection: Any, **_others: Any) -> None:
        """Run the tasks that a statement has made due if no transaction is open."""
        if connection is self.connection:
            self.has_new_tasks = True
            self.run_if_committed()

    def atomic_ended(self, connection: Any) -> None:
        """Run the tasks that were sent in an ``atomic()`` if it was the outermost one."""
        if connection is self.connection:
            self.run_if_committed()

    def run_if_committed(self) -> None:
        """Run the tasks that were sent, unless they may be rolled back or tasks already run."""
        if self.has_new_tasks and not draining.get() and is_committed(self.connection):
            self.run()

    def run(self) -> None:
        """Run the tasks that are due."""
        run_all(self.connection, self.queues, self.failures)
        self.has_new_tasks = False  # tasks that were sent by tasks have run as well


@contextmanager
def after_atomic(call: Callable[[Any], None]) -> Iterator[None]:
    """Call a function with the connection after each ``atomic()`` that ends without an error.

    Django has no hook for this: in a ``TestCase`` no transaction is committed, so ``on_commit`` is
    never called, and an ``atomic()`` without a savepoint ends without a statement.
    """
    original = Atomic.__exit__

    def leave(
        self: Atomic,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        original(self, kind, error, trace)
        if kind is None:
            call(get_connection(self.using))

    Atomic.__exit__ = leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        Atomic.__exit__ = original  # type: ignore[method-assign]


def is_committed(connection: Any) -> bool:
    """Return whether no transaction is open, apart from those of a ``TestCase``."""
    if connection.atomic_blocks:
        return not connection.needs_rollback and all(
            block._from_testcase for block in connection.atomic_blocks
        )
    return bool(connection.get_autocommit())


def failure_text(failure: TaskFailed) -> str:
    """Return an error and its notes as text."""
    return "\n".join((str(failure), *failure.__notes__))
