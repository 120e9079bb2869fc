"""``manage.py horsies_status``: what it prints, its exit code, whom it answers, and what real workers give it to say."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import CommandError

from example_project.postgres import SETTINGS, _free_port, private_cluster, stop_server
from horsies_django.models import Task
from horsies_django.monitoring.health import ProblemCode
from tests.apps.project import tasks
from tests.conftest import put, wait_until
from tests.e2e.test_roles import SENDING, as_role, grant, url_of
from tests.e2e.test_roles import roles as roles
from tests.support.commands import ran
from tests.support.factories import TaskFactory, WorkerFactory, now
from tests.support.fresh import manage
from tests.support.workers import ROOT, Start, database_url, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)


def run(*words: str) -> tuple[int, str]:
    """Run the command here and return its exit code and what it printed."""
    return ran("horsies_status", *words)[:2]


def fails_in_one_line(done: subprocess.CompletedProcess[str], words: str) -> bool:
    """Whether the command had no answer, and said why."""
    return (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1) and words in done.stderr


def test_it_prints_queues_workers_and_the_database_and_ends_with_0_when_all_is_well() -> None:
    done = manage("horsies_status")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("default ")]
    assert "No worker is running" in done.stdout
    assert "PostgreSQL" in done.stdout
    assert "the primary, writable" in done.stdout
    assert done.stdout.endswith("Healthy.\n")


def test_it_ends_with_1_and_a_line_per_problem_that_says_what_to_do() -> None:
    TaskFactory(sent_at=now() - dt.timedelta(minutes=5))
    holder = WorkerFactory(hostname="web\x1b[2J", seen_at=now() - dt.timedelta(hours=1))
    TaskFactory(status="RUNNING", claimed_by=holder.id)
    code, text = run("--max-wait=60")
    found = text.partition("UNHEALTHY\n")[2].splitlines()
    assert code == 1
    assert [line.split(":")[0] for line in found] == [
        "  STALE_WORKER", "  NO_LIVING_WORKER", "WARNINGS", "  WAITS_TOO_LONG",
    ]  # fmt: skip
    assert "manage.py horsies_worker --queues=default" in found[1]
    assert "\x1b" not in text, "what would move the cursor is no text"


def test_it_prints_json_for_machines() -> None:
    put(3)
    code, text = run("--json")
    found: dict[str, Any] = json.loads(text)
    assert (code, found["healthy"]) == (1, False)
    assert [problem["code"] for problem in found["problems"]] == ["NO_LIVING_WORKER"]
    (default,) = [queue for queue in found["queues"] if queue["name"] == "default"]
    assert (default["pending"], default["running"], default["workers"], default["paused"]) == (3, 0, 0, False)
    assert default["oldest_seconds"] >= 0
    assert dt.datetime.fromisoformat(found["database"]["clock"]).utcoffset() is not None
    assert {"connections", "max_connections", "notify_queue", "dead_rows", "xmin_holders"} <= set(found["database"])


def test_what_keeps_it_from_an_answer_is_one_line_and_2(
    roles: None, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gone = urlsplit(database_url())._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
    unreachable = "horsies_status: the database 'default' cannot be reached: connection"
    assert fails_in_one_line(manage("horsies_status", DATABASE_URL=gone), unreachable)
    conn = connect()
    with conn.transaction():
        conn.execute("LOCK TABLE horsies_audit IN SHARE MODE")
        assert fails_in_one_line(manage("horsies_status", DATABASE_URL=url_of("site")), "permission denied")
        conn.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        done = manage("horsies_status", "--timeout=0.5")
        assert (done.returncode, done.stderr) == (1, "")
        assert f"  BLOCKED: process {conn.info.backend_pid} " in done.stdout


def test_an_option_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(CommandError, match="'soon' is not a number of seconds"):
        run("--max-wait=soon")


def test_every_problem_has_its_place_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "status.md").read_text()
    assert [code for code in ProblemCode if f"| `{code}` |" not in text] == []


def test_a_role_without_rights_to_monitor_gets_an_answer_and_is_told_what_it_cannot_see(
    roles: None, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    grant(SENDING)
    put(2)
    holder = connect()
    with holder.transaction():
        holder.execute("SET LOCAL application_name = 'a long report'")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        as_role("site")
        code, text = run("--json")
        found = json.loads(text)
        as_role(None)
    assert code == 1
    assert [problem["code"] for problem in found["problems"]] == ["NO_LIVING_WORKER"]
    assert 2 <= found["database"]["connections"] <= found["database"]["max_connections"]
    (hidden,) = [one for one in found["database"]["xmin_holders"] if one["pid"] == holder.info.backend_pid]
    assert (hidden["name"], hidden["seconds"], hidden["state"]) == ("a long report", None, None)
    assert hidden["transactions"] >= 0


def test_real_workers_are_living_hold_what_runs_turn_stale_when_killed_and_stopped_when_told(
    worker: Start,
) -> None:
    first = worker("--processes=1", HORSIES_TEST_STALE_MS="60000").ready()
    sent = tasks.hold.send("busy")
    held_by("busy")
    shown = wait_until(lambda: [one for one in status() if one["running_sync"] == 1], "a beat tells what runs")[0]
    assert (shown["pid"], shown["state"], shown["holds"]) == (first.process.pid, "living", 1)
    assert shown["memory_mb"] > 1
    assert run()[0] == 0
    os.kill(first.process.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: [one for one in status() if one["state"] == "stale"], "it is silent for longer than it may")
    code, text = run()
    assert code == 1
    assert f"STALE_WORKER: worker {shown['hostname']}:{first.process.pid} is stale" in text
    second = worker("--processes=1").ready()
    wait_until(lambda: Task.objects.get(pk=sent.task_id).finished_at, "it is rescued")
    assert run()[0] == 0, "a dead worker that holds nothing needs nobody"
    assert second.stop() == 0
    assert {(one["pid"], one["state"]) for one in status()} == {
        (first.process.pid, "dead"), (second.process.pid, "stopped"),
    }  # fmt: skip
    let_go("busy")


def test_what_real_tasks_come_to_is_told_of_those_that_fail_and_those_that_end_their_process(worker: Start) -> None:
    """Naive: the history has no such results, or others mean it than the problems read."""
    for number in range(25):
        tasks.raises.send(f"{number}")
        tasks.mail.send("nobody")
        tasks.noop.send()
    for _ in range(3):
        tasks.dies.send("exit")
    running = worker("--processes=2").ready()
    wait_until(lambda: not Task.objects.filter(finished_at=None).exists(), "all have ended")
    assert running.stop() == 0, "then it has written what it counted"
    code, text = run("--json")
    found = [(one["code"], one["subject"], one["text"]) for one in json.loads(text)["problems"]]
    module = "tests.apps.project.tasks"
    assert (code, found) == (
        0,
        [
            ("FAILURES", f"task {module}.raises", f"25 tasks {module}.raises failed in the last 15 minutes, of 25"),
            ("FAILURES", f"task {module}.dies", f"all 3 tasks {module}.dies of the last 24 hours failed"),
            ("CRASHES", f"task {module}.dies", f"tasks {module}.dies ended 3 child processes in the last 15 minutes"),
        ],
    )
    assert run("--fail-on=warning")[0] == 1


def status() -> list[dict[str, Any]]:
    """Return the workers as the command shows them to machines."""
    found: list[dict[str, Any]] = json.loads(run("--json")[1])["workers"]
    return found


def test_a_standby_answers_with_what_was_replicated_to_it_and_is_named() -> None:
    with private_cluster() as cluster:
        settings, port = SETTINGS | {"max_connections": 50, "shared_buffers": "16MB"}, _free_port()
        url = cluster.url("shop", port)
        with cluster.running(settings, port):
            cluster.create_database("shop", port)
            assert manage("migrate", "--verbosity=0", DATABASE_URL=url).returncode == 0
        standby_signal = cluster.home / "data" / "standby.signal"
        standby_signal.touch()
        os.chown(standby_signal, os.stat(cluster.home).st_uid, os.stat(cluster.home).st_gid)
        server = cluster.start(settings | {"port": port})
        try:
            wait_until(lambda: answers(url), "the standby answers")
            done = manage("horsies_status", "--json", DATABASE_URL=url)
        finally:
            stop_server(server)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["database"]["in_recovery"], found["database"]["read_only"]) == (True, True)
    (problem,) = found["problems"]
    assert problem["code"] == "READ_ONLY"
    assert "because it is a replica" in problem["text"]


def answers(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=2):
        return True
    return False
