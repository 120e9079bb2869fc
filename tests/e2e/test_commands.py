"""The output of the commands, alone and beside workers.

The commands are ``horsies_queue``, ``_status``, ``_explain`` and ``horsies_task send``.
"""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
import socket
import subprocess

import pytest
from django.core.management import CommandError
from django.test import override_settings

from horsies_django import explain, queues
from horsies_django.models import AuditEntry, Queue, Task, Worker
from horsies_django.monitoring.health import ProblemCode
from horsies_django.monitoring.overview import aware
from tests.apps.project import tasks
from tests.conftest import Claimers, Connect, limit, put, wait_until
from tests.e2e.test_roles import SENDING, as_role, grant, url_of
from tests.e2e.test_roles import roles as roles
from tests.settings import HORSIES
from tests.support.commands import command, lines, ran
from tests.support.factories import TaskFactory, WorkerFactory, living_worker, now
from tests.support.server import Server
from tests.support.sites import manage
from tests.support.workers import ROOT, Start, WorkerProcess, held_by

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = f"shell:{getpass.getuser()}@{socket.gethostname()}"
NOWHERE = "postgresql://postgres@127.0.0.1:1/none"
run, machine, refusal = command("horsies_queue")


def line(text: str, start: str) -> str:
    """Return the only line with this beginning, with single spaces."""
    (found,) = (one for one in lines(text) if one.startswith(start))
    return found


# horsies_queue


def test_the_list_shows_limits_and_counts_of_every_queue(
    claimer: Claimers,
) -> None:
    """The list shows the limits and counts of every queue, also without a verb."""
    run(
        "set",
        "mail",
        "--max-concurrency=2",
        "--partition-by-args=to",
        "--partition-max-concurrency=1",
    )

    run("override", "mail", "--max-concurrency=5", "--reason=sale", "--until=2100-01-01T00:00Z")
    run("pause", "bulk")

    put(3, queue="mail", kwargs=['{"to": "ann"}', '{"to": "ann"}', '{"to": "bob"}'])
    claimer(mail=1).run_pass(sync=9)
    living_worker("mail")

    listed = run()
    assert listed == run("list")
    assert line(listed, "mail") == (
        "mail 1 2 in total, 1 per partition 5 in total 5 in total, 1 per partition 2 0 1 2 1"
    )
    assert line(listed, "bulk") == "bulk 50 no limit - paused 0 0 0 0 0"
    assert "whole cluster" not in listed

    mail = next(queue for queue in machine() if queue["name"] == "mail")
    assert (mail["override"], mail["declared"]["priority"], mail["running"]) == (
        {"max_concurrency": 5},
        1,
        2,
    )
    assert dt.datetime.fromisoformat(mail["override_until"]) == dt.datetime(
        2100, 1, 1, tzinfo=dt.UTC
    )

    run("set", "--cluster", "--max-concurrency=9")
    assert line(run(), "whole cluster") == "whole cluster 9 in total - 9 in total 2 0 1 0"


def test_show_names_permit_holders_and_the_busiest_partitions(claimer: Claimers) -> None:
    """``show`` prints the tasks that hold permits and the busiest partitions."""
    run(
        "set",
        "mail",
        "--partition-by-args=to",
        "--partition-by-task",
        "--partition-max-concurrency=1",
    )
    run("override", "mail", "--local-limit=7", "--reason=slow partner", "--until=2100-01-01T00:00Z")

    (running, _) = put(2, queue="mail", kwargs=['{"to": "ann"}'] * 2)
    put(1, queue="mail", kwargs=['{"to": "\x9b2J ann é"}'])
    worker = claimer(mail=1)
    worker.run_pass(sync=9)

    shown = run("show", "mail")
    assert line(shown, "in force") == "in force 7 per worker, 1 per partition"
    assert line(shown, "declared") == "declared 1 per partition"

    ends = aware(Queue.objects.get(pk="mail").override_until).isoformat(sep=" ")
    assert line(shown, "override").startswith(f"override 7 per worker (by {ACTOR}, ")
    assert line(shown, "override").endswith(f", until {ends}: slow partner)")
    assert line(shown, "partitions") == "partitions by to and task name"

    assert line(shown, str(running)).startswith(f"{running} tests.nothing RUNNING ")
    assert f"{worker.id} (dead)" in line(shown, str(running)), "it never beat"

    assert '{"": "tests.nothing", "to": "ann"} 1 1 1' in lines(shown)
    assert r'"to": "\x9b2J ann é"}' in shown, (
        "what users typed cannot move the cursor of the terminal"
    )

    found = machine("show", "mail")
    assert (found["queue"]["running"], found["queue"]["full_partitions"]) == (2, 2)
    assert str(running) in {permit["task_id"] for permit in found["permits"]}
    assert sorted(partition["parked"] for partition in found["partitions"]) == [0, 1]


