"""The executor, which runs tasks: sync tasks in threads, async tasks together in one event loop.

Each lane has its own channel, so no thread passes messages on to another: a sync task is received
by the thread that runs it, the event loop reads its own socket, and a long sync task does not delay
async tasks.

Jobs arrive in lists of (number, packed claim, id of the worker); ``None`` ends a lane. Numbers
increase per lane. The lanes send these messages:

- ``("ran", (number, reply, seconds))``, from the sync lane: a task has finished.
- ``("done", [(number, reply, seconds), ...])``, from the async lane: tasks have finished.
- ``("back", [number, ...])``: tasks that have not begun are returned, because the worker has
  requested that.
- ``("full", megabytes)``: the process has reached its memory limit. It is sent before the reply of
  the task, because the worker may send another task after the reply.
- ``("altered", None)``: a task has changed state on which other tasks depend.

``started[lane]`` is the number of the last task whose user code may have begun. It is in shared
memory, where the parent reads it if this process dies.

All async tasks of a process share one event loop, which keeps running even if user code interferes
with it. A task may do the following to it:

- It cancels all tasks (``asyncio.all_tasks()``). The lane itself is not a task: callbacks receive
  jobs and send replies, and a private future ends it. Tasks that were cancelled before they began
  are started again (``AsyncLane``).
- It removes readers or writers of the lane's socket. They are restored every second, even while
  that task is still running. The child is replaced, because other readers, which cannot be
  restored, may be missing, too.
- It stops the loop, or breaks it by ``SystemExit`` or ``KeyboardInterrupt``. The loop is run again.
- It closes a descriptor that the process requires, or the loop while it is stopped. That cannot be
  repaired: the lane ends with an error, and the child is replaced. A worker without children ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import connections

from horsies_django.core.records import Reply, unpacked_claim
from horsies_django.core.texts import printable_name
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker.child import db_sessions, fork_guard
from horsies_django.worker.child.interrupts import AsyncRun, Control, SyncRun
from horsies_django.worker.child.process_state import ProcessState
from horsies_django.worker.child.run_task import run_async, run_sync, unexaminable_reply
from horsies_django.worker.ipc import Channel, flush_all, send_all, wait_receive
from horsies_django.worker.limits.memory import Gauge

logger = logging.getLogger("horsies.worker")

SYNC = 0
ASYNC = 1
TaskJob = tuple[int, tuple[Any, ...], str]


def identity(number: int) -> tuple[int, int] | None:
    """Return the device and the inode of a descriptor, or None if it is closed."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(eq=False)
class Lane:
    """The common part of both lanes.

    Each lane has its own ``channel`` to the worker; both share the rest.
    """

    channel: Channel
    started: MutableSequence[int]
    control: Control
    gauge: Gauge


@dataclass(eq=False)
class SyncLane(Lane):
    """Threads that take jobs from one channel; an idle thread receives jobs and runs the next."""

    def __post_init__(self) -> None:
        self.taking = threading.Lock()
        self.replying = threading.Lock()
        self.jobs: deque[TaskJob] = deque()
        self.ended = False
        self.process_state = ProcessState()

    def serve(self) -> None:
        """Run jobs in this thread until the lane ends.

        Raises EOFError if the parent is gone.
        """
        while (job := self._next()) is not None:
            number, fields, worker = job
            claim = unpacked_claim(fields)
            began = time.monotonic()

            self.process_state.enter()
            run = SyncRun(CurrentTask(claim, worker))
            self.control.enter("sync", number, run)
            reply = contextvars.copy_context().run(run_sync, run, claim.kwargs)
            altered = self.process_state.leave(run.current, reply)
            del self.control.runs["sync", number]

            with self.replying:
                if full := self.gauge.full():
                    send_all(self.channel, ("full", full))
                if altered:
                    send_all(self.channel, ("altered", None))
                send_all(self.channel, ("ran", (number, reply.packed(), time.monotonic() - began)))

    def give_back(self) -> None:
        """Send the jobs that have not begun back to the worker.

        It is called in the control thread. If a thread of the lane waits for jobs, it holds the
        lock, and there are no jobs to send back.
        """
        if not self.taking.acquire(blocking=False):
            return

        try:
            with suppress(EOFError):
                self._take_in(self.channel.receive())
            numbers = [job[0] for job in self.jobs]
            self.jobs.clear()
        finally:
            self.taking.release()

        with self.replying:
            send_all(self.channel, ("back", numbers))

    def _take_in(self, messages: list[Any]) -> None:
        for message in messages:
            if message is None:
                self.ended = True
            else:
                self.jobs.extend(message)

    def _next(self) -> TaskJob | None:
        with self.taking:
            while not self.jobs:
                if self.ended:
                    return None
                self._take_in(wait_receive(self.channel))

            job = self.jobs.popleft()
            self.started[SYNC] = job[0]
            return job


