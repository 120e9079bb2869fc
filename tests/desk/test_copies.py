"""Copies made by "Run again" and their originals know one another, and a second copy is made only by somebody who wants it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from horsies_django import get_handle
from horsies_django.core.errors import TaskCopied
from horsies_django.models import Task
from horsies_django.tasks import operations
from tests.conftest import wait_until
from tests.desk.test_operations import LIST, OF_TASKS, operator, shell
from tests.support.factories import TaskFactory
from tests.support.workers import ROOT, database_url

pytestmark = pytest.mark.django_db


def failed(count: int = 1) -> list[uuid.UUID]:
    return [TaskFactory(status="FAILED").pk for _ in range(count)]


def page(id_: uuid.UUID) -> str:
    return reverse("admin:horsies_task_change", args=(id_,))


def act(client: Client, ids: list[uuid.UUID], **answer: Any) -> Any:
    data = {"action": "retry_tasks", "_selected_action": [str(id_) for id_ in ids], **answer}
    return client.post(LIST, data, follow=True)


def as_asked(html: str) -> dict[str, list[str]]:
    """Return the hidden fields of the page that asks, as the browser sends them with either button."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html):
        found.setdefault(name, []).append(value)
    return found


def copies_of(id_: uuid.UUID) -> list[uuid.UUID]:
    return list(Task.objects.filter(copy_of=id_).order_by("-pk").values_list("pk", flat=True))


def test_a_copy_and_its_original_are_linked_both_ways() -> None:
    client = operator("view_task", "operate_task")
    (id_,) = failed()
    plain = client.get(page(id_)).content.decode()
    for label in ("Copy of", "Run again as"):
        assert label not in plain
    act(client, [id_])
    (copy,) = copies_of(id_)
    assert get_handle(copy).info().copy_of == id_
    original = client.get(page(id_)).content.decode()
    assert "Run again as" in original
    assert f'<a href="{page(copy)}">{copy}</a>' in original
    assert "horsies-pending" in original
    shown = client.get(page(copy)).content.decode()
    assert "Copy of" in shown
    assert f'<a href="{page(id_)}">{id_}</a>' in shown
    assert "Run again as" not in shown
    Task.objects.filter(pk=id_)._raw_delete("default")
    shown = client.get(page(copy)).content.decode()
    assert f"{id_} (deleted)" in shown
    assert f'href="{page(id_)}"' not in shown


def test_a_second_copy_is_made_only_after_a_question_that_names_the_first() -> None:
    client = operator("view_task", "operate_task")
    again, fresh, other = failed(3)
    act(client, [again])
    (first,) = copies_of(again)
    response = act(client, [again, fresh, other])
    html = response.content.decode()
    assert "1 of the selected tasks has already been run again." in html
    assert f'<a href="{page(first)}">{first}</a>' in html
    assert (copies_of(again), copies_of(fresh)) == ([first], []), "nothing was sent before the answer"
    fields = as_asked(html)
    assert (fields["asked"], len(fields["_selected_action"])) == ([str(again)], 3)

    assert "2 tasks will run again." in client.post(LIST, {**fields, "again_others": "x"}, follow=True).content.decode()
    assert [len(copies_of(id_)) for id_ in (again, fresh, other)] == [1, 1, 1]

    fields = as_asked(act(client, [again]).content.decode())
    assert "1 task will run again." in client.post(LIST, {**fields, "again_all": "x"}, follow=True).content.decode()
    assert len(copies_of(again)) == 2
    html = client.get(page(again)).content.decode()
    assert html.index(str(copies_of(again)[0])) < html.index(str(first)), "the newest copy stands first"
    html = act(client, [again]).content.decode()
    assert "and 1 earlier" in html
    assert "Run only" not in html, "there are no others"


def test_an_answer_counts_for_the_tasks_that_were_asked_about_only() -> None:
    client = operator("view_task", "operate_task")
    asked, meanwhile = failed(2)
    operations.retry(asked, actor="ada")
    fields = as_asked(act(client, [asked, meanwhile]).content.decode())
    copy = operations.retry(meanwhile, actor="somebody else")
    html = client.post(LIST, {**fields, "again_all": "x"}, follow=True).content.decode()
    assert f"has already been run again: {copy} is PENDING" in html
    assert (len(copies_of(asked)), copies_of(meanwhile)) == (2, [copy])


def test_code_is_told_of_the_copy_and_the_audit_of_both() -> None:
    (id_,) = failed()
    first = operations.retry(id_, actor="ada")
    with pytest.raises(TaskCopied, match=f"{first} is PENDING") as told:
        operations.retry(id_, actor="ben")
    assert told.value.copy == first
    second = operations.retry(id_, actor="ben", again=True)
    assert list(OF_TASKS.order_by("pk").values_list("actor", "after")) == [
        ("ada", {"new": str(first)}), ("ben", {"new": str(second)}),
    ]  # fmt: skip


def test_the_shell_names_the_copies_and_refuses_another_one_unless_it_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - as for a service: nobody can answer
    (id_,) = failed()
    first = shell("retry", id_).strip().rpartition(" ")[2]
    with pytest.raises(CommandError, match=f"{first} is PENDING; add --again to send another copy"):
        shell("retry", id_)
    second = shell("retry", id_, "--again").strip().rpartition(" ")[2]
    assert json.loads(shell("show", id_, "--json"))["copies"] == [second, first]
    assert f"run again as  {second}\nrun again as  {first}" in shell("show", id_)
    assert f"copy_of       {id_}" in shell("show", first)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("answer", "copies", "code"), [("y", 2, 0), ("n", 1, 1), ("", 1, 1)])
def test_somebody_at_a_terminal_is_asked(answer: str, copies: int, code: int) -> None:
    (id_,) = failed()
    first = operations.retry(id_, actor="ada")
    ours, theirs = os.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "django", "horsies_task", "retry", str(id_)],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()},
        stdin=theirs, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert f"{first} is PENDING. Send another copy? [y/N]" in done.stdout
    assert (done.returncode, len(copies_of(id_))) == (code, copies), done.stderr


@pytest.mark.django_db(transaction=True)
def test_two_who_run_a_task_again_at_the_same_time_make_one_copy(
    connect: Callable[[], psycopg.Connection[Any]],
) -> None:
    (id_,) = failed()
    looker, told = connect(), []

    def second() -> None:
        try:
            operations.retry(id_, actor="ben")
        except TaskCopied as error:
            told.append(error.copy)
        finally:
            connection.close()

    with transaction.atomic():
        first = operations.retry(id_, actor="ada")
        thread = threading.Thread(target=second)
        thread.start()
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: looker.execute(waits).fetchall(), "the second one waits for the first")
    thread.join(30)
    assert (copies_of(id_), told) == ([first], [first])


def test_many_copies_are_not_all_listed() -> None:
    client = operator("view_task", "operate_task")
    (id_,) = failed()
    for _ in range(23):
        operations.retry(id_, actor="ada", again=True)
    html = client.get(page(id_)).content.decode()
    assert html.count("/admin/horsies/task/") >= 20
    assert "and 3 earlier" in html