def test_changes_print_old_and_new_values_and_are_audited() -> None:
    """Changes print the old and new values and are audited with actor and reason.

    A change to equal values prints that nothing changed.
    """
    printed = run(
        "set", "mail", "--max-concurrency=3", "--priority", "7", "--reason", "slow partner"
    )

    assert "mail: max_concurrency: null -> 3\nmail: priority: 1 -> 7\n" in printed
    assert "applies the settings" in printed
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action, entry.reason) == (ACTOR, "queue.set", "slow partner")

    assert machine("set", "mail", "--max-concurrency=none") == {
        "changed": [{"queue": "mail", "column": "max_concurrency", "before": 3, "after": None}]
    }

    assert "mail: paused_by: null -> " in run("pause", "mail", "--reason=full disk")
    assert Queue.objects.get(pk="mail").paused_reason == "full disk"
    assert "mail: paused_at: " in run("resume", "mail")

    printed = run(
        "override", "mail", "--partition-max-concurrency=2", "--local-limit=1", "--reason=sale"
    )
    assert 'mail: override: null -> {"local_limit": 1, "partition_max_concurrency": 2}' in printed
    assert "mail has no partitions, so partition_max_concurrency has no effect" in printed
    assert "mail: override: {" in run("clear", "mail")

    with override_settings(
        HORSIES={**HORSIES, "QUEUES": {"mail": {"priority": 1, "max_concurrency": 5}}}
    ):
        assert "mail: max_concurrency: null -> 5\n" in run("sync")

        for words in (
            ("set", "mail", "--priority=1"),
            ("resume", "mail"),
            ("clear", "mail"),
            ("sync",),
        ):
            assert run(*words) == "Nothing changed: the values are the same.\n"

    run("pause", "--cluster", "--reason=maintenance")
    shown = run("show", "--cluster")
    assert line(shown, "in force") == "in force paused"
    assert line(shown, "paused").startswith(f"paused by {ACTOR}, ")
    assert line(shown, "paused").endswith(": maintenance")


def test_partition_rules_take_a_list_of_arguments_all_or_none() -> None:
    """``--partition-by-args`` takes a list of arguments, ``all`` or ``none``."""
    for words, columns in {
        ("--partition-by-args=a, b", "--partition-by-task"): (["a", "b"], True),
        ("--partition-by-args=all",): ([], True),
        ("--partition-by-args=none",): (None, True),
        ("--no-partition-by-task", "--partition-by-args=a"): (["a"], False),
    }.items():
        run("set", "mail", *words)
        queue = Queue.objects.get(pk="mail")
        assert (queue.partition_by_args, queue.partition_by_task) == columns


OVERRIDE = ["override", "mail", "--max-concurrency=1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["show", "nowhere"],
            "no queue 'nowhere' in the database; choose from: mail, bulk, twin, default",
        ),
        (["show"], "give either a queue, as in 'horsies_queue show mail', or --cluster"),
        (
            ["set", "mail"],
            "nothing to change for 'mail': give a value, such as --max-concurrency 5",
        ),
        (["set", "mail", "--max-concurrency=many"], "'many' is not a whole number"),
        (["set", "mail", "--priority=none"], "'none' is not a whole number"),
        (["override", "mail", "--reason=sale"], "nothing to change for 'mail': give a limit"),
        ([*OVERRIDE, "--reason= "], "an override of 'mail' requires --reason TEXT"),
        ([*OVERRIDE, "--reason=x", "--until=2100-01-01"], "has no time zone; add it"),
        ([*OVERRIDE, "--reason=x", "--until=soon"], "'soon' is neither a datetime"),
        ([*OVERRIDE, "--reason=x", "--until=99999999999w"], "is neither a datetime"),
    ],
)
def test_the_queue_command_refuses_bad_arguments_with_advice(
    words: list[str], message: str
) -> None:
    entries = AuditEntry.objects.count()

    assert message in refusal(*words)
    assert AuditEntry.objects.count() == entries


def test_an_override_can_end_some_time_from_now() -> None:
    before = dt.datetime.now(dt.UTC)
    delta = dt.timedelta(days=1, hours=12)

    run(*OVERRIDE, "--reason=sale", "--until=1d12h")

    ends = aware(Queue.objects.get(pk="mail").override_until)
    assert before + delta <= ends <= dt.datetime.now(dt.UTC) + delta


