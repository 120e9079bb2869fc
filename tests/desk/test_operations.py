"""Operations on tasks: cancel, retry, list, send and purge; by code, admin and command."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import sys
import uuid
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from horsies_django import TaskHandle, cancel_many, get_handle, purge
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.management.shared import ago, duration_option
from horsies_django.models import AuditEntry, Task
from horsies_django.tasks import operations, selection
from horsies_django.testing import drain
from tests.apps.project import tasks
from tests.desk.test_admin import client_with
from tests.support.commands import command, ran
from tests.support.factories import FINISHED, TaskFactory, now
from tests.support.runs import sent as sent_run

pytestmark = pytest.mark.django_db
OF_TASKS = AuditEntry.objects.filter(action__startswith="task.")
LIST = reverse("admin:horsies_task_changelist")


OF_A_RUN = {"workflow_id": uuid.uuid4(), "node": 0, "node_index": 0}
MERGED = {"status": "CANCELLED", "error_code": "MERGED", "merged_into": uuid.UUID(int=7)}


def status(handle: TaskHandle[Any]) -> str:
    return Task.objects.get(pk=handle.task_id).status


def failed() -> TaskHandle[Any]:
    handle = tasks.raises.with_options(priority=7).send("x")
    drain(raise_errors=False)
    return handle


def test_a_cancel_is_part_of_the_transaction_around_it() -> None:
    """A cancel is part of the transaction around it, and ends the wait for the result."""
    handle = tasks.noop.send()

    with pytest.raises(RuntimeError), transaction.atomic():
        assert handle.cancel() == "CANCELLED"
        raise RuntimeError

    assert status(handle) == "PENDING"
    handle.cancel()
    assert handle.get(0).err_value.error_code == "TASK_CANCELLED"

    with pytest.raises(LookupError, match="there is no task"):
        TaskHandle[None](uuid.uuid4()).cancel()


def test_five_hundred_are_cancelled_by_one_statement() -> None:
    waits = [task.pk for task in TaskFactory.create_batch(498)]
    runs = TaskFactory(status="RUNNING").pk
    over = TaskFactory(status="COMPLETED").pk
    gone = uuid.uuid4()

    with CaptureQueriesContext(connection) as captured:
        verdicts = cancel_many([*waits, str(runs), over, gone], terminate=True)

    assert (
        len([query for query in captured if re.search("horsies_(tasks|cancel)", query["sql"])]) == 1
    )
    assert verdicts == {**dict.fromkeys(waits, "CANCELLED"), runs: "REQUESTED", over: "FINISHED"}
    assert Task.objects.get(pk=runs).terminate

    assert cancel_many([]) == {}
    with pytest.raises(ValueError, match="'7' is not a task id"):
        cancel_many(["7"])


def test_a_failed_task_runs_again_under_its_id() -> None:
    """A failed task runs again under its id, and its retry policy starts again."""
    handle = tasks.asks_again.with_options(good_until=dt.timedelta(hours=1)).send(0, "BUSY")
    drain(raise_errors=False)
    first = handle.get(0)
    assert [attempt.attempt for attempt in handle.info().attempts] == [1, 2]

    operations.retry(handle.task_id, actor="ada", reason="the server is back")

    row = Task.objects.get(pk=handle.task_id)
    assert (row.status, row.good_until, row.result, row.error_code) == ("PENDING", None, None, None)
    entry = OF_TASKS.get()
    assert (entry.action, entry.actor, entry.reason) == ("task.retry", "ada", "the server is back")

    assert drain(raise_errors=False) == 2
    info = handle.info()
    assert [(one.attempt, one.will_retry) for one in info.attempts] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
    ]
    assert (info.status, info.retry_count, info.max_retries) == ("FAILED", 1, 1)
    assert handle.get(0) is first, "a result that was read stays in its handle"

    handle.retry()
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT", (
        "but for the handle by which it is retried"
    )
    assert Task.objects.count() == 1


def test_a_finished_task_is_copied_with_all_that_it_had() -> None:
    handle = tasks.asks_again.with_options(priority=7, timeout_ms=5_000).send(0, "BUSY")
    drain(raise_errors=False)

    new = Task.objects.get(pk=operations.copy(handle.task_id, actor="ada", reason="once more"))
    old = Task.objects.get(pk=handle.task_id)

    kept = ("task_name", "queue_name", "lane", "priority", "kwargs", "options", "max_retries")
    assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
    assert (old.status, new.status, new.retry_count, new.copy_of) == (
        "FAILED",
        "PENDING",
        0,
        old.pk,
    )

    entry = OF_TASKS.get()
    assert (entry.action, entry.actor, entry.reason, entry.after) == (
        "task.copy",
        "ada",
        "once more",
        {"new": str(new.pk)},
    )
    assert drain(raise_errors=False) == 2

    done = tasks.add.send(1, 2)
    drain()
    copy = get_handle(operations.copy(done.task_id, actor="ada"))
    drain()

    assert copy.get(0).ok_value == 3


# The columns of a task, the reason against a retry, and the reason against a copy.
REFUSED: dict[str, tuple[dict[str, Any] | None, str, str | None]] = {
    "completed": ({"status": "COMPLETED"}, "completed: send a copy", None),
    "pending": ({}, "is PENDING", "is PENDING"),
    "redacted": ({"status": "FAILED", "redacted_at": now()}, "was redacted", "was redacted"),
    "in a run": (
        {"status": "FAILED", **OF_A_RUN},
        "belongs to the workflow run .*: retry the run",
        None,
    ),
    "merged": (MERGED, "was merged into task .*007, which ran for it: retry that task", None),
    "absent": (None, "there is no task", "there is no task"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_impossible_retry_or_copy_is_refused_with_its_reason(what: str) -> None:
    """A retry or a copy that is impossible is refused with the reason."""
    columns, retried, copied = REFUSED[what]
    id_ = uuid.uuid4() if columns is None else TaskFactory(**columns).pk
    before = Task.objects.count()

    for verb, words in ((operations.retry, retried), (operations.copy, copied)):
        if words is not None:
            with pytest.raises((TaskNotRetryable, LookupError), match=words):
                verb(id_, actor="ada")

    assert Task.objects.count() == before
    assert not OF_TASKS.exists()


def test_the_shell_shows_cancels_and_runs_again() -> None:
    id_ = failed().task_id
    shown = run("show", id_)[0]

    assert "FAILED UNHANDLED_ERROR" in shown
    assert "LookupError: x" not in shown
    assert "LookupError: x" in run("show", id_, "--payload")[0]

    found = machine("show", id_)
    assert (found["status"], found["attempts"][0]["outcome"]) == ("FAILED", "FAILED")
    assert "result" not in found

    again = run("copy", id_, "--reason", "try")[0].strip().rpartition(" ")[2]
    assert "cancelled before it started" in run("cancel", again, "--reason", "enough")[0]
    assert "nothing changed" in run("cancel", again)[0]
    assert run("retry", id_, "--reason", "late")[0] == f"{id_}: due now\n"

    changes = [("task.copy", "try"), ("task.cancel", "enough"), ("task.retry", "late")]
    assert list(OF_TASKS.order_by("pk").values_list("action", "reason")) == changes

    assert "there is no task" in refusal("show", uuid.uuid4())
    assert "is not a task id" in refusal("cancel", "7")


def test_an_action_on_fifty_ticked_tasks_is_one_statement() -> None:
    """An action changes fifty ticked tasks and no others.

    It needs one statement and one entry of the audit.
    """
    client = client_with("view_task", "operate_task", name="ada")
    failures(51)
    *ticked, other = map(str, Task.objects.values_list("pk", flat=True))

    def act(verb: str, ids: list[str]) -> tuple[str, int]:
        """Return the page that follows, and how many statements of ours ran."""
        data = {"action": f"{verb}_tasks", "_selected_action": ids, "select_across": "1"}
        with CaptureQueriesContext(connection) as captured:
            page = client.post(LIST, data, follow=True).content.decode()

        return page, sum(
            "horsies_" in one["sql"] and 'SELECT "horsies' not in one["sql"] for one in captured
        )

    for verb, level, told in (
        ("copy", "success", "Send a copy: COPIED: 50"),
        ("retry", "success", "Retry: RETRIED: 50"),
        ("retry", "warning", "Retry: PENDING: 50"),  # a double click
        ("cancel", "success", "Cancel: CANCELLED: 50"),
    ):
        page, statements = act(verb, [*ticked, "7", "\x00"])
        assert f'<li class="{level}">{told}</li>' in page
        assert statements <= 3

    for nothing in ("7", str(uuid.uuid4())):  # which was deleted meanwhile
        act("retry", [nothing])

    assert Task.objects.filter(copy_of__isnull=False, status="PENDING").count() == 50
    assert Task.objects.get(pk=other).status == "FAILED"

    entries = OF_TASKS.order_by("pk")
    written = [("ada", f"task.{verb}", "*") for verb in ("copy", "retry", "retry", "cancel")]
    assert [(entry.actor, entry.action, entry.subject) for entry in entries] == written
    assert (json.loads(entries[3].after["tasks"]), json.loads(entries[3].after["verdicts"])) == (
        sorted(ticked),
        {"CANCELLED": 50},
    )

    act("retry", [other])
    assert OF_TASKS.latest("pk").subject == other


def test_a_task_that_runs_for_very_long_stands_out_in_the_list(settings: Any, boss: Client) -> None:
    TaskFactory(status="RUNNING", started_at=now() - dt.timedelta(minutes=61))
    assert "horsies-full" in boss.get(LIST).content.decode()

    settings.HORSIES = {**settings.HORSIES, "REPORT_RUNNING_AFTER_MS": dt.timedelta(hours=2)}
    assert "horsies-full" not in boss.get(LIST).content.decode()


DAY = dt.timedelta(days=1)
# Statuses by the names that a test gives to its tasks.
CANCELLED = dict.fromkeys(("waits", "parked", "later"), "CANCELLED")
_, machine, refusal = command("horsies_task")


def run(*words: Any) -> tuple[str, str]:
    """Run the command in this process and return the printed text of both streams."""
    return ran("horsies_task", *words)[1:]


def ids(*words: Any) -> list[uuid.UUID]:
    return [uuid.UUID(one["id"]) for one in machine("list", *words)]


def statuses() -> dict[uuid.UUID, str]:
    return dict(Task.objects.values_list("pk", "status"))


def test_the_list_shows_the_newest_tasks_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list shows the newest tasks first, and each option restricts it."""
    old = {"queue_name": "mail", "sent_at": now() - 2 * DAY}
    found = {
        status: TaskFactory(status=status, task_name=f"shop.{status}", **old).pk
        for status in ("PENDING", "CLAIMED", "RUNNING", *FINISHED)
    }
    parked = TaskFactory(parked=True, partition_key="x", **old).pk
    new = TaskFactory(status="FAILED", task_name="shop.FAILED", queue_name="bulk").pk

    heading, newest, *rest = run("list", "--limit=2")[0].splitlines()

    assert heading.split() == [
        "ID",
        "NAME",
        "QUEUE",
        "STATUS",
        "SENT",
        "STARTED",
        "FINISHED",
        "ERROR",
    ]
    assert newest.split()[:4] == [str(new), "shop.FAILED", "bulk", "FAILED"]
    assert len(rest) == 1

    assert ids() == sorted([*found.values(), parked, new], reverse=True)
    for status in ("CLAIMED", "RUNNING", "COMPLETED", "CANCELLED", "EXPIRED"):
        assert ids(f"--status={status.lower()}") == [found[status]]

    for words, expected in (
        (["--status=PENDING"], [found["PENDING"], parked]),
        (["--status=FAILED", "--queue=mail"], [found["FAILED"]]),
        (["--status=FAILED", "--since=1d"], [new]),
        (["--name=shop.EXPIRED"], [found["EXPIRED"]]),
        (["--queue=nowhere"], []),
        (["--code=UNHANDLED_ERROR"], [new, found["FAILED"]]),
        (["--status=finished", "--until=1d", "--name=shop.COMPLETED"], [found["COMPLETED"]]),
        (["--worker", Task.objects.get(pk=found["RUNNING"]).claimed_by], [found["RUNNING"]]),
        (["--queue=mail", "--partition=x"], [parked]),
        (["--since", (dt.datetime.now(dt.UTC) - 3 * DAY).isoformat(), "--limit=1"], [new]),
    ):
        assert sorted(ids(*words)) == sorted(expected), words

    assert run("list", "--name=nothing")[0] == "There are no such tasks.\n"
    assert "invalid choice: 'SLEEPING'" in refusal("list", "--status=sleeping")
    assert "did not complete have an error code" in refusal("list", "--status=running", "--code=X")
    for text in ("yesterday", "", "1x", "2030-01-31", "2030-01-31T18:00"):
        assert "argument --since" in refusal("list", f"--since={text}")

    monkeypatch.setattr(selection, "MOST_SCANNED", 1)
    # A name without tasks does not make the list read a hundred million rows.
    for more in ([], ["--status=FAILED"]):
        said = ("There are no such tasks.\n", "Only the newest 30,000 tasks were searched.\n")
        assert run("list", "--name=shop.EXPIRED", *more) == said
    assert run("list", "--name=shop.FAILED", "--limit=1")[1] == ""


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("customer_id=7", {"customer_id": 7}),
        ("customer_id=seven", {"customer_id": "seven"}),
        ('customer_id="7"', {"customer_id": "7"}),
        ('{"region":"eu","customer_id":7}', {"customer_id": 7, "region": "eu"}),
        ("customer_id=" + "x" * 300, {"customer_id": "x" * 300}),
    ],
)
def test_a_partition_is_named_by_its_arguments(text: str, arguments: dict[str, Any]) -> None:
    """Fails if: a key that is not written exactly as it is stored silently finds nothing."""
    with connection.cursor() as cursor:
        call = "SELECT horsies_partition_key('[]', false, %s, '', NULL)"
        cursor.execute(call, [json.dumps(arguments)])
        ((key,),) = cursor.fetchall()
    task = TaskFactory(queue_name="mail", partition_key=key, partition_version=1)
    TaskFactory(queue_name="mail", partition_key='{"customer_id": 8}', partition_version=1)

    found = ids("--queue=mail", f"--partition={text}")

    assert found == [task.pk]


