"""Runs tasks in one process: sync tasks on its threads, async tasks together on one event loop.

Each lane has a channel of its own. That way nobody has to hand messages on: a sync task is received by the very thread that
runs it, the event loop reads its own socket, and a long sync task cannot keep async tasks from arriving.

Jobs come as lists of (number, task id, task name, JSON arguments, attempt, queue), ``None`` ends a lane. Replies go back as
``("ran", (number, reply, seconds))`` from the sync lane, and from the async one as ``("done", [(number, reply, seconds), ...])``;
``("back", [number, ...])`` gives back what has not begun, when the worker calls for that; ``("full", megabytes)`` says that the
process has grown beyond its memory limit. Numbers grow per lane, and ``started[lane]`` is the last one whose user code may have
begun: it lies in memory shared with the parent, which reads it when this process dies.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.signals import connection_created

from horsies_django.worker import copies, sessions
from horsies_django.worker.channel import Channel, send_all, wait_receive
from horsies_django.worker.control import Control
from horsies_django.worker.housekeeping import House, own_decimals
from horsies_django.worker.looping import run_to_the_end
from horsies_django.worker.memory import Gauge
from horsies_django.worker.running import run_async, run_sync
from horsies_django.worker.runs import AsyncRun, SyncRun

SYNC, ASYNC = 0, 1
PORTION = 64  # replies: a pass that settles these runs while the others are still being made
Job = tuple[int, str, str, str, int, str]


class SyncLane:
    """Some threads that take jobs from one channel: whoever is idle receives, and runs what it received."""

    def __init__(self, channel: Channel, started: MutableSequence[int], control: Control, gauge: Gauge) -> None:
        self.channel = channel
        self.started = started
        self.control = control
        self.gauge = gauge
        self.taking = threading.Lock()
        self.replying = threading.Lock()
        self.jobs: deque[Job] = deque()
        self.ended = False
        self.house = House()

    def serve(self) -> None:
        """Run jobs on this thread until the lane ends. Raises EOFError when the parent is gone."""
        while (job := self._next()) is not None:
            number, task_id, name, kwargs, attempt, queue = job
            began = time.monotonic()
            self.house.enter()
            run = SyncRun(task_id, name, attempt, queue)
            self.control.enter("sync", number, run)
            reply = contextvars.copy_context().run(run_sync, run, kwargs)
            self.house.leave(name, task_id, reply)
            del self.control.runs["sync", number]
            with self.replying:
                send_all(self.channel, ("ran", (number, tuple(reply), time.monotonic() - began)))
                if full := self.gauge.full():
                    send_all(self.channel, ("full", full))

    def give_back(self) -> None:
        """Give back what stands in line; called on the control thread, while all threads of the lane are busy.

        One that waits for jobs holds the lock, and then there is nothing to give back.
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

    def _next(self) -> Job | None:
        with self.taking:
            while not self.jobs:
                if self.ended:
                    return None
                self._take_in(wait_receive(self.channel))
            job = self.jobs.popleft()
            self.started[SYNC] = job[0]
            return job


class AsyncLane:
    """An event loop that runs every job it receives as a task of its own."""

    def __init__(self, channel: Channel, started: MutableSequence[int], control: Control, gauge: Gauge) -> None:
        self.channel = channel
        self.started = started
        self.control = control
        self.gauge = gauge
        self.replies: list[tuple[int, tuple[Any, ...], float]] = []
        self.running: set[asyncio.Task[None]] = set()
        self.connected = False  # whether Django's thread for async code holds a database connection

    def serve(self) -> None:
        """Run jobs on this thread's own loop until the lane ends. Raises EOFError when the parent is gone."""
        connection_created.connect(self._note_connection, weak=False, dispatch_uid=self)
        try:
            run_to_the_end(self._serve())
        finally:
            connection_created.disconnect(dispatch_uid=self)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.channel.fileno(), self._receive, ended)
        await ended
        while self.running:
            await asyncio.wait(self.running)
        await self._flush_all()
        loop.remove_reader(self.channel.fileno())
        await sync_to_async(connections.close_all)()

    def _receive(self, ended: asyncio.Future[None]) -> None:
        try:
            messages = self.channel.receive()
        except EOFError as error:
            if not ended.done():
                ended.set_exception(error)
            return
        for message in messages:
            if message is None:
                if not ended.done():
                    ended.set_result(None)
                continue
            for job in message:
                task = asyncio.ensure_future(self._run(job))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            self.started[ASYNC] = message[-1][0]

    async def _run(self, job: Job) -> None:
        number, task_id, name, kwargs, attempt, queue = job
        began = time.monotonic()
        own_decimals()
        if self.connected:
            await sync_to_async(sessions.before_task)()
        run = AsyncRun(task_id, name, attempt, queue)
        self.control.enter("async", number, run)
        reply = await run_async(run, kwargs)
        del self.control.runs["async", number]
        if self.connected:
            await sync_to_async(self._refresh_connections)()
        if not self.replies:
            asyncio.get_running_loop().call_soon(self._flush)
        self.replies.append((number, tuple(reply), time.monotonic() - began))
        if len(self.replies) == PORTION:
            self._flush()

    def _flush(self) -> None:
        replies, self.replies = self.replies, []
        if replies:
            self.channel.send(("done", replies))
            if full := self.gauge.full():
                self.channel.send(("full", full))
        if not self.channel.flush():
            asyncio.get_running_loop().add_writer(self.channel.fileno(), self._flush_more)

    def _flush_more(self) -> None:
        if self.channel.flush():
            asyncio.get_running_loop().remove_writer(self.channel.fileno())

    async def _flush_all(self) -> None:
        self._flush()
        while not self.channel.flush():
            await asyncio.sleep(0)

    def _note_connection(self, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith("ThreadPoolExecutor"):
            self.connected = True

    def _refresh_connections(self) -> None:
        sessions.after_task()
        self.connected = any(connection.connection is not None for connection in connections.all(initialized_only=True))


class Executor:
    """Both lanes of one process: sync tasks on ``threads`` threads, the calling one among them, and a thread for the loop."""

    def __init__(
        self,
        sync: Channel,
        async_: Channel,
        control: Channel,
        threads: int,
        started: MutableSequence[int],
        on_failure: Callable[[BaseException], None],
        max_memory_mb: float | None = None,
    ) -> None:
        self.control = Control(control)
        gauge = Gauge(max_memory_mb)
        self.sync_lane = SyncLane(sync, started, self.control, gauge)
        self.control.call_back = self.sync_lane.give_back
        self.async_lane = AsyncLane(async_, started, self.control, gauge)
        copies.keep_from_copies(sync, async_, control)
        self.threads = threads
        self.on_failure = on_failure

    def run(self) -> None:
        """Serve both lanes until they end. A lane that breaks calls ``on_failure`` on its thread."""
        others = [
            threading.Thread(target=self._guarded, args=(self.async_lane.serve,), name="horsies-loop", daemon=True),
        ]
        threading.Thread(target=self.control.serve, name="horsies-control", daemon=True).start()
        for number in range(1, self.threads):
            name = f"horsies-thread-{number}"
            others.append(threading.Thread(target=self._guarded, args=(self._serve_sync,), name=name, daemon=True))
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