@pytest.mark.promise("S1.35")
def test_a_running_worker_follows_the_shell(worker: Start) -> None:
    """A running worker obeys changes from the shell, and its start does not revert them."""
    done = manage("horsies_queue", "set", "default", "--max-concurrency=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "default: max_concurrency: null -> 3" in done.stdout

    process = worker("--processes=1").ready()
    assert Queue.objects.get(pk="default").max_concurrency == 3
    assert "default: the settings and the table differ in max_concurrency" in process.log

    assert manage("horsies_queue", "pause", "default").returncode == 0
    held = tasks.noop.send()
    assert tasks.mail.send("ann@example.org").get(timeout_ms=30_000).is_ok()
    assert Task.objects.get(pk=held.task_id).status == "PENDING"

    assert manage("horsies_queue", "resume", "default").returncode == 0
    assert held.get(timeout_ms=30_000).is_ok()


def test_a_mistake_ends_the_process_without_a_traceback() -> None:
    """A wrong option or an unreachable database ends the command with code 1 and no traceback."""
    done = manage("horsies_queue", *OVERRIDE)
    assert done.returncode == 1
    assert (
        done.stderr == "CommandError: horsies_queue: an override of 'mail' requires --reason TEXT\n"
    )

    gone = manage("horsies_queue", "list", DATABASE_URL=NOWHERE)
    assert gone.returncode == 1
    assert "horsies_queue: the database refused the command" in gone.stderr
    assert "Traceback" not in gone.stderr


# horsies_status


def status(*words: str) -> tuple[int, str]:
    """Run the command in this process, and return its exit code and its output."""
    return ran("horsies_status", *words)[:2]


def fails_in_one_line(done: subprocess.CompletedProcess[str], words: str) -> bool:
    """Return whether the command exited with 2, no output and this reason in one line of stderr."""
    return (done.returncode, done.stdout, len(done.stderr.splitlines())) == (
        2,
        "",
        1,
    ) and words in done.stderr


def test_a_healthy_system_exits_with_0() -> None:
    """The command prints queues, workers and the database, and exits with 0 if all is well."""
    done = manage("horsies_status")

    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("default ")]
    for words in ("No worker is running", "PostgreSQL", "the primary, writable"):
        assert words in done.stdout
    assert done.stdout.endswith("Healthy.\n")

    with pytest.raises(CommandError, match="'soon' is not a number of seconds"):
        status("--max-wait=soon")


def test_a_problem_is_one_line_and_exits_with_1() -> None:
    """The command exits with 1 and prints one line per problem, with the remedy."""
    TaskFactory(sent_at=now() - dt.timedelta(minutes=5))
    holder = WorkerFactory(hostname="web\x1b[2J", seen_at=now() - dt.timedelta(hours=1))
    TaskFactory(status="RUNNING", claimed_by=holder.id)

    code, text = status("--max-wait=60")
    found = text.partition("UNHEALTHY\n")[2].splitlines()

    assert code == 1
    assert [line.split(":")[0] for line in found] == [
        "  STALE_WORKER",
        "  NO_LIVING_WORKER",
        "WARNINGS",
        "  WAITS_TOO_LONG",
    ]
    assert "manage.py horsies_worker --queues=default" in found[1]
    assert "\x1b" not in text, "what would move the cursor is no text"

    page = (ROOT / "docs" / "reference" / "status.md").read_text()
    assert [code for code in ProblemCode if f"| `{code}` |" not in page] == []


def test_what_keeps_it_from_an_answer_is_one_line_and_2(roles: None, connect: Connect) -> None:
    unreachable = "horsies_status: the database 'default' cannot be reached: connection"
    assert fails_in_one_line(manage("horsies_status", DATABASE_URL=NOWHERE), unreachable)

    conn = connect()
    with conn.transaction():
        conn.execute("LOCK TABLE horsies_audit IN SHARE MODE")
        assert fails_in_one_line(
            manage("horsies_status", DATABASE_URL=url_of("site")), "permission denied"
        )