def test_durations_are_written_as_elsewhere() -> None:
    second = dt.timedelta(seconds=1)
    hour = dt.timedelta(hours=1)

    assert [duration_option(text) for text in ("90", "90s", "1d12h", "2w")] == [
        90 * second,
        90 * second,
        36 * hour,
        14 * DAY,
    ]
    assert dt.datetime.now(dt.UTC) - ago("2h") < 2 * hour + 5 * second


def test_a_task_is_sent_with_arguments_in_their_types() -> None:
    """A task is sent with arguments in their types, and with the options of ``with_options()``.

    Fails if: the dict is passed to ``send`` as it is, and is refused because it is no Point.
    """
    sent = run("send", tasks.mirror.name, "--kwargs", '{"point": {"x": 1, "y": 2}}')[0].strip()
    drain()
    assert get_handle(sent).get(0).ok_value == {"x": 2, "y": 1}

    words = ["--queue=bulk", "--priority=3", "--delay=2h", "--good-for=1d"]
    row = Task.objects.get(pk=machine("send", tasks.noop.name, *words)["id"])

    assert (row.queue_name, row.priority) == ("bulk", 3)
    assert row.enqueued_at - row.sent_at == dt.timedelta(hours=2)
    assert row.good_until - row.sent_at == DAY


def test_a_purge_from_code_uses_transactions_of_five_hundred() -> None:
    """``purge()`` deletes the described tasks in transactions of five hundred.

    Fails if: without ``until`` all results are deleted; or in one transaction; or waiting tasks are
    cancelled.
    """
    ended = {
        "queue_name": "mail",
        "status": "FAILED",
        "error_code": "NO_ROOM",
        "finished_at": now() - DAY / 4,
    }
    TaskFactory.create_batch(501, **ended)

    others: list[dict[str, Any]] = [
        {"error_code": "OTHER"},
        {"queue_name": "bulk"},
        {"status": "CANCELLED"},
        {"finished_at": now() - 9 * DAY},
        {"partition_key": "a", "ordered": True, "order_stop": "stop"},
    ]
    left = {TaskFactory(**ended | other).pk for other in others} | {
        TaskFactory(queue_name="mail").pk
    }

    given = {
        "queue": "mail",
        "code": "NO_ROOM",
        "since": now() - DAY,
        "actor": "ada",
        "reason": "a test",
    }

    assert purge("FAILED", until=now() - DAY / 2, **given) == {}
    naive = timezone.make_naive(dt.datetime.now(dt.UTC))
    assert purge("FAILED", until=naive, **given) == {"DELETED": 501, "KEPT": 1}

    entries = AuditEntry.objects.filter(action="task.purge").order_by("pk")
    assert [json.loads(entry.after["verdicts"]) for entry in entries] == [
        {"DELETED": 500},
        {"DELETED": 1, "KEPT": 1},
    ]
    assert {(entry.actor, entry.reason) for entry in entries} == {("ada", "a test")}

    for status_ in ("PENDING", "GONE"):
        with pytest.raises(ValueError, match=f"purge applies only to tasks .*, not {status_}"):
            purge(status_, until=now(), actor="ada")

    assert set(statuses()) == left


