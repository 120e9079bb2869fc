"""The supervisor, which checks that a worker can run, and builds, starts and stops its parts."""

from __future__ import annotations

import logging
import multiprocessing
import os
import selectors
import socket
import time
from datetime import timedelta

import psycopg

from horsies_django import __version__
from horsies_django.conf import Config
from horsies_django.core.errors import StopRequested, WorkerStartError
from horsies_django.core.options import WIRE
from horsies_django.store.base import error_text
from horsies_django.store.notify import Listener
from horsies_django.store.tasks import Served
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks import registry
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.engine.capacity import capacity
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.engine.outage import ClaimsLost, DatabaseGaveUp, WorkerDisowned
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from horsies_django.worker.limits.kill_timer import KillTimer
from horsies_django.worker.maintenance.health_server import serving_health
from horsies_django.worker.maintenance.heartbeat import HeartbeatSender
from horsies_django.worker.maintenance.pruner import Pruner
from horsies_django.worker.maintenance.reaper import OverdueWorkflows, Reaper
from horsies_django.worker.maintenance.thread import MaintenanceThread
from horsies_django.worker.maintenance.watchdog import Watchdog
from horsies_django.worker.pool.launch import Forker, TemplateKilled
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.timeouts import StuckWatch, TimeLimits
from horsies_django.worker.process.counts import HistoryWriter
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import STOP_SECONDS, Shutdown
from horsies_django.worker.scheduler import SchedulerLoop
from horsies_django.worker.startup import (
    Start,
    durable_behind_pooler,
    insert_missing_queues,
    refuse_unready_database,
)
from horsies_django.workflows.advancer import Advancer

logger = logging.getLogger("horsies.worker")


