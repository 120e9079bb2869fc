"""A PostgreSQL server that a test may stop, kill and start, and helpers that query it.

Tests use SQL on connections of their own: the Django of the test process stays on the test
database.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg.rows import dict_row

from example_project.postgres import SETTINGS, Cluster, private_cluster, stop_server
from horsies_django.core.records import NewTasks
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7
from tests.support.deadlines import wait_until

ROOT = Path(__file__).parents[2]
TEMPLATE = "migrated"
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "postmaster": signal.SIGKILL}


class Server:
    """One server; its databases belong to the plain role ``app``, which has connection limits."""

    process: subprocess.Popen[bytes]
    writer: psutil.Process | None = (
        None  # the process that writes asynchronous commits, while it is suspended
    )

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.port = 0
        self.database = TEMPLATE
        self.count = 0

    # The server

    def prepare(self) -> None:
        """Start it for the first time, and migrate the database that all others are copied from."""
        with self.cluster.running(dict(SETTINGS), None) as port:
            self.port = port
        self.start()

        self.superuser("CREATE ROLE app LOGIN PASSWORD 'secret'", database="postgres")
        self.superuser(f"CREATE DATABASE {TEMPLATE} OWNER app", database="postgres")

        command = [sys.executable, "-m", "django", "migrate", "--verbosity=0"]
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, **self.environment}, check=True, timeout=120
        )

    def start(self) -> None:
        """Start it, on the same port, and wait until it is ready."""
        (self.cluster.home / "data" / "postmaster.pid").unlink(missing_ok=True)
        self.process = self.cluster.start(SETTINGS | {"port": self.port})
        assert self.cluster.becomes_ready(self.process), (self.cluster.home / "log").read_text(
            errors="replace"
        )

    def hold_back(self) -> None:
        """Keep asynchronous commits in memory from now on.

        A crash loses those that no synchronous commit followed.
        """
        self.superuser("CHECKPOINT")
        self.writer = self.walwriter()
        assert self.writer is not None
        self.writer.suspend()

    def walwriter(self) -> psutil.Process | None:
        """Return the process that writes asynchronous commits; None while the server recovers."""
        children = psutil.Process(self.process.pid).children()
        return next((one for one in children if "walwriter" in command_of(one)), None)

    def crash(self) -> None:
        """Crash it: it ends all sessions and recovers without being started again."""
        writer = self.walwriter()
        assert writer is not None
        writer.kill()
        self.writer = None
        wait_until(lambda: self.walwriter() not in (None, writer), "the server has recovered")

    def stop(self, how: str = "immediate") -> None:
        """End it, and wait until all its processes are gone.

        ``how`` is a "fast" or "immediate" shutdown, or a kill of the "postmaster".
        """
        processes = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(SIGNALS[how])

        if self.writer is not None:
            self.writer.kill()  # a suspended process gets no other signal
            self.writer = None

        self.process.wait(30)
        wait_until(
            lambda: not any(one.is_running() for one in processes),
            "all processes of the server are gone",
        )

    def refresh(self) -> None:
        """Create an empty, migrated database for one test."""
        self.count += 1
        self.database = f"outage_{self.count}"
        self.superuser(
            f"CREATE DATABASE {self.database} TEMPLATE {TEMPLATE} OWNER app", database="postgres"
        )

    def restore(self) -> None:
        """Undo the changes of a test to the server."""
        if self.writer is not None:
            with suppress(psutil.NoSuchProcess):
                self.writer.resume()
            self.writer = None

        if self.process.poll() is not None:
            self.start()

        self.superuser("ALTER SYSTEM RESET ALL", database="postgres")
        self.superuser("ALTER ROLE app RESET ALL", database="postgres")
        self.superuser("SELECT pg_reload_conf()", database="postgres")

    # Statements and queries of tests

    def superuser(self, statement: str, *, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser, even while sessions are read-only by default."""
        with psycopg.connect(
            self.cluster.url(database or self.database, self.port),
            autocommit=True,
            options="-c default_transaction_read_only=off",
        ) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    @property
    def url(self) -> str:
        """The URL of the database for the role ``app``."""
        parts = urlsplit(self.cluster.url(self.database, self.port))
        return parts._replace(netloc=f"app:secret@127.0.0.1:{self.port}").geturl()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a worker of this server."""
        return {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}

    def send(
        self, name: str, /, *, queue: str = "default", lane: str = "sync", **kwargs: Any
    ) -> Any:
        """Send a task of the test project and return its id."""
        id_ = uuid7()
        columns: dict[str, Any] = {
            "lane": lane,
            "priority": 100,
            "ids": [id_],
            "kwargs": [json.dumps(kwargs)],
        }
        with psycopg.connect(
            self.cluster.url(self.database, self.port), autocommit=True
        ) as connection:
            TaskStore(connection).send(
                NewTasks(task_name=f"tests.apps.project.tasks.{name}", queue_name=queue, **columns)
            )
        return id_

    def task(self, id_: Any) -> dict[str, Any]:
        """Return a task's row, with ``attempts``: the number of its recorded attempts."""
        with psycopg.connect(
            self.cluster.url(self.database, self.port), row_factory=dict_row
        ) as connection:
            query = (
                "SELECT t.*, (SELECT count(*) FROM horsies_task_attempts a WHERE a.task_id = t.id) "
                "AS attempts "
                "FROM horsies_tasks t WHERE t.id = %s"
            )
            return dict(connection.execute(query, [id_]).fetchone() or {})

    def status(self, id_: Any) -> str:
        return str(self.task(id_)["status"])

    def becomes(self, id_: Any, status: str) -> dict[str, Any]:
        """Wait until a task has that status, and return its row."""
        wait_until(lambda: self.status(id_) == status, f"task {id_} is {status}")
        return self.task(id_)

    def backends(self, name: str) -> list[int]:
        """Return the process ids of the sessions with that application name."""
        query = (
            f"SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, '{name}') AND "
            "datname = current_database()"
        )
        return [row[0] for row in self.superuser(query)]


@contextmanager
def private_server() -> Iterator[Server]:
    """Run a server and remove it at the end. Raises PostgresError."""
    with private_cluster() as cluster:
        server = Server(cluster)
        try:
            server.prepare()
            yield server
        finally:
            stop_server(server.process)


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process, or "" if it has ended: backends come and go."""
    try:
        return "".join(process.cmdline())
    except psutil.Error:
        return ""


class Lingering:
    """A ``linger`` task and the file that it writes to."""

    def __init__(self, server: Server, path: Path, name: str = "linger") -> None:
        self.server = server
        self.path = path
        self.id = server.send(name, path=str(path))

    @property
    def lines(self) -> list[list[str]]:
        return (
            [line.split() for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )

    def runs(self) -> int:
        """Wait until it runs and return the id of its process."""
        wait_until(lambda: self.lines, "the task runs")
        return int(self.lines[0][1])

    def end(self) -> None:
        """Signal it to end, and wait until its code has ended."""
        Path(f"{self.path}.go").touch()
        wait_until(lambda: len(self.lines) == 2, "the task's code ends")

    def completes_once(self) -> dict[str, Any]:
        """Wait for its end, check that one attempt of one process wrote it, and return its row."""
        row = self.server.becomes(self.id, "COMPLETED")
        assert row["attempts"] == 1
        assert self.ran_once()
        return row

    def ran_once(self) -> bool:
        """Whether exactly one process ran it, from its beginning to its end."""
        return [line[0] for line in self.lines] == ["began", "ended"] and len(
            {line[1] for line in self.lines}
        ) == 1