def failures(count: int, **columns: Any) -> list[Task]:
    values = {
        "status": "FAILED",
        "error_code": "OH_NO",
        "finished_at": now() - dt.timedelta(hours=1),
        **columns,
    }
    found: list[Task] = TaskFactory.create_batch(count, **values)
    return found


@pytest.mark.parametrize(
    ("words", "counted", "done", "after"),
    [
        (
            "retry --name=shop.pay --since=12h --spread=10m",
            "1 FAILED task",
            "1 RETRIED",
            {"failed": "PENDING"},
        ),
        (
            "retry --code=OH_NO",
            "2 FAILED tasks",
            "2 RETRIED",
            dict.fromkeys(("failed", "long ago"), "PENDING"),
        ),
        ("cancel --queue=mail", "3 PENDING tasks", "3 CANCELLED", CANCELLED),
        ("cancel --terminate --worker={runs.claimed_by}", "1 RUNNING task", "1 REQUESTED", {}),
        ("redact --queue=mail --status=completed", "1 COMPLETED task", "1 REDACTED", {}),
        ("purge --queue=mail", "3 PENDING tasks", "3 CANCELLED", CANCELLED),
        (
            "purge --name=shop.pay --older-than=1d",
            "1 PENDING task",
            "1 CANCELLED",
            {"old": "CANCELLED"},
        ),
        (
            "purge --all",
            "5 PENDING tasks",
            "5 CANCELLED",
            {**CANCELLED, "old": "CANCELLED", "young": "CANCELLED"},
        ),
        (
            "purge --all --finished --older-than=7d --status=failed",
            "1 FAILED task",
            "1 DELETED",
            {"long ago": None},
        ),
        (
            "purge --all --finished --older-than=7d",
            "2 FINISHED tasks",
            "2 DELETED",
            {"long ago": None, "done": None},
        ),
    ],
)
def test_a_change_in_bulk_changes_the_matching_tasks_only(
    words: str, counted: str, done: str, after: dict[str, str | None]
) -> None:
    """A change in bulk first counts and then changes the matching tasks, under the user's name.

    Fails if: each of 1,823 tasks has to be given by its id; or a purge includes claimed tasks or
    tasks of a run.
    """
    mail = {"queue_name": "mail"}
    pay = {"queue_name": "bulk", "task_name": "shop.pay"}
    broke = {"status": "FAILED", "error_code": "OH_NO", **pay}

    made = {
        "waits": TaskFactory(**mail),
        "parked": TaskFactory(parked=True, partition_key="x", **mail),
        "later": TaskFactory(enqueued_at=now() + DAY, **mail),
        "old": TaskFactory(sent_at=now() - 2 * DAY, **pay),
        "young": TaskFactory(**pay),
        "claimed": TaskFactory(status="CLAIMED", **mail),
        "runs": TaskFactory(status="RUNNING", **mail),
        "failed": TaskFactory(finished_at=now() - DAY / 24, **broke),
        "long ago": TaskFactory(finished_at=now() - 8 * DAY, **broke),
        "done": TaskFactory(status="COMPLETED", finished_at=now() - 8 * DAY, **mail),
    }

    sent_run()
    before = statuses()
    given = [*words.format(**made).split(), "--reason=a storm"]

    assert run(*given, "--dry-run")[0].startswith(f"{counted}\n        ")
    assert statuses() == before

    assert run(*given, "--no-input")[0].endswith(f"\n{done}\n")
    expected = {**before, **{made[name].pk: status for name, status in after.items()}}
    assert statuses() == {id_: status for id_, status in expected.items() if status}

    assert {(entry.actor.partition(":")[0], entry.reason) for entry in OF_TASKS.all()} == {
        ("shell", "a storm")
    }


