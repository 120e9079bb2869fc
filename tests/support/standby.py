"""A primary and its synchronous standby: real servers.

The standby takes over when the primary is killed. A commit is confirmed when the standby has it,
too. After ``fail_over`` there is no standby, and commits do not wait, until ``attach`` has made one
of the other server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil

from example_project.owned_directory import owned_directory
from example_project.postgres import (
    PREFIX,
    SETTINGS,
    Cluster,
    _free_port,
    private_cluster,
    stop_server,
)
from example_project.postgres_binaries import PostgresError
from tests.support.deadlines import wait_until
from tests.support.server import Server

SYNCHRONOUS = """
SELECT EXISTS (SELECT FROM pg_stat_replication
               WHERE state = 'streaming' AND sync_state = 'sync'
                 AND flush_lsn >= %(written)s::pg_lsn)
"""


class Pair(Server):
    """Two servers; the inherited methods concern the current primary."""

    def __init__(self, cluster: Cluster, other: Cluster) -> None:
        super().__init__(cluster)
        self.other = Server(other)

    def prepare(self) -> None:
        """Start both servers."""
        super().prepare()
        self.other.port = _free_port()
        self.attach()

    @property
    def url(self) -> str:
        """The URL of the database for the role ``app``, whichever server is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in sorted({self.port, self.other.port} - {0}))
        options = "target_session_attrs=read-write&connect_timeout=2"
        return f"postgresql://app:secret@{hosts}/{self.database}?{options}"

    def attach(self) -> None:
        """Make the other server a standby by a fresh copy; commits wait for it from then on.

        Raises RuntimeError.
        """
        copy = self.other.cluster.home / "data"
        shutil.rmtree(copy, ignore_errors=True)

        source = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        done = self.other.cluster._run(
            "pg_basebackup",
            "-D",
            str(copy),
            *source,
            "-w",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed: {done.stderr.strip()}")

        self.other.process = self.other.cluster.start(SETTINGS | {"port": self.other.port})
        if not self.other.cluster.becomes_ready(self.other.process):
            raise RuntimeError(
                (self.other.cluster.home / "log").read_text(errors="replace")[-3000:]
            )

        self.superuser("ALTER SYSTEM SET synchronous_standby_names = '*'", database="postgres")
        self.superuser("SELECT pg_reload_conf()", database="postgres")
        wait_until(
            lambda: self.shown("synchronous_standby_names") == "*", "the setting is in force"
        )

        written = self.superuser("SELECT pg_current_wal_insert_lsn()::text", database="postgres")[
            0
        ][0]
        query = SYNCHRONOUS.replace("%(written)s", f"'{written}'")
        wait_until(
            lambda: self.superuser(query, database="postgres")[0][0],
            "the standby has all that was written",
        )

    def shown(self, setting: str) -> str:
        """Return a setting as a new session has it."""
        return str(self.superuser(f"SHOW {setting}", database="postgres")[0][0])

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Stop the standby's receiver; the changes sent meanwhile never reach the standby."""
        processes = psutil.Process(self.other.process.pid).children()
        (receiver,) = (one for one in processes if "walreceiver" in " ".join(one.cmdline()))
        receiver.suspend()

        try:
            yield
        finally:
            receiver.terminate()  # before it reads the data in its socket
            receiver.resume()

    def promote(self) -> None:
        """Promote the standby; the former primary becomes the other server.

        Return when the new primary accepts writes.
        """
        self.cluster, self.other.cluster = self.other.cluster, self.cluster
        self.process, self.other.process = self.other.process, self.process
        self.port, self.other.port = self.other.port, self.port
        assert self.superuser("SELECT pg_promote()", database="postgres") == [(True,)]


@contextmanager
def private_pair() -> Iterator[Pair]:
    """Run both servers and remove them at the end.

    Raises PostgresError if a server or pg_basebackup cannot be run.
    """
    with private_cluster() as cluster, owned_directory(PREFIX) as home:
        if not (cluster.binaries / "pg_basebackup").exists():
            raise PostgresError(f"there is no pg_basebackup in {cluster.binaries}")

        # A variable passes the password to pg_basebackup and standbys: arguments are visible to all
        # users.
        cluster.environment["PGPASSWORD"] = cluster.password

        other = replace(cluster, home=home)
        other.prepare_binaries()
        pair = Pair(cluster, other)

        try:
            pair.prepare()
            yield pair
        finally:
            for server in (pair.other, pair):
                if hasattr(server, "process"):
                    stop_server(server.process)
