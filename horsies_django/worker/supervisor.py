"""The supervisor: checks that the worker can run, puts its parts together, listens to signals, and takes them apart again."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psycopg
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from horsies_django import __version__, registry
from horsies_django.conf import Config
from horsies_django.core.errors import WorkerStartError
from horsies_django.store.notify import Listener
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import Served
from horsies_django.store.workers import WorkerStore
from horsies_django.worker.engine import Engine
from horsies_django.worker.heart import Heart
from horsies_django.worker.ledger import Ledger
from horsies_django.worker.options import WorkerOptions
from horsies_django.worker.pool import Pool

logger = logging.getLogger("horsies.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """One run of one worker. ``run`` returns the exit code: 0 when every task it started was finished and written."""

    def __init__(self, config: Config, options: WorkerOptions) -> None:
        self.config = config
        self.options = options
        self.worker = uuid.uuid4()
        self.selector = selectors.DefaultSelector()
        served = served_queues(config, options)
        behind_pooler = config.listen_database is not None
        self.pool = Pool(options, self.selector)
        self.ledger = Ledger(config.database, self.worker, served, prepare=not behind_pooler)
        listener = Listener(config.listen_database or config.database, "_new", application_name="horsies listener")
        self.engine = Engine(self.pool, self.ledger, listener, config.resilience, self.selector)
        self.engine.until_empty = options.until_empty
        self.heart = Heart(config.listen_database or config.database, self.worker, os.getpid(), self.engine)
        self.signals_seen = 0
        self.stop_by: float | None = None

    def run(self) -> int:
        """Start, work, stop. Raises WorkerStartError, and DatabaseGaveUp when the database stays away too long."""
        refuse_unready_project(self.config)
        with self.signals():
            try:
                self.start()
                finished = self.engine.run(lambda: self.stop_by)
                return 0 if finished else self.end_tasks()
            finally:
                self.close()

    def start(self) -> None:
        """Open the connections, start the pool, and appear in the tables."""
        try:
            self.ledger.connect()
        except psycopg.Error as error:
            raise WorkerStartError(f"the database cannot be reached: {str(error).strip()}") from error
        self.declare_queues()
        self.announce()
        self.pool.start()
        WorkerStore(self.ledger.connection_or_raise()).register(
            self.worker,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=self.ledger.served.queues,
            processes=self.options.processes,
            threads=self.options.threads,
            async_concurrency=self.options.async_concurrency,
        )
        self.heart.start()

    def declare_queues(self) -> None:
        """Add queues that are not in the table; say where table and settings differ, and leave the table as it is."""
        store = QueueStore(self.ledger.connection_or_raise())
        queues = [self.config.queues[name] for name in self.options.queues]
        store.insert_missing(queues)
        for queue in queues:
            if (priority := store.priorities([queue.name]).get(queue.name)) != queue.priority:
                logger.warning(
                    "queue %s: this worker's settings say priority %s, the table says %s; this worker follows its settings",
                    queue.name, queue.priority, priority,
                )  # fmt: skip

    def announce(self) -> None:
        """Log how this worker is set up (S1.51)."""
        options = self.options
        logger.info(
            "Concurrency config: processes=%s, cluster_wide_cap=%s, max_claim_per_worker=%s, max_claim_batch=%s",
            options.processes, None, options.sync_slots, 0,
        )  # fmt: skip
        logger.info(
            "Slots: %s sync (%s threads per process), %s async (%s coroutines per process); queues: %s",
            options.sync_slots, options.threads, options.async_slots, options.async_concurrency, ", ".join(options.queues),
        )  # fmt: skip
        if options.processes == 0:
            logger.warning(
                "--processes=0: tasks run in the worker's own process, so a task that crashes it takes the worker along"
            )

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT; a byte per signal wakes the engine's selector."""
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        before = {number: signal.signal(number, self.on_signal) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        self.selector.register(here, selectors.EVENT_READ, (here.recv, 100))
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.selector.unregister(here)
            here.close()
            there.close()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First signal: claim no more and finish what runs. Second: end it now."""
        self.signals_seen += 1
        self.engine.stop()
        self.stop_by = time.monotonic() + (self.options.shutdown_timeout if self.signals_seen == 1 else 0.0)

    def end_tasks(self) -> int:
        """End the running tasks, which count as crashed, write that down if the database is there, and return 1."""
        count = self.pool.running("sync") + self.pool.running("async")
        logger.error("stopping now: %s running task(s) are ended", count)
        self.pool.kill("was ended while the worker shut down")
        self.engine.turn(0.0)
        return 1

    def close(self) -> None:
        """End the pool, the heart and the connections; the worker's row says that it stopped."""
        self.pool.stop()
        if self.heart.is_alive():
            self.heart.stop()
            logger.info("Worker stopped")
        try:
            if self.ledger.connection is not None:
                WorkerStore(self.ledger.connection).stop(self.worker)
        except psycopg.Error as error:
            logger.warning("the worker's end could not be noted: %s", str(error).strip())
        self.ledger.disconnect()
        self.engine.listener.close()


def served_queues(config: Config, options: WorkerOptions) -> Served:
    """Return the queues that a worker serves, in the order of their priorities. Raises WorkerStartError for unknown ones."""
    if unknown := [name for name in options.queues if name not in config.queues]:
        raise WorkerStartError(
            f"--queues: {', '.join(map(repr, unknown))} not declared; HORSIES['QUEUES'] has: {', '.join(sorted(config.queues))}"
        )
    return Served({name: config.queues[name].priority for name in options.queues})


def refuse_unready_project(config: Config) -> None:
    """Raise WorkerStartError when the database, its schema or the project's tasks are not there."""
    connection = connections[config.database]
    try:
        executor = MigrationExecutor(connection)
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "horsies"]
        missing = [migration.name for migration, _ in executor.migration_plan(targets)]
    except DatabaseError as error:
        raise WorkerStartError(f"the database {config.database!r} cannot be used: {str(error).strip()}") from error
    finally:
        connection.close()
        if getattr(connection, "pool", None):
            connection.close_pool()  # type: ignore[attr-defined]
    if missing:
        raise WorkerStartError(
            f"unapplied migrations of horsies: {', '.join(missing)}. Run 'python manage.py migrate --database={config.database}'"
        )
    if problems := registry.autodiscover():
        raise WorkerStartError("; ".join(f"importing {item.module} failed: {item.error!r}" for item in problems))
    if not registry.names():
        raise WorkerStartError(
            "no task is registered: decorate a function with @task in the tasks.py of an app in INSTALLED_APPS"
        )
