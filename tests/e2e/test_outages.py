"""Outages: the database is gone, refuses statements or falls silent, and comes back.

The worker goes on, no task is lost, and no task runs twice.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.apps.project import tasks
from tests.conftest import sql, wait_until
from tests.support.forwarder import Forwarder
from tests.support.server import Lingering, Server
from tests.support.workers import Busy, Start, WorkerProcess, given

SHORT = {"HORSIES_TEST_STALE_MS": "4000"}
TRY = "the database is not available, next try in"
# By the pauses of tests.settings, a worker that failed so often has been without its database for
# 4.9 s at least.
TRIES_IN_A_LONG_OUTAGE = 10


def taken_in(process: WorkerProcess) -> None:
    """Wait until the worker has noticed that the database is gone."""
    wait_until(lambda: TRY in process.log, "the worker notices")


def settles_in_the_end(server: Server, process: WorkerProcess, *lingering: Lingering) -> None:
    """Check that the same worker writes the unwritten outcomes once, and then goes on as usual."""
    for task in lingering:
        assert task.completes_once()["claim_generation"] == 1
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.promise("S2.13", "S3.14")
@pytest.mark.parametrize("how", ["immediate", "postmaster"])
@pytest.mark.boundary
def test_tasks_that_end_during_an_outage_are_settled_after_it(
    busy: Busy, server: Server, tmp_path: Path, how: str
) -> None:
    """Tasks that end while the server is down are settled when it is back."""
    process, one = busy("--processes=2")
    two = Lingering(server, tmp_path / "two")
    two.runs()

    server.stop(how)
    one.end()
    two.end()
    taken_in(process)
    server.start()

    settles_in_the_end(server, process, one, two)


@pytest.mark.boundary
def test_a_killed_backend_loses_no_task(busy: Busy, server: Server) -> None:
    """A killed backend makes the server restart, and no task is lost."""
    process, task = busy("--processes=2")
    (engine,) = server.backends("horsies engine")

    os.kill(engine, signal.SIGKILL)
    taken_in(process)
    wait_until(
        lambda: "the database is available again" in process.log, "the server recovers by itself"
    )

    server.becomes(server.send("add", a=1), "COMPLETED")
    task.end()
    settles_in_the_end(server, process, task)


def test_a_task_whose_outcome_the_server_lost_runs_again(busy: Busy, server: Server) -> None:
    """A task runs again if the server lost its outcome, as after an asynchronous failover.

    The outcome was committed and confirmed, but its WAL record was still in the server's memory
    when the server crashed.
    """
    server.superuser("ALTER ROLE app SET synchronous_commit = off")
    process, task = busy()
    server.hold_back()

    task.end()
    server.becomes(task.id, "COMPLETED")
    server.crash()

    wait_until(lambda: len(task.lines) == 4, "it runs again")
    row = server.becomes(task.id, "COMPLETED")
    assert (row["attempts"], row["claim_generation"], row["retry_count"]) == (1, 2, 0)
    assert "releasing 1 task(s) that were claimed and never received" in process.log
    assert process.stop() == 0


def test_a_long_outage_makes_no_worker_count_as_dead(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """No worker is declared dead after an outage that was longer than the threshold."""
    workers = [worker("--processes=1", **server.environment, **SHORT).ready() for _ in range(2)]
    lingering = [Lingering(server, tmp_path / name) for name in ("one", "two")]
    children = [task.runs() for task in lingering]
    living = {str(id_) for (id_,) in server.superuser("SELECT id FROM horsies_workers")}

    server.stop()
    wait_until(
        lambda: all(process.log.count(TRY) >= TRIES_IN_A_LONG_OUTAGE for process in workers),
        "the outage lasts longer than the threshold",
    )
    assert all(psutil.pid_exists(child) for child in children)

    server.start()
    wait_until(
        lambda: all("the heartbeat succeeds again" in process.log for process in workers),
        "both beat",
    )

    dead = uuid.uuid4()
    server.superuser(
        "INSERT INTO horsies_heartbeats (id, worker_id, role, pid, sent_at) "
        f"VALUES ('{dead}', '{dead}', 'claimer', 1, now() - interval '1 hour')"
    )

    judged = wait_until(
        lambda: server.superuser("SELECT id FROM horsies_heartbeats WHERE died_at IS NOT NULL"),
        "somebody is judged",
    )
    # Not the workers whose last heartbeat before the outage is as old as the outage.
    assert judged == [(dead,)]

    for task in lingering:
        task.end()
        assert task.completes_once()["claim_generation"] == 1

    for process in workers:
        assert living & set(re.findall(r"worker (\S+) sent no heartbeat", process.log)) == set()
        assert "declared dead" not in process.log
        assert process.stop() == 0


@pytest.mark.parametrize(
    "options", [("--processes=1",), ("--processes=1", "--start-method=spawn")], ids=" ".join
)
def test_a_worker_that_may_not_outlive_its_claims_ends_its_tasks(
    busy: Busy, server: Server, options: tuple[str, ...]
) -> None:
    """A worker with ``ON_CUT_OFF = "kill"`` ends its tasks when it is cut off."""
    process, task = busy(*options, **SHORT, **given(RECOVERY={"ON_CUT_OFF": "kill"}))
    child = task.runs()

    server.stop()
    wait_until(lambda: not psutil.pid_exists(child), "its process is gone while the server is down")
    server.start()

    row = server.becomes(task.id, "FAILED")
    assert (row["error_code"], row["attempts"]) == ("WORKER_CRASHED", 1)
    assert len(task.lines) == 1

    server.becomes(server.send("add", a=1), "COMPLETED")
    assert "ON_CUT_OFF" in process.log
    assert process.stop() == 0


@pytest.mark.promise("S2.18")
def test_a_worker_gives_up_after_the_configured_number_of_tries(
    worker: Start, server: Server
) -> None:
    """A worker gives up after ``DB_RETRY_MAX_ATTEMPTS`` tries."""
    few = given(RESILIENCE={"DB_RETRY_MAX_ATTEMPTS": 2})
    process = worker("--processes=1", **server.environment, **few).ready()

    server.stop()

    assert process.wait() == 1
    assert "the database is not available, and RESILIENCE allows no further try" in process.log
    assert process.log.count(TRY) == 2


@pytest.mark.promise("S2.20")
def test_past_outages_do_not_count_towards_the_limit_of_tries(
    worker: Start,
) -> None:
    """Tries of past outages do not count towards ``DB_RETRY_MAX_ATTEMPTS``."""
    process = worker("--processes=1", **given(RESILIENCE={"DB_RETRY_MAX_ATTEMPTS": 3})).ready()

    for outages in range(1, 6):
        sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'horsies engine' AND datname = current_database()"
        )
        assert tasks.noop.send().get(30_000).is_ok()
        assert process.log.count("the database is available again") == outages

    assert process.stop() == 0


# Refusals: read-only, no more connections, no space, no time, no such function

REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;
CREATE TRIGGER refusing BEFORE UPDATE ON horsies_tasks FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION refuse()
"""
RAISE = "RAISE EXCEPTION 'the test refuses this' USING ERRCODE = '{}';"
REFUSALS = {
    "disk full": RAISE.format("53100"),
    "a code that nobody expects": RAISE.format("72000"),
    "statement timeout": "PERFORM pg_sleep(60);",
}