@dataclass(eq=False)
class AsyncLane(Lane):
    """An event loop that runs every job as an asyncio task of its own.

    Any task may cancel all others of the loop (``asyncio.all_tasks()``), including those that have
    not begun. So ``_run`` need not reach its end: a job stays in ``running`` until it has a reply,
    and if its asyncio task ends without one, the job is started again or fails. ``others`` are
    further channels that this process requires.
    """

    others: Sequence[Channel] = ()

    def __post_init__(self) -> None:
        self.descriptors = {
            one.fileno(): identity(one.fileno()) for one in (self.channel, *self.others)
        }
        self.replies: list[tuple[int, str | tuple[Any, ...], float]] = []
        self.running: dict[asyncio.Task[None], TaskJob] = {}
        self.ending = False
        self.orm = db_sessions.executor()

    def serve(self) -> None:
        """Run jobs in an event loop in this thread until the lane ends.

        Raises EOFError if the parent is gone, and OSError or RuntimeError if the loop cannot
        continue.
        """
        runner = asyncio.Runner()
        self.loop: Any = runner.get_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()

        # Callbacks that are added while a task runs would otherwise run in its context.
        self.context = contextvars.copy_context()
        fork_guard.keep_loop_from_copies(self.loop)
        self.context.run(self.loop.add_reader, self.channel.fileno(), self._receive)
        self.context.run(self._watch)

        while not self.ended.done():
            try:
                self.loop.run_until_complete(self.ended)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if self.ended.done() or self.loop.is_closed():
                    raise
                logger.error(
                    "a task stopped the event loop with %r; running the event loop again",
                    error,
                )

        self.ended.result()  # raises the error if the lane ended with one before the loop ran
        self.loop.remove_reader(self.channel.fileno())
        flush_all(self.channel)
        self.orm.close()
        runner.close()  # cancels the remaining tasks of the loop

    def _end(self, error: BaseException) -> None:
        """Make ``serve`` raise ``error``."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _watch(self) -> None:
        """Restore each second the readers that a task has removed, and handle missed events."""
        self.loop.call_later(1.0, self._watch)
        if any(identity(number) != expected for number, expected in self.descriptors.items()):
            self._end(OSError("a task closed a file descriptor that this process requires"))
            return

        try:
            if not self.loop.remove_reader(self.channel.fileno()):
                logger.warning("a task removed the readers of the event loop; they are restored")
                self.channel.send(("altered", None))
            self.loop.add_reader(self.channel.fileno(), self._receive)
        except (OSError, ValueError) as error:
            self._end(error)
            return

        self._receive()
        self._flush()

    def _receive(self) -> None:
        try:
            messages = self.channel.receive()
        except EOFError as error:
            self._end(error)
            return

        for message in messages:
            if message is None:
                self.ending = True
                self._end_if_done()
                continue

            for job in message:
                self._start(job)
            self.started[ASYNC] = message[-1][0]

    def _start(self, job: TaskJob) -> None:
        """Start a job in its own context, without the task factory that user code may have set."""
        task = asyncio.Task(self._run(job), loop=self.loop, context=self.context.copy())
        self.running[task] = job
        task.add_done_callback(self._over)

    async def _run(self, job: TaskJob) -> None:
        number, fields, worker = job
        claim = unpacked_claim(fields)
        began = time.monotonic()
        decimal.setcontext(decimal.getcontext().copy())  # a copied context shares the object

        if self.orm.connected:
            await self._on_orm_thread(db_sessions.before_task)

        run = AsyncRun(CurrentTask(claim, worker), self.loop)
        self.control.enter("async", number, run)
        reply = await run_async(run, claim.kwargs)
        del self.control.runs["async", number]

        if self.orm.connected:
            await self._on_orm_thread(db_sessions.after_task)

        assert run.task is not None
        self._reply(run.task, number, reply, time.monotonic() - began)

    async def _on_orm_thread(self, call: Callable[[], None]) -> None:
        """Call a function in Django's thread for async code, and wait until it has returned.

        It waits even if the task is cancelled.
        """
        try:
            called = self.loop.run_in_executor(self.orm, call)
        except RuntimeError:
            return  # a task has shut down the thread, so no task can use it

        while not called.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([called])

    def _over(self, task: asyncio.Task[None]) -> None:
        """Start or fail a job whose asyncio task ended without a reply.

        The task was cancelled before it began, or our own code failed.
        """
        job = self.running.get(task)
        if job is None:
            return

        if task.cancelled():
            del self.running[task]
            self._start(job)
        else:
            current = CurrentTask(unpacked_claim(job[1]))
            logger.error(
                "%s %s could not be run",
                printable_name(current.name),
                current.task_id,
                exc_info=task.exception(),
            )
            self._reply(task, job[0], unexaminable_reply(task.exception()), 0.0)

    def _reply(self, task: asyncio.Task[None], number: int, reply: Reply, seconds: float) -> None:
        del self.running[task]
        task.remove_done_callback(self._over)  # saves a call by the loop

        if not self.replies:
            self.loop.call_soon(self._flush, context=self.context)
        self.replies.append((number, reply.packed(), seconds))

        # so many replies are sent at once: the engine settles them while further tasks run
        if len(self.replies) == 64:
            self._flush()
        if self.ending:
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self.running:
            self._flush()
            if not self.ended.done():
                self.ended.set_result(None)

    def _flush(self) -> None:
        replies, self.replies = self.replies, []
        if replies:
            if full := self.gauge.full():
                self.channel.send(("full", full))
            self.channel.send(("done", replies))

        if not self.channel.flush():
            self.loop.add_writer(self.channel.fileno(), self._flush_more)

    def _flush_more(self) -> None:
        if self.channel.flush():
            self.loop.remove_writer(self.channel.fileno())


@dataclass(eq=False)
class Executor:
    """Both lanes of one process.

    There are ``threads`` threads for sync tasks, including the caller's, and one for the event
    loop.
    """

    sync: Channel
    async_: Channel
    messages: Channel
    threads: int
    started: MutableSequence[int]
    on_failure: Callable[[BaseException], None]
    max_memory_mb: float | None = None

    def __post_init__(self) -> None:
        self.control = Control(self.messages)
        gauge = Gauge(self.max_memory_mb)

        self.sync_lane = SyncLane(self.sync, self.started, self.control, gauge)
        self.control.call_back = self.sync_lane.give_back
        self.async_lane = AsyncLane(
            self.async_, self.started, self.control, gauge, [self.sync, self.messages]
        )

        fork_guard.keep_from_copies(self.sync, self.async_, self.messages)

    def run(self) -> None:
        """Serve both lanes until they end.

        If a lane fails, ``on_failure`` is called in its thread.
        """
        lanes = {"horsies-loop": self.async_lane.serve}
        lanes |= {f"horsies-thread-{number}": self._serve_sync for number in range(1, self.threads)}
        others = [
            threading.Thread(target=self._guarded, args=(serve,), name=name, daemon=True)
            for name, serve in lanes.items()
        ]

        threading.Thread(target=self.control.serve, name="horsies-control", daemon=True).start()
        for thread in others:
            thread.start()

        self._guarded(self._serve_sync)
        for thread in others:
            thread.join()

    def _serve_sync(self) -> None:
        try:
            self.sync_lane.serve()
        finally:
            connections.close_all()

    def _guarded(self, serve: Callable[[], None]) -> None:
        try:
            serve()
        except BaseException as error:
            self.on_failure(error)
