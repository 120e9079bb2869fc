"""The database is there and refuses: read-only, no more connections, no space, no time, no such function."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import wait_until
from tests.support.server import Lingering, Server
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
TRY = "the database is not available, next try in"
REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;
CREATE TRIGGER refusing BEFORE UPDATE ON horsies_tasks FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION refuse()
"""
RAISE = "RAISE EXCEPTION 'the test refuses this' USING ERRCODE = '{}';"


def settles_in_the_end(server: Server, process: WorkerProcess, task: Lingering) -> None:
    """The outcome that could not be written is written, once, by the same worker, which then goes on as usual."""
    row = server.becomes(task.id, "COMPLETED")
    assert (row["attempts"], row["claim_generation"]) == (1, 1)
    assert task.ran_once()
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


REFUSALS = {
    "disk full": RAISE.format("53100"),
    "out of memory": RAISE.format("53200"),
    "serialization failure": RAISE.format("40001"),
    "deadlock": RAISE.format("40P01"),
    "lock not available": RAISE.format("55P03"),
    "a code that nobody expects": RAISE.format("72000"),
    "statement timeout": "PERFORM pg_sleep(60);",
}


@pytest.mark.promise("S2.13")
def test_an_outcome_that_is_refused_for_now_waits_and_is_written_later(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    server.superuser("ALTER ROLE app SET statement_timeout = '500ms'")
    process = worker("--processes=1", **server.environment).ready()
    for name, body in REFUSALS.items():
        task = Lingering(server, tmp_path / name.replace(" ", "-"))
        task.runs()
        server.superuser(REFUSING.format(body=body))
        tries = process.log.count(TRY)
        task.end()
        wait_until(lambda tries=tries: process.log.count(TRY) >= tries + 2, f"{name}: it tries again")
        assert server.status(task.id) == "RUNNING", name
        server.superuser("DROP FUNCTION refuse CASCADE")
        row = server.becomes(task.id, "COMPLETED")
        assert (row["attempts"], row["claim_generation"]) == (1, 1), name
        assert task.ran_once(), name
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_a_server_that_became_read_only_is_left_and_looked_at_now_and_then(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker("--processes=1", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    before = {pid for name in ("engine", "maintenance") for pid in server.backends(f"horsies {name}")}
    server.superuser("ALTER SYSTEM SET default_transaction_read_only = on")
    server.superuser("SELECT pg_reload_conf()")
    wait_until(lambda: "read-only transaction" in process.log, "its sessions have heard of it")
    task.end()
    wait_until(lambda: process.log.count("session is read-only") >= 3, "new sessions are refused")
    left = lambda: {pid for name in ("engine", "maintenance") for pid in server.backends(f"horsies {name}")}  # noqa: E731
    wait_until(lambda: not left() & before, "its sessions are left")
    assert server.status(task.id) == "RUNNING"
    server.superuser("ALTER SYSTEM RESET default_transaction_read_only")
    server.superuser("SELECT pg_reload_conf()")
    settles_in_the_end(server, process, task)


def test_a_worker_that_finds_no_connection_free_comes_back_when_there_is_one(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    process = worker("--processes=1", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    server.superuser(f"ALTER DATABASE {server.database} CONNECTION LIMIT 0")
    server.superuser("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'horsies %'")
    task.end()
    wait_until(lambda: process.log.count("too many connections") >= 3, "it is refused")
    server.superuser(f"ALTER DATABASE {server.database} CONNECTION LIMIT -1")
    settles_in_the_end(server, process, task)
    assert "LISTEN failed; polling" in process.log


def test_a_database_without_this_version_s_functions_ends_the_worker_with_a_clear_message(
    worker: Start, server: Server
) -> None:
    process = worker("--processes=1", **server.environment).ready()
    server.superuser("ALTER FUNCTION horsies_pass RENAME TO gone")
    assert process.wait() == 1
    assert "cannot serve this worker (SQLSTATE 42883, 6 times in a row)" in process.log
    assert "migrations" in process.log
    assert "Traceback" not in process.log


def test_functions_that_come_back_in_time_do_not_end_it(worker: Start, server: Server, tmp_path: Path) -> None:
    process = worker("--processes=1", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    server.superuser("ALTER TABLE horsies_tasks RENAME TO away")
    task.end()
    wait_until(lambda: process.log.count(TRY) >= 2, "it tries again")
    server.superuser("ALTER TABLE away RENAME TO horsies_tasks")
    settles_in_the_end(server, process, task)


@pytest.fixture
def small_disk(server: Server, tmp_path: Path) -> Iterator[Path]:
    """Put the table of tasks onto a disk of 16 MB."""
    disk = server.cluster.home / f"small-{server.database}"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        disk.rmdir()
        pytest.skip(f"no small disk can be mounted here: {mount.stderr.strip()}")
    try:
        space = disk / "space"
        space.mkdir()
        if server.cluster.user:
            os.chown(space, server.cluster.user.pw_uid, server.cluster.user.pw_gid)
            space.chmod(0o700)
        name = f"small_{server.database}"
        server.superuser(f"CREATE TABLESPACE {name} LOCATION '{space}'")
        server.superuser(f"ALTER TABLE horsies_tasks SET TABLESPACE {name}")
        yield disk
        server.superuser("ALTER TABLE horsies_tasks SET TABLESPACE pg_default")
        server.superuser(f"DROP TABLESPACE {name}")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_full_keeps_outcomes_waiting_until_there_is_space(
    worker: Start, server: Server, tmp_path: Path, small_disk: Path
) -> None:
    process = worker("--processes=1", **server.environment).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass  # that is full
    with pytest.raises(psycopg.errors.DiskFull):
        for _ in range(1_000):  # until the pages that the table has are full too
            server.superuser(
                "INSERT INTO horsies_tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), "
                "'status', 'PENDING', 'claimed_by', null, 'claimed_at', null, 'started_at', null, 'claim_generation', 0, "
                "'enqueued_at', now() + interval '1 day'))).* FROM horsies_tasks t LIMIT 1"
            )
    task.end()
    wait_until(lambda: process.log.count(TRY) >= 2, "it tries again, and waits between")
    assert "No space left on device" in process.log
    filler.unlink()
    settles_in_the_end(server, process, task)