@pytest.mark.promise("S2.13")
def test_an_outcome_that_is_refused_for_now_is_written_later(
    worker: Start, server: Server, tmp_path: Path
) -> None:
    """An outcome that is refused for now is kept and written later."""
    server.superuser("ALTER ROLE app SET statement_timeout = '500ms'")
    process = worker("--processes=1", **server.environment).ready()

    for name, body in REFUSALS.items():
        task = Lingering(server, tmp_path / name.replace(" ", "-"))
        task.runs()
        server.superuser(REFUSING.format(body=body))

        tries = process.log.count(TRY)
        task.end()
        wait_until(
            lambda tries=tries: process.log.count(TRY) >= tries + 2, f"{name}: it tries again"
        )
        assert server.status(task.id) == "RUNNING", name

        server.superuser("DROP FUNCTION refuse CASCADE")
        assert task.completes_once()["claim_generation"] == 1, name

    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_a_worker_closes_its_sessions_on_a_read_only_server(busy: Busy, server: Server) -> None:
    """A worker closes its sessions on a read-only server, and tries new ones now and then."""
    process, task = busy()

    def sessions() -> set[int]:
        return {
            pid for name in ("engine", "maintenance") for pid in server.backends(f"horsies {name}")
        }

    before = sessions()
    server.superuser("ALTER SYSTEM SET default_transaction_read_only = on")
    server.superuser("SELECT pg_reload_conf()")
    wait_until(lambda: "read-only transaction" in process.log, "its sessions have heard of it")

    task.end()
    wait_until(lambda: process.log.count("session is read-only") >= 3, "new sessions are refused")
    wait_until(lambda: not sessions() & before, "its sessions are left")
    assert server.status(task.id) == "RUNNING"

    server.superuser("ALTER SYSTEM RESET default_transaction_read_only")
    server.superuser("SELECT pg_reload_conf()")
    settles_in_the_end(server, process, task)


def test_a_worker_waits_for_a_free_connection(busy: Busy, server: Server) -> None:
    """A worker that finds no free connection comes back when there is one."""
    process, task = busy()
    server.superuser(f"ALTER DATABASE {server.database} CONNECTION LIMIT 0")
    server.superuser(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE "
        "'horsies %'"
    )

    task.end()
    wait_until(lambda: process.log.count("too many connections") >= 3, "it is refused")

    server.superuser(f"ALTER DATABASE {server.database} CONNECTION LIMIT -1")
    settles_in_the_end(server, process, task)
    assert "LISTEN failed; polling" in process.log