def test_matches_are_listed_by_name_and_code_or_as_json() -> None:
    """Matching tasks are counted by name and code, or as JSON.

    A misspelt name gets a suggestion.
    """
    failures(2, task_name="shop.pay")
    failures(1, task_name="shop.pay", error_code="NO_ROOM")
    kinds = "3 FAILED tasks\n        2  shop.pay  OH_NO\n        1  shop.pay  NO_ROOM\n"

    assert run("retry", "--name=shop.pay", "--dry-run") == (kinds, "")
    assert (
        "did you mean 'tests.apps.project.tasks.noop'"
        in run("retry", "--name=tests.apps.project.tasks.nopp")[0]
    )

    known = run("retry", f"--name={tasks.noop.name}")[0]
    assert known == "0 FAILED tasks\nNothing changed.\n", "it is known, and did not fail"

    assert machine("retry", "--code=OH_NO", "--no-input") == {
        "matched": 2,
        "more": False,
        "verdicts": {"RETRIED": 2},
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("send {}.ad", "there is no task named 'tests.apps.project.tasks.ad'; did you mean"),
        ("send {}.add --kwargs {{", "--kwargs must be JSON"),
        ("send {}.add --kwargs " + "[" * 100_000, "--kwargs must be JSON"),
        ("send {}.add --kwargs [1]", "--kwargs must be a JSON object"),
        ('send {}.add --kwargs {{"a":"x"}}', "expected int"),
        ('send {}.add --kwargs {{"a":1}} --queue=nowhere', "queue 'nowhere' is not declared"),
        ("retry", "give either the id of a task, or options"),
        (f"retry {uuid.UUID(int=7)} --queue=mail", "give either the id of a task, or options"),
        ("retry --status=completed", "invalid choice"),
        ("retry --worker=web-1", "is not the id of a worker"),
        ("cancel --code=OH_NO", "unrecognized arguments"),
        ("cancel --status=failed", "invalid choice"),
        ("purge", "give options such as --queue or --name, or --all"),
        ("purge --all --queue=mail", "give options such as --queue or --name, or --all"),
        ("purge --all --finished", "--older-than"),
        ("purge --all --status=FAILED", "--status requires --finished"),
        ("purge --all --older-than=soon", "is not a duration"),
        ("purge --all --older-than=150000w", "no datetime is that long ago"),
        ("purge --partition=x", "pass the queue, too"),
        ("redact --queue=mail --reason=asked", "redact requires --status"),
    ],
)
def test_what_cannot_be_or_could_be_meant_otherwise_is_refused(words: str, problem: str) -> None:
    failures(1)
    TaskFactory()
    yes = [] if words.startswith("send") else ["--no-input"]

    assert problem in refusal(*words.format("tests.apps.project.tasks").split(), *yes)
    assert sorted(statuses().values()) == ["FAILED", "PENDING"]


class Terminal(io.StringIO):
    """The input of a person at a terminal, who answers."""

    def isatty(self) -> bool:
        return True


def test_a_purge_requires_a_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A purge requires a confirmation at a terminal, and ``--no-input`` where there is none."""
    id_ = TaskFactory().pk

    for stdin, said in [
        (Terminal("\n"), "horsies_task: nothing was changed"),
        (Terminal("no\n"), "horsies_task: nothing was changed"),
        (io.StringIO("y\n"), "Add --no-input"),
    ]:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert said in refusal("purge", "--all")
        assert statuses() == {id_: "PENDING"}

    assert run("purge", "--queue=nowhere")[0] == "0 PENDING tasks\nNothing changed.\n"

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    run("purge", "--all")
    assert statuses() == {id_: "CANCELLED"}
