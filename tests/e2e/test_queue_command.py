"""``manage.py horsies_queue``: what it prints, what it refuses, and that running workers obey it."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from horsies_django.models import AuditEntry, Queue, Task
from horsies_django.monitoring.overview import aware
from tests.apps.project import tasks
from tests.conftest import Claimer, put, wait_until
from tests.settings import HORSIES
from tests.support.commands import command
from tests.support.factories import living_worker
from tests.support.workers import ROOT, Start, database_url

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = f"shell:{getpass.getuser()}@{socket.gethostname()}"
run, machine, refusal = command("horsies_queue")
Claimers = Callable[..., Claimer]


def line(text: str, start: str) -> str:
    """Return the one line that starts so, with single spaces."""
    (found,) = (" ".join(one.split()) for one in text.splitlines() if one.strip().startswith(start))
    return found


def test_the_list_shows_limits_and_counts_of_every_queue_without_a_verb_too(claimer: Claimers) -> None:
    run("set", "mail", "--max-concurrency=2", "--partition-by-args=to", "--partition-max-concurrency=1")
    run("override", "mail", "--max-concurrency=5", "--reason=sale")
    run("pause", "bulk")
    put(3, queue="mail", kwargs=['{"to": "ann"}', '{"to": "ann"}', '{"to": "bob"}'])
    claimer(mail=1).run_pass(sync=9)
    living_worker("mail")
    listed = run()
    assert listed == run("list")
    assert line(listed, "mail") == "mail 1 2, 1 per partition 5 5, 1 per partition 2 0 1 2 1"
    assert line(listed, "bulk") == "bulk 50 no limit - paused 0 0 0 0 0"
    assert line(listed, "default") == "default 100 no limit - no limit 0 0 0 0 0"
    assert "whole cluster" not in listed
    run("set", "--cluster", "--max-concurrency=9")
    assert line(run(), "whole cluster") == "whole cluster 9 - 9 2 0 1 0"


def test_the_list_for_machines_has_every_field() -> None:
    run("override", "mail", "--max-concurrency=none", "--reason=sale", "--until=2100-01-01T00:00Z")
    found = {queue["name"]: queue for queue in machine("list")}
    assert machine() == machine("list")
    assert found["mail"]["override"] == {"max_concurrency": None}
    assert dt.datetime.fromisoformat(found["mail"]["override_until"]) == dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    assert found["mail"]["declared"]["priority"] == 1
    assert (found["bulk"]["running"], found["bulk"]["pending_more"]) == (0, False)


def test_show_names_who_holds_the_permits_and_the_busiest_partitions(claimer: Claimers) -> None:
    run("set", "mail", "--partition-by-args=to", "--partition-by-task", "--partition-max-concurrency=1")
    run("override", "mail", "--local-limit=7", "--reason=slow partner", "--until=2100-01-01T00:00Z")
    run("pause", "mail", "--reason=full disk")
    run("resume", "mail")
    ids = put(2, queue="mail", kwargs=['{"to": "ann"}'] * 2)
    worker = claimer(mail=1)
    worker.run_pass(sync=9)
    shown = run("show", "mail")
    assert line(shown, "in force") == "in force 7 per worker, 1 per partition"
    assert line(shown, "declared") == "declared 1 per partition"
    assert line(shown, "override").startswith(f"override 7 per worker (by {ACTOR}, ")
    ends = aware(Queue.objects.get(pk="mail").override_until).isoformat(sep=" ")
    assert line(shown, "override").endswith(f", until {ends}: slow partner)")
    assert line(shown, "partitions") == "partitions by to and task name"
    assert line(shown, str(ids[0])).startswith(f"{ids[0]} tests.nothing RUNNING ")
    assert f"{worker.id} (dead)" in line(shown, str(ids[0])), "it never beat"
    assert line(shown, '{"":') == '{"": "tests.nothing", "to": "ann"} 1 1 1'
    put(1, queue="mail", kwargs=['{"to": "\x9b2J ann é"}'])
    worker.run_pass(sync=1)
    assert '"to": "?2J ann é"}' in run("show", "mail"), "what users typed cannot move the cursor of the terminal"
    found = machine("show", "mail")
    assert (found["queue"]["running"], found["queue"]["full_partitions"]) == (2, 2)
    assert str(ids[0]) in {permit["task_id"] for permit in found["permits"]}
    assert sorted(partition["parked"] for partition in found["partitions"]) == [0, 1]


def test_a_change_prints_old_and_new_and_is_audited_with_who_and_why() -> None:
    printed = run("set", "mail", "--max-concurrency=3", "--priority", "7", "--reason", "slow partner")
    assert "mail: max_concurrency: null -> 3\nmail: priority: 1 -> 7\n" in printed
    assert "applies the settings" in printed
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action, entry.reason) == (ACTOR, "queue.set", "slow partner")
    assert "mail: max_concurrency: 3 -> null" in run("set", "mail", "--max-concurrency", "none")
    assert machine("set", "mail", "--max-concurrency=4") == {
        "changed": [{"queue": "mail", "column": "max_concurrency", "before": None, "after": 4}]
    }


def test_what_is_so_already_is_said_and_is_no_error() -> None:
    for words in (("set", "mail", "--priority=1"), ("resume", "mail"), ("clear", "mail"), ("sync",)):
        assert run(*words) == "Nothing changed: the values are the same.\n"
    assert machine("resume", "mail") == {"changed": []}


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (["--partition-by-args=a, b", "--partition-by-task"], (["a", "b"], True)),
        (["--partition-by-args=all"], ([], False)),
        (["--partition-by-args=none", "--partition-by-task"], (None, True)),
        (["--no-partition-by-task", "--partition-by-args=a"], (["a"], False)),
    ],
)
def test_partition_rules_can_be_set(words: list[str], columns: tuple[Any, ...]) -> None:
    run("set", "mail", *words)
    queue = Queue.objects.get(pk="mail")
    assert (queue.partition_by_args, queue.partition_by_task) == columns


def test_pause_resume_override_clear_and_sync() -> None:
    assert "mail: paused_by: null -> " in run("pause", "mail", "--reason=full disk")
    assert Queue.objects.get(pk="mail").paused_reason == "full disk"
    assert "mail: paused_at: " in run("resume", "mail")
    printed = run("override", "mail", "--partition-max-concurrency=2", "--local-limit=1", "--reason=sale")
    assert 'mail: override: null -> {"local_limit": 1, "partition_max_concurrency": 2}' in printed
    assert "mail has no partitions, so partition_max_concurrency has no effect" in printed
    assert "has no partitions" not in run("set", "mail", "--partition-by-task")
    assert Queue.objects.get(pk="mail").override == {"partition_max_concurrency": 2, "local_limit": 1}
    assert "mail: override: {" in run("clear", "mail")
    assert "mail: partition_by_task: true -> false" in run("set", "mail", "--no-partition-by-task")
    with override_settings(HORSIES={**HORSIES, "QUEUES": {"mail": {"priority": 1, "max_concurrency": 5}}}):
        assert run("sync") == "mail: max_concurrency: null -> 5\n"
    assert AuditEntry.objects.latest("id").actor == ACTOR
    run("pause", "--cluster", "--reason=maintenance")
    shown = run("show", "--cluster")
    assert line(shown, "in force") == "in force paused"
    assert line(shown, "paused").startswith(f"paused by {ACTOR}, ")
    assert line(shown, "paused").endswith(": maintenance")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "no queue 'nowhere' in the database; choose from: mail, bulk, twin, default"),
        (["pause", "nowhere"], "no queue 'nowhere' in the database; declare it in HORSIES"),
        (["show"], "give either a queue, as in 'horsies_queue show mail', or --cluster"),
        (["set", "mail"], "nothing to change for 'mail': give a value, such as --max-concurrency 5"),
        (["set", "mail", "--max-concurrency=many"], "'many' is not a whole number"),
        (["set", "mail", "--priority=none"], "'none' is not a whole number"),
        (["set", "mail", "--partition-by-args=a,,b"], "must be a list of argument names"),
        (["override", "mail", "--reason=sale"], "nothing to change for 'mail': give a limit"),
        (["override", "mail", "--max-concurrency=1"], "an override of 'mail' requires --reason TEXT"),
        (["override", "mail", "--max-concurrency=1", "--reason= "], "an override of 'mail' requires --reason TEXT"),
        (["override", "mail", "--max-concurrency=1", "--reason=x", "--until=0h"], "is in the past"),
        (["override", "mail", "--max-concurrency=1", "--reason=x", "--until=2100-01-01"], "has no time zone; add it"),
        (["override", "mail", "--max-concurrency=1", "--reason=x", "--until=soon"], "'soon' is neither a datetime"),
        (["override", "mail", "--max-concurrency=1", "--reason=x", "--until=99999999999w"], "is neither a datetime"),
        (["stop", "mail"], "invalid choice: 'stop'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(words: list[str], message: str) -> None:
    entries = AuditEntry.objects.count()
    assert message in refusal(*words)
    assert AuditEntry.objects.count() == entries


@pytest.mark.parametrize(
    ("text", "delta"),
    [("2h", {"hours": 2}), ("1d12h", {"days": 1, "hours": 12}), ("30m", {"minutes": 30}), ("3w", {"weeks": 3})],
)
def test_an_override_can_end_some_time_from_now(text: str, delta: dict[str, int]) -> None:
    before = dt.datetime.now(dt.UTC)
    run("override", "mail", "--max-concurrency=1", "--reason=sale", "--until", text)
    ends = aware(Queue.objects.get(pk="mail").override_until)
    assert before + dt.timedelta(**delta) <= ends <= dt.datetime.now(dt.UTC) + dt.timedelta(**delta)


def shell(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    variables = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url(), **environment}
    return subprocess.run(
        [sys.executable, "-m", "django", "horsies_queue", *words],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.promise("S1.35")
def test_a_running_worker_obeys_the_shell_and_its_start_flips_nothing_back(
    worker: Start,
) -> None:
    done = shell("set", "default", "--max-concurrency=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "default: max_concurrency: null -> 3" in done.stdout
    process = worker("--processes=1").ready()
    assert Queue.objects.get(pk="default").max_concurrency == 3
    assert "default: the settings and the table differ in max_concurrency" in process.log
    assert shell("pause", "default").returncode == 0
    held = tasks.noop.send()
    assert tasks.mail.send("ann@example.org").get(timeout_ms=30_000).is_ok()
    assert Task.objects.get(pk=held.task_id).status == "PENDING"
    listed = {queue["name"]: queue for queue in json.loads(shell("list", "--json").stdout)}
    assert (listed["default"]["workers"], listed["default"]["pending"], listed["default"]["running"]) == (1, 1, 0)
    assert shell("resume", "default").returncode == 0
    assert held.get(timeout_ms=30_000).is_ok()
    wait_until(lambda: json.loads(shell("list", "--json").stdout)[0]["running"] == 0, "nothing runs any more")


def test_a_mistake_ends_the_process_with_an_error_and_no_traceback() -> None:
    done = shell("override", "mail", "--max-concurrency=1")
    assert done.returncode == 1
    assert done.stderr == "CommandError: horsies_queue: an override of 'mail' requires --reason TEXT\n"
    gone = shell("list", DATABASE_URL="postgresql://postgres@127.0.0.1:1/none")
    assert gone.returncode == 1
    assert "horsies_queue: the database refused" in gone.stderr
    assert "Traceback" not in gone.stderr
