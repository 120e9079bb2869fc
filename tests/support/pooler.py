"""PgBouncer in transaction mode before a PostgreSQL server, for tests through a pooler."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

START_SECONDS = 20
CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = plain
auth_file = {home}/users
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_login_retry = 1
server_tls_sslmode = disable
logfile = {home}/log
"""


class PoolerError(Exception):
    """PgBouncer cannot be used here; the message says why."""


@contextmanager
def transaction_pooler(url: str) -> Iterator[str]:
    """Run PgBouncer before the server of ``url`` and yield the URL through it.

    Raises PoolerError if PgBouncer is not installed.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise PoolerError("PgBouncer is not installed (Debian: apt-get install pgbouncer)")

    parts = urlsplit(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own_port = probe.getsockname()[1]

    home = Path(tempfile.mkdtemp(prefix="horsies-pooler-", dir="/tmp"))
    (home / "users").write_text(
        f'"{unquote(parts.username or "")}" "{unquote(parts.password or "")}"\n'
    )
    configuration = CONFIGURATION.format(
        host=parts.hostname, port=parts.port or 5432, own_port=own_port, home=home
    )
    (home / "pgbouncer.ini").write_text(configuration)

    process = subprocess.Popen(
        [program, "-q", str(home / "pgbouncer.ini")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **_unprivileged(home),
    )

    try:
        _wait_for(own_port, process, home)
        yield parts._replace(
            netloc=f"{parts.username}:{parts.password}@127.0.0.1:{own_port}"
        ).geturl()
    finally:
        # It does not wait for clients: some of them never leave.
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        shutil.rmtree(home, ignore_errors=True)


def _unprivileged(home: Path) -> dict[str, object]:
    """Return a user for PgBouncer, which refuses to run as root.

    As root it runs as `nobody`, who becomes the owner of its files.
    """
    if os.geteuid():
        return {}

    user = pwd.getpwnam("nobody")
    for path in (home, *home.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait_for(port: int, process: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            continue
        return

    log = home / "log"
    raise PoolerError(
        f"PgBouncer did not start: {log.read_text() if log.exists() else process.poll()}"
    )