class Supervisor:
    """One run of a worker.

    ``run`` returns the exit code, which is 0 if every task that was started has finished and its
    outcome is written. A worker that others declared dead, or whose claims the database has lost,
    ends its processes and starts again under a new id.
    """

    def __init__(
        self,
        config: Config,
        options: WorkerOptions,
        stopping: Shutdown | None = None,
        forker: Forker | None = None,
    ) -> None:
        self.config = config
        self.options = options
        self.stopping = stopping or Shutdown()
        self.stopping.timeout = options.shutdown_timeout
        self.stopping.on_stop = self.stop

        if unknown := [name for name in options.queues if name not in config.queues]:
            declared = ", ".join(sorted(config.queues))
            raise WorkerStartError(
                f"--queues: HORSIES['QUEUES'] does not declare {', '.join(map(repr, unknown))}; it "
                f"has: {declared}"
            )

        self.served = Served(options.queues)
        self.capacity = capacity(config, options)
        self.forker = forker or Forker(options)
        self.build()

    def build(self) -> None:
        """Create the parts, without starting or opening them."""
        config = self.config
        worker = uuid7()
        direct = self.config.listen_database or self.config.database
        self.worker = worker
        self.selector = selectors.DefaultSelector()

        threshold = config.recovery.running_stale_threshold_ms / 1000
        # the children of a stopped worker are killed before others declare it dead
        self.kill_timer = KillTimer(
            threshold * 0.8, self.forker.arm if self.options.forks else None
        )

        self.pool = Pool(
            self.options,
            self.selector,
            self.forker,
            time_limits(config),
            self.capacity.prefetch,
            str(worker),
        )

        self.outbox = Outbox(
            config.database,
            worker,
            self.served,
            prepare=config.listen_database is None,
            max_crashes=config.recovery.max_crashes,
            max_bytes=config.max_payload_bytes,
            bound=config.resilience.max_unwritten_outcomes,
        )
        self.startup = Start(self.outbox, config.resilience, self.stopping)

        listener = Listener(direct, "_new", application_name="horsies listener", own=f"_{worker}")
        unknown_tasks = UnknownTasks(timedelta(milliseconds=config.unknown_task_grace_ms))
        advancer = Advancer(config.max_payload_bytes)
        self.engine = Engine(
            self.pool,
            self.outbox,
            listener,
            config.resilience,
            self.selector,
            self.capacity,
            advancer,
            unknown_tasks,
        )
        self.engine.until_empty = self.options.until_empty

        beat_seconds = config.recovery.claimer_heartbeat_interval_ms / 1000
        watch = StuckWatch(threshold, in_seconds(config.report_running_after_ms))
        snapshot_seconds = config.recovery.worker_state_snapshot_interval_ms / 1000
        heartbeat = HeartbeatSender(
            worker, os.getpid(), self.engine, beat_seconds, self.kill_timer, watch, snapshot_seconds
        )

        reaper = self.build_reaper(heartbeat)
        pruner = Pruner(config.retention, self.outbox.own_retentions.copy)
        history = HistoryWriter(worker, self.outbox.counts)
        overdue = OverdueWorkflows(advancer.twin(self.engine.take_over))
        self.maintenance = MaintenanceThread(
            direct,
            heartbeat,
            reaper,
            config.recovery.check_interval_ms / 1000,
            pruner,
            overdue,
            history,
        )

        kill = config.recovery.on_cut_off == "kill"
        self.watchdog = Watchdog(self.engine, self.maintenance, self.kill_timer, kill=kill)
        if kill:
            self.engine.outage.kill_after = self.kill_timer.seconds

        self.scheduler_loop = (
            SchedulerLoop(config, actor_name()) if self.options.with_scheduler else None
        )

    def build_reaper(self, heartbeat: HeartbeatSender) -> Reaper:
        """Return a reaper, which declares workers dead only while this one has fresh heartbeats."""
        forgotten = self.config.forget_overrides_after_ms
        return Reaper(
            self.config.recovery,
            timedelta(milliseconds=forgotten) if forgotten else None,
            self.served.queues,
            self.worker,
            heartbeat.unbroken_for,
            self.outbox.receivers.rescued,
            self.outbox.counts,
        )

    def stop(self) -> None:
        """Stop claiming tasks and firing schedules; called in a signal handler."""
        self.engine.stop()
        if self.scheduler_loop is not None:
            self.scheduler_loop.stop()

    def run(self) -> int:
        """Run the worker until it is stopped, and return its exit code.

        Raises WorkerStartError and StopRequested.
        """
        with serving_health(self.options, lambda: self.engine):
            return self.live()

    def live(self) -> int:
        """Work until the worker is stopped, and return its exit code.

        It starts again under a new id if it was declared dead or the database has lost its claims.
        It ends if the template was killed, which cannot be forked again once there are threads.
        """
        while True:
            try:
                self.start()
                finished = self.engine.run(self.stopping.deadline)
                return 0 if finished else self.end_tasks()
            except WorkerDisowned as error:
                logger.error("%s; ending its processes and starting again under a new id", error)
                self.pool.kill("belonged to a worker that was declared dead")
                self.outbox.drop_all([*self.pool.outcomes, *self.pool.releases])
            except ClaimsLost as error:
                logger.error("%s; ending its processes and starting again under a new id", error)
                self.pool.kill("was ended because the database has lost claims of its worker")
                self.write_last_outcomes()
            except DatabaseGaveUp as error:
                logger.critical("%s", error)
                return 1
            except TemplateKilled as error:
                logger.critical("%s; the worker ends", error)
                self.pool.kill("ended with the process from which it was forked")
                self.write_last_outcomes()
                return 1
            finally:
                self.close()

            if self.stopping.seen:
                return 1
            self.build()

    def start(self) -> None:
        """Open the connections, start the pool, and register the worker.

        Raises WorkerStartError and StopRequested.
        """
        try:
            with self.stopping.interruptible():
                self.open()
        except StopRequested:
            self.pool.kill("was not needed any more")
            # a child that the pool has not recorded yet
            for process in multiprocessing.active_children():
                process.kill()
            raise

        if self.stopping.seen:
            self.stop()

    def open(self) -> None:
        """Connect, check the database, start the pool and the threads; signals may interrupt it."""
        self.startup.retry(lambda: refuse_unready_database(self.config), connected=False)
        wakeup = self.stopping.wakeup
        self.selector.register(wakeup, selectors.EVENT_READ, (wakeup.recv, 100))

        self.startup.retry(lambda: insert_missing_queues(self.outbox, self.config, actor_name()))
        self.startup.retry(lambda: durable_behind_pooler(self.engine))
        if self.scheduler_loop is not None:
            self.startup.retry(self.scheduler_loop.declare)

        self.announce()
        self.pool.start()
        self.kill_timer.rearm(time.monotonic())
        self.startup.retry(self.register)

        self.engine.trust(time.monotonic() + self.kill_timer.seconds)
        self.engine.publish()
        self.maintenance.start()
        self.watchdog.start()
        if self.scheduler_loop is not None:
            self.scheduler_loop.start()

    def register(self) -> None:
        """Insert the row of the worker."""
        WorkerStore(self.outbox.connection_or_raise()).register(
            self.worker,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=self.outbox.served.queues,
            task_names=registry.names(),
            wire=WIRE,
            processes=self.options.processes,
            threads=self.options.threads,
            async_concurrency=self.options.async_concurrency,
        )

    def announce(self) -> None:
        """Log the configuration of this worker."""
        options = self.options
        logger.info(
            "Concurrency config: processes=%s, cluster_wide_cap=%s, max_claim_per_worker=%s, "
            "max_claim_batch=%s",
            options.processes,
            self.config.cluster_wide_cap,
            self.capacity.max_claim_per_worker,
            options.max_claim_batch,
        )

        logger.info(
            "Slots: %s sync (%s threads per process), %s async (%s coroutines per process); "
            "queues: %s",
            options.sync_slots,
            options.threads,
            options.async_slots,
            options.async_concurrency,
            ", ".join(options.queues),
        )

        if self.capacity.prefetch:
            line = "Soft mode: up to %s tasks are prefetched, under a lease of %s"
            logger.info(line, self.capacity.prefetch, self.capacity.lease)

        if options.processes == 0:
            logger.warning(
                "--processes=0: tasks run in the worker's own process, so a task that crashes this "
                "process ends the worker, too"
            )

    def end_tasks(self) -> int:
        """End the running tasks, which count as crashed, and return the exit code 1.

        Their outcomes are written if the database can be reached.
        """
        count = self.pool.running("sync") + self.pool.running("async")
        logger.error("stopping now; ending %s running task(s)", count)
        self.pool.kill("was ended while the worker shut down")

        # time to write the outcomes of the tasks that were ended
        give_up_at = time.monotonic() + 3.0
        try:
            self.engine.turn(0.0)
            while self.engine.has_unfinished_work and time.monotonic() < give_up_at:
                self.engine.turn(0.05)
        except DatabaseGaveUp as error:
            logger.error("%s", error)

        return 1

    def write_last_outcomes(self) -> None:
        """Write the outcomes and releases of the processes that were ended, without a claim."""
        self.outbox.outcomes += self.pool.outcomes
        self.outbox.releases += [*self.pool.releases, *self.engine.prefetched.values()]

        try:
            self.engine.comparison.settle()
        except psycopg.Error as error:
            logger.warning("could not write the last outcomes: %s", error_text(error))

    def close(self) -> None:
        """Stop the pool, the threads and the connections, and record that the worker stopped."""
        self.pool.stop()
        self.kill_timer.disarm()

        if self.watchdog.is_alive():
            self.watchdog.stop()
        if self.scheduler_loop is not None and self.scheduler_loop.is_alive():
            self.scheduler_loop.stop()
            self.scheduler_loop.join(STOP_SECONDS)

        self.outbox.receivers.stop()
        if self.maintenance.is_alive():
            self.maintenance.stop()
            logger.info("Worker stopped")

        if self.outbox.has_unwritten_entries:
            logger.error(
                "%s outcome(s) of tasks were not written, and %s task(s) were not released: other "
                "workers will rescue these tasks as crashed",
                self.outbox.unwritten,
                self.outbox.unreleased,
            )

        try:
            if self.outbox.connection is not None:
                WorkerStore(self.outbox.connection).stop(self.worker)
        except psycopg.Error as error:
            logger.warning("could not record that the worker stopped: %s", error_text(error))

        self.outbox.disconnect()
        self.engine.close()
        self.selector.close()


def actor_name() -> str:
    return f"worker on {socket.gethostname()}"


def time_limits(config: Config) -> TimeLimits:
    """Return how long tasks may run, and how long children may take to become ready."""
    ready_seconds = config.recovery.child_ready_timeout_ms / 1000
    return TimeLimits(
        in_seconds(config.task_timeout_ms), config.kill_grace_ms / 1000, ready_seconds
    )


def in_seconds(count: int | None) -> float | None:
    return None if count is None else count / 1000