def test_a_database_without_the_functions_ends_the_worker(worker: Start, server: Server) -> None:
    """A worker ends with a clear message if the database lacks the functions of this version."""
    process = worker("--processes=1", **server.environment).ready()
    server.superuser("ALTER FUNCTION horsies_pass RENAME TO gone")

    assert process.wait() == 1
    assert "cannot serve this worker (SQLSTATE 42883, 6 times in a row)" in process.log
    assert "migrations" in process.log
    assert "Traceback" not in process.log


# Silence: no error is reported


@pytest.mark.promise("S2.14")
def test_a_silent_listener_is_replaced_while_the_poll_goes_on(
    worker: Start, server: Server
) -> None:
    """A silent LISTEN connection is noticed and replaced, and the poll goes on meanwhile."""
    process = worker("--processes=1", **server.environment).ready()
    (silent,) = wait_until(lambda: server.backends("horsies listener"), "it listens")

    psutil.Process(silent).suspend()
    try:
        for number in range(3):  # the looks at the start are over before the last of them
            server.becomes(server.send("add", a=number), "COMPLETED")
        assert "is silent" not in process.log, (
            "the poll found them, and no look after another LISTEN"
        )

        wait_until(
            lambda: "the LISTEN connection is silent" in process.log, "the silence is noticed"
        )
        wait_until(
            lambda: "] notifications arrive again" in process.log, "another connection brings news"
        )

        # The old connection is not closed by the server yet.
        assert len(server.backends("horsies listener")) == 2
    finally:
        psutil.Process(silent).resume()

    wait_until(
        lambda: (
            server.backends("horsies listener")
            and silent not in server.backends("horsies listener")
        ),
        "it goes",
    )

    settles_in_the_end(server, process)


def test_silent_links_are_given_up_without_losing_an_outcome(busy: Busy, server: Server) -> None:
    """Silent connections are given up, and no outcome is lost with them."""
    with closing(Forwarder(server.port)) as link:
        process, task = busy(**link.way(server.url))
        wait_until(lambda: len(server.backends("horsies maintenance")) == 1, "its heart beats")

        link.freeze()
        task.end()
        task.completes_once()

        for name in ("engine", "maintenance"):
            wait_until(
                lambda name=name: f"the {name} thread got no answer" in process.log,
                f"the {name} was freed",
            )

        settles_in_the_end(server, process, task)

    assert "declared dead" not in process.log


def test_too_many_unwritten_outcomes_stop_claiming(worker: Start, server: Server) -> None:
    """A worker stops claiming at ``MAX_UNWRITTEN_OUTCOMES``, until the outcomes are written."""
    few = given(RESILIENCE={"MAX_UNWRITTEN_OUTCOMES": 100})
    process = worker(
        "--processes=1", "--async-concurrency=150", **server.environment, **few
    ).ready()

    held = [server.send("ahold", lane="async", name="held") for _ in range(100)]
    running = "SELECT count(*) FROM auth_group WHERE name LIKE 'held:%'"
    wait_until(lambda: server.superuser(running) == [(100,)], "all of them run")

    with psycopg.connect(server.url) as somebody:
        somebody.execute("SELECT id FROM horsies_tasks WHERE status = 'RUNNING' FOR UPDATE")
        server.superuser("DELETE FROM auth_group")
        wait_until(lambda: "100 outcomes could not be written yet" in process.log, "it says so")

        later = server.send("add", a=1)
        looks = "SELECT coalesce(max(seen_at), now() - interval '1 day') FROM horsies_workers"
        ((seen,),) = server.superuser(looks)
        wait_until(lambda: server.superuser(looks)[0][0] > seen, "the worker lives on")
        assert server.status(later) == "PENDING"

    server.becomes(later, "COMPLETED")
    for id_ in held:
        assert server.becomes(id_, "COMPLETED")["attempts"] == 1

    assert process.log.count("outcomes could not be written yet") == 1
    assert "enough outcomes are written" in process.log
    assert process.stop() == 0


# At the start

TRY_AT_START = "cannot be reached, next try in"


@pytest.mark.promise("S2.13")
def test_a_worker_that_starts_before_its_database_waits_for_it(
    worker: Start, server: Server
) -> None:
    id_ = server.send("add", a=1)
    server.stop()

    process = worker("--processes=1", **server.environment)
    wait_until(lambda: process.log.count(TRY_AT_START) >= 3, "it tries, and says so")
    assert "the database 'default' cannot be reached" in process.log

    server.start()
    server.becomes(id_, "COMPLETED")
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.promise("S2.18")
def test_a_worker_gives_up_at_its_start_after_its_last_try(worker: Start) -> None:
    """A worker also gives up at its start after ``DB_RETRY_MAX_ATTEMPTS`` tries."""
    nobody = "postgresql://app:secret@127.0.0.1:1/horsies"
    process = worker(
        "--processes=1", DATABASE_URL=nobody, **given(RESILIENCE={"DB_RETRY_MAX_ATTEMPTS": 2})
    )

    assert process.wait() == 1
    assert process.log.count(TRY_AT_START) == 2
    assert "cannot be reached, and RESILIENCE allows no further try" in process.log
    assert "Traceback" not in process.log
