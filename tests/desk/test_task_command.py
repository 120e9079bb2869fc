"""``manage.py horsies_task list|send|purge``: what it prints, what it changes, and what it refuses or leaves."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from horsies_django import Workflow, get_handle
from horsies_django.management.quantities import ago, duration
from horsies_django.models import AuditEntry, Task, TaskAttempt, TaskStep
from horsies_django.monitoring import overview as listing
from horsies_django.tasks import purging
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, now

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)
POINT = {"x": 1, "y": 2}


def run(*words: Any) -> tuple[str, str]:
    """Run the command here and return what it printed on both streams."""
    out, err = io.StringIO(), io.StringIO()
    call_command("horsies_task", *map(str, words), stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def machine(*words: Any) -> Any:
    return json.loads(run(*words, "--json")[0])


def refusal(*words: Any) -> str:
    with pytest.raises(CommandError) as caught:
        run(*words)
    return str(caught.value)


def ids(*words: Any) -> list[uuid.UUID]:
    return [uuid.UUID(one["id"]) for one in machine("list", *words)]


def statuses() -> dict[uuid.UUID, str]:
    return dict(Task.objects.values_list("pk", "status"))


# list


def test_the_list_shows_the_newest_tasks_first_and_no_more_than_asked_for() -> None:
    first, second, third = (TaskFactory(task_name=f"shop.{n}", queue_name="mail").pk for n in range(3))
    assert ids() == [third, second, first]
    assert ids("--limit=2") == [third, second]
    heading, newest, *rest = run("list")[0].splitlines()
    assert heading.split() == ["ID", "NAME", "QUEUE", "STATUS", "SENT", "STARTED", "FINISHED", "ERROR"]
    assert newest.split()[:4] == [str(third), "shop.2", "mail", "PENDING"]
    assert len(rest) == 2
    (one,) = machine("list", "--limit=1")
    assert (one["task_name"], one["finished_at"], one["error_code"]) == ("shop.2", None, None)


def test_the_list_is_narrowed_by_status_queue_name_and_time() -> None:
    long_ago = now() - 2 * DAY
    found = {
        status: TaskFactory(status=status, task_name=f"shop.{status}", queue_name=queue, sent_at=long_ago).pk
        for status, queue in [(status, "mail") for status in ("PENDING", "CLAIMED", "RUNNING", *FINISHED)]
    }
    new = TaskFactory(status="FAILED", task_name="shop.FAILED", queue_name="bulk").pk
    parked = TaskFactory(parked=True, partition_key="x", sent_at=long_ago).pk
    for status, id_ in found.items():
        assert id_ in ids(f"--status={status.lower()}")
    assert ids("--status=PENDING") == [parked, found["PENDING"]]
    assert set(ids("--status=FAILED")) == {new, found["FAILED"]}
    assert ids("--status=FAILED", "--queue=mail") == [found["FAILED"]]
    assert ids("--status=FAILED", "--since=1d") == [new]
    assert ids("--name=shop.FAILED", "--queue=bulk") == [new]
    assert ids("--name=shop.EXPIRED") == [found["EXPIRED"]]
    assert ids("--since=1h") == [new]
    assert len(ids("--since", (dt.datetime.now(dt.UTC) - 3 * DAY).isoformat())) == 9
    assert ids("--queue=nowhere") == []
    assert run("list", "--name=nothing")[0] == "There are no such tasks.\n"
    assert "invalid choice: 'SLEEPING'" in refusal("list", "--status=sleeping")


@pytest.mark.parametrize("status", [None, "FAILED"])
def test_a_search_without_an_index_looks_no_farther_back_than_it_says(
    monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    """Naive: looking for a name that is not there reads a hundred million rows."""
    monkeypatch.setattr(listing, "DEEPEST", 2)
    wanted = ["list", "--name=old", *([f"--status={status}"] if status else [])]
    for name in ("old", "new", "new"):
        TaskFactory(status="FAILED", task_name=name)
    out, err = run(*wanted)
    assert out == "There are no such tasks.\n"
    assert err == "Only the newest 100,000 tasks were searched.\n"
    assert run("list", "--name=new", "--limit=2")[1] == ""
    monkeypatch.setattr(listing, "DEEPEST", 3)
    out, err = run(*wanted)
    assert " old " in out
    assert err == ""


@pytest.mark.parametrize("text", ["yesterday", "", "1x", "2030-01-31", "2030-01-31T18:00"])
def test_a_time_that_is_none_is_refused_in_words(text: str) -> None:
    assert "argument --since" in refusal("list", f"--since={text}")


def test_durations_are_written_as_elsewhere() -> None:
    assert [duration(text) for text in ("90", "90s", "1d12h", "2w")] == [
        dt.timedelta(seconds=90), dt.timedelta(seconds=90), dt.timedelta(hours=36), dt.timedelta(days=14),
    ]  # fmt: skip
    assert dt.datetime.now(dt.UTC) - ago("2h") < dt.timedelta(hours=2, seconds=5)


# send


def test_a_task_is_sent_with_arguments_in_json_and_its_id_is_printed() -> None:
    out, _err = run("send", "tests.apps.project.tasks.add", "--kwargs", '{"a": 4, "b": 5}')
    handle = get_handle(out.strip())
    drain()
    assert handle.get(0).ok_value == 9
    assert machine("send", "tests.apps.project.tasks.noop").keys() == {"id"}


def test_arguments_are_decoded_by_the_types_of_the_task() -> None:
    """Naive: the dict goes to ``send`` as it is, and is refused because it is no Point."""
    out, _err = run("send", "tests.apps.project.tasks.mirror", "--kwargs", json.dumps({"point": POINT}))
    drain()
    assert get_handle(out.strip()).get(0).ok_value == {"x": 2, "y": 1}


def test_the_options_of_a_send_are_those_of_with_options() -> None:
    out, _err = run(
        "send", "tests.apps.project.tasks.noop", "--queue=bulk", "--priority=3", "--delay=2h", "--good-for=1d"
    )
    row = Task.objects.get(pk=out.strip())
    assert (row.queue_name, row.priority) == ("bulk", 3)
    assert row.enqueued_at - row.sent_at == dt.timedelta(hours=2)
    assert row.good_until - row.sent_at == DAY


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tests.apps.project.tasks.ad"], "there is no task named 'tests.apps.project.tasks.ad'; did you mean"),
        (["tests.apps.project.tasks.add", "--kwargs", "{"], "--kwargs must be JSON"),
        (["tests.apps.project.tasks.add", "--kwargs", "[1]"], "--kwargs must be a JSON object"),
        (["tests.apps.project.tasks.add"], "without the required argument 'a'"),
        (["tests.apps.project.tasks.add", "--kwargs", '{"a": "x"}'], "expected int"),
        (["tests.apps.project.tasks.add", "--kwargs", '{"a": 1, "c": 2}'], "1 argument that it does not take"),
        (
            ["tests.apps.project.tasks.add", "--kwargs", '{"a": 1}', "--queue=nowhere"],
            "queue 'nowhere' is not declared",
        ),
        (["tests.apps.project.tasks.add", "--kwargs", '{"a": 1}', "--priority=0"], "priority must be an int from 1"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words_and_nothing_is_written(words: list[str], problem: str) -> None:
    assert problem in refusal("send", *words)
    assert not Task.objects.exists()


# purge


def test_a_purge_cancels_the_waiting_tasks_of_a_queue_and_nothing_else() -> None:
    """Naive: it deletes rows of tasks that run, or cancels tasks that a worker has claimed meanwhile."""
    waiting = {TaskFactory(queue_name="mail").pk for _ in range(3)}
    waiting |= {TaskFactory(queue_name="mail", parked=True, partition_key="x").pk}
    waiting |= {TaskFactory(queue_name="mail", enqueued_at=now() + DAY).pk}
    others = {TaskFactory(queue_name="bulk").pk: "PENDING"}
    others |= {TaskFactory(queue_name="mail", status=status).pk: status for status in ("CLAIMED", "RUNNING", *FINISHED)}
    out, err = run("purge", "--queue=mail", "--no-input", "--reason=a storm")
    assert out == "5 of 5 waiting tasks in the queue 'mail' cancelled.\n"
    assert err == ""
    assert statuses() == {**others, **dict.fromkeys(waiting, "CANCELLED")}
    (entry,) = AuditEntry.objects.filter(action="task.purge")
    assert (entry.subject, entry.reason, entry.after["cancelled"]) == ("mail", "a storm", "5")
    assert entry.actor.startswith("shell:")
    for id_ in waiting:
        assert get_handle(id_).get(0).err_value.error_code == "TASK_CANCELLED"


def test_a_purge_is_narrowed_by_name_and_age() -> None:
    old = TaskFactory(task_name="shop.a", sent_at=now() - 2 * DAY).pk
    young = TaskFactory(task_name="shop.a").pk
    other = TaskFactory(task_name="shop.b", sent_at=now() - 2 * DAY).pk
    assert machine("purge", "--name=shop.a", "--older-than=1d", "--no-input") == {
        "matched": 1, "cancelled": 1, "in_workflows": 0,
    }  # fmt: skip
    assert statuses() == {old: "CANCELLED", young: "PENDING", other: "PENDING"}
    assert run("purge", "--all", "--no-input")[0] == "2 of 2 waiting tasks cancelled.\n"
    (last, first) = AuditEntry.objects.filter(action="task.purge").order_by("-pk")
    assert (first.subject, first.after["name"], last.subject) == ("*", "shop.a", "*")


def test_tasks_of_a_run_are_left_and_the_command_says_so() -> None:
    """Naive: the task is cancelled beside its run, or deleted, and the run waits for it for ever."""
    flow = Workflow("book")
    flow.add(flows.plus, flow.add(flows.number, 1))
    handle = flow.send()
    alone = tasks.noop.send()
    out, err = run("purge", "--all", "--no-input")
    assert out == "1 of 1 waiting task cancelled.\n"
    assert err.startswith("1 more belong to workflow runs and are left")
    assert get_handle(alone.task_id).info().status == "CANCELLED"
    drain()
    assert handle.status() == "COMPLETED"
    Task.objects.filter(workflow_id=None)._raw_delete("default")
    assert machine("purge", "--all", "--finished", "--older-than=0", "--no-input") == {
        "matched": 0, "deleted": 0, "in_workflows": 2,
    }  # fmt: skip
    assert Task.objects.count() == 2


def test_finished_tasks_are_deleted_with_attempts_and_steps_as_far_as_they_are_old_enough_and_of_the_status() -> None:
    old = {status: TaskFactory(status=status, finished_at=now() - 8 * DAY).pk for status in FINISHED}
    young = TaskFactory(status="FAILED", finished_at=now() - 6 * DAY).pk
    waits = TaskFactory(sent_at=now() - 8 * DAY).pk
    for id_ in (*old.values(), young):
        TaskAttemptFactory(task_id=id_)
        TaskStep.objects.bulk_create([TaskStep(task_id=id_, name="one", digest="x", result=1)])
    wanted = ["purge", "--all", "--finished", "--older-than=7d", "--no-input"]
    assert run(*wanted, "--status=failed")[0] == "1 of 1 failed task deleted.\n"
    assert old["FAILED"] not in statuses()
    assert run(*wanted)[0] == "3 of 3 finished tasks deleted.\n"
    assert set(statuses()) == {young, waits}
    assert list(TaskAttempt.objects.values_list("task_id", flat=True)) == [young]
    assert list(TaskStep.objects.values_list("task_id", flat=True)) == [young]
    assert [entry.after["deleted"] for entry in AuditEntry.objects.filter(action="task.delete").order_by("pk")] == [
        "1",
        "3",
    ]


def test_a_dry_run_changes_nothing_and_says_what_would_be_changed() -> None:
    TaskFactory.create_batch(2)
    assert run("purge", "--all", "--dry-run")[0] == "This would cancel 2 waiting tasks.\n"
    assert set(statuses().values()) == {"PENDING"}
    assert not AuditEntry.objects.filter(action="task.purge").exists()


class Terminal(io.StringIO):
    """Somebody at a terminal, who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "status"), [("y\n", "CANCELLED"), ("\n", "PENDING"), ("no\n", "PENDING")])