def test_a_role_without_rights_to_monitor_gets_a_partial_answer(
    roles: None, connect: Connect
) -> None:
    """A role without rights to monitor gets an answer that names the missing parts."""
    grant(SENDING)
    put(2)
    holder = connect()

    with holder.transaction():
        holder.execute("SET LOCAL application_name = 'a long report'")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        as_role("site")
        code, text = status("--json")
        found = json.loads(text)
        as_role(None)

    assert (code, [problem["code"] for problem in found["problems"]]) == (1, ["NO_LIVING_WORKER"])
    assert 2 <= found["database"]["connections"] <= found["database"]["max_connections"]

    (hidden,) = [
        one for one in found["database"]["xmin_holders"] if one["pid"] == holder.info.backend_pid
    ]
    assert (hidden["name"], hidden["seconds"], hidden["state"]) == ("a long report", None, None)
    assert hidden["transactions"] >= 0


def test_a_standby_answers_with_replicated_data(server: Server) -> None:
    """On a standby, the command prints the replicated data and the name of the standby."""
    mark = server.cluster.home / "data" / "standby.signal"
    server.stop("fast")
    mark.touch()
    os.chown(mark, mark.parent.stat().st_uid, mark.parent.stat().st_gid)

    try:
        server.start()
        done = manage(
            "horsies_status",
            "--json",
            DATABASE_URL=server.cluster.url(server.database, server.port),
        )
    finally:
        server.stop("fast")
        mark.unlink()

    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["database"]["in_recovery"], found["database"]["read_only"]) == (True, True)

    (problem,) = found["problems"]
    assert problem["code"] == "READ_ONLY"
    assert "because it is a replica" in problem["text"]


# horsies_explain


def test_explain_prints_each_reason_on_its_line_or_as_json() -> None:
    """The command explains the last task or a given one, with a line per reason or as JSON."""
    run_explain, found_by, refuses = command("horsies_explain")
    assert "horsies_explain: no task has been sent yet" in refuses()

    (id_,) = put()
    queues.pause("default", actor="ann", reason="a full\x1b[2J disk")
    first, *reasons = run_explain(str(id_)).splitlines()

    assert first == f"Task {id_} is PENDING."
    assert [line.split(":")[0] for line in reasons] == ["  QUEUE_PAUSED", "  NO_LIVE_WORKER"]
    assert "by ann: a full\\x1b[2J disk." in reasons[0], "what would move the cursor is no text"

    (last,) = put()
    found = found_by()
    assert (found, found["task_id"], found["status"]) == (found_by(str(last)), str(last), "PENDING")
    assert set(found["reasons"][0]) == {"code", "text", "details"}

    for wrong, words in (
        ("00000000-0000-0000-0000-000000000007", "there is no task"),
        ("mail", "is not a task id"),
    ):
        assert refuses(wrong).startswith("horsies_explain: ")
        assert words in refuses(wrong)


def test_it_names_who_holds_the_only_slot_of_a_real_worker(worker: Start) -> None:
    limit("default", max_concurrency=1)
    worker("--processes=2").ready()
    holding = tasks.hold.send("first")
    waiting = tasks.hold.send("second")
    child = held_by("first")

    row = Worker.objects.get()
    (found,) = explain(waiting.task_id).reasons
    assert found.code == "QUEUE_AT_CAP"
    assert found.text.endswith(f"by task {holding.task_id} on {row.hostname}:{row.pid}.")

    beaten = wait_until(
        lambda: explain(holding.task_id).reasons[0].details.get("child_pid"),
        "a beat says who runs it",
    )
    assert beaten == child
    assert Worker.objects.get().running_sync == 1

    (unknown,) = put(name="shop.tasks.gone", delay=dt.timedelta(hours=1))
    assert "UNKNOWN_TASK_NAME" in {reason.code for reason in explain(unknown).reasons}, (
        "by the names of its row"
    )


# horsies_task send


def send(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return manage("horsies_task", "send", f"tests.apps.project.tasks.{name}", "--wait", *words)


def test_a_send_with_wait_prints_the_result(
    shared_worker: WorkerProcess,
) -> None:
    """``--wait`` prints the result, and the command fails if the task fails.

    Fails if: the command waits inside the transaction of the send, where no worker sees the task.
    """
    done = send("add", "--kwargs", '{"a": 4, "b": 5}')
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["9"])

    done = send("add", "--kwargs", '{"a": 4}', "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, 4)

    done = send("raises", "--kwargs", '{"message": "no mail"}')
    assert done.returncode == 1
    assert "UNHANDLED_ERROR: " in done.stderr
    assert "no mail" in done.stderr


def test_it_waits_no_longer_than_it_may() -> None:
    done = send("noop", "--timeout=0.2")

    assert (done.returncode, len(done.stdout.split())) == (1, 1)
    assert "WAIT_TIMEOUT" in done.stderr