def test_it_asks_before_it_purges(monkeypatch: pytest.MonkeyPatch, answer: str, status: str) -> None:
    id_ = TaskFactory().pk
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if status == "PENDING":
        assert refusal("purge", "--all") == "horsies_task: nothing was changed"
    else:
        run("purge", "--all")
    assert statuses() == {id_: status}


def test_without_anybody_to_ask_it_purges_only_with_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    TaskFactory()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "add --no-input" in refusal("purge", "--all")
    assert set(statuses().values()) == {"PENDING"}
    assert run("purge", "--queue=nowhere")[0] == "0 of 0 waiting tasks in the queue 'nowhere' cancelled.\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "give --queue, --name or both, or else --all"),
        (["--older-than=1d"], "give --queue, --name or both, or else --all"),
        (["--all", "--queue=mail"], "give --queue, --name or both, or else --all"),
        (["--all", "--finished"], "--older-than"),
        (["--all", "--status=FAILED"], "--status is for --finished"),
        (["--all", "--status=RUNNING"], "invalid choice"),
        (["--all", "--older-than=soon"], "is not a duration"),
    ],
)
def test_a_purge_that_could_be_meant_otherwise_is_refused(words: list[str], problem: str) -> None:
    TaskFactory()
    assert problem in refusal("purge", *words, "--no-input")
    assert set(statuses().values()) == {"PENDING"}


def test_a_purge_of_more_than_a_page_takes_all_in_batches_each_with_its_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "PAGE", 50)
    monkeypatch.setattr(purging, "BATCH", 20)
    TaskFactory.create_batch(130)
    chosen = purging.selection()
    late = TaskFactory(sent_at=now() + dt.timedelta(seconds=5)).pk
    assert purging.matched(chosen) == (130, 0)
    assert purging.purge(chosen, actor="ada") == 130
    assert Task.objects.filter(status="PENDING").get().pk == late
    counts = [int(entry.after["cancelled"]) for entry in AuditEntry.objects.filter(action="task.purge")]
    assert sum(counts) == 130
    assert max(counts) <= 20


def test_a_purge_in_a_transaction_is_undone_with_it() -> None:
    id_ = TaskFactory().pk
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        purging.purge(purging.selection(), actor="ada")
        assert statuses() == {id_: "CANCELLED"}
        raise ZeroDivisionError
    assert statuses() == {id_: "PENDING"}
